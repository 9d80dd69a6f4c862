"""Encoded values on a device as segments, whose sizes are known once streams are compressed.

A stored value is put together of streams that the device has compressed, of bytes of the chunk
itself where compression does not pay, and of a few bytes that the host writes: headers, lengths,
checksums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.device.encoding_list import Compressed, EncodingList, Integers
from gpustore.device.protocol import Spans

HIGHEST_LEVELS: Final = {"zstd": 9, "deflate": 6}
"""Highest levels that a device encodes: it has one level, which compresses less than higher ones.

The host encodes chunks of higher levels, and of level 0 of Deflate, which does not compress.
"""


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of n values, in the order in which they follow each other.

    Attributes
    ----------
    nbytes : ndarray of int64, shape (n, k)
        Bytes of each segment; 0 for one that a value lacks.
    source : ndarray of int64, shape (n, k)
        Device address of each segment, or where it begins in `written`.
    is_written : ndarray of bool, shape (n, k) or (k,)
        Whether a segment is in `written`.
    written : ndarray of uint8
        Bytes of the host.
    """

    nbytes: Integers
    source: Integers
    is_written: NDArray[np.bool_]
    written: NDArray[np.uint8]

    @classmethod
    def of_spans(cls, spans: Spans) -> Segments:
        """Return values of one segment each."""
        return cls(
            spans.nbytes.astype(np.int64)[:, None],
            spans.address.astype(np.int64)[:, None],
            np.zeros((len(spans), 1), np.bool_),
            np.zeros(0, np.uint8),
        )

    @classmethod
    def framed(
        cls, before: NDArray[np.uint8], stream: Compressed, behind: NDArray[np.uint8]
    ) -> Segments:
        """Return values of one compressed stream each, between bytes of the host.

        Parameters
        ----------
        before, behind : ndarray of uint8, shape (n, m)
            Bytes before and behind the stream of each value.
        """
        n, head = before.shape
        tail = behind.shape[1]
        first = np.arange(n) * (head + tail)
        nbytes = np.stack([np.full(n, head), stream.nbytes, np.full(n, tail)], axis=1)
        address = stream.dst.address.astype(np.int64)
        source = np.stack([first, address, first + head], axis=1)
        written = np.concatenate([before, behind], axis=1).reshape(-1)
        return cls(nbytes, source, np.array([True, False, True]), written)


class EncodedValues(Protocol):
    """Values that recorded steps encode."""

    def segments(self) -> Segments:
        """Return the segments of all values, once the results of the steps are read.

        Those of values that failed are undefined.
        """


class Unchanged:
    """Values that are stored as they are on the device.

    Parameters
    ----------
    spans : Spans
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def segments(self) -> Segments:
        """Return the bytes of each value as one segment."""
        return Segments.of_spans(self._spans)


class Framed:
    """Values of one compressed stream each, with bytes of the host before and behind.

    Parameters
    ----------
    commands : EncodingList
        The list; its values become the streams.
    codec : str
        Codec of the device.
    before : ndarray of uint8, shape (m,)
        Bytes before each stream.
    behind : callable, optional
        Returns the bytes behind each stream.
    """

    def __init__(
        self,
        commands: EncodingList,
        codec: str,
        before: bytes = b"",
        behind: Callable[[], NDArray[np.uint8]] | None = None,
    ) -> None:
        self._stream = commands.compress(codec, commands.values)
        self._before = np.tile(np.frombuffer(before, np.uint8), (len(commands), 1))
        self._behind = behind

    def segments(self) -> Segments:
        """Return the stream of each value between the bytes of the host."""
        nothing = np.zeros((len(self._before), 0), np.uint8)
        behind = nothing if self._behind is None else self._behind()
        return Segments.framed(self._before, self._stream, behind)


def little_endian(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the bytes of 32-bit numbers, shape (n, 4)."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4)


def big_endian(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the bytes of 32-bit numbers in opposite order, shape (n, 4)."""
    return values.astype(">u4").view(np.uint8).reshape(-1, 4)
