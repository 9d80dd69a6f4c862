"""Headers of encoded values, as a codec has read and checked them: columns of many values.

The cache of a device keeps them beside encoded chunks, so that their bytes need not be in host
memory, nor be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Headers(Protocol):
    """Headers of n values; all positions count from the beginning of their value."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""

    def take(self, values: NDArray[Any]) -> Self:
        """Return the headers of some values: of these indices, or those where a mask is true."""

    def joined(self, others: Sequence[Any]) -> Self:
        """Return the headers of these values and those of `others`, which one codec has read."""


class KnownHeaders(Headers, Protocol):
    """Headers that the native core has read while it fetched the values, as far as they are right.

    A codec reads those of other values.
    """

    def unknown(self, count: int) -> Self:
        """Return headers of `count` values of which nothing is known."""


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """Headers of one number a column for each value.

    Attributes
    ----------
    columns : tuple of ndarray, shape (n,) each
    """

    columns: tuple[NDArray[Any], ...]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def take(self, values: NDArray[Any]) -> HeaderColumns:
        """Return the headers of some values."""
        return HeaderColumns(tuple([column[values] for column in self.columns]))

    def joined(self, others: Sequence[HeaderColumns]) -> HeaderColumns:
        """Return the headers of these values and those of `others`."""
        pairs = zip(self.columns, *(other.columns for other in others))
        return HeaderColumns(tuple([np.concatenate(columns) for columns in pairs]))

    def unknown(self, count: int) -> HeaderColumns:
        """Return zeros for `count` values."""
        return HeaderColumns(tuple([np.zeros(count, column.dtype) for column in self.columns]))


FRAME_HEADS: Final = 8
"""Columns of the heads of frames."""


@dataclass(frozen=True, slots=True)
class FramePart:
    """Some n frames that were read together; struct ``FrameColumns`` of ``kernels/host/job.h``.

    Attributes
    ----------
    memory : ndarray of int64
        All columns one behind the other: of n heads, of as many blocks as there is room for, and of
        as many streams.
    rows : int
        Number n of frames.
    block_room, stream_room : int
        Number of blocks and of streams for which there is room.
    block_count, stream_count : int
        Number of blocks and of streams.
    """

    memory: Integers
    rows: int
    block_room: int
    stream_room: int
    block_count: int
    stream_count: int

    @classmethod
    def of(cls, heads: Integers, blocks: Integers, streams: Integers) -> FramePart:
        """Join columns of the shapes of :attr:`heads`, :attr:`blocks` and :attr:`streams`."""
        memory = np.concatenate((heads.ravel(), blocks.ravel(), streams.ravel()))
        counts = blocks.shape[1], streams.shape[1]
        return cls(memory, heads.shape[1], *counts, *counts)

    @property
    def heads(self) -> Integers:
        """Columns of the frames, shape (8, n).

        Decoded bytes, 0 of those that are left; bytes of an element; number of the compressor;
        whether the frame is stored, its bytes are shuffled, its bits are; its blocks and streams.
        """
        return self.memory[: FRAME_HEADS * self.rows].reshape(FRAME_HEADS, -1)

    @property
    def blocks(self) -> Integers:
        """Columns of the blocks, shape (3, blocks).

        Frame, ascending, first decoded byte, decoded bytes.
        """
        begin = FRAME_HEADS * self.rows
        columns = self.memory[begin : begin + 3 * self.block_room].reshape(3, -1)
        return columns[:, : self.block_count]

    @property
    def streams(self) -> Integers:
        """Columns of the streams, shape (5, streams).

        Frame, ascending, first byte and bytes within the frame, of the decoded stream too.
        """
        begin = FRAME_HEADS * self.rows + 3 * self.block_room
        columns = self.memory[begin:].reshape(5, -1)
        return columns[:, : self.stream_count]


class FrameColumns:
    """Frames that the native core has read: their heads, their blocks, and the streams of these.

    Parameters
    ----------
    parts : sequence of FramePart
        One or more, none of several without frames; frames are numbered in each by itself.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[FramePart]) -> None:
        self.parts = parts

    def head(self, number: int) -> Integers:
        """Return one column of the heads of all frames."""
        if len(self.parts) == 1:
            rows = self.parts[0].rows
            return self.parts[0].memory[number * rows : (number + 1) * rows]
        return np.concatenate([part.heads[number] for part in self.parts])

    @property
    def whole(self) -> FramePart:
        """All frames as one part."""
        if len(self.parts) == 1:
            return self.parts[0]
        heads = np.concatenate([one.heads for one in self.parts], axis=1)
        counts = np.array([one.rows for one in self.parts])
        parts = []
        for name in ("blocks", "streams"):
            columns = [getattr(one, name) for one in self.parts]
            part = np.concatenate(columns, axis=1)
            part[0] += np.repeat(np.cumsum(counts) - counts, [one.shape[1] for one in columns])
            parts.append(part)
        return FramePart.of(heads, *parts)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return sum([part.memory.nbytes for part in self.parts])

    def take(self, values: NDArray[Any]) -> FrameColumns:
        """Return some of the frames, numbered anew."""
        if len(values) == sum([part.rows for part in self.parts]) and _are_all(values):
            return self
        whole = self.whole
        parts = []
        for columns in (whole.blocks, whole.streams):
            owner, number = take_parts(columns[0], whole.rows, values)
            part = columns[:, number]
            part[0] = owner
            parts.append(part)
        return FrameColumns([FramePart.of(whole.heads[:, values], *parts)])

    def joined(self, others: Sequence[FrameColumns]) -> FrameColumns:
        """Return these frames and those of `others`."""
        parts = [part for one in (self, *others) for part in one.parts]
        return FrameColumns([part for part in parts if part.rows] or parts[:1])

    def unknown(self, count: int) -> FrameColumns:
        """Return `count` frames that are left."""
        memory = np.zeros(FRAME_HEADS * count, np.int64)
        return FrameColumns([FramePart(memory, count, 0, 0, 0, 0)])


def _are_all(values: NDArray[Any]) -> bool:
    """Return whether a mask, or as many indices as there are values, are of all in their order."""
    if values.dtype == np.bool_:
        return bool(values.all())
    return bool((values[1:] > values[:-1]).all())


def take_parts(owner: Integers, count: int, values: NDArray[Any]) -> tuple[Integers, Integers]:
    """Find the parts of some values, of which each has any number.

    Parameters
    ----------
    owner : ndarray of int64
        Number of the value of each part, ascending, below `count`.
    values : ndarray
        Indices of values, or a mask of them.

    Returns
    -------
    ndarray of int64
        Number of the value of each part found, among those taken.
    ndarray of int64
        Number of each of these parts.

    >>> take_parts(np.array([0, 1, 1, 2]), 3, np.array([2, 1]))
    (array([0, 1, 1]), array([3, 1, 2]))
    """
    if values.dtype == np.bool_:
        values = np.flatnonzero(values)
    sizes = np.bincount(owner, minlength=count)
    first, taken = np.cumsum(sizes) - sizes, sizes[values]
    before = np.cumsum(taken) - taken
    number = np.arange(int(taken.sum())) + np.repeat(first[values] - before, taken)
    return np.repeat(np.arange(len(values)), taken), number
