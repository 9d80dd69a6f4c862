"""Copies of the items of an array that lie in a box of its chunks, for which nothing is uploaded.

The addresses of all chunks of the array lie on the device, by number. A kernel computes the runs of
:mod:`gpustore.device.kernels.run` from these and from a descriptor of a few bytes for each
dimension, which is an argument of the launch. The steps are those of that module, once for all
chunks: the items have the width that all of them allow, and each run has the thread blocks of the
largest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.kernels.descriptor import ITEMS_PER_TILE, MAX_ITEMS
from gpustore.device.kernels.instance import WIDTHS, rank_for
from gpustore.device.kernels.launch import TILED_EXTENT
from gpustore.device.kernels.run import MAX_WIDTH

if TYPE_CHECKING:
    from gpustore.device.chunk_tables import ChunkTables

_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class BoxDim:
    """One dimension of a box: elements of an array, in chunks that follow one another.

    Attributes
    ----------
    first, step, extent : int
        Index in the array of the first element, distance of the next one, and number of elements.
        The distance is not 0, nor larger than a chunk.
    chunk : int
        Elements of a chunk.
    key_step, inner_step, ratio : int
        Numbers of chunks grow by `key_step` with each `ratio` chunks, and by `inner_step` with each
        of these.
    src_stride, dst_stride : int
        Bytes between neighbours in a chunk, and between elements where they go.
    """

    first: int
    step: int
    extent: int
    chunk: int
    key_step: int
    inner_step: int
    ratio: int
    src_stride: int
    dst_stride: int

    @property
    def cell(self) -> int:
        """Index of the chunk of the first element."""
        return self.first // self.chunk

    @property
    def cells(self) -> int:
        """Number of chunks."""
        last = self.first + self.step * (self.extent - 1)
        return abs(last // self.chunk - self.cell) + 1

    @property
    def most(self) -> int:
        """Most elements that lie in one chunk."""
        return min(self.extent, -(-self.chunk // abs(self.step)))

    @property
    def run_stride(self) -> int:
        """Bytes between elements in a chunk."""
        return self.step * self.src_stride

    def divided(self, items: int, src_stride: int, dst_stride: int) -> BoxDim:
        """Return the dimension of the items of its elements, so many each, with these strides."""
        return replace(
            self,
            first=self.first * items,
            extent=self.extent * items,
            chunk=self.chunk * items,
            src_stride=src_stride,
            dst_stride=dst_stride,
        )


@dataclass(frozen=True, slots=True)
class Box:
    """Box of the chunks of an array, which lie on a device.

    Attributes
    ----------
    dims : sequence of BoxDim
    tables : ChunkTables
        Tables of all chunks of the array.
    """

    dims: Sequence[BoxDim]
    tables: ChunkTables


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """Launch of a copy of some rows of a box, whose runs a launch before it writes.

    Attributes
    ----------
    rank : int
        Rank of the runs; the kernel that writes them is ``gs::write_runs<rank>``.
    expression : str
        Kernel that copies them.
    blocks : int
        Its thread blocks for each row.
    box : ndarray of uint8
        Bytes of ``gs::Box<rank>``.
    number : int
        What is added to the numbers of the chunks.
    dims : sequence of BoxDim
        Dimensions of the box, the innermost one first.
    """

    rank: int
    expression: str
    blocks: int
    box: NDArray[np.uint8]
    number: int
    dims: Sequence[BoxDim]

    def chunks(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Return the number of the chunk of each of the rows from `lo` up to `hi`."""
        found = np.full(1, self.number)
        for dim in reversed(self.dims):
            cells = dim.cell + np.arange(dim.cells) * (1 if dim.step > 0 else -1)
            along = cells // dim.ratio * dim.key_step + cells % dim.ratio * dim.inner_step
            found = (found[:, np.newaxis] + along).reshape(-1)
        return found[lo:hi]


