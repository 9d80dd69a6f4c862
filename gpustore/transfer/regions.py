"""Transfer of the elements of a copy: regions under way, and interruption by Ctrl-C.

The first Ctrl-C sets a flag that is checked between steps: no further region begins, and regions
under way are cancelled, which never cuts through a chunk. The second Ctrl-C is Python's usual
KeyboardInterrupt.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.sources.base import Region, Source, ranges_of, region_shape, slabs
from gpustore.transfer.plan import Plan

_LOOK_S = 0.1
_SLAB_NBYTES = 8 << 20


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Catch the first Ctrl-C; yields a function that returns whether it came.

    The context manager has no effect outside the main thread, and where Ctrl-C is ignored or has no
    Python handler.
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
    source: Source,
    target: gpustore.TensorStore,
    plan: Plan,
    *,
    advance: Callable[[int], object],
    stopped: Callable[[], bool],
    moving: Callable[[int], object] = lambda nbytes: None,
    first: int = 0,
    beside: Callable[[Region, Any], gpustore.WriteFutures | None] = lambda place, elements: None,
) -> None:
    """Read and write all regions, at most ``plan.in_flight`` of them at once.

    Parameters
    ----------
    source : Source
    target : TensorStore
        Array of the source's shape; its domain may have any origin.
    plan : Plan
        The regions.
    advance : callable
        Called with the decoded bytes of each region once it is stored, in order.
    stopped : callable
        Returns True to stop: no further region begins, and regions under way are cancelled; some
        whole chunks of a region that is being written may be stored.
    moving : callable
        Called every now and then with the bytes of regions under way: half of a region is done when
        it is decoded, the other half when it is encoded and stored; each chunk by chunk.
    first : int
        First region to copy; the regions before it are stored.
    beside : callable
        Called with each region and its elements; may begin another write of what they become, which
        belongs to the region then.

    Raises
    ------
    CorruptChunkError, StoreIOError, LimitError
        From a region; regions that are being written are finished first, if possible.
    """
    regions = plan.regions(first)
    reads: deque[tuple[Region, gpustore.Future[Any]]] = deque()
    writes: deque[tuple[Region, list[gpustore.WriteFutures]]] = deque()
    stored = chunk_extents(target, "write_chunk")

    def nbytes_of(region: Region) -> int:
        return math.prod(region_shape(region)) * plan.itemsize

    def under_way() -> int:
        """Half of the bytes that are decoded, a quarter of those encoded and of those stored."""
        halves = 0.0
        for region, read in reads:
            nbytes = nbytes_of(region)
            known = nbytes if read.done() else read.statistics["bytes_decoded"]
            halves += min(nbytes, known) / 2
        for region, (write, *_) in writes:
            nbytes = nbytes_of(region)
            values = math.prod(map(len, ranges_of(region, stored)))
            share = min(1.0, write.statistics["values_stored"] / max(1, values))
            share += min(1.0, write.statistics["bytes_encoded"] / max(1, nbytes))
            halves += nbytes * (1 + share / 2) / 2
        return int(halves)

    def showing(nbytes: int) -> None:
        moving(under_way() + nbytes // 2)

    try:
        while not stopped():
            room = plan.in_flight - len(reads) - len(writes)
            place = next(regions, None) if room else None
            if place is not None:
                read = _begun(source, place, nbytes_of(place), stopped, showing)
                reads.append((place, read))
            elif reads and (reads[0][1].done() or not writes):
                place, read = reads[0]
                with suppress(TimeoutError):
                    # Does not raise the error of the read itself, which may be of this class.
                    read.exception(timeout=_LOOK_S)
                if read.done():
                    elements = _of_shape(place, read.result())
                    reads.popleft()
                    written = [_part(target, place).write(elements)]
                    writes.append((place, written))
                    other = beside(place, elements)
                    if other is not None:
                        written.append(other)
                    # What is written must not stay in memory for the sake of these names.
                    del elements, read, written, other
            elif writes:
                place, both = writes[0]
                with suppress(TimeoutError):
                    for write in both:
                        write.exception(timeout=_LOOK_S)
                if all(write.done() for write in both):
                    for write in both:
                        write.result()
                    writes.popleft()
                    advance(nbytes_of(place))
            else:
                return
            moving(under_way())
    finally:
        for _, read in reads:
            read.cancel()
        for write in (write for _, both in writes for write in both):
            if stopped():
                write.cancel()
            elif not write.cancelled():  # A second Ctrl-C ends it the same way.
                write.exception()


def _begun(
    source: Source,
    region: Region,
    nbytes: int,
    stopped: Callable[[], bool],
    showing: Callable[[int], object],
) -> gpustore.Future[Any]:
    """Begin to read a region of so many bytes; `showing` is called with those that are read."""
    count = -(-nbytes // _SLAB_NBYTES)
    if source.is_slow and count > 1 and source.chunks is not None:
        elements = np.empty(region_shape(region), gpustore.dtype(source.dtype).array_dtype)
        done = 0
        for part in slabs(region, source.chunks, count):
            if stopped():
                break  # What was read is not written either.
            places = zip(part, region, strict=True)
            here = tuple(slice(p.start - r.start, p.stop - r.start) for p, r in places)
            elements[here] = _of_shape(part, source.read(part))
            done += elements[here].nbytes
            showing(done)
        return gpustore.Future(elements)
    read = source.read(region)
    if not isinstance(read, gpustore.Future):
        return gpustore.Future(read)
    read.force()
    return read


def _of_shape(region: Region, elements: Any) -> Any:
    """Return the elements of a region; raise CopyError if they have another shape."""
    # Arrays of a device have a shape that NumPy does not ask for.
    shape = tuple(elements.shape if hasattr(elements, "shape") else np.shape(elements))
    expected = region_shape(region)
    if shape != expected:
        raise gpustore.CopyError(
            f"the source returned elements of shape {shape} for a region of shape {expected}"
        )
    return elements


def _part(store: gpustore.TensorStore, place: Region) -> gpustore.TensorStore:
    """Return a region of a store whose domain may begin anywhere."""
    begin = zip(store.origin, place, strict=True)
    return store[tuple(slice(o + p.start, o + p.stop) for o, p in begin)]
