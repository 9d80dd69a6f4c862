"""Batches made of patches of windows that were read, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gpustore.loader.batches import Batch
from gpustore.loader.element_conversion import ElementConversion
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.layout import Layout
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.volume import PairedArray
from gpustore.loader.window_memory import WindowMemory
from gpustore.loader.window_reads import Part


class BatchMaker(ABC):
    """Makes batches: cuts patches, converts their elements, and gives arrays of a library.

    Parameters
    ----------
    arrays : sequence of PairedArray
        Arrays of a volume; those of others have patches of the same shapes and data types.
    conversions, layouts : mapping of str to ElementConversion, and to Layout
        By name of the array.
    library : {"numpy", "cupy", "torch", "jax"}
    statistics : LoaderStatistics
        Receives the seconds of cutting and converting, and counts batches.
    numbers_volumes : bool
        Whether batches have the number of each patch's volume.
    """

    source_stream: Any = None
    """Stream for which windows are read; None in host memory."""

    def __init__(
        self,
        arrays: Sequence[PairedArray],
        conversions: Mapping[str, ElementConversion],
        layouts: Mapping[str, Layout],
        library: str,
        statistics: LoaderStatistics,
        *,
        numbers_volumes: bool,
    ) -> None:
        self._arrays, self._conversions, self._layouts = arrays, conversions, layouts
        self._library, self._statistics = library, statistics
        self._numbers_volumes = numbers_volumes

    @abstractmethod
    def iteration(self, window_nbytes: int) -> AbstractContextManager[WindowMemory | None]:
        """Make batches of one iteration in the block, of windows in the memory that it gets.

        Parameters
        ----------
        window_nbytes : int
            Most bytes of windows.
        """

    @abstractmethod
    def _begin(self, count: int) -> Any:
        """Return a batch of so many patches, of undefined elements."""

    @abstractmethod
    def _add(self, batch: Any, window: FetchedWindow, at: int, until: int) -> None:
        """Cut patches of a window for a batch, and convert their elements."""

    @abstractmethod
    def _end(self, batch: Any) -> Sequence[Any]:
        """Return the arrays of a batch that has all patches."""

    @abstractmethod
    def _givers(self) -> Sequence[Callable[[Any], Any]]:
        """Return functions that make an array of the library of each array of a batch."""

    def close(self) -> None:  # noqa: B027 - Most keep nothing.
        """Drop the memory that is kept for the next iteration."""

    def made(self, count: int, parts: Iterable[Part]) -> Batch:
        """Return the batch of the patches of some parts of windows, which are waited for.

        Parameters
        ----------
        count : int
            Number of patches of all parts.
        parts : iterable of Part
            Each is dropped before the next is taken, but for what is read of it.
        """
        spending = self._statistics.spending
        begun = self._begin(count)
        origin = np.empty((count, len(self._arrays[0].patch)), np.int64)
        volume = np.empty(count, np.int64)
        for window, at, until in parts:
            with spending("cut_s"):
                self._add(begun, window, at, until)
            rows = window.rows[at:until]
            origin[rows] = window.origins[at:until]
            volume[rows] = window.volume
            del window
        with spending("cut_s"):
            arrays = self._end(begun)
        with spending("convert_s"):
            batch: Batch = {
                one.name: give(array)
                for one, give, array in zip(self._arrays, self._givers(), arrays, strict=True)
            }
        batch["origin"] = origin
        if self._numbers_volumes:
            batch["volume"] = volume
        self._statistics.add(batches=1, patches=count)
        return batch
