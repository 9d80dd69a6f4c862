"""The directory of a zip archive as columns: one entry a member (APPNOTE 4.3.12).

1. The records of the directory have different lengths, so their starts are found one after
   another; everything else is gathered by NumPy.
2. Place and length of a member are compared with the archive and with its neighbours:
   members that overlap, or that reach into the directory, are faulty.
3. Names become keys. A name that is no legal key (absolute, with ``..``, a backslash or an empty
   part) is never a key. The key that a lenient reader would derive from it is recorded, so that it
   is refused and not missing. Directories, whose names end with a slash, are not values.

A fault of one member is an error when that member is read, and does not affect the others. Two
members with the same name are a fault of the archive, unless the spec selects the last.

A *stamp* is the last extra field of a member that gpustore wrote: 12 bytes, unique for each version
of each member. A member of another program has a stamp derived from the generation of the archive
and its place; a rewrite of the archive stores it as an extra field, which keeps the member's
generation.
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import CorruptChunkError, GpustoreError, InvalidKeyError, UnsupportedError
from gpustore.kvstores.zip.end import CODEC, End, find_end
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import INT64_MAX, quote

RECORD: Final = np.dtype(
    [
        *(("signature", "<u4"), ("made_by", "<u2"), ("needed", "<u2"), ("flags", "<u2")),
        *(("method", "<u2"), ("time", "<u2"), ("date", "<u2"), ("crc32", "<u4")),
        *(("encoded_nbytes", "<u4"), ("decoded_nbytes", "<u4"), ("name_nbytes", "<u2")),
        *(("extra_nbytes", "<u2"), ("comment_nbytes", "<u2"), ("disk", "<u2")),
        *(("internal", "<u2"), ("external", "<u4"), ("offset", "<u4")),
    ]
)
"""A record of the directory, before name, extra fields and comment."""

METHODS: Final = {0: "store", 8: "deflate", 12: "bzip2", 93: "zstd", 95: "xz"}
"""Compression methods that can be decoded."""

STAMP_NBYTES: Final = 12
STAMP_ID: Final = int.from_bytes(b"gs", "little")
STAMP_HEADER: Final = struct.pack("<2H", STAMP_ID, STAMP_NBYTES)
"""Header of the extra field that holds a stamp."""

_OTHER_METHODS: Final = {
    **{1: "shrink", 6: "implode", 9: "deflate64", 14: "lzma", 98: "ppmd"},
    **{97: "wavpack", 96: "jpeg", 99: "AES encryption"},
}

_SIGNATURE: Final = b"PK\1\2"
_DIGITAL_SIGNATURE: Final = b"PK\5\5"
_LOCAL_NBYTES: Final = 30
_LENGTHS: Final = struct.Struct("<3H")

_ENCRYPTED: Final = 1 | 1 << 6 | 1 << 13
_PATCHED: Final = 1 << 5
_UTF8: Final = 1 << 11

ZIP64_ID: Final = 1
_UNICODE_PATH_ID: Final = 0x7075
_UINT32_MAX: Final = 0xFFFFFFFF
_UINT16_MAX: Final = 0xFFFF

# Faults of a member, in the order in which they are looked for.
_OUTSIDE: Final = 1
_OVERLAPS: Final = 2
_ZIP64: Final = 3
_DISK: Final = 4

# What no key may contain.
_ILLEGAL: Final = re.compile(r"[\0\\]|\A/|/\Z|//|(?:\A|/)\.\.?(?:/|\Z)|\A\Z")
# The same in all names at once, with a line feed before and behind each; one in a name only costs
# time. Looking for these texts takes a fifth of the time of a regular expression.
_PERHAPS_ILLEGAL: Final = (
    *("\0", "\\", "//", "/\n", "\n/", "\n\n", "/./", "/../"),
    *("\n./", "\n../", "/.\n", "/..\n", "\n.\n", "\n..\n"),
)


class Directory:
    """The members of an archive; immutable.

    Parameters
    ----------
    blob : bytes
        The stored bytes of the directory.
    end : End
    generation : bytes
        Generation of the archive; ``b""`` if unknown.
    last : bool
        Whether the last of several members with one name counts; otherwise they are an error.

    Attributes
    ----------
    record : numpy.ndarray, length n, dtype RECORD
        The records without what follows each; zip64 numbers are not in it.
    start : numpy.ndarray, length n, int64
        Beginning of each record in `blob`.
    offset, encoded_nbytes, decoded_nbytes : numpy.ndarray, length n, int64
        Beginning of the local header of a member in the archive, and lengths of its data, in bytes.
    bound : numpy.ndarray, length n, int64
        Upper end for the data of a member: the next member, or the directory.
    rows : dict of str to int
        Row of the member of each key.
    superseded : list of int
        Members with a name that a later one has.
    data_start : numpy.ndarray, length n, int64
        Beginning of the data of a member, -1 until its local header has been read.
    looked_at : set of int
        Lengths of names, all members of which were searched for a missing key.
    renamed : dict of bytes to int
        Members by the names in their local headers that differ from those of the directory.
    compared : int
        Number of names that were compared with missing keys.

    Raises
    ------
    CorruptChunkError
        If the directory is damaged, or a name occurs twice.
    """

    def __init__(self, blob: bytes, end: End, generation: bytes, *, last: bool = False) -> None:
        self.blob = blob
        self.end = end
        self.generation = generation
        self.start, self.record = _records(blob, end.count)
        self._fault = np.zeros(end.count, np.uint8)
        self.offset = self.record["offset"].astype(np.int64)
        self.encoded_nbytes = self.record["encoded_nbytes"].astype(np.int64)
        self.decoded_nbytes = self.record["decoded_nbytes"].astype(np.int64)
        self._read_zip64()
        self.bound = self._check_places()
        self._refused: dict[str, int] = {}
        self.superseded: list[int] = []
        self.rows = self._keys(last=last)
        self.data_start = np.full(end.count, -1, np.int64)
        self.looked_at: set[int] = set()
        self.renamed: dict[bytes, int] = {}
        self.compared = 0

    def __len__(self) -> int:
        return self.end.count

    @cached_attribute
    def keys(self) -> list[str]:
        """Return all keys, in ascending order of their code points."""
        return sorted(self.rows)

    def between(self, inclusive_min: str, exclusive_max: str | None) -> list[str]:
        """Return the keys of a range, in ascending order."""
        first = bisect_left(self.keys, inclusive_min)
        last = len(self.keys)
        if exclusive_max is not None:
            last = max(first, bisect_left(self.keys, exclusive_max))
        return self.keys[first:last]

    def name(self, row: int) -> bytes:
        """Return the stored name of a member."""
        start = int(self.start[row]) + RECORD.itemsize
        return self.blob[start : start + int(self.record["name_nbytes"][row])]

    def extra(self, row: int) -> bytes:
        """Return the extra fields of a member."""
        record = self.record[row]
        start = int(self.start[row]) + RECORD.itemsize + int(record["name_nbytes"])
        return self.blob[start : start + int(record["extra_nbytes"])]

    def member_comment(self, row: int) -> bytes:
        """Return the comment of a member."""
        record = self.record[row]
        lengths = int(record["name_nbytes"]) + int(record["extra_nbytes"])
        start = int(self.start[row]) + RECORD.itemsize + lengths
        return self.blob[start : start + int(record["comment_nbytes"])]

    def stamp(self, row: int) -> bytes:
        """Return the stamp of a member, unique for its version; ``b""`` if unknown."""
        extra = self.extra(row)
        if extra[-STAMP_NBYTES - len(STAMP_HEADER) : -STAMP_NBYTES] == STAMP_HEADER:
            return extra[-STAMP_NBYTES:]
        return self.foreign_stamp(int(self.offset[row])) if self.generation else b""

    def foreign_stamp(self, offset: int) -> bytes:
        """Return the stamp of a member at `offset` for which none is stored."""
        return blake2b(b"%d %s" % (offset, self.generation), digest_size=STAMP_NBYTES).digest()

    def generation_of(self, row: int) -> bytes:
        """Return the generation of the value of a member, ``b""`` if unknown.

        The generation includes lengths and checksum, because a program may copy extra fields to
        another value.
        """
        stamp = self.stamp(row)
        if not stamp:
            return b""
        sizes = int(self.encoded_nbytes[row]), int(self.decoded_nbytes[row])
        return pack_generation(stamp, int(self.record["crc32"][row]), *sizes)

    @cached_attribute
    def is_stamped(self) -> NDArray[np.bool_]:
        """Whether the stamp of each member is stored, a bool array of length n."""
        nbytes = len(STAMP_HEADER) + STAMP_NBYTES
        lengths = self.record["extra_nbytes"].astype(np.int64)
        stop = self.start + RECORD.itemsize + self.record["name_nbytes"] + lengths
        found = lengths >= nbytes
        raw = np.frombuffer(self.blob, np.uint8)
        for i, byte in enumerate(STAMP_HEADER):
            found[found] &= raw[stop[found] - nbytes + i] == byte
        return found

    @property
    def is_sound(self) -> bool:
        """Whether all members lie inside the archive and apart from each other."""
        return not self._fault.any()

    def check(self, row: int) -> None:
        """Raise the error for a member that cannot be decoded.

        Raises
        ------
        CorruptChunkError
            If it lies outside of the archive or overlaps another member.
        UnsupportedError
            If it is encrypted, or compressed by an unknown method.
        """
        fault = int(self._fault[row])
        if fault == _DISK:
            raise UnsupportedError("zip archives spread over several files cannot be read")
        if fault == _ZIP64:
            raise corrupt("Failed to read ZIP64 extra field: a size or an offset is missing there")
        if fault:
            where = f"[{int(self.offset[row])}, +{int(self.encoded_nbytes[row])} bytes of data)"
            what = (
                f"outside of the {self.end.start} bytes before the directory"
                if fault == _OUTSIDE
                else "together with another member"
            )
            raise corrupt(
                f"ZIP central directory entry has invalid local_header_offset: it lies at {where}, "
                f"{what}"
            )
        flags, method = int(self.record["flags"][row]), int(self.record["method"][row])
        if flags & _ENCRYPTED:
            raise UnsupportedError("ZIP encryption is not supported")
        if method not in METHODS or flags & _PATCHED:
            name = _OTHER_METHODS.get(method)
            text = f"{method} ({name})" if name else str(method)
            raise UnsupportedError(
                f"ZIP compression method {text} is not supported; expected one of "
                f"{', '.join(METHODS.values())}"
            )

    def check_missing(self, key: str) -> None:
        """Raise InvalidKeyError if a missing key has another spelling in the archive."""
        row = self._refused.get(key)
        if row is not None:
            name = self._decode(row)
            raise InvalidKeyError(
                f"Invalid key: {quote(name)}: {illegal_reason(name)}; this name of a member is "
                f"never taken for {quote(key)}: write the archive anew with that name",
                key=key,
            )

    # ------------------------------------------------------------------ columns

    def _read_zip64(self) -> None:
        """Insert the numbers that are too large for a record."""
        record = self.record
        large = (self.encoded_nbytes == _UINT32_MAX) | (self.decoded_nbytes == _UINT32_MAX)
        large |= (self.offset == _UINT32_MAX) | (record["disk"] == _UINT16_MAX)
        disk = record["disk"].copy()
        for row in np.flatnonzero(large).tolist():
            payload = extra_field(self.extra(row), ZIP64_ID) or b""
            position = 0
            for column in (self.decoded_nbytes, self.encoded_nbytes, self.offset):
                if column[row] == _UINT32_MAX:
                    number = int.from_bytes(payload[position : position + 8], "little")
                    if position + 8 > len(payload) or number > INT64_MAX:
                        self._fault[row] = _ZIP64
                        break
                    column[row] = number
                    position += 8
            if disk[row] == _UINT16_MAX:
                disk[row] = any(payload[position : position + 4])
        self._fault[(self._fault == 0) & (disk != 0)] = _DISK

    def _check_places(self) -> NDArray[np.int64]:
        """Mark members that lie outside or overlap; return the beginning of the next after each."""
        limit = self.end.start
        # Sizes are cut to `limit` before they are added, so that no sum overflows.
        header = self.record["name_nbytes"].astype(np.int64) + _LOCAL_NBYTES
        outside = (self.offset > limit) | (self.encoded_nbytes > limit)
        outside |= self.offset + np.minimum(self.encoded_nbytes, limit) + header > limit
        self._fault[(self._fault == 0) & outside] = _OUTSIDE
        inside = np.flatnonzero(~outside & (self._fault == 0))
        order = inside[np.argsort(self.offset[inside], kind="stable")]
        start = self.offset[order]
        stop = start + header[order] + self.encoded_nbytes[order]
        following = np.append(start[1:], limit)
        bound = np.full(len(self), limit, np.int64)
        bound[order] = following
        reached = np.maximum.accumulate(stop) if len(stop) else stop
        overlaps = stop > following
        overlaps[1:] |= reached[:-1] > start[1:]
        self._fault[order[overlaps]] = _OVERLAPS
        return bound

    # ------------------------------------------------------------------ names

    def _keys(self, *, last: bool) -> dict[str, int]:
        names, joined = self._names()
        rows = dict(zip(names, range(len(names))))
        illegal = 0
        if any(part in joined for part in _PERHAPS_ILLEGAL):
            for row, name in enumerate(names):
                if _ILLEGAL.search(name):
                    rows.pop(name, None)
                    illegal += 1
                    self._refuse(row, name)
        if len(rows) + illegal < len(names):
            self.superseded = [row for row, name in enumerate(names) if rows.get(name, row) != row]
            if not last:
                raise corrupt(
                    f"Duplicate filename in ZIP: {names[self.superseded[0]]}; "
                    f"{len(self.superseded)} members have the name of a later one; zarr-python "
                    f'writes such archives, open with "duplicates": "last" to take the one '
                    f"written last"
                )
        return rows

    def _names(self) -> tuple[list[str], str]:
        """Return the names as text, and all names with a line feed around each."""
        if not len(self):
            return [], ""
        start = self.start + RECORD.itemsize
        stop = start + self.record["name_nbytes"]
        # Latin-1 is ASCII where it matters, and decodes everything at once.
        text = self.blob.decode("latin-1")
        names = [text[low:high] for low, high in zip(start.tolist(), stop.tolist())]
        joined = "\n".join(names)
        if not joined.isascii():
            for row, name in enumerate(names):
                if not name.isascii():
                    names[row] = self._decode(row)
            joined = "\n".join(names)
        return names, f"\n{joined}\n"

    def _decode(self, row: int) -> str:
        name = self.name(row)
        if int(self.record["flags"][row]) & _UTF8:
            return name.decode("utf-8", "surrogateescape")
        path = extra_field(self.extra(row), _UNICODE_PATH_ID)
        # Version 1, the CRC-32 of the name it stands for, UTF-8.
        if path and path[0] == 1 and path[1:5] == zlib.crc32(name).to_bytes(4, "little"):
            return path[5:].decode("utf-8", "surrogateescape")
        try:
            # As `zip` writes names on Linux; what was meant otherwise is hardly ever UTF-8.
            return name.decode()
        except UnicodeDecodeError:
            return name.decode("cp437")

    def _refuse(self, row: int, name: str) -> None:
        """Record the key that a lenient reader would derive from an illegal name."""
        if name.endswith("/"):
            return  # A directory.
        parts = [
            part for part in re.split(r"[/\\]", name.partition("\0")[0]) if part not in ("", ".")
        ]
        if ".." not in parts:
            self._refused["/".join(parts)] = row


def read_directory(
    read: Callable[[int, int], bytes],
    nbytes: int,
    generation: bytes,
    *,
    limits: Limits,
    where: str,
    key: str,
    last: bool,
) -> Directory:
    """Read the directory of an archive.

    Parameters
    ----------
    read : callable
        Returns the bytes of the archive from one position to another.
    nbytes : int
        Length of the archive.
    generation : bytes
        Generation of the archive.
    limits : Limits
    where, key : str
        Name of the archive in messages, and its key.
    last : bool
        Whether the last of several members with one name counts; otherwise they are an error.

    Raises
    ------
    CorruptChunkError, LimitError, UnsupportedError
    """
    try:
        end = find_end(read, nbytes)
        limits.check("zip_directory_nbytes", end.stop - end.start, "directory of the archive")
        if end.count * RECORD.itemsize > end.stop - end.start:
            raise corrupt(
                f"ZIP Central Directory Entry insufficient data available: {end.count} members in "
                f"{end.stop - end.start} bytes"
            )
        return Directory(read(end.start, end.stop), end, generation, last=last)
    except GpustoreError as error:
        raise error.prefixed(f"Error reading {where}", key=key) from error.__cause__


def pack_generation(stamp: bytes, crc32: int, encoded_nbytes: int, decoded_nbytes: int) -> bytes:
    """Return the generation of a member with a stamp."""
    return struct.pack(f"<x{STAMP_NBYTES}sIQQ", stamp, crc32, encoded_nbytes, decoded_nbytes)


def check_name(name: str) -> None:
    """Raise InvalidKeyError unless a key can be the name of a member.

    >>> check_name("a/b")
    >>> check_name("a//b")
    Traceback (most recent call last):
        ...
    gpustore.errors.InvalidKeyError: Invalid key: "a//b": has an empty part
    """
    if _ILLEGAL.search(name):
        raise InvalidKeyError(f"Invalid key: {quote(name)}: {illegal_reason(name)}", key=name)
    try:
        nbytes = len(name) if name.isascii() else len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidKeyError(f"Invalid key: {quote(name)}: not Unicode", key=name) from None
    if nbytes > _UINT16_MAX:
        raise InvalidKeyError(
            f"Invalid key: {quote(name[:100])}...: has {nbytes} bytes, the most are {_UINT16_MAX}",
            key=name,
        )


def illegal_reason(name: str) -> str:
    """Return the reason why a name is an illegal key, None if it is legal."""
    if "\0" in name:
        return "contains a null byte"
    if "\\" in name:
        return "contains a backslash"
    if name.startswith("/"):
        return "is absolute"
    if not name or "//" in name:
        return "has an empty part" if name else "is empty"
    if name.endswith("/"):
        return "is the name of a directory"
    return 'contains a part "." or ".."'


def extra_field(extra: bytes, wanted: int) -> bytes | None:
    """Return the contents of the first extra field with an identifier, None if there is none."""
    position = 0
    while position + 4 <= len(extra):
        id, nbytes = struct.unpack_from("<2H", extra, position)
        if id == wanted:
            return extra[position + 4 : position + 4 + nbytes]
        position += 4 + nbytes
    return None


def _records(blob: bytes, count: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Return the beginning of each of `count` records, and the fixed parts of the records."""
    # A record may begin at every byte, so one lies at each byte of this view.
    places = max(0, len(blob) - RECORD.itemsize + 1)
    view: NDArray[np.void] = np.ndarray((places,), RECORD, blob, strides=(1,))
    # Nearly always the signatures are nowhere else than where records begin.
    lengths = np.fromiter(map(len, blob.split(_SIGNATURE)), np.int64)
    start = (np.cumsum(lengths) + len(_SIGNATURE) * np.arange(len(lengths)))[:-1]
    if len(start) == count and not (count and (start[0] or start[-1] >= places)):
        record = view[start]
        stop = start + RECORD.itemsize + record["name_nbytes"]
        stop += record["extra_nbytes"].astype(np.int64) + record["comment_nbytes"]
        if np.array_equal(np.append(0, stop), np.append(start, len(blob))):
            return start, record
    start = _walk(blob, count)
    return start, view[start]


