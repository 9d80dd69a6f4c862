"""Tests of futures: TensorStore's semantics (run on both libraries), deferred tasks, memory."""

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import types
import typing
import weakref
from asyncio import CancelledError
from pathlib import Path

import numpy as np
import pytest
import tensorstore

import gpustore
import gpustore.runtime.future as futures
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, failed, new, ready
from gpustore.runtime.promise import Promise
from tests.waiting import wait_until


@pytest.fixture(params=[gpustore, tensorstore], ids=["gpustore", "tensorstore"])
def api(request):
    return request.param


@pytest.fixture(scope="module")
def executor():
    return Executor(2)


# ------------------------------------------------------- what TensorStore does as well


@pytest.mark.parametrize("method", ["result", "exception"])
@pytest.mark.parametrize(
    "limits",
    [
        {"timeout": 0.001},
        {"timeout": 0},
        {"timeout": -1},
        {"deadline": 0},
        {"timeout": 1000, "deadline": 1},
        {"timeout": 0.001, "deadline": 1e12},
    ],
)
def test_wait_raises_timeout_error(api, method, limits):
    _promise, future = api.Promise.new()
    with pytest.raises(TimeoutError):
        getattr(future, method)(**limits)
    assert not future.done()
    assert not future.cancelled()


def test_limits_may_be_positional(api):
    promise, future = api.Promise.new()
    with pytest.raises(TimeoutError):
        future.result(0.001)
    promise.set_result(1)
    assert future.result(5, time.time() + 5) == 1


def test_result_is_kept(api):
    promise, future = api.Promise.new()
    assert promise.set_result(5) is None
    assert future.done()
    promise.set_result(6)
    promise.set_exception(KeyError("x"))
    assert future.result() == future.result() == 5
    assert future.exception() is None
    assert future.cancel() is False
    assert not future.cancelled()


def test_exception_is_kept(api):
    promise, future = api.Promise.new()
    error = KeyError("x")
    promise.set_exception(error)
    promise.set_result(5)
    assert future.exception() is error
    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            future.result()
        assert raised.value is error


def test_cancel(api):
    promise, future = api.Promise.new()
    assert future.cancel() is True
    assert future.cancel() is False
    assert future.done()
    assert future.cancelled()
    promise.set_result(5)
    for method in (future.result, future.exception):
        with pytest.raises(asyncio.CancelledError):
            method()


def test_dropped_promise_is_an_unknown_error(api):
    promise, future = api.Promise.new()
    del promise
    with pytest.raises(ValueError, match=r"^UNKNOWN: "):
        future.result()


def test_callbacks(api):
    promise, future = api.Promise.new()
    seen = []
    callback = seen.append
    future.add_done_callback(callback)
    future.add_done_callback(callback)
    assert future.remove_done_callback(callback) == 2
    assert future.remove_done_callback(callback) == 0
    future.add_done_callback(callback)
    promise.set_result(1)
    assert len(seen) == 1
    assert seen[0] is future
    future.add_done_callback(callback)
    assert len(seen) == 2


def test_callback_is_called_on_cancellation(api):
    _promise, future = api.Promise.new()
    seen = []
    future.add_done_callback(seen.append)
    future.cancel()
    assert len(seen) == 1


def test_callback_on_done_future_may_raise(api):
    with pytest.raises(ZeroDivisionError):
        api.Future(1).add_done_callback(lambda _: 1 / 0)


def test_future_of_a_value_and_of_a_future(api):
    future = api.Future(5)
    assert future.done()
    assert future.result() == 5
    assert api.Future(future) is future


def test_future_of_a_coroutine(api):
    async def double(x):
        return 2 * x

    async def fail():
        raise KeyError("x")

    async def main():
        assert await api.Future(double(4)) == 8
        with pytest.raises(KeyError):
            await api.Future(fail())

    asyncio.run(main())


