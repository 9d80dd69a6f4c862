import threading
from dataclasses import dataclass

import pytest

from gpustore.errors import ConflictError
from gpustore.runtime.group_commit import Change, GroupCommit
from tests.waiting import wait_until


@dataclass(slots=True, eq=False)
class Number(Change):
    number: int


class Numbers(GroupCommit[Number]):
    """Keeps numbers that are not negative; the first commit goes on when it is told to."""

    def __init__(self):
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.committed = []
        self.interrupt = None
        super().__init__()

    def _commit(self, changes):
        numbers = [one.number for one in changes]
        if numbers == [0]:
            self.began.set()
            assert self.may_go_on.wait(60)
        if self.interrupt == numbers[0]:
            self.interrupt = None
            raise KeyboardInterrupt
        if min(numbers) < 0:
            raise ConflictError(f"{numbers}")
        self.committed.append(sorted(numbers))


def run(numbers, interrupt=None):
    """Commit 0, and the numbers while it is under way, one after the other; return the errors."""
    commits, errors = Numbers(), {}

    def one(number):
        try:
            commits._run(Number(number))
        except BaseException as error:
            errors[number] = type(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, *numbers)]
    threads[0].start()
    assert commits.began.wait(60)
    for count, thread in enumerate(threads[1:], 1):
        thread.start()
        wait_until(lambda count=count: len(commits._waiting) == count)
    commits.interrupt = interrupt
    commits.may_go_on.set()
    for thread in threads:
        thread.join(60)
    return commits, errors


def test_changes_that_wait_are_committed_together():
    commits, errors = run([1, 2, 3])
    assert (commits.committed, errors) == ([[0], [1, 2, 3]], {})


def test_an_error_of_one_change_does_not_make_the_others_fail():
    commits, errors = run([1, -2, 3])
    assert (commits.committed, errors) == ([[0], [1], [3]], {-2: ConflictError})


def test_another_thread_commits_what_an_interrupted_one_left():
    commits, errors = run([1, 2, 3], interrupt=1)
    (stopped,) = errors
    assert errors[stopped] is KeyboardInterrupt
    assert sorted(n for numbers in commits.committed for n in numbers) == sorted(
        {0, 1, 2, 3} - {stopped}
    )


def test_changes_of_other_threads_are_dropped_after_a_fork():
    commits = Numbers()
    commits._waiting = [Number(1)]
    with commits._lock:
        commits.after_fork()
        commits._run(Number(2))
    assert commits.committed == [[2]]


def test_an_error_is_raised_in_the_thread_that_asked():
    with pytest.raises(ConflictError, match=r"\[-1\]"):
        Numbers()._run(Number(-1))
