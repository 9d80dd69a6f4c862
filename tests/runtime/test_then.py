"""Futures of converted results: who converts, errors, cancelling, early results."""

import os
import threading

import pytest

from gpustore.errors import ForkError
from gpustore.runtime.epoch import epoch
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, failed, ready
from gpustore.runtime.promise import Promise
from gpustore.runtime.then import then


@pytest.fixture
def executor():
    return Executor(2)


def test_a_deferred_operation_stays_so_and_is_converted_by_whoever_asks(executor):
    threads = []

    def convert(value):
        threads.append(threading.get_ident())
        return value + 1

    future = then(Future.deferred(lambda: 1, executor), convert, executor)
    assert future.is_deferred
    assert not threads
    assert future.result() == 2
    assert threads == [threading.get_ident()]


def test_an_operation_under_way_is_converted_by_the_executor(executor):
    promise, first = Promise.new()
    future = then(first, lambda _: threading.get_ident(), executor)
    assert not future.done()
    promise.set_result(1)
    assert future.result() != threading.get_ident()


def test_errors_of_both_are_those_of_the_result(executor):
    with pytest.raises(KeyError):
        then(failed(KeyError()), lambda value: value, executor).result()
    with pytest.raises(ZeroDivisionError):
        then(ready(0), lambda value: 1 // value, executor).result()


def test_cancelling_cancels_the_operation(executor):
    _promise, first = Promise.new()
    assert then(first, lambda value: value, executor).cancel()
    assert first.cancelled()


@pytest.mark.parametrize("deferred", [True, False])
def test_an_early_result_is_converted_too_where_that_is_allowed(executor, deferred):
    promise, later = Promise.new()

    def begun():
        if deferred:
            return Future.deferred(later.result, executor, lambda: (1,))
        promise.offer(lambda: (1,))
        return later

    assert then(begun(), lambda value: -value, executor, on_stream=True).on_stream() == -1
    other = then(begun(), lambda value: -value, executor)
    promise.set_result(2)
    assert other.on_stream() == -2


def test_a_forked_process_does_not_wait_for_threads_that_it_lacks():
    _, future = Promise.new()
    future._epoch = epoch()  # As that of a read which threads of this process do.
    result = then(future, str, Executor(1))
    child = os.fork()
    if child == 0:
        try:
            result.result()
        except ForkError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    future.cancel()
