"""Several reads of one array as one pass: they share the fetching and decoding of their chunks.

1. The reads are planned together: as crops, if they differ in their origin only
   (:mod:`gpustore.planning.crop_plan`), else one by one and then merged
   (:func:`gpustore.planning.copy_plan.merge_plans`).
2. The plan is read in one pass (:func:`gpustore.pipelines.read_many.read_regions`): a chunk is
   fetched and decoded once, and copied to all reads that want regions of it.
3. If the pass fails, each read is repeated by itself, so that each has its own result or error.

Reads through index arrays are not merged, nor reads that would make too large a plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpustore.backends.base import Memory
from gpustore.errors import LimitError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read_many import merge_reads, plan_many, read_regions
from gpustore.planning.copy_plan import CopyPlan
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import Operation, attributed, operation_of

MOST_ROWS = 1 << 20
"""Most rows of a merged plan; reads that have more together are not merged."""

MergedPlans = list[tuple[ChunkedArray, CopyPlan]]
"""Plans of several reads, one a chunk shape."""


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that waits to be merged with others.

    Attributes
    ----------
    array : ChunkedArray
    transform : IndexTransform
    memory : Memory
        Array that the read fills.
    result : object
        Result of the read: that array, or the object of the caller.
    promise, future : Promise and Future of the result
    begin : callable
        Begins the read by itself.
    """

    array: ChunkedArray
    transform: IndexTransform
    memory: Memory
    result: Any
    promise: Promise[Any]
    future: Future[Any]
    begin: Callable[[], Future[Any]]

    def alone(self) -> None:
        """Run this read by itself."""
        if self.future.cancelled():
            return
        try:
            future = attributed(operation_of(self.future), self.begin)
        except Exception as error:
            self.promise.set_exception(error)
        else:
            self.promise.follow(future)


class PlannedTogether(Protocol):
    """A read that can be planned with others, as :class:`PendingRead` describes it."""

    @property
    def array(self) -> ChunkedArray: ...

    @property
    def transform(self) -> IndexTransform: ...

    @property
    def memory(self) -> Memory: ...


def _form(one: PlannedTogether) -> tuple[Any, ...]:
    """Return the transform without its origin; reads with equal forms are crops of one shape."""
    maps = [(map_.offset, map_.stride, map_.input_dimension) for map_ in one.transform.output]
    return one.transform.domain.shape, one.memory.strides, maps


def is_mergeable(transform: IndexTransform) -> bool:
    """Return whether a read of `transform` can be merged with others."""
    return transform.domain.size > 0 and all(map_.index_array is None for map_ in transform.output)


def plan_together(reads: Sequence[PlannedTogether]) -> MergedPlans | None:
    """Plan mergeable reads of one array together; None if there are too many rows."""
    first = reads[0]
    array, form = first.array, _form(first)
    most = min(MOST_ROWS, len(reads) * array.limits.chunks_per_request)
    try:
        if any(_form(one) != form for one in reads):
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


def read_together(
    reads: Sequence[PendingRead],
    plans: MergedPlans,
    statistics: Operation,
    *,
    before: Callable[[], None] = lambda: None,
) -> Future[None]:
    """Read merged plans in one pass and finish `reads`; work counts for `statistics`.

    `before` is called when the pass has ended, before any of the reads is done.

    Returns
    -------
    Future
        The pass; reads are finished, or repeated alone, by its callback once it is begun or done.
    """
    memories = [one.memory for one in reads]
    shared = attributed(statistics, lambda: read_regions(reads[0].array, plans, memories, None))
    unwanted = itertools.count(1)

    def done(future: Future[Any]) -> None:
        if future.cancelled() and next(unwanted) == len(reads):
            shared.cancel()

    def finish(done: Future[None]) -> None:
        failed = done.cancelled() or done.exception() is not None
        before()
        for one in reads:
            if failed:
                one.alone()
            else:
                one.promise.set_result(one.result)

    for one in reads:
        one.future.add_done_callback(done)
    shared.add_done_callback(finish)
    return shared
