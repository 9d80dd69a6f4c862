"""Reads of the windows of an epoch that one rank needs, in order, of which the next is ahead."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore.loader.division import Division
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.order import PatchOrder, Window
from gpustore.loader.volume import Volume

Integers = NDArray[np.int64]

Part = tuple[FetchedWindow, int, int]
"""Window, and the first of some consecutive patches of it and the one behind the last."""


class WindowReads:
    """Patches of a rank's parts of some batches, one after the other.

    Parameters
    ----------
    order : PatchOrder
    division : Division
    volumes : sequence of Volume
    edge : {"shift", "reflect", "fill"}
    nbytes : int
        Bytes that windows may take together.
    counts : Counter
        Receives ``windows``, ``chunks_decoded`` and ``bytes_read`` of windows that are done.
    epoch : int
    batches : range
        Numbers of the batches.
    """

    def __init__(
        self,
        order: PatchOrder,
        division: Division,
        volumes: Sequence[Volume],
        *,
        edge: str,
        nbytes: int,
        counts: Counter[str],
        epoch: int,
        batches: range,
    ) -> None:
        self._order, self._division = order, division
        self._volumes, self._edge = volumes, edge
        self._nbytes, self._counts = nbytes, counts
        self._left = self._windows(epoch, batches)
        self._following: FetchedWindow | None = None
        self._begun: deque[FetchedWindow] = deque()
        self._at = 0
        """Next patch of the first window that was begun."""

    def take(self, count: int) -> Iterator[Part]:
        """Yield where the next patches are; their windows may still be under way.

        A window counts as memory until the next part is asked for, and is to be dropped before.
        """
        while count:
            window = self._window()
            at, end = self._at, min(self._at + count, len(window.numbers))
            self._at = end
            count -= end - at
            yield window, at, end
            del window

    def close(self) -> None:
        """Drop all windows."""
        self._left.close()
        self._following = None
        while self._begun:
            self._done(self._begun.popleft())

    def _window(self) -> FetchedWindow:
        """Return the window of the next patch; earlier ones are dropped, and the next begun."""
        if self._begun and self._at == len(self._begun[0].numbers):
            self._done(self._begun.popleft())
            self._at = 0
        if not self._begun:
            self._begin(next(self._left) if self._following is None else self._following)
        if len(self._begun) == 1:
            if self._following is None:
                self._following = next(self._left, None)
            following = self._following
            if following is not None and following.nbytes + self._begun[0].nbytes <= self._nbytes:
                self._begin(following)
        return self._begun[0]

    def _begin(self, window: FetchedWindow) -> None:
        self._following = None
        window.begin()
        self._begun.append(window)

    def _done(self, window: FetchedWindow) -> None:
        counts = self._counts
        counts["windows"] += 1
        for one in window.arrays:
            found = one.statistics()
            counts["chunks_decoded"] += found.get("chunks_planned", 0)
            counts["chunks_decoded"] -= found.get("chunks_missing", 0)
            counts["bytes_read"] += found.get("bytes_fetched", 0)

    def _windows(self, epoch: int, batches: range) -> Generator[FetchedWindow]:
        strata = partial(self._order.strata, epoch)
        for window in self._order.windows(epoch, batches.start * self._division.size):
            chosen, rows = self._division.chosen(window, batches, strata)
            if len(chosen):
                yield from self._fitting(window, chosen, rows)

    def _fitting(self, window: Window, chosen: Integers, rows: Integers) -> Iterator[FetchedWindow]:
        """Yield a window, or parts of it one after the other if it takes too much memory."""
        found = FetchedWindow(window, self._volumes[window.volume], chosen, rows, self._edge)
        if found.nbytes <= self._nbytes:
            yield found
        elif len(chosen) > 1:
            half = len(chosen) // 2
            yield from self._fitting(window, chosen[:half], rows[:half])
            yield from self._fitting(window, chosen[half:], rows[half:])
        else:
            raise gpustore.LimitError(
                f"memory: a patch takes {found.nbytes} bytes, and {self._nbytes} are left beside "
                "the batches; choose more memory, or smaller patches"
            )
