"""Reads of one array in a batch: they share the fetching and decoding of their chunks.

Bounds are checked when a read is asked for. When the batch is submitted, its reads are planned
together and read in one pass (:mod:`gpustore.pipelines.merged_reads`). Work that reads share is
counted once, in the statistics of each of them.

Reads through index arrays, or alone in their batch, are ordinary reads; so are all reads of a batch
that would make too large a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gpustore import registry
from gpustore.backends.base import NEW, Output
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.merged_reads import (
    MergedPlans,
    PendingRead,
    is_mergeable,
    plan_together,
    read_together,
)
from gpustore.pipelines.read import read
from gpustore.planning.chunk_plan import check_bounds
from gpustore.runtime.batch import Batch
from gpustore.runtime.future import Future, Promise
from gpustore.runtime.statistics import Operation


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
    begin = partial(read, array, transform, Output(result, stream=output.stream))
    item = PendingRead(array, transform, memory, result, promise, future, begin)
    batch._join(("array", id(array)), _start, item, promise, _explain)
    return future


def _together(
    reads: Sequence[PendingRead],
) -> tuple[list[PendingRead], list[PendingRead], MergedPlans | None]:
    """Split reads of an array into those that share chunks and others; also plan the former."""
    reads = [one for one in reads if not one.future.cancelled()]
    merged = [one for one in reads if is_mergeable(one.transform)]
    plans = plan_together(merged) if len(merged) > 1 else None
    if plans is None:
        return [], reads, None
    return merged, [one for one in reads if not is_mergeable(one.transform)], plans


def _explain(reads: list[PendingRead]) -> list[Any]:
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


def _start(reads: list[PendingRead]) -> None:
    merged, alone, plans = _together(reads)
    for one in alone:
        one.alone()
    if plans is None:
        return
    statistics = Operation()
    for one in merged:
        one.future._statistics = statistics
    statistics.add(reads=len(merged), chunks_planned=sum([len(plan) for _, plan in plans]))
    read_together(merged, plans, statistics)
