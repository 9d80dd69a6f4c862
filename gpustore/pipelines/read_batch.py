"""Reads of one array in a batch: they share the fetching and decoding of their chunks.

1. Bounds are checked when a read is asked for.
2. When the batch is submitted, its reads are planned together: as crops, if they differ in their
   origin only (:mod:`gpustore.planning.crop_plan`), else one by one and then merged
   (:func:`gpustore.planning.copy_plan.merge_plans`).
3. The plan is read in one pass (:func:`gpustore.pipelines.read_many.read_regions`): a chunk is
   fetched and decoded once, and copied to all reads that want regions of it.
4. If the pass fails, each read is repeated by itself, so that each has its own result or error.

Work that reads share is counted once, in the statistics of each of them.

Reads through index arrays, or alone in their batch, are ordinary reads; so are all reads of a batch
that would make too large a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpustore import registry
from gpustore.backends.base import NEW, Memory, Output
from gpustore.errors import LimitError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import read
from gpustore.pipelines.read_many import (
    merge_reads,
    plan_many,
    read_regions,
)
from gpustore.planning.chunk_plan import check_bounds
from gpustore.planning.copy_plan import CopyPlan
from gpustore.runtime.batch import Batch
from gpustore.runtime.future import Future, Promise
from gpustore.runtime.statistics import STATISTICS, Operation, attributed

MOST_ROWS = 1 << 20
"""Most rows of a merged plan; reads that have more together are not merged."""


@dataclass(frozen=True, slots=True)
class BatchedRead:
    """A read that waits for its batch."""

    array: ChunkedArray
    transform: IndexTransform
    memory: Memory
    result: Any
    promise: Promise[Any]
    future: Future[Any]
    stream: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that is read."""
        return tuple(self.transform.domain.shape)

    @property
    def mergeable(self) -> bool:
        """Whether the read can be merged with others."""
        maps = self.transform.output
        return self.transform.domain.size > 0 and all(map_.index_array is None for map_ in maps)

    @property
    def form(self) -> tuple[Any, ...]:
        """Transform without its origin; reads with equal forms are crops of one shape."""
        maps = [(map_.offset, map_.stride, map_.input_dimension) for map_ in self.transform.output]
        return self.shape, self.memory.strides, maps

    def alone(self) -> None:
        """Run this read by itself."""
        try:
            begin = partial(
                read, self.array, self.transform, Output(self.result, stream=self.stream)
            )
            future = attributed(self.future._statistics, begin)
        except Exception as error:
            self.promise.set_exception(error)
        else:
            self.promise.follow(future)


def read_in_batch(
    array: ChunkedArray,
    transform: IndexTransform,
    batch: Batch,
    output: Output = NEW,
) -> Future[Any]:
    """Read the domain of `transform` when `batch` is submitted.

    Parameters and errors are those of :func:`gpustore.pipelines.read.read`; LimitError comes
    through the Future.
    """
    shape = tuple(transform.domain.shape)
    check_bounds(transform, array.shape)
    # The thread that submits the batch may have another current stream.
    output = output._replace(stream=array.backend.caller_stream(output.stream))
    memory = output.memory(array.backend, shape, array.dtype)
    promise: Promise[Any]
    promise, future = Promise.new()
    result = output.filled(memory)
    item = BatchedRead(array, transform, memory, result, promise, future, output.stream)
    batch._join(("array", id(array)), _start, item, promise, _explain)
    return future


def _together(
    reads: Sequence[BatchedRead],
) -> tuple[list[BatchedRead], list[BatchedRead], list[tuple[ChunkedArray, CopyPlan]] | None]:
    """Split reads of an array into those that share chunks and others; also plan the former."""
    reads = [one for one in reads if not one.future.cancelled()]
    merged = [one for one in reads if one.mergeable]
    plans = _plans(merged) if len(merged) > 1 else None
    if plans is None:
        return [], reads, None
    return merged, [one for one in reads if not one.mergeable], plans


def _explain(reads: list[BatchedRead]) -> list[Any]:
    estimate = registry.find("explain", "estimate")
    merged, alone, plans = _together(reads)
    found = []
    if plans is not None:
        shapes = [one.shape for one in merged]
        found.append(estimate(merged[0].array, plans, shapes, together=len(merged)))
    for one in alone:
        plan = one.array.plans(one.transform, one.memory.strides)
        found.append(estimate(one.array, plan, [one.shape]))
    return found


def _start(reads: list[BatchedRead]) -> None:
    merged, alone, plans = _together(reads)
    for one in alone:
        one.alone()
    if plans is None:
        return
    array = merged[0].array
    statistics = Operation()
    for one in merged:
        one.future._statistics = statistics

    def finish(done: Future[None]) -> None:
        failed = done.cancelled() or done.exception() is not None
        for one in merged:
            if failed:
                one.alone()
            else:
                one.promise.set_result(one.result)

    memories = [one.memory for one in merged]

    def begin() -> Future[Any]:
        STATISTICS.add(reads=len(merged), chunks_planned=sum([len(plan) for _, plan in plans]))
        return read_regions(array, plans, memories, None)

    shared = attributed(statistics, begin)
    shared.add_done_callback(finish)


def _plans(reads: Sequence[BatchedRead]) -> list[tuple[ChunkedArray, CopyPlan]] | None:
    """Plan the reads together, one plan a chunk shape; None if there are too many rows."""
    first = reads[0]
    array, form = first.array, first.form
    most = min(MOST_ROWS, len(reads) * array.limits.chunks_per_request)
    try:
        if any(one.form != form for one in reads):
            transforms = [one.transform for one in reads]
            return merge_reads(array, transforms, [one.memory.strides for one in reads], most)
        domain = first.transform.domain
        starts = np.array([one.transform.domain.origin for one in reads], np.int64)
        return plan_many(
            array,
            first.transform,
            starts.reshape(len(reads), domain.rank),
            tuple(domain.shape),
            (0, *first.memory.strides),
            separate=True,
            max_chunks=most,
        )
    except LimitError:
        return None
