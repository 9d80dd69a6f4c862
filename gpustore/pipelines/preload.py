"""Preloading: chunks are decoded into the cache of a device, and their elements placed nowhere.

The steps are those of a read (:mod:`gpustore.pipelines.read`) without the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpustore.errors import UnsupportedError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray, with_decoder
from gpustore.pipelines.native_fill import fill_tasks
from gpustore.pipelines.read import PLANNED_ROWS, contiguous, most_keys, sink_of
from gpustore.pipelines.resident import batches, resident_tables
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.statistics import STATISTICS


def preload(array: ChunkedArray, transform: IndexTransform, progress: Progress) -> Future[None]:
    """Bring the chunks that a read of the domain of `transform` needs into the device's cache.

    `progress` is told the bytes of the chunks as they are decoded.

    Returns
    -------
    Future
        Resolves when all of them are there that fit.

    Raises
    ------
    UnsupportedError
        If reads look into no cache of a device.
    OutOfBoundsError, LimitError
        Before any I/O.
    """
    if not array.is_resident:
        raise UnsupportedError(
            "preload needs a store on a device, opened with a device_cache_pool that has room for "
            f"a chunk of {array.chain.layout.nbytes} bytes; this one is on {array.backend.device}"
        )
    shape = tuple(transform.domain.shape)
    plans = array.plans(transform, contiguous(shape, array.dtype.itemsize, "C"))
    STATISTICS.add(chunks_planned=sum([plan.rows for _, plan in plans]))
    plans = with_decoder(plans)
    is_there = resident_tables(plans) is not None
    nbytes = sum([plan.rows * one.chain.layout.nbytes for one, plan in plans])
    progress.begin(nbytes)
    if is_there:
        progress.add(nbytes)
    sink: Any = sink_of(array, plans, [])  # Of a device: others have no cache.
    sink.on_settled = progress.add

    def load(one: ChunkedArray, plan: ChunkPlan, number: int, count: int) -> None:
        windows = plan.windows(number, count, PLANNED_ROWS, most_keys=most_keys(one))
        with sink.part(one.chain, rows=plan.rows // count + 1) as part:
            for planned in windows:
                for _, rows, values, cached in batches(one, planned, part.arena, sink.nbytes):
                    part.scatter(rows, values, cached)

    tasks: list[Callable[[], None]] = []
    for one, plan in () if is_there else plans:
        filled = fill_tasks(one, plan, sink)
        if filled is not None:
            tasks += filled
            continue
        count = one.fewer_parts(one.parts(plan), len(plan))
        tasks += [partial(load, one, plan, number, count) for number in range(count)]
    found: Future[None] = sink.run(array.executor, tasks, lambda: None)
    return found
