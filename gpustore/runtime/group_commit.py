"""Changes that several threads ask for, made by one of them: :class:`GroupCommit`.

Where a commit costs the same for one change as for many (a directory or a manifest is written), a
thread that asks while another commits waits, and one of those that wait commits for all of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpustore.errors import GpustoreError
from gpustore.runtime.executor import reset_after_fork


@dataclass(slots=True, eq=False, kw_only=True)
class Change:
    """A change that is to be committed.

    Attributes
    ----------
    is_done : bool
        Whether it was committed or has failed.
    error : GpustoreError, optional
        Reason why none of it was committed.
    """

    is_done: bool = False
    error: GpustoreError | None = None


C = TypeVar("C", bound=Change)


class GroupCommit(ABC, Generic[C]):
    """Base of what commits changes one after the other, those that wait together. Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    @abstractmethod
    def _commit(self, changes: Sequence[C]) -> None:
        """Make all changes, or raise a GpustoreError and have made none.

        Then each is made alone: an error of one does not make the others fail.
        """

    def _groups(self, changes: list[C]) -> list[list[C]]:
        """Return the changes, in order, as lists of those that are committed together."""
        return [changes]

    def after_fork(self) -> None:
        """Replace the locks of the parent process, and drop the changes of its threads."""
        self._lock = threading.Lock()
        self._waiting_lock = threading.Lock()
        self._waiting: list[C] = []

    def _run(self, change: C) -> None:
        """Make a change, in this thread or in another one; raise its error."""
        with self._waiting_lock:
            self._waiting.append(change)
        with self._lock:
            if not change.is_done:
                self._run_waiting(change)
        if change.error is not None:
            raise change.error

    def _run_waiting(self, own: C) -> None:
        with self._waiting_lock:
            waiting, self._waiting = self._waiting, []
        try:
            for group in self._groups(waiting):
                self._run_group(group)
        except BaseException:
            # Only this thread was interrupted; another commits for those that wait.
            rest = [one for one in waiting if not one.is_done and one is not own]
            with self._waiting_lock:
                self._waiting = rest + self._waiting
            raise

    def _run_group(self, group: Sequence[C]) -> None:
        try:
            self._commit(group)
        except GpustoreError as error:
            if len(group) > 1:
                for one in group:
                    self._run_group([one])
                return
            group[0].error = error
        for one in group:
            one.is_done = True
