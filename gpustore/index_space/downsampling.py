"""Domains of downsampled arrays.

A cell of the downsampled array stands for a block of the base: along each dimension, `factor`
elements from the cell's index times `factor` on, as far as the base has them.

Source: TensorStore's ``downsample`` driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpustore.index_space.dim import Dim
from gpustore.index_space.domain import IndexDomain
from gpustore.index_space.interval import INF, INF_STOP


def downsampled(domain: IndexDomain, factors: Sequence[int], *, strided: bool) -> IndexDomain:
    """Return the domain of cells.

    Parameters
    ----------
    domain : IndexDomain
        Domain of the base.
    factors : sequence of int
        Elements of a block along each dimension.
    strided : bool
        Whether a cell is the first element of its block, which the base must have.

    Examples
    --------
    >>> print(downsampled(IndexDomain(inclusive_min=[-4], exclusive_max=[6]), [3], strided=False))
    { [-2, 2) }
    """
    cells = [_cells(dim, factor, strided) for dim, factor in zip(domain, factors, strict=True)]
    return IndexDomain(cells)


def _cells(dim: Dim, factor: int, strided: bool) -> Dim:
    low, high = dim.inclusive_min, dim.exclusive_max
    if low != -INF:
        low = -(-low // factor) if strided else low // factor
    if high != INF_STOP:
        # No element is in no block.
        high = low if dim.inclusive_min == high else -(-high // factor)
    return Dim(
        inclusive_min=low,
        exclusive_max=max(low, high),
        implicit_lower=dim.implicit_lower,
        implicit_upper=dim.implicit_upper,
        label=dim.label,
    )
