"""Tokens tell tasks, and native code that they call, that their work is no longer wanted."""

import ctypes
import threading
from array import array as numbers

import pytest

from gpustore.runtime.cancel_token import Cancelled, CancelToken
from gpustore.runtime.executor import Executor
from tests.waiting import wait_until


@pytest.fixture
def executor():
    return Executor(2)


def is_set(token):
    """What native code sees."""
    return bool(ctypes.c_byte.from_address(token.address).value)


def test_outside_tasks_work_is_always_wanted():
    token = CancelToken.current()
    assert (token.cancelled, token.address) == (False, 0)
    token.check()


def test_a_token_is_current_during_a_task():
    token, outer = CancelToken(lambda: True), CancelToken.current()
    assert token.during(CancelToken.current) is token
    assert CancelToken.current() is outer
    with pytest.raises(ZeroDivisionError):
        token.during(lambda: 1 / 0)
    assert CancelToken.current() is outer
    with pytest.raises(Cancelled):
        token.check()


def test_native_code_sees_the_word():
    word = numbers("b", b"\0")
    token = CancelToken(word=word)
    assert not is_set(token)
    word[0] = 1
    assert is_set(token)


def test_tokens_tell_tasks_of_a_failed_fan_out():
    executor = Executor(2)
    ready = threading.Event()
    failed = threading.Event()
    seen = []

    def watch():
        token = CancelToken.current()
        seen.append(token.cancelled)
        ready.set()
        failed.wait()
        while not token.cancelled:
            pass
        seen.append(True)
        token.check()

    def fail():
        ready.wait()
        failed.set()
        raise KeyError("x")

    with pytest.raises(KeyError):
        executor.run_all([fail, watch], lambda: None).result()
    assert seen == [False, True]


def test_token_tells_a_task_it_was_cancelled(executor):
    begun, cancelled = threading.Event(), threading.Event()
    ended = threading.Event()

    def work():
        begun.set()
        cancelled.wait()
        try:
            CancelToken.current().check()
        except Cancelled:
            ended.set()
            raise

    future = executor.submit(work)
    begun.wait()
    future.cancel()
    cancelled.set()
    assert ended.wait(100)


def test_native_code_sees_that_a_fan_out_was_cancelled(executor):
    begun, ended = threading.Event(), threading.Event()

    def work():
        token = CancelToken.current()
        assert not is_set(token)
        begun.set()
        wait_until(lambda: is_set(token))
        assert token.cancelled
        ended.set()

    future = executor.run_all([work], lambda: None)
    begun.wait()
    future.cancel()
    assert ended.wait(100)


def test_native_code_sees_that_another_task_failed(executor):
    begun, seen = threading.Event(), []

    def work():
        begun.set()
        token = CancelToken.current()
        wait_until(lambda: is_set(token))
        seen.append(token.cancelled)

    def fail():
        begun.wait()
        raise KeyError("x")

    with pytest.raises(KeyError):
        executor.run_all([fail, work], lambda: None).result()
    assert seen == [True]


def test_the_word_is_not_set_when_all_went_well(executor):
    tokens = []
    executor.run_all([lambda: tokens.append(CancelToken.current())], lambda: None).result()
    assert not is_set(tokens[0])
    assert not tokens[0].cancelled
