"""The child process with TensorStore, when it crashes or does not answer."""

import os
import threading

from tests import tensorstore_process
from tests.tensorstore_process import TensorStoreProcess


def outcome(library, program):
    if program == "crash":
        os._exit(1)
    if program == "wait":
        threading.Event().wait()
    return library.__name__, program


def test_what_crashes_or_does_not_end_has_no_outcome_and_later_programs_have_theirs(monkeypatch):
    child = TensorStoreProcess(__name__)
    try:
        assert child.ask_all([1, "crash", 2]) == [("tensorstore", 1), None, ("tensorstore", 2)]
        monkeypatch.setattr(tensorstore_process, "PATIENCE_S", 0.1)
        assert child.ask("wait") is None
        monkeypatch.undo()
        assert child.ask(3) == ("tensorstore", 3)
    finally:
        child.close()