def test_await(api):
    async def main():
        assert await api.Future(4) == 4
        promise, future = api.Promise.new()
        threading.Timer(0.001, promise.set_result, [7]).start()
        assert await future == 7
        assert await future == 7
        promise, future = api.Promise.new()
        promise.set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            await future
        assert await asyncio.gather(api.Future(1), api.Future(2)) == [1, 2]

    asyncio.run(main())


def test_await_of_a_cancelled_future(api):
    async def main():
        _promise, future = api.Promise.new()
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(main())


def test_cancelling_the_awaiting_task_cancels_the_future(api):
    async def main():
        _promise, future = api.Promise.new()

        async def wait():
            await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert future.cancelled()

    asyncio.run(main())


def test_generic_alias(api):
    assert api.Future[int]
    assert api.Promise[int]


# ------------------------------------------------------- waiting


def test_result_waits_for_another_thread():
    promise, future = Promise.new()
    waiting = [Future.result, Future.exception] * 3
    results = []
    threads = [
        threading.Thread(target=lambda m=method: results.append(m(future))) for method in waiting
    ]
    for thread in threads:
        thread.start()
    promise.set_result(3)
    for thread in threads:
        thread.join()
    assert sorted(results, key=str) == [3, 3, 3, None, None, None]


def test_await_works_in_two_loops_at_once():
    promise, future = Promise.new()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(_await(future))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    promise.set_result(3)
    for thread in threads:
        thread.join()
    assert results == [3, 3]


async def _await(future):
    return await future


def test_await_outlives_a_closed_loop():
    promise, future = Promise.new()

    async def main():
        waiting = asyncio.ensure_future(_await(future))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())
    promise.set_result(1)  # must not complain that the loop is closed
    assert future.cancelled()


def test_infinite_timeout():
    promise, future = Promise.new()
    threading.Timer(0.001, promise.set_result, [1]).start()
    assert future.result(timeout=float("inf")) == 1


