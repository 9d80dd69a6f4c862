"""States of a transaction, and the order in which its participants commit."""

import copy
import pickle

import pytest

from gpustore.errors import StoreIOError, TransactionError
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import failed, ready
from gpustore.runtime.promise import Promise
from gpustore.runtime.transaction import Transaction, TransactionExecutor


class Participant:
    def __init__(self, log, name, outcome=None):
        self.log, self.name, self.outcome = log, name, outcome or (lambda: ready(None))

    def commit(self):
        self.log.append(self.name)
        return self.outcome()

    def drop(self):
        self.log.append(f"drop {self.name}")


def broken():
    raise StoreIOError("broken")


def joined(transaction, *participants):
    for one in participants:
        assert transaction._participant(one.name, lambda one=one: one) is one
        assert transaction._participant(one.name, broken) is one


def test_participants_commit_in_the_order_in_which_they_joined():
    log, transaction = [], Transaction()
    promise, future = Promise.new()
    joined(transaction, Participant(log, "a", lambda: future), Participant(log, "b"))
    waits = [transaction.commit_async(), transaction.commit_async()]
    assert log == ["a"]
    assert not any(wait.done() for wait in waits)
    promise.set_result(None)
    assert [wait.result(timeout=60) for wait in waits] == [None, None]
    assert log == ["a", "b", "drop a", "drop b"]
    transaction.abort()
    assert not transaction.aborted


@pytest.mark.parametrize("outcome", [broken, lambda: failed(StoreIOError("broken"))])
def test_a_failure_ends_the_commit(outcome):
    log, transaction = [], Transaction()
    joined(transaction, Participant(log, "a", outcome), Participant(log, "b"))
    with pytest.raises(StoreIOError, match="broken"):
        transaction.commit_sync()
    assert log == ["a", "drop a", "drop b"]
    assert transaction.commit_started
    assert isinstance(transaction.future.exception(), StoreIOError)


def test_commit_waits_for_operations():
    log, transaction = [], Transaction()
    joined(transaction, Participant(log, "a"))
    promise, future = Promise.new()
    assert transaction._during(lambda: future) is future
    with pytest.raises(StoreIOError):
        transaction._during(broken)
    done = transaction.commit_async()
    assert not transaction.open
    transaction._check_open()  # The operation may go on.
    assert not log
    promise.set_result(1)
    assert done.result() is None
    assert log == ["a", "drop a"]
    with pytest.raises(TransactionError, match=r"^Transaction not open \(commit already started"):
        transaction._check_open()


def test_operations_that_a_commit_waits_for_may_join_it_or_end_it():
    log, transaction = [], Transaction(atomic=True)
    promise, future = Promise.new()
    transaction._during(lambda: future)
    done = transaction.commit_async()
    joined(transaction, Participant(log, "late"))
    transaction._claim_for("late", '"a"')
    with pytest.raises(TransactionError, match="single atomic transaction"):
        transaction._claim_for("other", '"b"')
    promise.set_result(None)
    assert transaction.aborted
    assert log == ["drop late"]
    with pytest.raises(TransactionError, match="single atomic transaction"):
        done.result()


def test_executor_refuses_work_of_a_transaction_that_is_not_open():
    transaction = Transaction()
    executor = TransactionExecutor(Executor(1), transaction)
    assert executor.submit(lambda: 3).result() == 3
    assert executor.run_all([lambda: None], lambda: 4).result() == 4
    transaction.abort()
    with pytest.raises(TransactionError, match=r"^Transaction not open \(aborted\)$"):
        executor.submit(lambda: 3).result()
    with pytest.raises(TransactionError, match=r"^Transaction not open \(aborted\)$"):
        executor.run_all([lambda: None], lambda: 4)


def test_atomic_transactions_have_one_change():
    transaction = Transaction(atomic=True)
    transaction._claim_for("store", '"b"')
    transaction._claim_for("store", '"c"')
    text = '^Cannot read/write "a" and read/write "b" as single atomic transaction$'
    with pytest.raises(TransactionError, match=text):
        transaction._claim_for("other", '"a"')
    assert transaction.aborted
    with pytest.raises(TransactionError, match=text):
        transaction.commit_sync()
    Transaction()._claim_for("other", '"a"')


def test_arguments_and_copies():
    transaction = Transaction(True, repeatable_read=True)
    assert (transaction.atomic, transaction.repeatable_read) == (True, True)
    for wrong in ({"atomic": "x"}, {"repeatable_read": None}):
        with pytest.raises(TypeError, match="expected a bool"):
            Transaction(**wrong)
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"cannot pickle 'gpustore\.Transaction' object"):
            copied(transaction)


def test_future_of_an_ended_transaction_is_its_outcome():
    transaction = Transaction()
    futures = [transaction.future for _ in range(3)]
    del futures[0]
    transaction.abort()
    for future in (*futures, transaction.future):
        with pytest.raises(TransactionError, match=r"^CANCELLED: Transaction aborted$"):
            future.result()
