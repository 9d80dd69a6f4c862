"""Reads of the windows of an epoch that one rank needs, in order, of which the next are ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore.loader.division import Division
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.order import PatchOrder, Window
from gpustore.loader.replacements import Replacements
from gpustore.loader.residents import Residents
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.volume import Volume
from gpustore.loader.window_memory import WindowMemory

Integers = NDArray[np.int64]

MOST_WINDOWS: Final = 3
"""Most windows that are used or read; two if they take memory."""

Part = tuple[FetchedWindow, int, int]
"""Window, and the first of some consecutive patches of it and the one behind the last."""


class WindowReads:
    """Patches of a rank's parts of some batches, one after the other.

    Parameters
    ----------
    windows : generator of FetchedWindow
        Windows of the batches, as :func:`windows_of` gives them.
    residents : Residents
        Arrays that stay in memory.
    nbytes : int
        Bytes that windows may take together, with these arrays.
    statistics : LoaderStatistics
        Counts what windows read.
    replacements : Replacements
        Reads patches whose chunks may be damaged.
    check : callable
        Called with each window that was read, before its patches are used; raises if it is not of
        the arrays that were opened.
    stream : object
        Stream of a device for which they are read; None in host memory.
    memory : WindowMemory or None
        Memory that they are read into; None on a device.
    """

    def __init__(
        self,
        windows: Generator[FetchedWindow],
        residents: Residents,
        nbytes: int,
        statistics: LoaderStatistics,
        replacements: Replacements,
        check: Callable[[FetchedWindow], None],
        stream: Any,
        memory: WindowMemory | None,
    ) -> None:
        self._stream = stream
        self._memory = memory
        self._left, self._residents, self._statistics = windows, residents, statistics
        self._nbytes = nbytes - residents.nbytes
        self._replacements, self._check = replacements, check
        self._following: FetchedWindow | None = None
        self._begun: deque[FetchedWindow] = deque()
        self._at = 0
        """Next patch of the first window that was begun."""

    def take(self, count: int) -> Iterator[Part]:
        """Yield where the next patches are, which have been read.

        A window counts as memory until the next part is asked for, and is to be dropped before.

        Raises
        ------
        CorruptChunkError, NotFoundError
            If a patch is damaged; the message names its array and origin, and the chunk's key.
        ConflictError, MismatchError, NotFoundError
            If an array has changed; see :mod:`gpustore.loader.stored_metadata`.
        GpustoreError
            As reads do.
        """
        while count:
            window = self._window()
            at, end = self._at, min(self._at + count, len(window.numbers))
            self._at = end
            count -= end - at
            if not at:
                with self._statistics.stalling():
                    window.wait()
                    self._check(window)
            suspects = window.suspects
            for i in (np.flatnonzero(suspects[at:end]) + at).tolist():
                if at < i:
                    yield window, at, i
                yield self._replacements.patch(window, i, self._stream), 0, 1
                at = i + 1
            if at < end:
                yield window, at, end
            del window

    def close(self) -> None:
        """Drop all windows."""
        self._left.close()
        self._following = None
        while self._begun:
            self._drop_first()
        if self._memory is not None:
            self._residents.give(self._memory)

    def _window(self) -> FetchedWindow:
        """Return the window of the next patch; earlier ones are dropped, and the next begun."""
        if self._begun and self._at == len(self._begun[0].numbers):
            self._drop_first()
            self._at = 0
        if len(self._begun) < MOST_WINDOWS:
            with self._statistics.planning():
                self._plan()
        return self._begun[0]

    def _plan(self) -> None:
        """Begin the next windows, if there is room for them."""
        while len(self._begun) < MOST_WINDOWS:
            following = next(self._left, None) if self._following is None else self._following
            if following is None:
                return
            nbytes = following.nbytes
            # One that takes no memory of its own is read while the last one is planned.
            if nbytes and self._begun:
                taken = sum(one.nbytes for one in self._begun)
                if len(self._begun) > 1 or taken + nbytes > self._nbytes:
                    self._following = following
                    return
            self._begin(following)

    def _drop_first(self) -> None:
        window = self._begun.popleft()
        self._statistics.end_window(window)
        if self._memory is not None and window.is_read:
            window.give(self._memory)

    def _begin(self, window: FetchedWindow) -> None:
        self._following = None
        self._statistics.begin_reads(window.begin(self._stream, self._memory))
        self._begun.append(window)


def windows_of(
    order: PatchOrder,
    division: Division,
    volumes: Sequence[Volume],
    residents: Residents,
    *,
    edge: str,
    nbytes: int,
    epoch: int,
    batches: range,
) -> Generator[FetchedWindow]:
    """Yield the windows of a rank's parts of some batches, in order; nothing is read yet.

    Parameters
    ----------
    order : PatchOrder
    division : Division
    volumes : sequence of Volume
    residents : Residents
        Arrays that stay in memory.
    edge : {"shift", "reflect", "fill"}
    nbytes : int
        Most bytes of a window, with these arrays: larger ones are divided.
    epoch : int
    batches : range
        Numbers of the batches.

    Raises
    ------
    LimitError
        If a patch alone takes more.
    """

    def fitting(window: Window, chosen: Integers, rows: Integers) -> Iterator[FetchedWindow]:
        found = FetchedWindow(window, volumes[window.volume], chosen, rows, edge, residents)
        if found.nbytes <= room:
            found.claim()
            yield found
        elif len(chosen) > 1:
            half = len(chosen) // 2
            yield from fitting(window, chosen[:half], rows[:half])
            yield from fitting(window, chosen[half:], rows[half:])
        else:
            raise gpustore.LimitError(
                f"memory: a patch takes {found.nbytes} bytes, and {room} are left beside the "
                "batches; choose more memory, or smaller patches"
            )

    room = nbytes - residents.nbytes
    strata = partial(order.strata, epoch)
    for window in order.windows(epoch, batches.start * division.size):
        chosen, rows = division.chosen(window, batches, strata)
        if len(chosen):
            yield from fitting(window, chosen, rows)
