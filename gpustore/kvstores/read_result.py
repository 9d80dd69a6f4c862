"""Reads of single keys with TensorStore's results.

Source: TensorStore ``python/tensorstore/kvstore.cc``.
"""

from __future__ import annotations

import time
from operator import index
from typing import SupportsFloat, SupportsIndex

from gpustore.errors import MetadataError
from gpustore.kvstores import result
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadColumns, ReadRequest, ReadState
from gpustore.runtime.executor import Executor
from gpustore.runtime.promise import Promise

_STATE_NAMES: dict[ReadState, result.ReadResultState] = {
    ReadState.UNSPECIFIED: "unspecified",
    ReadState.MISSING: "missing",
    ReadState.VALUE: "value",
}


def read_result(columns: ReadColumns, row: int, time: float) -> result.ReadResult:
    """Return the result of one row of a read that began at `time`, in seconds since the epoch."""
    stamp = result.TimestampedStorageGeneration(columns.generation[row], time)
    value = columns.value[row]
    state = _STATE_NAMES[columns.state[row]]
    return result.ReadResult(state, b"" if value is None else bytes(value), stamp)


def read_together(
    driver: KvStoreDriver,
    executor: Executor,
    reads: list[tuple[ReadRequest, Promise[result.ReadResult]]],
) -> None:
    """Read the keys of several requests in one."""
    requests = [request for request, _ in reads]

    def run() -> None:
        began = time.time()
        try:
            columns = driver.read_many(
                ReadRequest(
                    [request.keys[0] for request in requests],
                    start=[request.start[0] for request in requests if request.start],
                    stop=[request.stop[0] for request in requests if request.stop],
                    if_not_equal=[
                        request.if_not_equal[0] if request.if_not_equal else b""
                        for request in requests
                    ],
                    staleness_bound=requests[0].staleness_bound,
                )
            )
        except Exception as error:
            for _, promise in reads:
                promise.set_exception(error)
            return
        for row, (_, promise) in enumerate(reads):
            if row in columns.error:
                promise.set_exception(columns.error[row])
            else:
                promise.set_result(read_result(columns, row, began))

    executor.execute(run)


def parse_byte_range(byte_range: slice | None) -> tuple[int, int | None]:
    """Return start and stop in the form of :class:`ReadRequest`; raises TensorStore's errors."""
    if byte_range is None:
        return 0, None
    if not isinstance(byte_range, slice) or byte_range.step is not None:
        raise TypeError(f"byte_range: expected slice(start, stop), but received: {byte_range!r}")
    try:
        start, stop = (
            None if bound is None else index(bound) for bound in (byte_range.start, byte_range.stop)
        )
    except TypeError:
        raise TypeError(f"byte_range: expected integers, but received: {byte_range!r}") from None
    begin = start or 0
    if stop is not None and (stop < 0 or begin < 0 or begin > stop):
        raise MetadataError(f"Unsupported byte_range slice: {start}:{stop}")
    return begin, stop


def parse_staleness_bound(bound: SupportsFloat | SupportsIndex | None) -> float | None:
    """Return seconds since the epoch; raises TypeError unless `bound` is a real number."""
    if bound is None:
        return None
    if not isinstance(bound, SupportsFloat | SupportsIndex):
        raise TypeError(f"staleness_bound: expected a number, but received: {bound!r:.200}")
    return float(bound)
