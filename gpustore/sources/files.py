"""Files of other formats as sources: :func:`open_file`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from gpustore import registry
from gpustore.sources.base import FileFormat, Source

_BEGIN_NBYTES: Final = 2056
"""Bytes of a file by which its format is recognised."""


def open_file(place: str) -> Source | None:
    """Open a local file of a format in ``gpustore/sources``.

    Parameters
    ----------
    place : str
        Path or ``file://`` URL; behind ``::`` the part of the file.

    Returns
    -------
    Source or None
        None if there is no such file, or it has another format.

    Raises
    ------
    CopyError, NotFoundError, UnsupportedError
        If the file has no such part, or its elements have no copy.
    ModuleNotFoundError
        If the library that reads the format is not installed.
    StoreIOError
        If the file cannot be read.
    """
    plain = unquote(place[7:]) if place.startswith("file://") else place
    path, mark, part = plain.partition("::")
    file = Path(path).expanduser()
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        begin = opened.read(_BEGIN_NBYTES)
    for name in registry.ids("sources"):
        format_: FileFormat = registry.find("sources", name)
        if format_.matches(begin):
            state, whole = file.stat(), str(file.resolve())
            return replace(
                format_.open(str(file), part if mark else None),
                identity=[whole, part, state.st_size, state.st_mtime_ns],
                place={"driver": "file", "path": whole},
            )
    return None
