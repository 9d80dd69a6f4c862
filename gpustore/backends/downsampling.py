"""Jobs of backends that downsample elements: :class:`Downsampling`."""

from __future__ import annotations

from typing import Final, NamedTuple

METHODS: Final = ("stride", "mean", "min", "max", "median", "mode")
"""Ways to make one element of a block, in TensorStore's order."""

GAUSSIAN: Final = "gaussian"
"""A way that TensorStore lacks: the mean of blocks of two elements and their neighbours with the
weights 1, 3, 3, 1 along an axis. Beyond the edges the last element repeats itself."""


class Downsampling(NamedTuple):
    """Reduction of the blocks of an array to one element each.

    Attributes
    ----------
    method : str
        One of :data:`METHODS` but ``"stride"``, which reads one element of a block; or
        :data:`GAUSSIAN`.
    factors : tuple of int
        Elements of a whole block along each dimension.
    before : tuple of int
        Elements of the first block along each dimension that lie before the array, less than the
        factor; -1 if the array has the neighbour before the first block, too.
    """

    method: str
    factors: tuple[int, ...]
    before: tuple[int, ...]


class Cells(NamedTuple):
    """Some of the blocks of a :class:`Downsampling`, and where their elements go.

    Attributes
    ----------
    firsts, steps, counts : tuple of int
        Number of the first block along each dimension, blocks from one to the next, and how many.
    offset : int
        Bytes from the start of the target to the element of the first block.
    strides : tuple of int
        Bytes between the elements of neighbours there.
    """

    firsts: tuple[int, ...]
    steps: tuple[int, ...]
    counts: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
