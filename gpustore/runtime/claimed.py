"""Tasks of many Futures, which are claimed and finished together, under their lock at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import gpustore.runtime.future as futures
from gpustore.runtime.epoch import epoch
from gpustore.runtime.future import Future


def claim_all(
    references: Iterable[weakref.ref[Future[Any]]], claimed: list[tuple[Any, Future[Any]]]
) -> None:
    """Claim the deferred tasks of Futures, for threads of this process.

    Tasks that nobody has claimed before are appended to `claimed` together with their Futures, each
    before it is claimed: whenever Ctrl-C comes, the caller has all that are.
    """
    ours = epoch()
    with futures._lock:
        for reference in references:
            future = reference()
            if future is not None and (task := future._deferred) is not None:
                claimed.append((task, future))
                future._deferred = None
                future._epoch = ours


def finish_all(claimed: Iterable[tuple[Any, Future[Any]]]) -> None:
    """Finish Futures of claimed tasks, each with ``task.result``, unless they are done."""
    heard = []
    with futures._lock:
        for task, future in claimed:
            if future._callbacks or future._waiters:
                heard.append((task, future))
            elif not future._done:
                future._value = task.result
                future._done = True
                future._help = None
    for task, future in heard:
        future._finish(task.result, None)