def box_copy(
    dims: Sequence[BoxDim], src: int, dst: int, itemsize: int, unit: int, rows: int
) -> BoxCopy | None:
    """Return the launch that copies all elements of a box, or some of its chunks.

    None for what needs runs of several kinds: elements that go backwards, or whose bytes are
    swapped and are not aligned for their units; and for more than one launch has blocks for.

    Parameters
    ----------
    src : int
        First byte of the element of index zero in a chunk; chunks begin at multiples of 16 bytes.
    dst : int
        Device address of the first element.
    itemsize, unit : int
        Bytes of an element and of a byte-swapped unit; see
        :func:`gpustore.device.kernels.launch.copy_launches`.
    rows : int
        Number of chunks that are copied at once.
    """
    number = 0
    used: list[BoxDim] = []
    for dim in dims:
        if dim.cells == 1:
            key, inside = divmod(dim.cell, dim.ratio)
            number += key * dim.key_step + inside * dim.inner_step
            src += (dim.first - dim.cell * dim.chunk) * dim.src_stride
            dim = BoxDim(0, 1, dim.extent, dim.extent, 0, 0, 1, dim.run_stride, dim.dst_stride)
        if dim.extent > 1:
            used.append(dim)
    used.sort(key=lambda dim: dim.dst_stride, reverse=True)
    if used and used[-1].dst_stride <= 0:
        return None
    runs = _merged(used, itemsize)
    inner = runs[0]
    every = src | dst | inner.first | inner.extent | MAX_WIDTH
    if inner.cells > 1:
        every |= inner.chunk
    for dim in runs[1:]:
        every |= dim.src_stride | dim.dst_stride
    width = every & -every
    if width < unit:
        return None
    runs[0] = replace(
        inner,
        first=inner.first // width,
        extent=inner.extent // width,
        chunk=inner.chunk // width,
        src_stride=width,
        dst_stride=width,
    )
    runs = [dim for dim in runs if dim.extent > 1] or runs[:1]
    is_tiled = _has_tiles(runs, width)
    kernel = "copy_tiled" if is_tiled else "copy_strided"
    side = (64 if width <= 2 else 32) if is_tiled else 0
    most = [dim.most for dim in runs]
    if is_tiled:
        blocks = math.prod([-(-n // side) for n in most[:2]]) * math.prod(most[2:])
    else:
        blocks = -(-math.prod(most) // ITEMS_PER_TILE)
    is_large = (
        max(blocks * rows, math.prod(most)) > MAX_ITEMS
        or max(dim.cells for dim in runs) > MAX_ITEMS
    )
    if is_large or any(abs(dim.first) + abs(dim.chunk) >= _MOST for dim in runs):
        return None
    rank = rank_for(kernel, len(runs))
    return BoxCopy(
        rank,
        f"gs::{kernel}<{WIDTHS[width]}, {rank}>",
        blocks,
        _bytes(runs, rank, src, dst, blocks, side),
        number,
        runs,
    )


def _merged(used: Sequence[BoxDim], itemsize: int) -> list[BoxDim]:
    """Merge dimensions without a gap on both sides; return them innermost first, that of bytes."""
    runs = []
    last = BoxDim(0, 1, itemsize, itemsize, 0, 0, 1, 1, 1)
    for dim in reversed(used):
        extent = last.extent
        if (
            last.cells == dim.step == 1
            and dim.src_stride == extent * last.src_stride
            and dim.dst_stride == extent * last.dst_stride
        ):
            last = dim.divided(extent, last.src_stride, last.dst_stride)
        else:
            runs.append(last)
            last = dim
    return [*runs, last]


def _has_tiles(runs: list[BoxDim], width: int) -> bool:
    """Whether neighbours where items go lie apart in the chunks, as in `copy_launches`.

    The dimension of the near ones becomes the second one.
    """
    apart = [(abs(dim.run_stride), k) for k, dim in enumerate(runs) if dim.most >= TILED_EXTENT]
    stride, nearest = min(apart, default=(0, 0))
    first = runs[0]
    if not nearest or first.most < TILED_EXTENT or first.dst_stride != width or stride != width:
        return False
    runs[1], runs[nearest] = runs[nearest], runs[1]
    return True


def _bytes(
    runs: Sequence[BoxDim], rank: int, src: int, dst: int, blocks: int, side: int
) -> NDArray[np.uint8]:
    one = BoxDim(0, 1, 1, 1, 0, 0, 1, 0, 0)
    words: list[int] = []
    for dim in (*[one] * (rank - len(runs)), *reversed(runs)):
        words += (dim.first, dim.step, dim.extent, dim.chunk, dim.cell, dim.key_step)
        words += (dim.inner_step, dim.src_stride, dim.dst_stride, dim.cells, dim.ratio)
    layout = "qQII" + rank * "9q2I"  # That of `box_dtype`.
    return np.frombuffer(struct.pack(layout, src, dst, blocks, side, *words), np.uint8)
