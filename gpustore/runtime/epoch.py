"""Number of forks that led to this process: :func:`epoch`.

Threads do not survive a fork. An operation that knows the epoch of its threads can tell in a child
process that nobody works on it any more.
"""

from __future__ import annotations

import os

_epoch = 0


def epoch() -> int:
    """Return the number of forks between this process and the one that imported gpustore."""
    return _epoch


def _enter_child() -> None:
    global _epoch
    _epoch += 1


os.register_at_fork(after_in_child=_enter_child)
