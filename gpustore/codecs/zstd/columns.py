"""Headers of many Zstandard frames, read together.

Only values that every decoder reads alike go to a device: one frame with its content size and
without dictionary, whose blocks end with the value, have legal headers
(:mod:`gpustore.codecs.zstd.blocks`), and can hold exactly the content. A device does not compare a
content checksum (XXH64), so frames with one are left to the host, which does.

Source: RFC 8878 3.1.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpustore.codecs.zstd.blocks import read_blocks
from gpustore.device.encoded_columns import EncodedColumns, Integers, Rejections

_MAGIC: Final = 0xFD2FB528
_BLOCK_NBYTES: Final = 128 << 10
_RUN, _COMPRESSED, _RESERVED = 1, 2, 3  # Kinds of blocks; 0 is raw.
_COMPRESSED_MIN_NBYTES: Final = 2
# What every decoder must be able to go back (RFC 8878 3.1.1.1.2), besides all of a frame.
_WINDOW_NBYTES: Final = 8 << 20
# What fits in 7 bytes is more than any chunk.
_LARGE: Final = 1 << 56

# The highest levels split a frame into blocks of some KiB. A walk through tiny ones takes longer
# than decoding them.
_FEW_BLOCKS: Final = 64
_MEAN_BLOCK_NBYTES: Final = 1024


def read_frames(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Check frames; return their content sizes and the reasons for leaving some to the host.

    Parameters
    ----------
    encoded : EncodedColumns
    start, nbytes : ndarray of int64, shape (n,)
        Beginning of each frame, counted as in `encoded`, and its length in bytes.

    Returns
    -------
    ndarray of int64
        Content sizes in bytes; 0 for rejected frames.
    dict of int to str
        Reasons, by number of the frame.
    """
    if encoded.reader is None:
        return _read(encoded, start, nbytes)
    content = encoded.reader.zstd_frames(encoded.data, start, nbytes)
    (left,) = (content == 0).nonzero()
    if not len(left):
        return content, {}
    content[left], reasons = _read(encoded, start[left], nbytes[left])
    return content, {int(left[number]): reason for number, reason in reasons.items()}


def read_values(encoded: EncodedColumns) -> tuple[Integers, dict[int, str]]:
    """Check values that are frames; the result is that of :func:`read_frames`."""
    if encoded.known is None:
        return read_frames(encoded, encoded.start, encoded.nbytes)
    known: Integers = encoded.known.columns[0]
    if np.count_nonzero(known) == len(known):
        return known, {}
    left = np.flatnonzero(known == 0)
    content = known.copy()
    content[left], reasons = read_frames(encoded, encoded.start[left], encoded.nbytes[left])
    return content, {int(left[number]): reason for number, reason in reasons.items()}


