"""Rewrite of a zip archive with some members changed.

1. Members that stay are copied as they are stored, with all that lies between them and the next
   member, also if they cannot be decoded; so is what lies before the first one. Only the directory
   says anew where they are, and which version they are (:mod:`gpustore.kvstores.zip.directory`).
2. New members follow, then the directory and the end record. Sizes are known beforehand, so no data
   descriptors are needed. zip64 is used where numbers are too large for the fields they go into.

The comments of the archive and of its members stay.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from gpustore.kvstores.zip.directory import (
    RECORD,
    STAMP_HEADER,
    STAMP_ID,
    STAMP_NBYTES,
    ZIP64_ID,
    Directory,
    corrupt,
    pack_generation,
)
from gpustore.kvstores.zip.end import End, pack_end
from gpustore.kvstores.zip.member import LOCAL_HEADER, LOCAL_SIGNATURE, encode
from gpustore.runtime.buffer import Buffer

_UINT16_MAX: Final = 0xFFFF
_UINT32_MAX: Final = 0xFFFFFFFF
_UTF8: Final = 1 << 11

_MADE_BY_UNIX: Final = 3 << 8 | 63
_REGULAR_FILE: Final = 0o100644 << 16

# Version needed to extract, by method; 45 with zip64 (APPNOTE 4.4.3).
_NEEDED: Final = {0: 20, 8: 20, 93: 63, 95: 63}
_NEEDED_ZIP64: Final = 45

_STAMP_FIELD_NBYTES: Final = len(STAMP_HEADER) + STAMP_NBYTES

_PIECE_NBYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be written.

    Attributes
    ----------
    name : bytes
    is_ascii : bool
    method : int
    crc32 : int
        CRC-32 of the decoded data.
    encoded : Buffer
    decoded_nbytes : int
    stamp : bytes
        Stamp, unique for each version of each member.
    """

    name: bytes
    is_ascii: bool
    method: int
    crc32: int
    encoded: Buffer
    decoded_nbytes: int
    stamp: bytes

    @classmethod
    def of(cls, key: str, value: Buffer, compression: str) -> NewMember:
        """Make the member that holds a value."""
        data = memoryview(value).cast("B")
        method, encoded = encode(compression, data)
        name = key.encode("utf-8", "surrogateescape")
        crc = isal_zlib.crc32(data)
        stamp = os.urandom(STAMP_NBYTES)
        return cls(name, key.isascii(), method, crc, encoded, len(data), stamp)

    @property
    def generation(self) -> bytes:
        """Generation of the value."""
        return pack_generation(self.stamp, self.crc32, len(self.encoded), self.decoded_nbytes)


class Rewrite:
    """The new archive.

    Parameters
    ----------
    directory : Directory
        Directory of the old archive.
    changes : mapping of str to NewMember or None
        New member of each changed key; None deletes it.

    Attributes
    ----------
    nbytes : int
        Length of the new archive, in bytes.

    Raises
    ------
    CorruptChunkError
        If members of the old archive overlap or lie outside of it, and cannot be kept.
    """

    def __init__(self, directory: Directory, changes: Mapping[str, NewMember | None]) -> None:
        if not directory.is_sound:
            raise corrupt(
                "members overlap or lie outside of the archive, so it cannot be rewritten; write "
                "its members to a new one"
            )
        self._old = directory
        self._prefix, self._kept, self._offset = _places(directory, changes)
        self._new = [member for member in changes.values() if member is not None]
        date = _now()
        self._local: list[bytes] = []
        records = _kept_records(directory, self._kept, self._offset)
        ends = directory.bound[self._kept] - directory.offset[self._kept] + self._offset
        position = int(ends[-1]) if len(ends) else self._prefix
        self._data_start: list[int] = []
        for member in self._new:
            local, record = _new_headers(member, position, date)
            self._local.append(local)
            records.append(record)
            self._data_start.append(position + len(local))
            position += len(local) + len(member.encoded)
        self._blob = b"".join(records)
        stop = position + len(self._blob)
        self._end = End(len(records), position, stop, directory.end.comment)
        self._tail = pack_end(self._end)
        self.nbytes = stop + len(self._tail)

    def directory(self, generation: bytes, *, last: bool) -> Directory:
        """Return the directory of the new archive with its generation."""
        made = Directory(self._blob, self._end, generation, last=last)
        count = len(self._kept)
        known = self._old.data_start[self._kept]
        moved = known - self._old.offset[self._kept] + self._offset
        made.data_start[:count] = np.where(known < 0, -1, moved)
        made.data_start[count:] = self._data_start
        return made

    def pieces(self, read: Callable[[int, int], Buffer]) -> Iterator[Buffer]:
        """Yield the bytes of the new archive; `read` returns byte ranges of the old one."""
        for start, stop in self._runs():
            for low in range(start, stop, _PIECE_NBYTES):
                yield read(low, min(stop, low + _PIECE_NBYTES))
        for local, member in zip(self._local, self._new):
            yield local
            yield member.encoded
        yield self._blob
        yield self._tail

    def _runs(self) -> list[tuple[int, int]]:
        """Yield the byte ranges to copy from the old archive, as few as possible."""
        start = np.append(0, self._old.offset[self._kept])
        stop = np.append(self._prefix, self._old.bound[self._kept])
        first = np.append(True, start[1:] != stop[:-1])
        last = np.append(first[1:], True)
        return list(zip(start[first].tolist(), stop[last].tolist()))


