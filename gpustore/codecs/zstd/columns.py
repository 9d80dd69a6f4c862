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

from gpustore.codec_chain.encoded_columns import EncodedColumns, Integers, Mask
from gpustore.codecs.zstd.blocks import read_blocks

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


class _Frames:
    """State of the check of frames: which are legal so far, and the reasons against others.

    Attributes
    ----------
    ok : ndarray of bool, shape (n,)
    reasons : dict of int to str
        Reasons by number of the frame.
    """

    def __init__(self, count: int) -> None:
        self.ok: Mask = np.ones(count, np.bool_)
        self.reasons: dict[int, str] = {}

    def refuse(self, wrong: Mask, reason: str) -> None:
        """Leave some of all frames to the host."""
        wrong = wrong & self.ok
        self.reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), f"zstd: {reason}"))
        self.ok[wrong] = False

    def refuse_at(self, at: Integers, wrong: Mask, reason: str) -> None:
        """Leave some of the frames `at` to the host."""
        if wrong.any():
            whole = np.zeros(len(self.ok), np.bool_)
            whole[at[wrong]] = True
            self.refuse(whole, reason)


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
        Content sizes in bytes; 0 for refused frames.
    dict of int to str
        Reasons, by number of the frame.
    """
    frames = _Frames(len(start))
    content, block_max, position = _read_headers(frames, encoded, start, nbytes)
    # Bytes that blocks do not say they have.
    room = content.copy()
    compressed = _walk(frames, encoded, position, start + nbytes, content, block_max, room)
    frame, begin, size = (np.concatenate(columns) for columns in zip(*compressed))
    order = np.argsort(frame, kind="stable")
    order = order[frames.ok[frame[order]]]
    frame, begin, size = frame[order], begin[order], size[order]
    found = read_blocks(encoded, frame, begin, size, block_max[frame])
    frames.refuse_at(frame, found.wrong, "impossible block")
    np.subtract.at(room, frame, found.least)
    frames.refuse(room < 0, "holds more bytes than it says")
    # Bytes that blocks may have besides.
    np.subtract.at(room, frame, np.where(found.is_exact, 0, block_max[frame] - found.least))
    frames.refuse(room > 0, "holds fewer bytes than it says")
    return np.where(frames.ok, content, 0), frames.reasons


def _read_headers(
    frames: _Frames, encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return content size, largest block, and the beginning of the first block of each frame."""
    ok, refuse = frames.ok, frames.refuse
    refuse(nbytes < 9, "shorter than a frame")
    magic, descriptor = encoded.uint(start, 4, ok), encoded.uint(start + 4, 1, ok)
    refuse(magic != _MAGIC, "does not begin with a frame")
    refuse(descriptor & 8 != 0, "a reserved bit is set")
    refuse(descriptor & 3 != 0, "needs a dictionary")
    refuse(descriptor & 4 != 0, "has a checksum, which the host compares")
    is_single = descriptor >> 5 & 1
    kind = descriptor >> 6
    size_nbytes = np.where(kind == 0, is_single, 1 << kind)
    refuse(size_nbytes == 0, "does not say how many bytes it holds")
    position = start + 6 - is_single
    refuse(position + size_nbytes + 3 > start + nbytes, "truncated")
    content = np.zeros(len(start), np.int64)
    for width in (1, 2, 4):
        content += encoded.uint(position, width, ok & (size_nbytes == width))
    content += np.where(size_nbytes == 2, 256, 0)
    is_long = ok & (size_nbytes == 8)
    content += encoded.uint(position, 7, is_long)
    refuse(encoded.uint(position + 7, 1, is_long) != 0, f"holds {_LARGE} bytes or more")
    refuse(content == 0, "holds no bytes")
    exponent = encoded.uint(start + 5, 1, ok & (is_single == 0))
    window = (1 << (10 + (exponent >> 3))) // 8 * (8 + (exponent & 7))
    window = np.where(is_single, content, window)
    refuse(window > np.maximum(content, _WINDOW_NBYTES), "needs a large window")
    return content, np.minimum(window, _BLOCK_NBYTES), position + size_nbytes


def _walk(
    frames: _Frames,
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
        frames.refuse_at(at, wrong, "impossible block")
        frames.refuse_at(at, room[at] < 0, "holds more bytes than it says")
        frames.refuse_at(at, is_last & (position != end[at]), "something follows the frame")
        frames.refuse_at(at, ~is_last & (position + 3 > end[at]), "truncated")
        least = (blocks - _FEW_BLOCKS) * _MEAN_BLOCK_NBYTES
        frames.refuse_at(at, content[at] < least, "tiny blocks")
        compressed.append((at[is_compressed], begin[is_compressed], size[is_compressed]))
        goes_on = frames.ok[at] & ~is_last
        at, position = at[goes_on], position[goes_on]
    return compressed
