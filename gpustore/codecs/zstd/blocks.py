"""Headers of compressed blocks of Zstandard frames, checked together.

A block has literals and sequences. Its headers contain the number of literals, the ends of their
Huffman tree and streams, the number of sequences, and the form of their tables. This module finds
impossible headers; the bits within tables and streams are left to a decoder.

Source: RFC 8878 3.1.1.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpustore.device.encoded_columns import EncodedColumns, Integers, Mask

_RAW, _RUN, _TREELESS = 0, 1, 3  # Kinds of literals; 2 has a tree of its own.
_RUN_TABLE, _FSE_TABLE, _REPEATED_TABLE = 1, 2, 3  # How tables of sequences are stored.

# By the format in the header: its bytes, and bits of a size.
_PLAIN_HEADER: Final = np.array([1, 2, 1, 3])
_PLAIN_BITS: Final = np.array([5, 12, 5, 20])
_PACKED_HEADER: Final = np.array([3, 3, 4, 5])
_PACKED_BITS: Final = np.array([10, 10, 14, 18])

_LEAST_OF_FOUR: Final = 6  # Literals that are worth four streams, to every decoder.
_JUMPS_NBYTES: Final = 6
_LEAST_MATCH: Final = 3


@dataclass(frozen=True, slots=True)
class Blocks:
    """Contents of the headers of blocks; all arrays have one entry a block.

    Attributes
    ----------
    wrong : mask
        Blocks that no encoder writes, for which the other columns are undefined.
    least : ndarray of int64
        Lower bound of the decoded bytes.
    is_exact : mask
        Whether the lower bound is the exact number.
    """

    wrong: Mask
    least: Integers
    is_exact: Mask


def read_blocks(
    encoded: EncodedColumns,
    frame: Integers,
    start: Integers,
    nbytes: Integers,
    most: Integers,
) -> Blocks:
    """Read the headers in compressed blocks; return what they tell, one entry a block.

    Parameters
    ----------
    encoded : EncodedColumns
    frame : ndarray of int64, shape (n,)
        Number of the frame of each block; blocks of one frame are consecutive and in order.
    start, nbytes : ndarray of int64, shape (n,)
        Beginning of the contents of each block, counted as in `encoded`, and their length in bytes.
    most : ndarray of int64, shape (n,)
        Upper bound of the decoded bytes of each block.
    """
    end = start + nbytes
    header = encoded.uint_before(end, start, 5)
    kind, form = header & 3, header >> 2 & 3
    is_plain = kind <= _RUN
    header_nbytes = np.where(is_plain, _PLAIN_HEADER[form], _PACKED_HEADER[form])
    bits = np.where(is_plain, _PLAIN_BITS[form], _PACKED_BITS[form])
    # Sizes of one byte begin a bit earlier: their format has one bit.
    shift = np.where(is_plain & (form % 2 == 0), 3, 4)
    literals = header >> shift & (1 << bits) - 1
    stored = np.where(kind == _RAW, literals, 1)
    stored = np.where(is_plain, stored, header >> (4 + bits) & (1 << bits) - 1)
    begin = start + header_nbytes
    sequences = begin + stored
    wrong: Mask = (sequences >= end) | (literals > most)
    wrong |= ~is_plain & _wrong_streams(
        encoded,
        begin,
        sequences,
        literals,
        is_treeless=kind == _TREELESS,
        are_four=form > 0,
        ok=~wrong & ~is_plain,
    )
    wrong |= (kind == _TREELESS) & ~_before(frame, ~is_plain)
    count, repeats, wrong_sequences = _read_sequences(encoded, sequences, end, ok=~wrong)
    wrong |= wrong_sequences | (repeats & ~_before(frame, count > 0))
    least = literals + _LEAST_MATCH * count
    wrong |= least > most
    return Blocks(wrong, least, count == 0)


def _before(frame: Integers, is_so: Mask) -> Mask:
    """Return whether any earlier block of the same frame has a property."""
    seen: Integers = np.cumsum(is_so) - is_so
    is_first = np.ones(len(frame), np.bool_)
    is_first[1:] = frame[1:] != frame[:-1]
    found: Mask = seen > seen[is_first][np.cumsum(is_first) - 1]
    return found


def _wrong_streams(
    encoded: EncodedColumns,
    begin: Integers,
    end: Integers,
    literals: Integers,
    *,
    is_treeless: Mask,
    are_four: Mask,
    ok: Mask,
) -> Mask:
    """Return the blocks without legal Huffman streams of literals between `begin` and `end`."""
    begin, end = np.where(ok, begin, 0), np.where(ok, end, 0)
    first = encoded.uint_before(end, begin, 1)
    # Weights are 4 bits each, or compressed.
    tree = 1 + np.where(first < 128, first, (first - 126) // 2)
    tree = np.where(is_treeless, 0, tree)
    wrong: Mask = (literals == 0) | (~is_treeless & (first == 0)) | (begin + tree >= end)
    jumps = begin + tree
    are_four = are_four & ~wrong & ok
    sizes = encoded.uint_before(np.where(are_four, end, 0), jumps, _JUMPS_NBYTES)
    last = np.where(are_four, jumps + _JUMPS_NBYTES, jumps)
    for k in range(3):
        size = sizes >> (16 * k) & 0xFFFF
        last = last + np.where(are_four, size, 0)
        fits = are_four & (size > 0) & (last < end)
        wrong |= are_four & ~fits
        wrong |= fits & (encoded.uint(last - 1, 1, fits) == 0)
    wrong |= are_four & (literals < _LEAST_OF_FOUR)
    some = ok & ~wrong
    # The highest bit that is set says where a stream ends.
    wrong |= some & (encoded.uint(end - 1, 1, some) == 0)
    return wrong


def _read_sequences(
    encoded: EncodedColumns, start: Integers, end: Integers, *, ok: Mask
) -> tuple[Integers, Mask, Mask]:
    """Return numbers of sequences, whether they repeat tables, and impossible ones."""
    start, end = np.where(ok, start, 0), np.where(ok, end, 0)
    header = encoded.uint_before(end, start, 4)
    first, second, third = (header >> (8 * k) & 0xFF for k in range(3))
    count = np.where(first < 128, first, (first - 128 << 8) + second)
    count = np.where(first == 255, second + (third << 8) + 0x7F00, count)
    count_nbytes = 1 + (first >= 128) + (first == 255)
    some = ok & (count > 0)
    wrong: Mask = ok & ~some & ((first != 0) | (start + 1 != end))
    modes = header >> (8 * count_nbytes) & 0xFF
    tables = np.zeros(len(start), np.int64)
    repeats = np.zeros(len(start), np.bool_)
    for k in (2, 4, 6):
        mode = modes >> k & 3
        tables += (mode == _RUN_TABLE) | (mode == _FSE_TABLE)
        repeats |= some & (mode == _REPEATED_TABLE)
    # A byte of each table at the least, and one of the stream.
    wrong |= some & ((modes & 3 != 0) | (start + count_nbytes + 1 + tables + 1 > end))
    wrong |= some & (encoded.uint(end - 1, 1, some) == 0)
    return np.where(some, count, 0), repeats, wrong
