"""Sizes of the submissions of a read: one admission for all memory that they take.

A submission is closed when its values have at least ``SUBMISSION_STREAMS`` streams, or fill
``SUBMISSION_NBYTES`` of a staging buffer as they are stored, whichever comes first. A read shorter
than a few such submissions is divided into as many as run at once, as long as each has
``SUBMISSION_NBYTES`` decoded.

What chunks decode to is known before they are fetched, their stored sizes are not. So the rows of a
submission are those whose staging buffer, tables, decoded bytes and scratch memory fit in its share
of the memory, and the stored bytes decide whether the buffer is full before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpustore.backends.base import FETCHED, IN_PLACE, Chunks
from gpustore.backends.device.direct_read import pages_nbytes
from gpustore.backends.device.staging_buffer import LARGE, PART_ALIGNMENT, SMALL_NBYTES, aligned
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Device

SUBMISSION_NBYTES = 256 << 20
"""Most bytes of the values of a submission in its staging buffer, where they lie as stored."""

SUBMISSION_STREAMS = 4096
"""Streams that are enough for all multiprocessors of a device; not measured."""

SUBMISSION_ROWS = 8192
"""Most values of a submission."""

PIECE_NBYTES = 32 << 20
"""Most decoded bytes that a task fetches at a time."""

UNASKED_NBYTES = 64 << 20
"""Memory that a small read takes without asking the device how much is free."""

_ROW_NBYTES = 512
_REGION_NBYTES = 160
"""Bytes of a staging buffer for the tables and results of a value, and for each of its regions."""

_OUTPUT_NBYTES = 64
"""Bytes around an output, for guards and alignment."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of the submissions of a read.

    Attributes
    ----------
    rows, buffer_rows : int
        Most values of a submission, and number of those whose tables a staging buffer has room for.
    value_nbytes, room_nbytes : int
        Bytes of the staging buffer for a value, and for its tables and results.
    values_nbytes : int
        Most bytes of the staging buffer for all values.
    slack_nbytes : int
        More bytes of the buffer, so that the longest value fits.
    piece_nbytes : int
        Decoded bytes that a task adds at a time.
    device_nbytes : int
        Device memory of a submission: staging buffer with tables, decoded bytes and scratch.
    is_small : bool
        Whether a small buffer is enough.
    """

    rows: int
    buffer_rows: int
    value_nbytes: int
    room_nbytes: int
    values_nbytes: int
    slack_nbytes: int
    piece_nbytes: int
    device_nbytes: int
    is_small: bool

    def buffer_nbytes(self, rows: int) -> int:
        """Return the bytes of a staging buffer for so many values."""
        values = min(rows * self.value_nbytes, self.values_nbytes)
        return values + rows * self.room_nbytes + self.slack_nbytes

    def with_values(self, nbytes: int) -> Extent:
        """Return sizes with room for values of `nbytes` bytes; these if they have that."""
        value_nbytes = aligned(nbytes) + PART_ALIGNMENT
        if value_nbytes <= self.value_nbytes:
            return self
        rows = max(1, self.piece_nbytes // value_nbytes)
        return replace(
            self, buffer_rows=rows, value_nbytes=value_nbytes, values_nbytes=rows * value_nbytes
        )


def extent_of(
    device: Device, chunks: Sequence[Chunks], in_flight_nbytes: int
) -> tuple[Extent, bool]:
    """Choose the sizes of the submissions of a read, so that several fit in the memory.

    Returns
    -------
    Extent, bool
        The sizes, and whether they do not depend on the memory that is free now.
    """
    total = max(1, sum([one.rows for one in chunks]))
    regions = sum([one.regions for one in chunks])
    decoded_nbytes = max([one.chain.layout.nbytes for one in chunks], default=1)
    value_nbytes = aligned(decoded_nbytes) + PART_ALIGNMENT
    room_nbytes = _ROW_NBYTES + decoded_nbytes // 128 + regions * _REGION_NBYTES // total
    if chunks and all([one.source == IN_PLACE for one in chunks]):
        return _in_place(total, regions), True
    bound = max([one.chain.staged_bound for one in chunks], default=1)
    slack_nbytes = max(0, bound - decoded_nbytes)
    values_nbytes = max(value_nbytes, SUBMISSION_NBYTES)

    def needed(rows: int) -> int:
        """Memory of a submission on the device."""
        scratch = max([_scratch_nbytes(device, one.chain, rows) for one in chunks], default=0)
        staged = min(rows * value_nbytes, values_nbytes) + pages_nbytes(rows, rows * decoded_nbytes)
        return staged + rows * room_nbytes + slack_nbytes + scratch

    rows = min(total, _rows(device, chunks, total, max(1, decoded_nbytes)))
    budget = in_flight_nbytes // LARGE
    is_certain = needed(rows) <= min(budget, UNASKED_NBYTES)
    if not is_certain:
        budget = min(budget, device.memory().free_nbytes // (2 * LARGE))
    while rows > 1 and (nbytes := needed(rows)) > budget:
        rows = max(1, min(rows - 1, rows * budget // nbytes))
    device_nbytes = needed(rows)
    slack_nbytes += pages_nbytes(rows, rows * decoded_nbytes)
    if not any([one.source == FETCHED for one in chunks]):  # Only tables pass the staging buffer.
        value_nbytes = values_nbytes = slack_nbytes = 0
    extent = Extent(
        rows=rows if rows < total else SUBMISSION_ROWS,
        buffer_rows=rows,
        value_nbytes=value_nbytes,
        room_nbytes=room_nbytes,
        values_nbytes=values_nbytes,
        slack_nbytes=slack_nbytes,
        piece_nbytes=max(1, min(PIECE_NBYTES, rows * decoded_nbytes)),
        device_nbytes=device_nbytes,
        is_small=False,
    )
    is_small = rows == total and extent.buffer_nbytes(rows) <= SMALL_NBYTES
    return replace(extent, is_small=is_small), is_certain


def _rows(device: Device, chunks: Sequence[Chunks], total: int, decoded_nbytes: int) -> int:
    """Return the most rows of a submission, whatever the memory."""
    streams = [
        one.number
        for some in chunks
        if some.chain.unsupported_reason(device) is None
        for one in some.chain.device_streams(1)
    ]
    whole = max(1, SUBMISSION_NBYTES // decoded_nbytes)
    if not streams:  # Values have as many bytes in the staging buffer as decoded.
        return min(SUBMISSION_ROWS, whole)
    enough = -(-SUBMISSION_STREAMS // max(1, *streams))
    return min(SUBMISSION_ROWS, enough, max(whole, -(-total // LARGE)))


def _in_place(total: int, regions: int) -> Extent:
    """Return the sizes of submissions that copy chunks in device memory, and take none."""
    rows = min(total, SUBMISSION_ROWS)
    room_nbytes = _ROW_NBYTES + regions * _REGION_NBYTES // total
    return Extent(
        rows=SUBMISSION_ROWS,
        buffer_rows=rows,
        value_nbytes=0,
        room_nbytes=room_nbytes,
        values_nbytes=0,
        slack_nbytes=0,
        piece_nbytes=PIECE_NBYTES,
        device_nbytes=rows * room_nbytes,
        is_small=rows * room_nbytes <= SMALL_NBYTES,
    )


def _scratch_nbytes(device: Device, chain: CodecChain, rows: int) -> int:
    """Estimate the device memory that decoding takes beside the values."""
    decoded_nbytes = chain.layout.nbytes
    found = 0
    for stage in chain.stages:
        found += stage.device_outputs * rows * (decoded_nbytes + _OUTPUT_NBYTES)
        codec = stage.device_codec
        known = None if codec is None else device.codec(codec)
        if codec is None or known is None:
            continue
        if known.src_alignment > 1:
            found += rows * decoded_nbytes  # Streams are copied that do not lie so.
        sizes = rows, decoded_nbytes, rows * decoded_nbytes
        found += device.decompress_temp_nbytes(codec, *sizes)
    return found
