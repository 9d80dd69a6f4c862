"""The encoded values of the rows of a window, batch by batch, as they are stored now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from gpustore.errors import ConflictError, NotFoundError
from gpustore.kvstores.arena import Arena
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import Changed, fetch, refine
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import CancelToken
from gpustore.runtime.statistics import STATISTICS

ATTEMPTS = 5
"""How often a window is refined anew because a writer replaced its values meanwhile."""

BATCH_NBYTES = 1 << 20
"""Decoded bytes fetched at once by one task, so that they are still in cache when decoded."""

_ARENA = threading.local()


def _arena() -> Arena:
    """The arena of the calling thread; pieces are valid until its next batch."""
    try:
        arena: Arena = _ARENA.value
    except AttributeError:
        arena = _ARENA.value = Arena()
    return arena


def stored_batches(
    array: ChunkedArray,
    planned: PlanWindow,
    seen: dict[str, bytes] | None = None,
    *,
    nbytes: int | None = None,
    into: Callable[[], Arena] | None = None,
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None]]]:
    """Refine a window once, then fetch it batch by batch.

    With `seen`, the generations of the values are put there.

    Parameters
    ----------
    nbytes : int, optional
        About as many decoded bytes are in a batch, by default what the store wants, or else
        ``BATCH_NBYTES``.
    into : callable, optional
        Gives the memory for the values of each batch, by default that of the calling thread.

    Yields
    ------
    int, PlanWindow, list of buffer or None
        The first of some rows of `planned`, those rows refined, and their values, which are valid
        until the next batch.
    """
    arena = _arena()
    batch = max(
        1, (nbytes or array.store.batch_nbytes or BATCH_NBYTES) // max(1, array.chain.batch_nbytes)
    )
    wanted = CancelToken.current()
    done = attempts = 0
    while done < len(planned):
        arena.reset()
        try:
            # After a change one key at a time: of many, one could change in every attempt.
            end = _end_of_key(planned.keys, done) if attempts else len(planned)
            rows, generations = refine(array, planned.part(done, end), arena)
            for first in range(0, len(rows), batch):
                wanted.check()  # After Ctrl-C the threads stop here.
                arena.reset()
                some = rows.part(first, first + batch)
                values = fetch(array, some, generations, into() if into else arena, seen)
                if not array.fill_missing:
                    refuse_missing(array, some, values)
                yield done, some, values
                done += len(some)
                attempts = 0
        except Changed as change:
            attempts += 1
            STATISTICS.add(retries=1)
            if attempts == ATTEMPTS:
                raise ConflictError(
                    f"Error reading {array.store.describe(change.key)}: it was replaced {ATTEMPTS} "
                    f"times while being read; retry when its writer is done",
                    key=change.key,
                ) from None
    arena.reset()


def _end_of_key(keys: list[str], first: int) -> int:
    """Where the rows end that follow row `first` and have its key."""
    end = first
    while end < len(keys) and keys[end] == keys[first]:
        end += 1
    return end


def refuse_missing(array: ChunkedArray, rows: PlanWindow, values: list[Buffer | None]) -> None:
    """Raise NotFoundError for the first row without a value."""
    for row, value in enumerate(values):
        if value is None:
            cell = ", ".join(str(column[row]) for column in rows.cells)
            key = rows.keys[row]
            raise NotFoundError(
                f"chunk {{{cell}}} stored at {array.store.describe(key)} is missing; pass "
                f"fill_missing_data_reads=True to read it as the fill value",
                key=key,
            )