def _walk(blob: bytes, count: int) -> NDArray[np.int64]:
    """Return the beginning of each of `count` records, found one after the other."""
    starts = []
    position = 0
    for _ in range(count):
        if not blob.startswith(_SIGNATURE, position) or position + RECORD.itemsize > len(blob):
            break
        starts.append(position)
        name, extra, comment = _LENGTHS.unpack_from(blob, position + 28)
        position += RECORD.itemsize + name + extra + comment
    if len(starts) < count and position + RECORD.itemsize <= len(blob):
        raise corrupt(
            f"Failed to read ZIP Central Directory Entry signature of member {len(starts)} of "
            f"{count} at byte {position} of {len(blob)} bytes of the directory"
        )
    if len(starts) < count or position > len(blob):
        raise corrupt(
            f"ZIP Central Directory Entry insufficient data available: the directory has "
            f"{len(blob)} bytes, not enough for {count} members"
        )
    if position < len(blob) and not blob.startswith(_DIGITAL_SIGNATURE, position):
        raise corrupt(
            f"ZIP num_entries mismatch: {count} members end at byte {position} of {len(blob)} "
            f"bytes of the directory"
        )
    return np.array(starts, np.int64)


def corrupt(reason: str) -> CorruptChunkError:
    """Return the error for a damaged archive."""
    return CorruptChunkError(reason, codec=CODEC)


EMPTY: Final = Directory(b"", End(0, 0, 0), b"\x02")
"""Directory of an archive that does not exist."""
