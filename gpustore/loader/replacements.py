"""Replacements of damaged patches: others of the same epoch, whose numbers follow from theirs.

So they are the same for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gpustore.loader.fetched_window import DAMAGE, FetchedWindow
from gpustore.loader.numbers import below, key_of
from gpustore.loader.order import PatchOrder, Window
from gpustore.loader.residents import Residents
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.volume import Volume

_MOST: Final = 32
"""Damaged patches in place of one, after which that is an error."""


class Replacements:
    """Reads suspect patches alone, and others in place of those that are damaged.

    Parameters
    ----------
    order : PatchOrder
    volumes : sequence of Volume
    epoch : int
    edge : {"shift", "reflect", "fill"}
    replaces : bool
        Whether damaged patches are replaced; otherwise they are errors.
    statistics : LoaderStatistics
        Counts what is read, and ``patches_replaced``.
    """

    def __init__(
        self,
        order: PatchOrder,
        volumes: Sequence[Volume],
        *,
        epoch: int,
        edge: str,
        replaces: bool,
        statistics: LoaderStatistics,
    ) -> None:
        self._order, self._volumes = order, volumes
        self._epoch, self._edge = epoch, edge
        self._replaces, self._statistics = replaces, statistics

    def patch(self, window: FetchedWindow, i: int, stream: Any) -> FetchedWindow:
        """Return patch `i` of a window, which is suspect, or its replacement, as a window.

        It is read for `stream` if that is on a device.

        Raises
        ------
        CorruptChunkError, NotFoundError
            If the patch is damaged and not replaced, or all replacements are damaged.
        """
        number, rows = int(window.numbers[i]), window.rows[i : i + 1]
        volume, origin = window.volume, window.origins[i : i + 1]
        origin = origin - np.array(self._volumes[volume].origin)
        others = below(key_of(self._epoch, number), np.arange(_MOST), len(self._order)).tolist()
        while True:
            one = FetchedWindow(
                Window(number, volume, origin),
                self._volumes[volume],
                np.array([0]),
                rows,
                self._edge,
                Residents(()),
            )
            one.begin(stream, None)
            try:
                for array in one.arrays:
                    array.result()
            except DAMAGE:
                if not self._replaces or not others:
                    raise
            else:
                self._statistics.add(patches_replaced=len(others) < _MOST)
                return one
            finally:
                self._statistics.end_window(one)
            other = others.pop()
            found = next(self._order.windows(self._epoch, other))
            volume, origin = found.volume, found.origins[[other - found.first]]
