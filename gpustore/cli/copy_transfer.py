"""Moving the elements of ``gpustore copy``: regions on their way, and how Ctrl-C stops them.

The first Ctrl-C is a wish that is looked at between steps: no new region is begun, and those on
their way are cancelled, which never cuts through a chunk. The second one is Python's usual
KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import gpustore
    from gpustore.cli.copy_plan import Plan


_LOOK_S = 0.1


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Take the first Ctrl-C as a wish; gives what tells whether there was one.

    Outside the main thread, and where Ctrl-C is ignored or has no Python handler, nothing changes.
    """
    asked = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield asked.is_set
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def transfer(
    source: gpustore.TensorStore,
    target: gpustore.TensorStore,
    plan: Plan,
    *,
    advance: Callable[[int], object],
    stopped: Callable[[], bool],
    first: int = 0,
) -> None:
    """Read and write all regions, at most ``plan.in_flight`` of them at once.

    Parameters
    ----------
    source, target : TensorStore
        Of one shape and data type; the domain of either may begin anywhere.
    plan : Plan
        The regions.
    advance : callable
        Called with the decoded bytes of each region once it is stored, in order.
    stopped : callable
        Once it says True no region is begun any more, and those on their way are cancelled: of
        one that is being written some chunks may be stored, each of them whole.
    first : int
        The regions before this one are stored already.

    Raises
    ------
    CorruptChunkError, StoreIOError, LimitError
        From a region; those being written then are finished as well, as far as they can be.
    """
    regions = plan.regions(first)
    reads: deque[tuple[tuple[slice, ...], gpustore.Future[Any]]] = deque()
    writes: deque[tuple[int, gpustore.WriteFutures]] = deque()
    try:
        while not stopped():
            room = plan.in_flight - len(reads) - len(writes)
            place = next(regions, None) if room else None
            if place is not None:
                reads.append((place, _part(source, place).read()))
                reads[-1][1].force()
            elif reads and (reads[0][1].done() or not writes):
                place, read = reads[0]
                with suppress(TimeoutError):
                    # Does not raise the error of the read itself, which may be of this class.
                    read.exception(timeout=_LOOK_S)
                if read.done():
                    elements = read.result()
                    reads.popleft()
                    writes.append((elements.nbytes, _part(target, place).write(elements)))
                    # What is written must not stay in memory for the sake of these names.
                    del elements, read
            elif writes:
                nbytes, write = writes[0]
                with suppress(TimeoutError):
                    write.exception(timeout=_LOOK_S)
                if write.done():
                    write.result()
                    advance(nbytes)
                    writes.popleft()
            else:
                return
    finally:
        for _, read in reads:
            read.cancel()
        for _, write in writes:
            if stopped():
                write.cancel()
            elif not write.cancelled():  # As the second Ctrl-C does.
                write.exception()


def _part(store: gpustore.TensorStore, place: tuple[slice, ...]) -> gpustore.TensorStore:
    """A region of a store whose domain may begin anywhere."""
    begin = zip(store.origin, place, strict=True)
    return store[tuple(slice(o + p.start, o + p.stop) for o, p in begin)]
