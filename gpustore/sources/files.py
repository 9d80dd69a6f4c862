"""Files of other formats as sources: :func:`open_file`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.errors import CopyError, PathNotFoundError, StoreIOError
from gpustore.sources.base import FileFormat, Region, Source, region_shape

_BEGIN_NBYTES: Final = 2056
"""Bytes of a file by which its format is recognised."""


_WILD: Final = re.compile(r"[*?[]")


def open_file(place: str) -> Source | None:
    """Open a local file of a format in ``gpustore/sources``, or many as a stack.

    Parameters
    ----------
    place : str
        Path or ``file://`` URL; behind ``::`` the part of the file. A path with ``*``, ``?`` or
        ``[...]`` that is no file names many, which are stacked along a new first dimension in the
        order of their names, numbers in them by value.

    Returns
    -------
    Source or None
        None if there is no such file, or it has another format.

    Raises
    ------
    CopyError, NotFoundError, UnsupportedError
        If a file is not there or has no such part, its elements have no copy, or files of a stack
        differ.
    ModuleNotFoundError
        If the library that reads the format is not installed.
    StoreIOError
        If a file cannot be read.
    """
    plain = unquote(place[7:]) if place.startswith("file://") else place
    path, mark, part = plain.partition("::")
    if "://" in path:
        return None
    whole = Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises without a home
    try:
        is_file = whole.is_file()
        paths = [] if is_file else _matching(whole)
    except OSError as error:
        raise _unreadable(whole, error) from error
    if is_file:
        return _open(whole, part if mark else None)
    if not paths:
        if mark and not os.path.lexists(place):
            what = "is no file" if whole.exists() else "does not exist"
            raise PathNotFoundError(f"{path} {what}", key=path)
        return None
    return _stack(sorted(paths, key=_by_numbers), part if mark else None)


def _matching(path: Path) -> list[Path]:
    """Return the files that a path with ``*``, ``?`` or ``[...]`` names."""
    there = next((one for one in (path, *path.parents) if one.exists()), path)
    pattern = str(path.relative_to(there))
    if not _WILD.search(pattern):
        return []
    try:
        return [one for one in there.glob(pattern) if one.is_file()]
    except ValueError as error:
        raise CopyError(f"{path} is no file, and no pattern: {error}") from error


def _open(file: Path, part: str | None) -> Source | None:
    try:
        with file.open("rb") as opened:
            begin = opened.read(_BEGIN_NBYTES)
    except OSError as error:
        raise _unreadable(file, error) from error
    for name in registry.ids("sources"):
        format_: FileFormat = registry.find("sources", name)
        if format_.matches(begin):
            return replace(
                format_.open(str(file), part),
                identity=_identity(file, part),
                places=(_place(file),),
            )
    return None


def _unreadable(path: Path, error: OSError) -> StoreIOError:
    return StoreIOError(f"{path} cannot be read: {error.strerror or error}", errno=error.errno)


def _identity(file: Path, part: str | None) -> list[Any]:
    """Return what tells a file from others, and from itself after a change."""
    state = file.stat()
    return [str(file.resolve()), part, state.st_size, state.st_mtime_ns]


def _place(file: Path) -> dict[str, Any]:
    """Return the JSON of the kvstore with a file."""
    return {"driver": "file", "path": str(file.resolve())}


def _by_numbers(path: Path) -> list[tuple[bool, int, str]]:
    """Return the key that sorts ``z2`` before ``z10``."""
    words = re.split(r"(\d+)", str(path))
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def _stack(paths: list[Path], part: str | None) -> Source | None:
    """Return files as one array; each is opened where a region has it."""
    first = _open(paths[0], part)
    if first is None:
        return None
    first.close()

    def read(region: Region) -> NDArray[Any]:
        found = np.empty(region_shape(region), first.dtype)
        for number in range(region[0].start, region[0].stop):
            one = _open(paths[number], part)
            if one is None or (one.shape, one.dtype) != (first.shape, first.dtype):
                raise CopyError(f"{paths[number]} is no {first.dtype} array of {first.shape}")
            try:
                found[number - region[0].start] = one.read(region[1:])
            finally:
                one.close()
        return found

    return replace(
        first,
        shape=(len(paths), *first.shape),
        read=read,
        chunks=(1, *(first.shape if first.chunks is None else first.chunks)),
        is_slow=True,
        dims=None if first.dims is None else ("", *first.dims),
        units=None if first.units is None else (None, *first.units),
        identity=[_identity(path, part) for path in paths],
        places=tuple(_place(path) for path in paths),
        close=lambda: None,
    )
