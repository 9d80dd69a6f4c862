"""Tests of the thread pool: fan-out, cancellation, nesting, fork, exit, memory."""

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from asyncio import CancelledError
from collections.abc import Sequence
from functools import partial

import pytest

from gpustore.runtime import executor as executor_module
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.executor import Executor, reset_after_fork, shared
from gpustore.runtime.promise import Promise
from tests.matrix import each
from tests.waiting import wait_until


@pytest.fixture
def executor():
    return Executor(2)


def run_python(code, *arguments):
    """Run a script in a fresh interpreter; returns what it printed."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


# ------------------------------------------------------- submit


def test_submit(executor):
    assert executor.submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result()
    assert executor.submit(threading.get_ident).result() != threading.get_ident()


def test_submit_waits_for_a_returned_future(executor):
    promise, inner = Promise.new()
    outer = executor.submit(lambda: inner)
    executor.submit(lambda: None).result()
    assert not outer.done()
    promise.set_result(3)
    assert outer.result() == 3


def test_cancelling_reaches_the_returned_future():
    executor = Executor(1)
    _promise, inner = Promise.new()
    outer = executor.submit(lambda: inner)
    _after(executor)
    outer.cancel()
    assert inner.cancelled()


def test_limit_is_kept_and_used():
    executor = Executor(3)
    meet = threading.Barrier(3)
    lock = threading.Lock()
    running = most = 0

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(100)
        with lock:
            running -= 1

    futures = [executor.submit(work) for _ in range(30)]
    for future in futures:
        future.result(timeout=60)
    assert most == 3


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_has_to_be_positive(limit):
    with pytest.raises(ValueError, match="limit of at least 1"):
        Executor(limit)


def test_shared_is_one_pool_of_at_least_four_threads():
    assert shared() is shared()
    assert shared().limit >= 4


def test_threads_are_daemons(executor):
    assert executor.submit(lambda: threading.current_thread().daemon).result()


def test_threads_end_with_their_executor():
    executor = Executor(2)
    threads = [executor.submit(threading.current_thread).result() for _ in range(5)]
    del executor
    gc.collect()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


def test_executor_without_references_finishes_its_work():
    release = threading.Event()
    executor = Executor(1)
    future = executor.submit(release.wait)
    last = executor.run_all([lambda: None] * 3, lambda: 4)
    del executor
    release.set()
    assert future.result()
    assert last.result() == 4


def test_task_that_escapes_is_shown_and_does_not_end_the_thread(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    executor = Executor(1)
    executor.execute(lambda: 1 / 0)
    assert executor.submit(lambda: 1).result() == 1
    assert [args.exc_type for args in shown] == [ZeroDivisionError]


def test_system_exit_in_a_task_is_its_error(executor):
    with pytest.raises(SystemExit):
        executor.submit(sys.exit, 3).result()


# ------------------------------------------------------- run_all


@each("count", [0, 1, 2, 3, 100])
@each("limit", [1, 2, 5])
def test_run_all_runs_each_task_once_then_the_rest(count, limit):
    done = []
    tasks = [lambda i=i: done.append(i) for i in range(count)]
    future = Executor(limit).run_all(tasks, lambda: sorted(done))
    assert future.result() == list(range(count))


def test_run_all_then_may_return_a_future(executor):
    future = executor.run_all([lambda: None], lambda: executor.submit(lambda: 5))
    assert future.result() == 5


def test_run_all_error_in_then(executor):
    with pytest.raises(ZeroDivisionError):
        executor.run_all([lambda: None], lambda: 1 / 0).result()


def test_run_all_first_error_skips_the_rest_and_waits_for_what_began():
    executor = Executor(2)
    began, release = threading.Event(), threading.Event()
    late = []

    def slow():
        began.set()
        release.wait()
        late.append("slow")

    def fail():
        began.wait()
        raise KeyError("first")

    future = executor.run_all([slow, fail, *[lambda: late.append("skipped")] * 50], late.clear)
    seen = []
    future.add_done_callback(lambda _: seen.extend(late))
    with pytest.raises(TimeoutError):
        future.result(timeout=0.02)  # `slow` may still use the buffers
    release.set()
    with pytest.raises(KeyError):
        future.result()
    assert seen == late == ["slow"]


@pytest.fixture
def busy():
    """An executor of one thread, which is busy until the test ends."""
    executor = Executor(1)
    release = threading.Event()
    executor.submit(release.wait)
    yield executor
    release.set()


def test_run_all_is_helped_by_the_thread_that_waits(busy):
    done = []
    tasks = [lambda: done.append(threading.get_ident())] * 3
    assert busy.run_all(tasks, lambda: len(done), helped=True).result() == 3
    assert done == [threading.get_ident()] * 3


def test_run_all_is_not_helped_within_a_time_limit_or_unless_asked(busy):
    done = []
    tasks = [lambda: done.append(threading.get_ident())]
    with pytest.raises(TimeoutError):
        busy.run_all(tasks, lambda: None, helped=True).result(timeout=0)
    with pytest.raises(TimeoutError):
        busy.run_all(tasks, lambda: None).result(timeout=0)
    assert not done


def test_helping_leaves_tasks_that_have_begun_and_waits_for_them():
    executor = Executor(1)
    begun, release = threading.Event(), threading.Event()

    def first():
        begun.set()
        assert release.wait(100)
        return threads.append(threading.get_ident())

    def second():
        threads.append(threading.get_ident())
        release.set()

    threads = []
    future = executor.run_all([first, second], lambda: threads, helped=True)
    assert begun.wait(100)
    mine, worker = future.result()
    assert mine == threading.get_ident() != worker


def test_a_thread_that_is_about_to_wait_is_called_instead_of_a_worker():
    executor = Executor(2)
    both, threads = threading.Barrier(2), []

    def task():
        threads.append(threading.get_ident())
        both.wait(100)

    begin = partial(executor.run_all, [task, task], lambda: None, helped=True, asked=True)
    begin().result()
    assert threads.count(threading.get_ident()) == 1
    executor.submit(begin).result()  # On a worker, which does not help.
    assert threads.count(threading.get_ident()) == 1
    ended = threading.Event()
    executor.run_all([lambda: None] * 3, ended.set, helped=True, asked=True)
    assert ended.wait(100)


def test_errors_of_a_helped_task_are_those_of_the_future(busy):
    future = busy.run_all([partial(divmod, 7, 0)], lambda: None, helped=True)
    with pytest.raises(ZeroDivisionError):
        future.result()
    assert not future.cancelled()


def test_ctrl_c_while_helping_cancels_and_is_raised(busy):
    def interrupted():
        raise KeyboardInterrupt

    done = []
    future = busy.run_all([interrupted, partial(done.append, 1)], lambda: None, helped=True)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert future.cancelled()
    assert not done


def test_ctrl_c_in_the_last_step_of_a_helper_ends_the_group(busy):
    def interrupted():
        raise KeyboardInterrupt

    ended = threading.Event()
    future = busy.run_all([lambda: None], interrupted, helped=True, ended=ended.set)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert ended.is_set()
    assert future.cancelled()


def test_run_all_cancel_stops_an_endless_sequence():
    class Endless(Sequence):
        def __len__(self):
            return 10**15

        def __getitem__(self, index):
            begun.set()
            return lambda: None

    begun = threading.Event()
    executor = Executor(1)
    future = executor.run_all(Endless(), lambda: None)
    assert begun.wait(100)
    # Other work is not kept waiting by it, either.
    assert executor.submit(lambda: 4).result(timeout=60) == 4
    assert future.cancel()
    assert executor.submit(lambda: 5).result(timeout=60) == 5


def test_run_all_finishes_the_parent_promise(executor):
    promise, future = Promise.new()
    release = threading.Event()
    assert executor.run_all([release.wait] * 3, lambda: 8, parent=promise) is future
    del promise  # the fan-out has taken over
    release.set()
    assert future.result() == 8


def test_run_all_cancelling_the_parent_skips_tasks():
    executor = Executor(1)
    release = threading.Event()
    executor.submit(release.wait)
    promise, future = Promise.new()
    begun = []
    executor.run_all([lambda: begun.append(1)] * 5, lambda: 8, parent=promise)
    future.cancel()
    release.set()
    executor.submit(lambda: None).result()
    assert begun == []


def test_run_all_fails_with_the_error_for_which_other_tasks_have_stopped():
    begun, stopped = threading.Barrier(2, timeout=100), threading.Event()

    def stop():
        begun.wait()
        stopped.set()
        raise CancelledError

    def fail():
        begun.wait()
        assert stopped.wait(100)
        raise ZeroDivisionError

    for tasks in ([stop, fail], [fail, stop]):
        stopped.clear()
        with pytest.raises(ZeroDivisionError):
            Executor(2).run_all(tasks, lambda: None).result(timeout=100)


def test_run_all_fails_with_the_error_of_the_first_task_that_fails():
    """Tasks before one that failed are not told to stop, those behind it are."""
    begun, stopped = threading.Barrier(3, timeout=100), threading.Event()
    told = []

    def first():
        begun.wait()
        assert stopped.wait(100)
        token = CancelToken.current()
        told.append((token.cancelled, ctypes.string_at(token.address, 1)))
        raise KeyError("first")

    def second():
        begun.wait()
        raise ZeroDivisionError

    def third():
        token = CancelToken.current()
        begun.wait()
        wait_until(lambda: token.cancelled and ctypes.string_at(token.address, 1) != b"\0")
        stopped.set()
        raise IndexError("last")

    with pytest.raises(KeyError):
        Executor(3).run_all([first, second, third], lambda: None).result(timeout=100)
    assert told == [(False, b"\0")]


@pytest.mark.parametrize("outcome", ["done", "failed", "cancelled"])
def test_run_all_says_when_no_task_runs_any_more(outcome):
    executor = Executor(2)
    release, events = threading.Event(), []

    def task():
        release.wait(100)
        events.append("task")
        if outcome == "failed":
            raise ZeroDivisionError

    future = executor.run_all(
        [task] * 2, lambda: events.append("then"), ended=lambda: events.append("ended")
    )
    future.add_done_callback(lambda _: events.append("future"))
    if outcome == "cancelled":
        future.cancel()
    release.set()
    wait_until(lambda: "ended" in events)
    wait_until(lambda: "future" in events)
    assert events.count("ended") == 1
    last = {
        "done": ["then", "future", "ended"],
        "failed": ["ended", "future"],
        "cancelled": ["ended"],
    }[outcome]
    assert events[-len(last) :] == last


def test_run_all_error_leaves_the_caller_free_to_retry(executor):
    def attempt(left):
        inner = executor.run_all([lambda: 1 / left if left else 1 / 0], lambda: "done")
        if left:
            return inner
        promise, outer = Promise.new()
        inner.add_done_callback(lambda _: promise.follow(executor.submit(attempt, 1)))
        return outer

    assert executor.submit(attempt, 0).result() == "done"


def test_callbacks_belong_to_no_task():
    executor = Executor(1)
    states = []

    def look(_):
        states.append(CancelToken.current())

    blocker = threading.Event()
    executor.submit(blocker.wait).add_done_callback(look)
    executor.run_all([lambda: None], lambda: None).add_done_callback(look)
    executor.run_all([lambda: 1 / 0], lambda: None).add_done_callback(look)
    blocker.set()
    _after(executor)
    assert states == [CancelToken.current()] * 3


# ------------------------------------------------------- nested waits


def test_user_code_on_a_worker_may_wait():
    executor = Executor(1)

    def nest(depth):
        return 0 if depth == 0 else executor.submit(nest, depth - 1).result() + 1

    assert nest(20) == 20


def test_waiting_in_a_callback_on_a_worker():
    executor = Executor(1)
    results = []
    done = threading.Event()

    def then(_):
        results.append(executor.submit(lambda: 3).result())
        done.set()

    executor.submit(lambda: None).add_done_callback(then)
    assert done.wait(100)
    assert results == [3]


def test_spare_threads_leave():
    executor = Executor(1)
    threads = set()

    def nest(depth):
        threads.add(threading.current_thread())
        return depth and executor.submit(nest, depth - 1).result()

    executor.submit(nest, 5).result()
    assert len(threads) == 6
    meet = threading.Barrier(2)
    while sum(thread.is_alive() for thread in threads) > 1:
        executor.submit(lambda: None).result()
    # One thread is left: two tasks do not meet.
    futures = [executor.submit(meet.wait, 0.02) for _ in range(2)]
    for future in futures:
        with pytest.raises(threading.BrokenBarrierError):
            future.result()


# ------------------------------------------------------- memory


class Thing:
    """Something that weak references can watch."""


def _after(executor):
    """Return when the only worker has put away its last task."""
    executor.submit(lambda: None).result()


@pytest.mark.parametrize("fails", [False, True])
def test_submit_lets_go_of_its_arguments(fails):
    executor = Executor(1)

    def work(thing):
        kept = [thing]
        if fails:
            raise KeyError("x")
        return len(kept)

    gc.disable()
    try:
        thing = Thing()
        watch = weakref.ref(thing)
        future = executor.submit(work, thing)
        del thing
        future.exception()
        _after(executor)
        assert watch() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("helped", [False, True])
@pytest.mark.parametrize("how", ["ends", "fails", "is cancelled"])
def test_run_all_lets_go_of_its_tasks(how, helped):
    executor = Executor(1)
    release = threading.Event()
    executor.submit(release.wait)

    def work(thing):
        kept = [thing]
        if how == "fails":
            raise KeyError("x")
        return len(kept)

    gc.disable()
    try:
        thing = Thing()
        watch = weakref.ref(thing)
        tasks = [partial(work, thing)] * 3
        future = executor.run_all(tasks, lambda t=thing: None, helped=helped)
        del thing, tasks
        if how == "is cancelled":
            future.cancel()
        release.set()
        if how != "is cancelled":
            future.exception()
        _after(executor)
        assert watch() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("helped", [False, True])
def test_run_all_lets_go_of_its_result(helped):
    executor = Executor(1)
    gc.disable()
    try:
        future = executor.run_all([CancelToken.current], Thing, helped=helped)
        watch = weakref.ref(future.result())
        assert watch() is not None
        del future
        _after(executor)
        assert watch() is None
    finally:
        gc.enable()


# ------------------------------------------------------- fork


@pytest.mark.matrix("costly")
def test_child_of_a_fork_can_use_the_pool_at_once():
    code = """
        import os, sys, threading
        from gpustore.runtime.context import Context
        from gpustore.errors import ForkError
        from gpustore.runtime.executor import shared
        from gpustore.runtime.future import Future
        from gpustore.runtime.promise import Promise
        from gpustore.runtime.statistics import STATISTICS

        release = threading.Event()
        context = Context({"data_copy_concurrency": {"limit": 1}})
        own = context["data_copy_concurrency"].value
        state = context["memory_key_value_store"].value
        state.entries["a"] = b"1"
        assert own.submit(lambda: 1).result() == 1
        blocked = [shared().submit(release.wait) for _ in range(shared().limit + 3)]
        deferred = Future.deferred(lambda: 6, own)
        promise, future = Promise.new()
        state.lock.acquire()  # as if another thread held it

        child = os.fork()
        if child == 0:
            assert shared().submit(lambda: 2).result(timeout=60) == 2
            assert own.submit(lambda: 3).result(timeout=60) == 3
            assert shared().run_all([lambda: None] * 20, lambda: 4).result(timeout=60) == 4
            assert deferred.result() == 6
            promise.set_result(7)
            assert future.result() == 7
            for pending in blocked:
                try:
                    pending.result()
                except ForkError:
                    continue
                sys.exit(2)
            with state.lock:
                assert state.entries == {"a": b"1"}
            STATISTICS.add(reads=1)
            assert Context()["cache_pool"].value.total_bytes_limit == 0
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        release.set()
        for pending in blocked:
            assert pending.result()
        print("parent ok")
    """
    assert run_python(code).stdout.splitlines() == ["child 0", "parent ok"]


@pytest.mark.matrix("costly")
def test_fork_while_the_pool_is_busy():
    code = """
        import os, sys
        from gpustore.runtime.executor import shared

        statuses = set()
        for _ in range(20):
            busy = shared().run_all([lambda: sum(range(100))] * 2000, lambda: None)
            child = os.fork()
            if child == 0:
                shared().run_all([lambda: None] * 50, lambda: None).result(timeout=60)
                os._exit(0)
            statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            busy.result()
        print(statuses)
    """
    assert run_python(code).stdout == "{0}\n"


def test_reset_after_fork_refers_weakly():
    class Owner:
        def after_fork(self):
            raise AssertionError

    owner = Owner()
    watch = weakref.ref(owner)
    reset_after_fork(owner)
    del owner
    gc.collect()
    assert watch() is None


# ------------------------------------------------------- exit


@pytest.mark.matrix("costly")
def test_writes_are_drained_at_exit_and_nothing_else(tmp_path):
    code = """
        import sys, threading
        from pathlib import Path
        from gpustore.runtime.executor import Executor

        folder = Path(sys.argv[1])
        for_ever = threading.Event()
        executor = Executor(4)

        def write(name):
            threading.main_thread().join()  # It is written when the program has ended.
            (folder / name).write_text(name)

        executor.submit(for_ever.wait)
        executor.submit(write, "submitted", drain=True)
        executor.run_all([lambda: write("a"), lambda: write("b")], lambda: None, drain=True)
        executor.submit(write, "cancelled", drain=True).cancel()
    """
    done = run_python(code, str(tmp_path))
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} >= {"submitted", "a", "b"}


@pytest.mark.matrix("costly")
def test_exit_gives_up_on_writes_that_take_too_long_and_tells_of_failed_ones():
    assert executor_module._DRAIN_S == 5.0
    code = """
        import threading, time
        from gpustore.runtime import executor

        executor._DRAIN_S = 1.5

        def fail():
            threading.main_thread().join()  # It fails when the program has ended.
            raise ValueError("disk full")

        executor.shared().submit(fail, drain=True)
        executor.shared().submit(threading.Event().wait, drain=True)
    """
    lines = run_python(code).stderr.splitlines()
    assert sorted(lines) == [
        "gpustore: a write nobody waited for failed: disk full",
        "gpustore: gave up 1 writes that nobody waited for and that were not done 1.5 s after the "
        "end of the program",
    ]


@pytest.mark.matrix("costly")
def test_operations_of_an_exiting_interpreter_end(tmp_path):
    """Its threads are gone: what begins then runs at once, and what they began is an error."""
    code = """
        import asyncio, os, sys, threading
        import numpy as np
        import gpustore

        store = gpustore.array(np.arange(3))
        chunked = gpustore.save(sys.argv[1], np.arange(1000), chunks=(10,))
        lost = gpustore.KvStore.open("memory://").result()._executor.submit(threading.Event().wait)
        flush = sys.stdout.flush

        async def read(one):
            return await one.read()

        async def wait(one):
            return await one

        def last():  # The interpreter calls it when it is finalizing.
            flush()
            if not sys.is_finalizing():
                return
            try:
                lines = [sum(asyncio.run(read(one))) for one in (store, chunked)]
                lines += [sum(chunked[:500].read().result(timeout=100))]
                chunked[0].write(1000).result()
                lines += [int(chunked[0].read().result())]
                for ask in (lost.result, lambda: asyncio.run(wait(lost))):
                    try:
                        ask()
                    except RuntimeError as error:
                        lines.append(error)
                os.write(1, "\\n".join(map(str, lines)).encode())
            except BaseException as error:
                os.write(1, repr(error).encode())
            os._exit(0)

        sys.stdout.flush = last
    """
    lines = run_python(code, str(tmp_path / "a.zarr")).stdout.splitlines()
    exiting = "the interpreter is exiting, and its threads do no more work"
    assert lines == ["3", "499500", "124750", "1000", exiting, exiting]


def test_drained_futures_are_forgotten(executor):
    executor.submit(lambda: None, drain=True).result()
    future = executor.run_all([lambda: 1 / 0], lambda: None, drain=True)
    assert isinstance(future.exception(), ZeroDivisionError)
    _promise, pending = Promise.new()
    executor.submit(lambda: pending, drain=True).cancel()
    while executor_module._writes:
        executor.submit(lambda: None).result()
