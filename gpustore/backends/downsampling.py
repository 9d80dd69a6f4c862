"""What a backend needs to know to downsample elements: :class:`Downsampling`."""

from __future__ import annotations

from typing import Final, NamedTuple

METHODS: Final = ("stride", "mean", "min", "max", "median", "mode")
"""Ways to make one element of a block, in TensorStore's order."""


class Downsampling(NamedTuple):
    """How blocks of an array become one element each.

    Attributes
    ----------
    method : str
        One of :data:`METHODS` but ``"stride"``, which reads one element of a block.
    factors : tuple of int
        Elements of a whole block along each dimension.
    before : tuple of int
        Elements of the first block along each dimension that lie before the array, less than the
        factor.
    """

    method: str
    factors: tuple[int, ...]
    before: tuple[int, ...]
