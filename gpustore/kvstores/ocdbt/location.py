"""Places of the parts of an OCDBT database: data files, and byte ranges in them.

A structure begins with a table of the data files it refers to. A path in it has two parts: the
base path, which also precedes the paths in the table of a node that is reached through it, and
the rest. Paths are relative to the root of the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpustore.errors import LimitError
from gpustore.kvstores.ocdbt.columns import UINT64_MAX, Reader, encode_varint
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    from gpustore.errors import CorruptChunkError
    from gpustore.kvstores.ocdbt.columns import Int64s, UInt64s


MAX_OFFSET: Final = 2**63 - 1
MAX_PATH_NBYTES: Final = 65535
# Memory of a data file in a table, besides its path.
_FILE_NBYTES: Final = 200


class DataFile(NamedTuple):
    """The name of a data file.

    Attributes
    ----------
    base, relative : bytes
        The two parts of the path. Both are empty where a reference needs no file.
    """

    base: bytes
    relative: bytes

    @property
    def path(self) -> str:
        """Key of the file, relative to the root of the database."""
        return (self.base + self.relative).decode("utf-8", "surrogateescape")


class Location(NamedTuple):
    """A range of a data file.

    Attributes
    ----------
    file : DataFile
    offset, nbytes : int
    """

    file: DataFile
    offset: int
    nbytes: int

    def moved(self, prefix: bytes) -> Location:
        """Return the place as a database sees it whose root is above by `prefix`.

        Raises
        ------
        LimitError
            If the path of the file would be too long.
        """
        base, relative = self.file
        nbytes = len(prefix) + len(base) + len(relative)
        if nbytes > MAX_PATH_NBYTES:
            raise LimitError(f"path of {nbytes} bytes exceeds the maximum of {MAX_PATH_NBYTES}")
        return self._replace(file=DataFile(prefix + base, relative))


ABSENT_ROOT: Final = Location(DataFile(b"", b""), UINT64_MAX, UINT64_MAX)
"""Root location of a tree without keys."""


def is_safe(path: bytes) -> bool:
    """Return whether a path stays below the root of the database."""
    if not path or b"\0" in path or b"\\" in path:
        return not path
    parts = path.split(b"/")
    return not {b"", b".", b".."}.intersection(parts)


def read_files(reader: Reader, transitive: bytes, *, max_nbytes: int) -> tuple[DataFile, ...]:
    """Read a table of data files.

    Parameters
    ----------
    reader : Reader
    transitive : bytes
        Base path of the data file with this table.
    max_nbytes : int
        Largest memory in bytes: paths share prefixes, so a small table can have long ones.

    Raises
    ------
    CorruptChunkError
        If the table is invalid, or a path leads out of the database.
    LimitError
        If the table would be too large.
    """
    count = reader.varint()
    if not count:
        return ()
    if count <= reader.remaining:
        _check_table_nbytes(count * _FILE_NBYTES, max_nbytes)
    prefix = [0, *reader.varints(count - 1, MAX_PATH_NBYTES).tolist()]
    suffix = reader.varints(count, MAX_PATH_NBYTES).tolist()
    base = reader.varints(count, MAX_PATH_NBYTES).tolist()
    files = []
    path = b""
    base_nbytes = 0
    table_nbytes = count * _FILE_NBYTES
    for i in range(count):
        shared = prefix[i]
        if shared > len(path):
            raise _wrong(reader, i, f"prefix length {shared} exceeds {len(path)}")
        if shared > min(base_nbytes, base[i]) and base_nbytes != base[i]:
            raise _wrong(reader, i, f"prefix length {shared} crosses the end of the base path")
        path = path[:shared] + reader.take(suffix[i])
        base_nbytes = base[i]
        if base_nbytes > len(path):
            raise _wrong(reader, i, f"base path length {base_nbytes} exceeds {len(path)}")
        if len(transitive) + len(path) > MAX_PATH_NBYTES:
            raise _wrong(reader, i, f"path of {len(transitive) + len(path)} bytes is too long")
        table_nbytes += len(transitive) + len(path)
        _check_table_nbytes(table_nbytes, max_nbytes)
        file = DataFile(transitive + path[:base_nbytes], path[base_nbytes:])
        if not is_safe(transitive + path):
            raise _wrong(reader, i, f"path {quote(file.path)} would leave the database")
        files.append(file)
    return tuple(files)


def files_nbytes(files: Sequence[DataFile]) -> int:
    """Return the memory of data files in bytes."""
    return sum(len(base) + len(relative) for base, relative in files) + _FILE_NBYTES * len(files)


def _check_table_nbytes(nbytes: int, max_nbytes: int) -> None:
    if nbytes > max_nbytes:
        raise LimitError(
            f"data file table: at least {nbytes} bytes of memory, which exceeds the limit "
            f"ocdbt_node_nbytes of {max_nbytes}"
        )


def _wrong(reader: Reader, index: int, reason: str) -> CorruptChunkError:
    return reader.error(f"Invalid data file table: data_file[{index}]: {reason}")


def read_locations(
    reader: Reader, files: Sequence[DataFile], count: int, *, may_be_absent: bool = False
) -> tuple[Int64s, UInt64s, UInt64s]:
    """Read columns of file index, offset and length.

    Parameters
    ----------
    reader : Reader
    files : sequence of DataFile
        Table of data files for the indices.
    count : int
    may_be_absent : bool
        Whether :data:`ABSENT_ROOT` is allowed.
    """
    file = read_file_indices(reader, files, count)
    offset = reader.varints64(count)
    nbytes = reader.varints64(count)
    limit = np.uint64(MAX_OFFSET)
    wrong = (offset > limit) | (nbytes > limit - np.minimum(offset, limit))
    if may_be_absent:
        absent = np.uint64(UINT64_MAX)
        wrong &= (offset != absent) | (nbytes != absent)
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        base, relative = files[int(file[i])]
        raise reader.error(
            f"Invalid offset/length pair in {{file_id={_text(base)}+{_text(relative)}, "
            f"offset={offset[i]}, length={nbytes[i]}}}"
        )
    return file, offset, nbytes


def read_file_indices(reader: Reader, files: Sequence[DataFile], count: int) -> Int64s:
    """Read a column of indices into a table of data files."""
    file = reader.varints(count, MAX_OFFSET)
    if count and int(file.max()) >= len(files):
        raise reader.error(f"Data file id {int(file.max())} is outside range [0, {len(files)})")
    return file


def _text(path: bytes) -> str:
    return quote(path.decode("utf-8", "surrogateescape"))


class FileTable:
    """Table of the data files that a new structure refers to.

    Parameters
    ----------
    files : iterable of DataFile
        Data files in any order, with repetitions.

    Attributes
    ----------
    index : dict of DataFile to int
    encoded : bytes
    """

    __slots__ = ("encoded", "index")

    def __init__(self, files: Iterable[DataFile]) -> None:
        ordered = sorted(set(files))
        self.index = {file: i for i, file in enumerate(ordered)}
        parts = [encode_varint(len(ordered))]
        shared = []
        for previous, file in pairwise(ordered):
            nbytes = common_nbytes(previous.base, file.base)
            if previous.base == file.base:
                nbytes += common_nbytes(previous.relative, file.relative)
            shared.append(nbytes)
        parts += map(encode_varint, shared)
        paths = [
            (file.base + file.relative)[nbytes:]
            for file, nbytes in zip(ordered, [0, *shared], strict=False)
        ]
        parts += (encode_varint(len(path)) for path in paths)
        parts += (encode_varint(len(file.base)) for file in ordered)
        self.encoded = b"".join(parts + paths)


def common_nbytes(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix of two byte strings.

    >>> common_nbytes(b"d/12", b"d/134")
    3
    """
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    low = 0
    while limit - low > 1:
        middle = (low + limit) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            limit = middle
    return low
