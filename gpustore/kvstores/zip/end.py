"""The end of a zip archive, which contains the place of its directory (APPNOTE 4.3.14 to 4.3.16).

An archive is read from its end. The end record is followed by a comment of up to 64 KiB with any
contents, including other end records; archives of more than 65534 members or 4 GiB have the numbers
in a second, larger record in front of it (zip64). Every place with the signature of an end record
is tried. A record is accepted if its comment reaches the end of the archive and the directory ends
where the end records begin. Two such places are an error, because readers would disagree about the
contents of the archive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpustore.errors import CorruptChunkError, GpustoreError, UnsupportedError

CODEC: Final = "zip"
"""Name of the codec in errors."""

_END: Final = struct.Struct("<4s4H2LH")
_END_SIGNATURE: Final = b"PK\5\6"
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_END64_SIGNATURE: Final = b"PK\6\6"
_LOCATOR: Final = struct.Struct("<4sLQL")
_LOCATOR_SIGNATURE: Final = b"PK\6\7"

# Bytes of the second end record that its own size does not count.
_END64_UNCOUNTED: Final = 12
# A longer one holds data that nobody has defined.
_END64_MAX_NBYTES: Final = 1 << 16

_UINT16_MAX: Final = 0xFFFF
_UINT32_MAX: Final = 0xFFFFFFFF

TAIL_NBYTES: Final = _END.size + _UINT16_MAX + _LOCATOR.size + _END64.size
"""Length of the longest end without undefined data, in bytes."""


@dataclass(frozen=True, slots=True)
class End:
    """Contents of the end records of an archive.

    Attributes
    ----------
    count : int
        Number of members.
    start, stop : int
        Byte range of the directory, from the beginning of the archive.
    comment : bytes
        Comment of the archive.
    """

    count: int
    start: int
    stop: int
    comment: bytes = b""


def find_end(read: Callable[[int, int], bytes], nbytes: int) -> End:
    """Find the end record of an archive of `nbytes` bytes.

    Parameters
    ----------
    read : callable
        Returns the bytes from one position to another.
    nbytes : int

    Raises
    ------
    CorruptChunkError
        If there is no end record, several, or none whose numbers are right.
    UnsupportedError
        If the archive is spread over several files.
    """
    first = max(0, nbytes - TAIL_NBYTES)
    tail = read(first, nbytes)
    found: list[End] = []
    failure: GpustoreError | None = None
    at = len(tail)
    while (at := tail.rfind(_END_SIGNATURE, 0, at + 3)) >= 0:
        if at + _END.size > len(tail) or at + _END.size + _comment_nbytes(tail, at) != len(tail):
            continue
        try:
            found.append(_interpret(read, tail, at, first))
        except (CorruptChunkError, UnsupportedError) as error:
            failure = failure or error
    if len(found) > 1:
        raise _corrupt(
            f"{len(found)} end records are valid, for directories that begin at bytes "
            f"{', '.join(str(end.start) for end in found)}; readers would disagree about what the "
            f"archive contains"
        )
    if found:
        return found[0]
    raise failure or _corrupt(
        f"no end record with a comment that reaches the end of its {nbytes} bytes; the archive is "
        f"cut short, something was put behind it, or it is no zip archive"
    )


def pack_end(end: End) -> bytes:
    """Return the bytes of the end of an archive, with a zip64 record if the numbers need one."""
    nbytes = end.stop - end.start
    large = end.count >= _UINT16_MAX or max(end.start, nbytes) >= _UINT32_MAX
    packed = b""
    if large:
        size = _END64.size - _END64_UNCOUNTED
        packed = _END64.pack(
            _END64_SIGNATURE, size, 45, 45, 0, 0, end.count, end.count, nbytes, end.start
        ) + _LOCATOR.pack(_LOCATOR_SIGNATURE, 0, end.stop, 1)
    count = min(end.count, _UINT16_MAX)
    return (
        packed
        + _END.pack(
            *(_END_SIGNATURE, 0, 0, count, count),
            *(min(nbytes, _UINT32_MAX), min(end.start, _UINT32_MAX), len(end.comment)),
        )
        + end.comment
    )


def _comment_nbytes(tail: bytes, at: int) -> int:
    return int.from_bytes(tail[at + 20 : at + 22], "little")


def _interpret(read: Callable[[int, int], bytes], tail: bytes, at: int, first: int) -> End:
    """Return the end record at byte `at` of `tail`, which begins at byte `first` of the archive."""
    _, disk, first_disk, here, count, nbytes, start, _ = _END.unpack_from(tail, at)
    position = first + at
    comment = tail[at + _END.size :]
    if _UINT32_MAX not in (nbytes, start) and start + nbytes == position:
        _check_disks(disk, first_disk, here, count)
        return End(count, start, position, comment)
    place = position - _LOCATOR.size
    locator = read(place, position) if place >= 0 else b""
    if not locator.startswith(_LOCATOR_SIGNATURE):
        if _UINT32_MAX in (nbytes, start):
            raise _corrupt("the end record says that there is a zip64 record, but there is none")
        raise _corrupt(
            f"the end record at byte {position} says that the directory ends at byte "
            f"{start + nbytes}; {position - start - nbytes} bytes were put before the archive or "
            f"taken away"
        )
    _, locator_disk, place64, disks = _LOCATOR.unpack(locator)
    if locator_disk or disks > 1:
        _check_disks(1, 0, 0, 0)
    length = place - place64
    if not _END64.size <= length <= _END64_MAX_NBYTES:
        raise _corrupt(f"Inconsistent ZIP64 EOCD locator offset {place64}, expected before {place}")
    record = read(place64, place64 + _END64.size)
    signature, size, _, _, disk64, first64, here64, count64, nbytes64, start64 = _END64.unpack(
        record
    )
    if signature != _END64_SIGNATURE or size + _END64_UNCOUNTED != length:
        raise _corrupt(f"Inconsistent ZIP64 EOCD locator offset {place64}: no zip64 record there")
    _check_disks(disk64, first64, here64, count64)
    pairs = ((count, count64, _UINT16_MAX), (nbytes, nbytes64, _UINT32_MAX))
    for small, large, most in (*pairs, (start, start64, _UINT32_MAX)):
        if small not in (most, large):
            raise _corrupt(f"the end record says {small} where the zip64 record says {large}")
    if start64 + nbytes64 != place64:
        raise _corrupt(
            f"the zip64 record at byte {place64} says that the directory ends at byte "
            f"{start64 + nbytes64}"
        )
    return End(count64, start64, place64, comment)


def _check_disks(disk: int, first_disk: int, here: int, count: int) -> None:
    if disk or first_disk or here != count:
        raise UnsupportedError("zip archives spread over several files cannot be read")


def _corrupt(reason: str) -> CorruptChunkError:
    return CorruptChunkError(f"Failed to find valid ZIP EOCD: {reason}", codec=CODEC)
