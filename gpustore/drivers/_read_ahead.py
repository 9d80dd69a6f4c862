"""Reading metadata of many arrays together that are opened before one of them is waited for.

Each opening that only reads waits until its result is asked for. The thread that asks for one reads
the documents of all that wait by then, in one call of the native core; what is not plain there,
each opening reads by itself.
"""

from __future__ import annotations

import time
import weakref
from typing import Final, Protocol

from gpustore.backends.native.short_files import read_short_files
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers.base import FoundMetadata
from gpustore.errors import GpustoreError
from gpustore.runtime.executor import Executor

TOGETHER: Final = 256
"""Most documents that are read together."""

MOST_WAITING: Final = 16 * TOGETHER
"""Most openings that are remembered; the oldest ones then read by themselves."""


class Waiting(Protocol):
    """An opening whose metadata have not been read."""

    executor: Executor
    file: MetadataFile
    found: FoundMetadata | None


_waiting: list[weakref.ref[Waiting]] = []
"""Weak, as an opening whose Future nobody keeps need not be read."""


def wait(opening: Waiting) -> None:
    """Let others read the metadata of an opening."""
    if len(_waiting) >= MOST_WAITING:
        del _waiting[:TOGETHER]
    _waiting.append(weakref.ref(opening))


def read_ahead(opening: Waiting) -> None:
    """Read the metadata of all that wait, if `opening` is not the only one; sets ``found`` of each
    whose metadata are plain.
    """
    taken = _waiting[:TOGETHER]
    del _waiting[: len(taken)]
    if len(taken) < 2:
        return
    openings: list[Waiting] = []
    names = []
    for one in (opening, *(ref() for ref in taken)):
        if one is None or one.found is not None or (one is opening and openings):
            continue
        name = _name(one.file)
        if name is not None:
            openings.append(one)
            names.append(name)
    limit, threads = opening.file.limits.metadata_nbytes, opening.executor.limit
    read_at = time.time()
    for one, value in zip(openings, read_short_files(names, limit, threads)):
        if isinstance(value, bytes):
            one.found = FoundMetadata(value, read_at)


def _name(file: MetadataFile) -> bytes | None:
    """Return the path of a metadata document that may be read with others."""
    try:
        return file.store.plain_file(file.key)
    except GpustoreError:
        return None  # The opening itself tells why.
