"""Errors that no caller can catch: :func:`report`."""

from __future__ import annotations

import threading


def report(error: BaseException, where: str) -> None:
    """Report an error that no caller can catch, by :func:`threading.excepthook`."""
    error.add_note(f"gpustore: this was raised by {where}, where nobody can catch it")
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))
