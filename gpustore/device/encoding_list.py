"""Commands for chunks that a device encodes: compression, checksums, comparison with a pattern.

What these steps compute is needed by the host: the size of a compressed stream says where the next
one begins in a stored value. It is in :class:`Compressed`, :class:`Digests` and :class:`Matches`
once :meth:`~gpustore.device.command_list.CommandList.failures` has read the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.command_list import SEGMENT_NBYTES, CommandList
from gpustore.device.protocol import STATUSES, Argument, CodecBatch, Decoders, Spans
from gpustore.device.table import Result, Table

Integers = NDArray[np.int64]

ALIGNMENT: Final = 16
"""Alignment of all streams that a device compresses, before and after, in bytes."""


class Compressed:
    """Streams that a step compresses.

    Attributes
    ----------
    dst : Spans, length n
        Memory of the compressed streams, and room there.
    nbytes : ndarray of int64, shape (n,)
        Bytes of each compressed stream; 0 where it failed, and before the results are read.
    """

    __slots__ = ("dst", "nbytes")

    def __init__(self, dst: Spans) -> None:
        self.dst = dst
        self.nbytes: Integers = np.zeros(len(dst), np.int64)


class Digests:
    """Checksums that a step computes.

    Attributes
    ----------
    values : ndarray of uint32, shape (n,)
    """

    __slots__ = ("values",)

    def __init__(self, count: int) -> None:
        self.values: NDArray[np.uint32] = np.zeros(count, np.uint32)


class Matches:
    """Comparison of values with a pattern.

    Attributes
    ----------
    equal : ndarray of bool, shape (n,)
        Whether each value holds the pattern over and over and nothing else.
    """

    __slots__ = ("equal",)

    def __init__(self, count: int) -> None:
        self.equal: NDArray[np.bool_] = np.zeros(count, np.bool_)


def cannot_compress(device: Decoders, codec: str, max_nbytes: int) -> str | None:
    """Return why a device compresses no streams of `max_nbytes` bytes, None if it does."""
    known = device.codec(codec)
    if known is None or not known.encodes_max_nbytes:
        return f"{codec}: the device has no library that encodes it (a GPU has nvcomp for that)"
    if max_nbytes > known.encodes_max_nbytes:
        return (
            f"{codec}: a stream of {max_nbytes} bytes, the device encodes at most "
            f"{known.encodes_max_nbytes}"
        )
    return None


class EncodingList(CommandList):
    """Decoded chunks, and the steps that encode them; :attr:`values` are their bytes."""

    __slots__ = ()

    def compress(self, codec: str, src: Spans, rows: Integers | None = None) -> Compressed:
        """Record the compression of streams.

        Parameters
        ----------
        codec : str
            Codec for which :func:`cannot_compress` is None.
        src : Spans
            Streams, which begin at multiples of :data:`ALIGNMENT`; none is empty.
        rows : ndarray of int64, optional
            Row each stream is part of; by default :attr:`rows`.

        Raises
        ------
        MemoryError
            If there is not enough device memory.
        """
        count = len(src)
        owners = self.rows if rows is None else rows
        bound, temp_nbytes = self._device.compress_nbytes(codec, count, int(src.nbytes.max()))
        step_nbytes = -(-bound // ALIGNMENT) * ALIGNMENT
        starts = self.scratch(count * step_nbytes) + np.arange(count) * step_nbytes
        dst = Spans(starts.astype(np.uint64), np.full(count, bound, np.uint64))
        made = Compressed(dst)

        def read(found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
            sizes, statuses = CodecBatch.results(found)
            good = (statuses == 0) & (sizes > 0) & (sizes <= bound)
            made.nbytes = np.where(good, sizes, 0).astype(np.int64)
            for i in np.flatnonzero(~good).tolist():
                reason = STATUSES.get(int(statuses[i]), "unknown status")
                yield int(owners[i]), f"{codec}: {reason} ({statuses[i]}), {sizes[i]} bytes"

        table = self._codec_table(src, dst)
        result = self.result(12 * count, read)
        self._call_library(self._device.compress, codec, src, dst, table, result, temp_nbytes)
        return made

    def digest(self, name: str, src: Spans) -> Digests:
        """Record the computation of a checksum of each of `src`, by its name in ``CHECKSUMS``."""
        made = Digests(len(src))

        def read(found: NDArray[np.uint32]) -> Iterator[tuple[int, str]]:
            made.values = found.copy()  # The results lie in memory that is used again.
            return iter(())

        self._launch_checksum(name, src, read)
        return made

    def match(self, pattern: bytes) -> Matches:
        """Record the comparison of each value, whose bytes begin at a multiple of 16."""
        values = self.values
        made = Matches(len(self))
        segments = (values.nbytes.astype(np.int64) + SEGMENT_NBYTES - 1) // SEGMENT_NBYTES

        def read(found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
            made.equal = found.view(np.uint32) + np.uint32(1) == segments
            return iter(())

        result = self.result(4 * len(self), read)
        table = self.table(np.frombuffer(pattern * 16, np.uint8))
        arguments: list[Argument | Table | Result] = [table, np.uint32(len(pattern)), result]
        self._launch_segments("pattern", "compare_pattern", values, arguments)
        return made
