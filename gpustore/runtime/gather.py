"""One Future of several operations: :func:`gather`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import attributed, operation_of

_FEW: Final = 2
"""Most deferred tasks that the thread which asks for the result does alone."""


def gather(
    futures: Sequence[Future[Any]], result: Callable[[], Any], executor: Executor
) -> Future[Any]:
    """Return a Future of `result`, which is called when all `futures` are done.

    Its error is that of the first of them that failed; it is done only when all are. Cancelling it
    cancels them.

    Parameters
    ----------
    futures : sequence of Future
        Deferred ones are done by the threads of `executor`, or if they are few by the thread that
        asks for the result.
    result : callable
    executor : Executor
    """
    if all([future.is_deferred for future in futures]):

        def wait(some: Sequence[Future[Any]]) -> None:
            for future in some:
                future.result()

        if len(futures) <= _FEW:

            def all_of_them() -> Any:
                wait(futures)
                return result()

            return Future.deferred(all_of_them, executor)
        threads = min(executor.limit, len(futures))
        tasks = [partial(wait, futures[number::threads]) for number in range(threads)]
        return executor.run_all(tasks, result, helped=True)
    promise: Promise[Any]
    promise, gathered = Promise.new()
    ended = itertools.count(1)

    def end(_: Future[Any]) -> None:
        if next(ended) < len(futures):
            return
        try:
            for future in futures:
                future.result()
            _count(gathered, futures)
            promise.set_result(attributed(operation_of(gathered), result))
        except BaseException as error:
            promise.set_exception(error)

    def cancel(done: Future[Any]) -> None:
        if done.cancelled():
            for future in futures:
                future.cancel()

    gathered.add_done_callback(cancel)
    for future in futures:
        future.add_done_callback(end)
    return gathered


def _count(gathered: Future[Any], futures: Sequence[Future[Any]]) -> None:
    """Add the work of operations that counted for others, as those of a Batch do."""
    own = operation_of(gathered)
    if own is None:
        return
    for other in dict.fromkeys(map(operation_of, futures)):
        if other is not None and other is not own:
            own.add(**other.snapshot())
