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
    PendingRead,
    PlannedTogether,
    is_mergeable,
    plan_together,
    read_together,
)
from gpustore.pipelines.read import read
from gpustore.pipelines.strided_reads import Asked, StridedRead, begin_batch
from gpustore.planning.chunk_plan import check_bounds
from gpustore.runtime.batch import Batch
from gpustore.runtime.future import Future, new
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import Operation


def read_in_batch(
    array: ChunkedArray,
    transform: IndexTransform,
    batch: Batch,
    output: Output = NEW,
    one: StridedRead | None = None,
) -> Future[Any]:
    """Read the domain of `transform` when `batch` is submitted.

    Parameters
    ----------
    array, transform, output
        See :func:`gpustore.pipelines.read.read`, which raises the same errors; LimitError comes
        through the Future.
    batch : Batch
    one : StridedRead, optional
        The read, if the native core plans it.
    """
    if one is not None:
        future = new()
        asked: _Item = one, future
        batch._join(("array", id(array)), _start, asked, future, _explain)
        return future
    check_bounds(transform, array.shape)
    # The thread that submits the batch may have another current stream.
    output = output._replace(stream=array.backend.caller_stream(output.stream))
    memory = output.memory(array.backend, transform.domain.shape, array.dtype)
    promise: Promise[Any]
    promise, future = Promise.new()
    result = output.filled(memory)
    begin = partial(read, array, transform, Output(result, stream=output.stream))
    item: _Item = PendingRead(array, transform, memory, result, promise, future, begin)
    batch._join(("array", id(array)), _start, item, future, _explain)
    return future


_Item = PendingRead | Asked


def _split(reads: Sequence[_Item]) -> tuple[list[Asked], list[PendingRead], list[PendingRead]]:
    """Split reads of an array: those the native core plans, those that can be merged, others."""
    strided = [one for one in reads if isinstance(one, tuple) and not one[1].cancelled()]
    pending = [one for one in reads if isinstance(one, PendingRead) and not one.future.cancelled()]
    merged = [one for one in pending if is_mergeable(one.transform)]
    return strided, merged, [one for one in pending if not is_mergeable(one.transform)]


def _explain(reads: list[_Item]) -> list[Any]:
    estimate = registry.find("explain", "estimate")
    strided, merged, alone = _split(reads)
    found = []
    rest: list[PlannedTogether] = list(alone)
    for some in ([one for one, _ in strided], merged):
        plans = plan_together(some) if len(some) > 1 else None
        if plans is None:
            rest += some
        else:
            shapes = [tuple(one.transform.domain.shape) for one in some]
            found.append(estimate(some[0].array, plans, shapes, together=len(some)))
    for one in rest:
        plan = one.array.plans(one.transform, one.memory.strides)
        found.append(estimate(one.array, plan, [tuple(one.transform.domain.shape)]))
    return found


def _start(reads: list[_Item]) -> None:
    strided, merged, alone = _split(reads)
    if strided:
        begin_batch(strided)
    plans = plan_together(merged) if len(merged) > 1 else None
    for one in alone if plans is not None else [*alone, *merged]:
        one.alone()
    if plans is None:
        return
    statistics = Operation()
    for one in merged:
        one.future._counted = statistics
    statistics.add(reads=len(merged), chunks_planned=sum([len(plan) for _, plan in plans]))
    read_together(merged, plans, statistics)
