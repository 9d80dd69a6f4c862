"""Batches in host memory, made of patches of windows that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpustore import registry
from gpustore.loader.batches import Batch
from gpustore.loader.element_conversion import ElementConversion, library_arrays
from gpustore.loader.layout import Layout
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.volume import PairedArray
from gpustore.loader.window_memory import KeptMemory, WindowMemory
from gpustore.loader.window_reads import Part


class HostBatches:
    """Makes batches: cuts patches, converts their elements, and gives arrays of a library.

    Parameters
    ----------
    arrays : sequence of PairedArray
        Arrays of a volume; those of others have patches of the same shapes and data types.
    conversions, layouts : mapping of str to ElementConversion, and to Layout
        By name of the array.
    library : {"numpy", "torch", "jax"}
    statistics : LoaderStatistics
        Receives the seconds of cutting and converting, and counts batches.
    numbers_volumes : bool
        Whether batches have the number of each patch's volume.
    """

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
        self._kept = KeptMemory()
        self._given = self._library_arrays()

    @property
    def source_stream(self) -> None:
        """Stream for which windows are read: none."""

    @contextmanager
    def iteration(self, window_nbytes: int) -> Iterator[WindowMemory]:
        """Make batches of one iteration in the block, of windows in the memory that it gets.

        Parameters
        ----------
        window_nbytes : int
            Most bytes of windows.
        """
        memory = WindowMemory(window_nbytes, self._kept)
        try:
            yield memory
        finally:
            memory.end(self._kept)

    def close(self) -> None:
        """Drop the memory that is kept for the next iteration."""
        self._kept.take()

    def made(self, count: int, parts: Iterable[Part]) -> Batch:
        """Return the batch of the patches of some parts of windows, which are waited for.

        Parameters
        ----------
        count : int
            Number of patches of all parts.
        parts : iterable of Part
            Each is dropped before the next is taken.
        """
        empty = registry.public("backends.host.memory", "empty")
        arrays = [
            # Memory of batches that the program has dropped is used again.
            empty((count, *self._layouts[one.name].shape), self._conversions[one.name].dtype).array
            for one in self._arrays
        ]
        rooms = [
            self._layouts[one.name].patches(array)
            for one, array in zip(self._arrays, arrays, strict=True)
        ]
        origin = np.empty((count, len(self._arrays[0].patch)), np.int64)
        volume = np.empty(count, np.int64)
        statistics = self._statistics
        for window, at, until in parts:
            rows = window.rows[at:until]
            for room, one, array in zip(rooms, self._arrays, window.arrays, strict=True):
                convert = self._conversions[one.name]
                with statistics.spending("cut_s"):
                    for row, patch in zip(rows.tolist(), array.patches(at, until), strict=True):
                        convert(patch, room[row])
                        del patch
            origin[rows] = window.origins[at:until]
            volume[rows] = window.volume
            del window, array
        with statistics.spending("convert_s"):
            batch: Batch = {
                one.name: self._given[one.name](array)
                for one, array in zip(self._arrays, arrays, strict=True)
            }
        batch["origin"] = origin
        if self._numbers_volumes:
            batch["volume"] = volume
        statistics.add(batches=1, patches=count)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        """Leave functions out: another process makes its own."""
        return self.__dict__ | {"_given": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._given = self._library_arrays()

    def _library_arrays(self) -> dict[str, Any]:
        return {
            name: library_arrays(self._library, one.dtype)
            for name, one in self._conversions.items()
        }
