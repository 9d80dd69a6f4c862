"""Blocks: buffers into which some neighbouring chunks of a grid are decoded, often just one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.window import PlanWindow


@dataclass(frozen=True, slots=True)
class Block:
    """Grid of chunks with the blocks they are decoded into.

    Attributes
    ----------
    shape : tuple of int, or None
        Shape of the array, in elements; None if chunks of other shapes lie between these, so that
        grid indices do not tell how much of a chunk is inside the array.
    chunk_shape : tuple of int
        Shape of a chunk, in elements.
    factor : tuple of int
        Number of chunks of a block along each dimension.
    format : ChunkFormat
        Layout and keys of the chunks. Along each dimension its `key_ratio` divides `factor` or the
        other way round.
    itemsize : int
        Bytes of an element in a block, whose elements are in C order if `buffered`.
    partial : bool
        Whether parts of a chunk can be read; otherwise a chunk is always decoded whole.
    buffered : bool
        Whether chunks are decoded into a buffer of the block; otherwise blocks are single chunks,
        and regions are copied from decoded chunks as they are.
    """

    shape: tuple[int, ...] | None
    chunk_shape: tuple[int, ...]
    factor: tuple[int, ...]
    format: ChunkFormat
    itemsize: int
    partial: bool
    buffered: bool = True

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Elements of a block along each dimension."""
        return tuple(size * factor for size, factor in zip(self.chunk_shape, self.factor))

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return math.prod(self.block_shape) * self.itemsize

    @property
    def stride(self) -> tuple[int, ...]:
        """Bytes between neighbours in a block, or in a decoded chunk unless `buffered`."""
        if not self.buffered:
            return self.format.stride
        strides = [self.itemsize]
        for size in self.block_shape[:0:-1]:
            strides.append(strides[-1] * size)
        return tuple(reversed(strides[: len(self.chunk_shape)]))

    def inside(self, o: int, cell: Integers) -> Integers:
        """Return how many elements of each chunk at `cell` are known to lie inside the array."""
        size = self.chunk_shape[o]
        if self.shape is None:
            return np.full_like(cell, size)
        inside: Integers = np.minimum(size, self.shape[o] - cell * size)
        return inside

    def chunks(
        self, cells: Sequence[Integers], low: Sequence[Integers], high: Sequence[Integers]
    ) -> PlanWindow:
        """Write down rows that decode elements `low` to `high` of each chunk into its block."""
        count = len(low[0]) if low else 1
        src = np.zeros(count, np.int64)
        dst = np.zeros(count, np.int64)
        counts = []
        whole = np.ones(count, np.bool_)
        for o, cell in enumerate(cells):
            size = self.chunk_shape[o]
            src += self.format.stride[o] * low[o]
            dst += self.stride[o] * (cell % self.factor[o] * size + low[o])
            extent = high[o] - low[o]
            counts.append(extent.tolist())
            whole &= extent == self.inside(o, cell)
        return PlanWindow(
            cells=tuple(cell.tolist() for cell in cells),
            src_start=src.tolist(),
            dst_start=dst.tolist(),
            count=tuple(counts),
            whole=whole.tolist(),
            src_stride=self.format.stride,
            dst_stride=self.stride,
            keys=self.format.keys(cells, count),
        )
