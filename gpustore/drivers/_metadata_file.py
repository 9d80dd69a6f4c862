"""The file that holds the metadata of an array: read, remembered, replaced.

A cache keeps parsed metadata and the described arrays of recent documents, because programs open
the same arrays repeatedly and checking takes time.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpustore.drivers.format import ArrayDescription, Format
from gpustore.errors import GpustoreError
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.metadata.node import Node
from gpustore.runtime.cache import Cache, Entry, Space
from gpustore.runtime.limits import Limits

_REMEMBERED_NBYTES = 16 << 10
"""Longest document whose parsed form is cached, in bytes."""


@lru_cache(maxsize=64)
def _remembered(decode: Callable[..., Any], data: bytes, limits: Limits) -> Any:
    """The metadata in `data`."""
    return decode(data, where="", limits=limits)


class _Same:
    """One metadata object, which is not kept alive: it may be large, and slow to compare."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, metadata: Any) -> None:
        self._ref = weakref.ref(metadata)
        self._hash = id(metadata)

    def __call__(self) -> Any:
        return self._ref()

    def __eq__(self, other: object) -> bool:
        metadata = self._ref()
        return isinstance(other, _Same) and metadata is not None and metadata is other()

    def __hash__(self) -> int:
        return self._hash


def described(format_: Any, metadata: Any, limits: Limits) -> ArrayDescription:
    """Return the array that `metadata` describe, from a cache of recent ones."""
    return _described(format_, _Same(metadata), limits)


@lru_cache(maxsize=64)
def _described(format_: Any, metadata: _Same, limits: Limits) -> ArrayDescription:
    description: ArrayDescription = format_.describe(metadata(), limits=limits)
    return description


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """The stored metadata document of an array, and its format."""

    format: Format
    store: KvStoreDriver
    key: str
    limits: Limits
    constraints: Any
    cache: Cache | None

    @property
    def name(self) -> str:
        """Name of the document for messages."""
        return self.store.describe(self.key)

    def load(self, bound: float = math.inf) -> tuple[Any, bytes]:
        """Return the metadata (None if there are none) and their generation.

        Parameters
        ----------
        bound : float
            Time in seconds since the epoch; metadata cached at this time or later are accepted.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError, StoreIOError
            The error names the file.
        """
        if self.cache is None:
            data, generation = self._read()
        else:
            now = time.time()
            space = Space(self.store.identity, "metadata")
            [(entry, stamp)] = self.cache.find(space, [self.key], [None])
            if entry is not None and entry.read_at >= bound:
                data, generation = entry.value, entry.generation
            else:
                data, generation = self._read()
                if data is not None:
                    entry = Entry(data, len(data), generation, now)
                    self.cache.put(space, self.key, None, entry, stamp)
        if data is None:
            return None, generation
        return self._metadata(data, self.name), generation

    def of_node(self, node: Node) -> Any:
        """Return the metadata of a node that a hierarchy has read; raises the errors of
        :meth:`load`.
        """
        return self._metadata(node.encoded(), node.described)

    def of_value(self, data: bytes) -> Any:
        """Return the metadata in a document that was read before; raises the errors of
        :meth:`load`.
        """
        return self._metadata(data, self.name)

    def _metadata(self, data: bytes, where: str) -> Any:
        with self.blamed():
            return self.format.completed(self.constraints, self._decoded(data, where))

    def _read(self) -> tuple[bytes | None, bytes]:
        columns = self.store.read_many(
            ReadRequest([self.key], max_nbytes=self.limits.metadata_nbytes)
        )
        columns.raise_first()
        data = columns.value[0]
        return None if data is None else bytes(data), columns.generation[0]

    def _decoded(self, data: bytes, where: str) -> Any:
        if len(data) <= _REMEMBERED_NBYTES:
            # What is wrong is raised by decoding once more, which names this file.
            with contextlib.suppress(GpustoreError):
                return _remembered(self.format.decode, data, self.limits)
        return self.format.decode(data, where=where, limits=self.limits)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Attach the key to errors about the contents of the document."""
        try:
            yield
        except GpustoreError as error:
            error.key = self.key
            raise

    def save(self, metadata: Any, generation: bytes) -> bool:
        """Replace the metadata if their generation is still `generation`; return whether it was."""
        try:
            columns = self.store.write_many(
                WriteRequest([self.key], [metadata.encode()], [generation])
            )
        finally:
            if self.cache is not None:
                self.cache.forget(Space(self.store.identity, "metadata"), [self.key])
        columns.raise_first()
        return bool(columns.generation[0])
