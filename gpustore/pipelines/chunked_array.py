"""What the pipelines need to know of an array of chunks: where they lie and how they decode."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore.backends.base import Backend
from gpustore.chunk_plan import ChunkPlan, plan_chunks
from gpustore.codecs.chain import CodecChain
from gpustore.errors import OutOfBoundsError
from gpustore.executor import Executor
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KvStoreDriver
from gpustore.limits import Limits
from gpustore.refiner import Refiner

__all__ = ["ChunkedArray"]


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array stored as a regular grid of chunks, one key each.

    Attributes
    ----------
    store : KvStoreDriver
        Holds the chunks.
    key_prefix, key_separator : str
        A chunk's key is the prefix and its grid indices joined by the separator.
    shape, chunk_shape : tuple of int
        In elements.
    dtype : numpy.dtype
        Of the elements in memory, native byte order.
    fill_value : ndarray of `dtype`, shape ()
        Value of the elements of missing chunks.
    chain : CodecChain
        Decodes a stored chunk; its layout is that of the decoded bytes.
    refiners : tuple of Refiner
        Stages that can narrow a read down to parts of a chunk, outermost first.
    fill_missing : bool
        Whether missing chunks read as the fill value; otherwise they are an error.
    keep_fill : bool
        Whether chunks that equal the fill value bit for bit are stored all the same.
    backend, executor, limits
        Where arrays live, who works, and what is too large.
    """

    store: KvStoreDriver
    key_prefix: str
    key_separator: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    chain: CodecChain
    refiners: tuple[Refiner, ...]
    fill_missing: bool
    keep_fill: bool
    backend: Backend
    executor: Executor
    limits: Limits

    def plan(self, transform: IndexTransform, strides: tuple[int, ...]) -> ChunkPlan:
        """Plan the chunks `transform` touches, for an array in memory with these byte strides.

        Raises
        ------
        OutOfBoundsError
            If the transform leaves the array.
        LimitError
            If it touches more chunks than the limit.
        """
        self._check_bounds(transform)
        return plan_chunks(
            transform,
            shape=self.shape,
            chunk_shape=self.chunk_shape,
            src_stride=self.chain.layout.strides,
            dst_stride=strides,
            key_prefix=self.key_prefix,
            key_separator=self.key_separator,
            max_chunks=self.limits.chunks_per_request,
        )

    def _check_bounds(self, transform: IndexTransform) -> None:
        domain = transform.domain
        low, shape = domain.inclusive_min, domain.shape
        if 0 in shape:
            return
        for o, size in enumerate(self.shape):
            map_ = transform.output[o]
            d, stride = map_.input_dimension, map_.stride
            if map_.index_array is not None:
                continue
            first = last = map_.offset
            if d is not None and stride is not None:
                first += stride * low[d]
                last = first + stride * (shape[d] - 1)
            for index in (first, last):
                if not 0 <= index < size:
                    raise OutOfBoundsError(
                        f"Checking bounds of {map_.method.name} output index map for dimension "
                        f"{o}: Index {index} is outside valid range [0, {size})"
                    )

    def tasks(self, rows: int) -> list[tuple[int, int]]:
        """Split `rows` rows of a plan among the threads.

        Small chunks stay on one thread: below 32 KiB a second one made Python slower
        (0.8 times, 2 cores), because the interpreter lock is held most of the time.
        """
        parts = 1
        if self.chain.layout.nbytes >= 32 << 10:
            parts = max(1, min(rows, 4 * self.executor.limit))
        bounds = [rows * i // parts for i in range(parts + 1)]
        return list(itertools.pairwise(bounds))