def test_callback_that_raises_is_shown_and_does_not_stop_the_others(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    promise, future = Promise.new()
    seen = []
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(seen.append)
    promise.set_result(1)
    assert seen == [future]
    assert [args.exc_type for args in shown] == [ZeroDivisionError]


def test_callback_may_ask_a_cancelled_future(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    _promise, future = Promise.new()
    future.add_done_callback(Future.result)
    assert future.cancel()
    assert [args.exc_type for args in shown] == [CancelledError]


def test_set_exception_refuses_other_objects():
    promise, _future = Promise.new()
    with pytest.raises(TypeError, match="expected an exception"):
        promise.set_exception(5)


def test_dropped_promise_in_a_cycle_with_callbacks():
    promise, future = Promise.new()
    seen = []
    called = threading.Event()
    future.add_done_callback(seen.append)
    future.add_done_callback(lambda _: called.set())
    cycle = [promise]
    cycle.append(cycle)
    del promise, cycle
    gc.collect()
    assert called.wait(100)
    assert isinstance(future.exception(), ValueError)


def test_a_promise_dropped_by_a_thread_that_holds_the_lock_fails_afterwards():
    """As the collector may drop it, in the middle of a change of its Future."""
    promise, future = Promise.new()
    with futures._lock:
        del promise
        assert not future._done
    with pytest.raises(ValueError, match=r"^UNKNOWN: "):
        future.result(timeout=60)


def test_promise_follows_a_future():
    inner_promise, inner = Promise.new()
    promise, outer = Promise.new()
    promise.follow(inner)
    assert not outer.done()
    inner_promise.set_result(4)
    assert outer.result() == 4

    inner_promise, inner = Promise.new()
    promise, outer = Promise.new()
    promise.follow(inner)
    outer.cancel()
    assert inner.cancelled()
    promise, outer = Promise.new()
    promise.follow(inner)
    assert outer.cancelled()


def test_ready_and_failed():
    assert ready(3).result() == 3
    error = KeyError("x")
    assert failed(error).exception() is error


# ------------------------------------------------------- deferred


def test_deferred_runs_on_the_caller(executor):
    future = Future.deferred(threading.get_ident, executor)
    assert future.result() == threading.get_ident()


@pytest.mark.parametrize(
    "ask",
    [
        lambda future: asyncio.run(_await(future)),
        lambda future: future.result(timeout=60),
        lambda future: future.exception(deadline=time.time() + 10),
        lambda future: (future.force(), future.result()),
        lambda future: _result_by_callback(future),
        lambda future: _poll(future),
    ],
    ids=["await", "timeout", "deadline", "force", "callback", "done"],
)
def test_deferred_runs_on_the_pool_once(executor, ask):
    threads = []

    def work():
        threads.append(threading.get_ident())
        return 5

    future = Future.deferred(work, executor)
    assert threads == []
    ask(future)
    assert future.result() == 5
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def _result_by_callback(future):
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(100)


def _poll(future):
    wait_until(future.done)


def test_deferred_runs_once_when_many_ask(executor):
    calls = []

    def work():
        calls.append(1)
        return len(calls)

    for _ in range(20):
        calls.clear()
        future = Future.deferred(work, executor)
        start = threading.Barrier(4)
        results = []

        def ask(future=future, start=start, results=results):
            start.wait()
            results.append(future.result())

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        start.wait()
        future.force()
        for thread in threads:
            thread.join()
        assert results == [1, 1, 1]
        assert calls == [1]


def test_deferred_error_is_kept(executor):
    future = Future.deferred(lambda: {}["x"], executor)
    for _ in range(2):
        with pytest.raises(KeyError):
            future.result()
    assert isinstance(future.exception(), KeyError)


def test_deferred_is_not_run_after_cancel(executor):
    calls = []
    future = Future.deferred(lambda: calls.append(1), executor)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    future.force()
    executor.submit(lambda: None).result()
    assert calls == []


def test_deferred_may_return_a_future(executor):
    future = Future.deferred(lambda: executor.submit(lambda: 6), executor)
    assert future.result() == 6


def test_deferred_task_sees_its_cancellation(executor):
    def work():
        token = CancelToken.current()
        token.check()
        future.cancel()
        token.check()

    future = Future.deferred(work, executor)
    with pytest.raises(CancelledError):
        future.result()
    assert not CancelToken.current().cancelled


def test_task_that_raises_cancelled_error_is_cancelled(executor):
    def work():
        raise CancelledError

    assert _settled(Future.deferred(work, executor)).cancelled()


def _settled(future):
    with pytest.raises(CancelledError):
        future.result()
    return future


# ------------------------------------------------------- memory


class Thing:
    """Something that weak references can watch."""


def test_finished_future_lets_go_of_its_task(executor):
    thing = Thing()
    watch = weakref.ref(thing)

    def use(x):
        return id(x)

    gc.disable()
    try:
        future = Future.deferred(lambda x=thing: use(x), executor)
        del thing
        assert watch() is not None
        future.result()
        assert watch() is None
    finally:
        gc.enable()


def test_failed_future_lets_go_of_its_task(executor):
    watches = []

    def fail():
        thing = Thing()
        watches.append(weakref.ref(thing))
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error

    def inner():
        other = Thing()
        watches.append(weakref.ref(other))
        raise KeyError(1)

    gc.disable()
    try:
        future = Future.deferred(fail, executor)
        error = future.exception()
        assert [watch() for watch in watches] == [None, None]
        assert isinstance(error.__cause__, KeyError)
        names = []
        trace = error.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert names == ["fail"]
    finally:
        gc.enable()


def test_raising_makes_no_cycle():
    gc.disable()
    try:
        future = failed(KeyError("x"))
        watch = weakref.ref(future)
        with pytest.raises(KeyError):
            future.result()
        del future
        assert watch() is None
    finally:
        gc.enable()


# ------------------------------------------------------- Ctrl-C

_INTERRUPT = """
    import os, signal, threading
    from gpustore.runtime.executor import Executor
    from gpustore.runtime.future import Future
    from tests.waiting import wait_until

    # A shell may have told its background jobs to ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    executor = Executor(1)
    made, release = threading.Event(), threading.Event()
    begun = []

    def interrupt(waited_for=True):
        made.wait()
        wait_until(lambda: not waited_for or future._waiters)
        os.kill(os.getpid(), signal.SIGINT)
        release.wait()

    future = MAKE
    made.set()
    try:
        future.result()
    except KeyboardInterrupt:
        print("interrupted")  # Before the task has ended: that waits for `release`.
    print("cancelled" if future.cancelled() else "not cancelled")
    release.set()
    executor.submit(lambda: None).result()
    print("begun", begun)
"""


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(
    "make",
    [
        "executor.submit(interrupt)",
        "executor.run_all([interrupt] + [lambda: begun.append(1)] * 100, lambda: None)",
        "Future.deferred(lambda: (interrupt(False), begun.append(1)), executor)",
    ],
    ids=["pool", "fan-out", "caller"],
)
def test_ctrl_c_cancels_queued_work(make):
    code = textwrap.dedent(_INTERRUPT).replace("MAKE", make)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["interrupted", "cancelled", "begun []"]


class Interrupted:
    """A deferred task; Ctrl-C arrives when it has been claimed and has not begun."""

    begins_when_polled = True

    @property
    def now(self):
        raise KeyboardInterrupt

    def begin(self, future):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "use", [Future.result, Future.force, Future.done, lambda future: future.result(timeout=1)]
)
def test_a_task_that_was_claimed_when_ctrl_c_came_is_cancelled(use):
    """Nobody else would finish it, and other threads may wait for it."""
    future = new()
    future._deferred = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        use(future)
    assert future.cancelled()


# ------------------------------------------------------- as types, and coroutines without a loop


def test_types_of_futures_have_parameters(api):
    for generic in (api.Future, api.Promise):
        assert generic[int] == types.GenericAlias(generic, (int,))
        assert typing.get_args(generic[int]) == (int,)


def test_a_promise_is_made_by_new(api):
    with pytest.raises(TypeError):
        api.Promise()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_under_way_is_not_pickled(api, copied):
    promise, future = api.Promise.new()
    for one in (promise, future, api.Future(3)):
        with pytest.raises(TypeError, match=r"cannot pickle '\w+\.(Promise|Future)' object"):
            copied(one)


def test_a_coroutine_requires_a_loop(api):
    async def answer():
        return 42

    coroutine = answer()
    with pytest.raises(ValueError, match="no event loop specified and thread does not have"):
        api.Future(coroutine)
    coroutine.close()


# ------------------------------------------------------- taken for its result


@pytest.mark.parametrize(
    "use",
    [
        lambda future: future[0],
        lambda future: future.shape,
        lambda future: future.read(),
        np.asarray,
        lambda future: np.add(future, 1),
        lambda future: list(future),
        lambda future: future.__setitem__(0, 1),
    ],
)
def test_a_future_that_is_taken_for_its_result_names_the_call(use):
    _promise, pending = Promise.new()
    for future in (pending, ready(np.zeros(3))):
        with pytest.raises(TypeError, match=r"call \.result\(\) first, or await it"):
            use(future)
        assert not hasattr(future, "shape")
        assert not hasattr(future, "__len__")


def test_a_future_shows_its_state_and_result(executor):
    (_first, cancelled), (_second, begun) = Promise.new(), Promise.new()
    cancelled.cancel()
    assert repr(cancelled) == "<gpustore.Future, cancelled>"
    assert repr(begun) == "<gpustore.Future of an operation, under way: call .result()>"
    deferred = Future.deferred(lambda: 1, executor)
    assert repr(deferred) == "<gpustore.Future of an operation, not begun: call .result()>"
    assert deferred.is_deferred
    assert repr(failed(ValueError("no\n  way"))) == "<gpustore.Future, failed: ValueError: no way>"
    shown = "<gpustore.Future, done: ndarray of shape (3,) and type float64>"
    assert repr(ready(np.zeros(3))) == shown
    assert repr(ready(None)) == "<gpustore.Future, done: NoneType>"
