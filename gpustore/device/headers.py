"""Headers of encoded values, as a codec has read and checked them: columns of many values.

The cache of a device keeps them beside encoded chunks, so that their bytes need not be in host
memory, nor be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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


@dataclass(frozen=True, slots=True)
class FramePart:
    """Some frames that were read together.

    Attributes
    ----------
    heads : ndarray of int64, shape (6, n)
        Decoded bytes of each frame, 0 for those that are left; bytes of an element; number of the
        compressor; whether the frame is stored, its bytes are shuffled, its bits are.
    blocks : ndarray of int64, shape (3, blocks)
        Frame of each block, ascending, its first decoded byte, decoded bytes.
    streams : ndarray of int64, shape (5, streams)
        Frame of each stream, ascending, first byte and bytes within the frame, of the decoded
        stream too.
    """

    heads: Integers
    blocks: Integers
    streams: Integers


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
            column: Integers = self.parts[0].heads[number]
            return column
        return np.concatenate([part.heads[number] for part in self.parts])

    @property
    def whole(self) -> FramePart:
        """All frames as one part."""
        if len(self.parts) == 1:
            return self.parts[0]
        heads = np.concatenate([one.heads for one in self.parts], axis=1)
        counts = np.array([one.heads.shape[1] for one in self.parts])
        parts = []
        for name in ("blocks", "streams"):
            columns = [getattr(one, name) for one in self.parts]
            part = np.concatenate(columns, axis=1)
            part[0] += np.repeat(np.cumsum(counts) - counts, [one.shape[1] for one in columns])
            parts.append(part)
        return FramePart(heads, *parts)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        every = [one for part in self.parts for one in (part.heads, part.blocks, part.streams)]
        return sum([one.nbytes for one in every])

    def take(self, values: NDArray[Any]) -> FrameColumns:
        """Return some of the frames, numbered anew."""
        whole = self.whole
        count = whole.heads.shape[1]
        parts = []
        for columns in (whole.blocks, whole.streams):
            owner, number = take_parts(columns[0], count, values)
            part = columns[:, number]
            part[0] = owner
            parts.append(part)
        return FrameColumns([FramePart(whole.heads[:, values], *parts)])

    def joined(self, others: Sequence[FrameColumns]) -> FrameColumns:
        """Return these frames and those of `others`."""
        parts = [part for one in (self, *others) for part in one.parts]
        return FrameColumns([part for part in parts if part.heads.shape[1]] or parts[:1])

    def unknown(self, count: int) -> FrameColumns:
        """Return `count` frames that are left."""
        one = self.parts[0]
        heads = np.zeros((len(one.heads), count), np.int64)
        return FrameColumns([FramePart(heads, one.blocks[:, :0], one.streams[:, :0])])


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
