"""Boxes of chunks: reads through strided maps, as dimensions in place of rows."""

from __future__ import annotations

from collections.abc import Sequence

from gpustore.device.kernels.box import BoxDim
from gpustore.index_space import IndexDomain
from gpustore.planning.cell_numbers import CellNumbers


def chunk_box(
    domain: IndexDomain,
    maps: Sequence[int] | None,
    chunk_shape: Sequence[int],
    numbering: CellNumbers,
    ratio: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
) -> list[BoxDim] | None:
    """Return the dimensions of a read of chunks of one shape; None if it leaves out chunks.

    Parameters
    ----------
    domain : IndexDomain
        Elements that are read.
    maps : sequence of int or None
        Input dimension or -1, offset and stride of each array dimension, inside the array; None
        for the identity.
    numbering, ratio
        Numbers of the chunks; see :meth:`CellNumbers.of_cells`.
    strides : (src_stride, dst_stride)
        Bytes between neighbours along each array dimension in a chunk, and along each dimension of
        `domain` in the array that is filled.

    Examples
    --------
    >>> from gpustore.index_space import IndexDomain
    >>> domain = IndexDomain(inclusive_min=[3], shape=[5])
    >>> numbering = CellNumbers((3,), (1,))
    >>> (dim,) = chunk_box(domain, (0, 0, 1), (4,), numbering, (1,), ((2,), (2,)))
    >>> dim.cell, dim.cells
    (0, 2)
    """
    src_stride, dst_stride = strides
    low, shape = domain.inclusive_min, domain.shape
    found = []
    seen = set()
    key_step, inner_step = numbering.per_key, 1
    key_rank = len(numbering.keys)
    for o in range(len(chunk_shape) - 1, -1, -1):
        d, offset, step = maps[3 * o : 3 * o + 3] if maps is not None else (o, 0, 1)
        chunk = chunk_shape[o]
        first, extent, dst = offset, 1, 0
        if d >= 0 and step:
            seen.add(d)
            first, extent, dst = offset + step * low[d], shape[d], dst_stride[d]
        if extent == 1:
            step = 1
        elif abs(step) > chunk:
            return None
        steps = (0, 0, 1)
        if o < key_rank:
            steps = (key_step, inner_step, ratio[o])
            key_step *= numbering.keys[o]
            inner_step *= numbering.inner[o]
        found.append(BoxDim(first, step, extent, chunk, *steps, src_stride[o], dst))
    for d, extent in enumerate(shape):
        if d not in seen and extent > 1:
            found.append(BoxDim(0, 1, extent, extent, 0, 0, 1, 0, dst_stride[d]))
    return found
