"""One Future of several operations."""

import asyncio

import pytest

from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.gather import gather
from gpustore.runtime.promise import Promise


@pytest.mark.parametrize("number", [0, 1, 2, 7])
def test_deferred_tasks_run_when_they_are_needed(number):
    executor, done = Executor(2), []
    tasks = [Future.deferred(lambda i=i: done.append(i), executor) for i in range(number)]
    gathered = gather(tasks, lambda: sorted(done), executor)
    assert gathered.is_deferred == (number <= 2)
    assert gathered.result() == list(range(number))


def test_the_result_waits_for_all():
    executor = Executor(2)
    promises, futures = zip(*[Promise.new() for _ in range(3)], strict=True)
    gathered = gather(futures, lambda: "all", executor)
    for promise in promises:
        assert not gathered.done()
        promise.set_result(None)
    assert gathered.result() == "all"


def test_the_first_error_is_that_of_all():
    promises, futures = zip(*[Promise.new() for _ in range(3)], strict=True)
    gathered = gather(futures, lambda: "all", Executor(2))
    promises[2].set_exception(ValueError("third"))
    promises[1].set_exception(ValueError("second"))
    assert not gathered.done()
    promises[0].set_result(None)
    with pytest.raises(ValueError, match="second"):
        gathered.result()


def test_cancelling_cancels_all():
    _, futures = zip(*[Promise.new() for _ in range(3)], strict=True)
    gathered = gather(futures, lambda: "all", Executor(2))
    assert gathered.cancel()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(asyncio.CancelledError):
        gathered.result()
