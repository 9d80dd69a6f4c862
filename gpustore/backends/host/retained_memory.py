"""Memory of large results, which the process keeps for the next result of the same size.

The kernel clears every page of new memory, which takes about as long as decoding into it. So the
memory of a result that nobody refers to any more stays with the process, marked as free
(``MADV_FREE``): the kernel takes its pages as soon as it needs some, and until then the next result
gets them as they are. Where the system has no such mark, nothing is kept.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from typing import Any, Final

SMALLEST_NBYTES: Final = 4 << 20
"""Fewest bytes of a result whose memory is kept; NumPy asks for huge pages from here on."""

MOST_NBYTES: Final = 256 << 20
"""Most bytes that are kept altogether, and of one result that is kept."""

_PAGE_NBYTES: Final = 2 << 20  # of a huge page

_MARK: Final[int | None] = getattr(mmap, "MADV_FREE", None)
_HUGE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class _Reference(weakref.ref[Any]):
    """Weak reference to the memory of a result, and the pages it lies in."""

    __slots__ = ("block",)

    block: mmap.mmap


_free: list[mmap.mmap] = []  # the one that was dropped last at the end
_used: dict[int, _Reference] = {}  # by identity: the memory has no hash
_lock = threading.RLock()  # Re-entrant: the garbage collector drops results while it is held.


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def retained(nbytes: int) -> memoryview | None:
    """Return memory of undefined contents for a result.

    Parameters
    ----------
    nbytes : int
        Size of the result.

    Returns
    -------
    memoryview or None
        Writable memory of `nbytes` bytes, which is kept when nobody refers to it any more. None
        for results that are too small or too large, if the system cannot mark memory as free, and
        if it has too little.
    """
    if _MARK is None or not SMALLEST_NBYTES <= nbytes <= MOST_NBYTES:
        return None
    size = -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
    with _lock:
        # A result that is dropped meanwhile, by the collector, changes the list.
        block = next((one for one in reversed(_free.copy()) if len(one) == size), None)
        if block is not None:
            try:
                _free.remove(block)
            except ValueError:
                block = None
    if block is None:
        try:
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError):
            return None
        _advise(block, _HUGE)
    memory = (ctypes.c_ubyte * nbytes).from_buffer(block)
    reference = _Reference(memory, _drop)
    reference.block = block
    with _lock:
        _used[id(reference)] = reference
    return memoryview(memory)


def _drop(reference: weakref.ref[Any]) -> None:
    """Keep the memory of a result that nobody refers to any more."""
    with _lock:
        block = _used.pop(id(reference)).block
        if not _advise(block, _MARK):
            return
        _free.append(block)
        while sum(map(len, _free)) > MOST_NBYTES:
            del _free[0]


def _advise(block: mmap.mmap, advice: int | None) -> bool:
    try:
        if advice is not None:
            block.madvise(advice)
    except OSError:  # A kernel without it.
        return False
    return True