def _places(
    directory: Directory, changes: Mapping[str, NewMember | None]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes before the first member, the kept members in order, and their new places."""
    keep = np.ones(len(directory), bool)
    keep[directory.superseded] = False
    keep[[directory.rows[key] for key in changes if key in directory.rows]] = False
    prefix = int(directory.offset.min()) if len(directory) else directory.end.start
    kept = np.flatnonzero(keep)
    kept = kept[np.argsort(directory.offset[kept], kind="stable")]
    nbytes = directory.bound[kept] - directory.offset[kept]
    return prefix, kept, prefix + np.cumsum(nbytes) - nbytes


def _kept_records(
    directory: Directory, kept: NDArray[np.int64], offset: NDArray[np.int64]
) -> list[bytes]:
    """Return the records of kept members, with new offsets and stamps."""
    record = directory.record[kept]
    needs_stamp = ~directory.is_stamped[kept] & bool(directory.generation)
    is_simple = offset < _UINT32_MAX
    for field in ("offset", "encoded_nbytes", "decoded_nbytes"):
        is_simple &= record[field] != _UINT32_MAX
    is_simple &= record["disk"] == 0
    is_simple &= record["extra_nbytes"] <= _UINT16_MAX - _STAMP_FIELD_NBYTES
    start = directory.start[kept]
    extra_stop = start + RECORD.itemsize + record["name_nbytes"].astype(np.int64)
    extra_stop += record["extra_nbytes"]
    patched = bytearray(directory.blob)
    places = max(0, len(patched) - RECORD.itemsize + 1)
    view: NDArray[np.void] = np.ndarray((places,), RECORD, patched, strides=(1,))
    view["offset"][start[is_simple]] = offset[is_simple]
    view["extra_nbytes"][start[is_simple & needs_stamp]] += _STAMP_FIELD_NBYTES
    blob = bytes(patched)
    columns = (
        *(start, extra_stop, extra_stop + record["comment_nbytes"]),
        *(is_simple, needs_stamp, kept, directory.offset[kept], offset),
    )
    records = []
    for low, middle, high, simple, stamp, row, old, new in zip(*(c.tolist() for c in columns)):
        if not simple:
            records.append(_record_of(directory, row, new))
        elif stamp:
            added = STAMP_HEADER + directory.foreign_stamp(old)
            records.append(blob[low:middle] + added + blob[middle:high])
        else:
            records.append(blob[low:high])
    return records


def _record_of(directory: Directory, row: int, offset: int) -> bytes:
    """Return the new record of a kept member."""
    record = directory.record[row : row + 1].copy()
    numbers = int(directory.decoded_nbytes[row]), int(directory.encoded_nbytes[row]), offset
    zip64 = _zip64(numbers)
    stamp = directory.stamp(row)
    extra = zip64 + _without(directory.extra(row), (ZIP64_ID, STAMP_ID))
    if stamp and len(extra) + _STAMP_FIELD_NBYTES <= _UINT16_MAX:
        extra += STAMP_HEADER + stamp
    for field, number in zip(("decoded_nbytes", "encoded_nbytes", "offset"), numbers):
        record[field] = min(number, _UINT32_MAX)
    record["extra_nbytes"] = len(extra)
    record["disk"] = 0
    if zip64:
        record["needed"] = np.maximum(record["needed"], _NEEDED_ZIP64)
    return record.tobytes() + directory.name(row) + extra + directory.member_comment(row)


def _new_headers(member: NewMember, offset: int, date: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return local header and record of a new member at `offset`; `date` is DOS time and date."""
    sizes = member.decoded_nbytes, len(member.encoded)
    # A local header has both sizes or none in zip64.
    large = max(sizes) >= _UINT32_MAX
    local_extra = struct.pack("<2H2Q", ZIP64_ID, 16, *sizes) if large else b""
    extra = _zip64((*sizes, offset))
    needed = _NEEDED[member.method]
    if extra:
        needed = max(needed, _NEEDED_ZIP64)
    extra += STAMP_HEADER + member.stamp
    flags = 0 if member.is_ascii else _UTF8
    shared = (needed, flags, member.method, *date, member.crc32)
    local_sizes = (_UINT32_MAX, _UINT32_MAX) if large else (sizes[1], sizes[0])
    local = LOCAL_HEADER.pack(
        LOCAL_SIGNATURE, *shared, *local_sizes, len(member.name), len(local_extra)
    )
    record = np.array(
        (
            *(int.from_bytes(b"PK\1\2", "little"), _MADE_BY_UNIX, *shared),
            *(min(sizes[1], _UINT32_MAX), min(sizes[0], _UINT32_MAX)),
            *(len(member.name), len(extra), 0, 0, 0, _REGULAR_FILE, min(offset, _UINT32_MAX)),
        ),
        RECORD,
    )
    return local + member.name + local_extra, record.tobytes() + member.name + extra


def _zip64(numbers: tuple[int, int, int]) -> bytes:
    """Return the extra field for those of two lengths and an offset that are too large."""
    large = [number for number in numbers if number >= _UINT32_MAX]
    return struct.pack(f"<2H{len(large)}Q", ZIP64_ID, 8 * len(large), *large) if large else b""


def _without(extra: bytes, ids: tuple[int, ...]) -> bytes:
    """Return extra fields without some identifiers; malformed bytes at the end stay."""
    kept = b""
    position = 0
    while position + 4 <= len(extra):
        id, nbytes = struct.unpack_from("<2H", extra, position)
        if position + 4 + nbytes > len(extra):
            break
        if id not in ids:
            kept += extra[position : position + 4 + nbytes]
        position += 4 + nbytes
    return kept + extra[position:]


def _now() -> tuple[int, int]:
    """Return DOS time and date."""
    now = time.localtime()
    year = min(max(now.tm_year, 1980), 2107)
    # There are no leap seconds, and only even ones.
    second = min(now.tm_sec, 59) // 2
    return (
        now.tm_hour << 11 | now.tm_min << 5 | second,
        (year - 1980) << 9 | now.tm_mon << 5 | now.tm_mday,
    )
