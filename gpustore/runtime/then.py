"""Conversion of the result of an operation: :func:`then`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import attributed, operation_of


def then(
    future: Future[Any],
    convert: Callable[[Any], Any],
    executor: Executor,
    *,
    on_stream: bool = False,
) -> Future[Any]:
    """Return a Future of `convert` applied to the result of another.

    Parameters
    ----------
    future : Future
        Cancelling the Future returned cancels this one.
    convert : callable
        Called with the result; errors it raises are those of the Future returned.
    executor : Executor
        Calls `convert`, unless `future` is deferred: then the thread that asks for the result does
        both.
    on_stream : bool
        Whether `convert` may be called with an array of a device before its elements are there, in
        the order of the stream of the read; see :meth:`Future.on_stream`.
    """
    early = None
    if on_stream and future._early is not None:

        def early() -> tuple[Any]:
            return (convert(future.on_stream()),)

    if future.is_deferred:
        # The thread that asks for this result also reads.
        return Future.deferred(lambda: convert(future.result()), executor, early)
    promise: Promise[Any]
    promise, result = Promise.new()
    result._epoch = future._epoch  # After a fork nobody would resolve it.
    if early is not None:
        promise.offer(early)

    def run(done: Future[Any]) -> None:
        # A batch replaces the statistics by those of all reads that it merged.
        operation = result._counted = operation_of(done)
        try:
            promise.set_result(attributed(operation, lambda: convert(done.result())))
        except BaseException as error:
            promise.set_exception(error)

    def cancel(done: Future[Any]) -> None:
        if done.cancelled():
            future.cancel()

    result.add_done_callback(cancel)
    future.add_done_callback(lambda done: executor.execute(partial(run, done)))
    return result