def _read(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Check frames by NumPy alone; parameters and result are those of :func:`read_frames`."""
    frames = Rejections(len(start), "zstd")
    content, block_max, position = _read_headers(frames, encoded, start, nbytes)
    # Bytes that blocks do not say they have.
    room = content.copy()
    compressed = _walk(frames, encoded, position, start + nbytes, content, block_max, room)
    frame, begin, size = (np.concatenate(columns) for columns in zip(*compressed))
    order = np.argsort(frame, kind="stable")
    order = order[frames.ok[frame[order]]]
    frame, begin, size = frame[order], begin[order], size[order]
    found = read_blocks(encoded, frame, begin, size, block_max[frame])
    frames.reject_of(frame, found.wrong, "impossible block")
    np.subtract.at(room, frame, found.least)
    frames.reject(room < 0, "holds more bytes than it says")
    # Bytes that blocks may have besides.
    np.subtract.at(room, frame, np.where(found.is_exact, 0, block_max[frame] - found.least))
    frames.reject(room > 0, "holds fewer bytes than it says")
    return np.where(frames.ok, content, 0), frames.reasons


def _read_headers(
    frames: Rejections, encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return content size, largest block, and the beginning of the first block of each frame."""
    ok, reject = frames.ok, frames.reject
    reject(nbytes < 9, "shorter than a frame")
    magic, descriptor = encoded.uint(start, 4, ok), encoded.uint(start + 4, 1, ok)
    reject(magic != _MAGIC, "does not begin with a frame")
    reject(descriptor & 8 != 0, "a reserved bit is set")
    reject(descriptor & 3 != 0, "needs a dictionary")
    reject(descriptor & 4 != 0, "has a checksum, which the host compares")
    is_single = descriptor >> 5 & 1
    kind = descriptor >> 6
    size_nbytes = np.where(kind == 0, is_single, 1 << kind)
    reject(size_nbytes == 0, "does not say how many bytes it holds")
    position = start + 6 - is_single
    reject(position + size_nbytes + 3 > start + nbytes, "truncated")
    content = np.zeros(len(start), np.int64)
    for width in (1, 2, 4):
        content += encoded.uint(position, width, ok & (size_nbytes == width))
    content += np.where(size_nbytes == 2, 256, 0)
    is_long = ok & (size_nbytes == 8)
    content += encoded.uint(position, 7, is_long)
    reject(encoded.uint(position + 7, 1, is_long) != 0, f"holds {_LARGE} bytes or more")
    reject(content == 0, "holds no bytes")
    exponent = encoded.uint(start + 5, 1, ok & (is_single == 0))
    window = (1 << (10 + (exponent >> 3))) // 8 * (8 + (exponent & 7))
    window = np.where(is_single, content, window)
    reject(window > np.maximum(content, _WINDOW_NBYTES), "needs a large window")
    return content, np.minimum(window, _BLOCK_NBYTES), position + size_nbytes


def _walk(
    frames: Rejections,
    encoded: EncodedColumns,
    position: Integers,
    end: Integers,
    content: Integers,
    block_max: Integers,
    room: Integers,
) -> list[tuple[Integers, Integers, Integers]]:
    """Go from block to block of all frames at once.

    Parameters
    ----------
    position, end : ndarray of int64, shape (n,)
        Beginning of the first block of each frame, and end of the frame.
    content, block_max : ndarray of int64, shape (n,)
        Upper bounds of the bytes of each frame, and of one of its blocks.
    room : ndarray of int64, shape (n,)
        Reduced in place by the bytes of blocks with a known length.

    Returns
    -------
    list of (frame, begin, size), each ndarray of int64
        Compressed blocks: number of the frame, and where their bytes are.
    """
    # Only frames that are still walked: most have few blocks.
    at = np.flatnonzero(frames.ok)
    position, blocks = position[at], 0
    compressed = [(at[:0], at[:0], at[:0])]
    while len(at):
        header = encoded.uint(position, 3, np.ones(len(at), np.bool_))
        kind, size = header >> 1 & 3, header >> 3
        is_compressed = kind == _COMPRESSED
        room[at] -= np.where(is_compressed, 0, size)
        begin = position + 3
        position = begin + np.where(kind == _RUN, 1, size)
        is_last = header & 1 != 0
        blocks += 1
        wrong = (kind == _RESERVED) | (size > block_max[at])
        wrong |= is_compressed & (size < _COMPRESSED_MIN_NBYTES)
        frames.reject_of(at, wrong, "impossible block")
        frames.reject_of(at, room[at] < 0, "holds more bytes than it says")
        frames.reject_of(at, is_last & (position != end[at]), "something follows the frame")
        frames.reject_of(at, ~is_last & (position + 3 > end[at]), "truncated")
        least = (blocks - _FEW_BLOCKS) * _MEAN_BLOCK_NBYTES
        frames.reject_of(at, content[at] < least, "tiny blocks")
        compressed.append((at[is_compressed], begin[is_compressed], size[is_compressed]))
        goes_on = frames.ok[at] & ~is_last
        at, position = at[goes_on], position[goes_on]
    return compressed
