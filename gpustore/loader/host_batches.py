"""Batches in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from gpustore import registry
from gpustore.loader.batch_maker import BatchMaker
from gpustore.loader.element_conversion import library_arrays
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.window_memory import KeptMemory, WindowMemory


class HostBatches(BatchMaker):
    """Makes batches in host memory; memory of those that the program has dropped is used again."""

    @cached_property
    def _kept(self) -> KeptMemory:
        return KeptMemory()

    @contextmanager
    def iteration(self, window_nbytes: int) -> Iterator[WindowMemory]:
        """Make batches of one iteration in the block, of windows in the memory that it gets."""
        memory = WindowMemory(window_nbytes, self._kept)
        try:
            yield memory
        finally:
            memory.end(self._kept)

    def close(self) -> None:
        """Drop the memory that is kept for the next iteration."""
        self._kept.take()

    def __getstate__(self) -> dict[str, Any]:
        """Leave functions out: another process makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_functions"}

    def _begin(self, count: int) -> list[NDArray[Any]]:
        empty = registry.public("backends.host.memory", "empty")
        return [
            empty((count, *self._layouts[one.name].shape), self._conversions[one.name].dtype).array
            for one in self._arrays
        ]

    def _add(self, batch: list[NDArray[Any]], window: FetchedWindow, at: int, until: int) -> None:
        for array, out in zip(window.arrays, batch, strict=True):
            name = array.array.name
            patches = self._layouts[name].patches(out)
            array.cut(at, until, self._conversions[name], patches, window.rows[at:until])

    def _end(self, batch: list[NDArray[Any]]) -> list[NDArray[Any]]:
        return batch

    def _givers(self) -> Sequence[Callable[[Any], Any]]:
        return self._functions

    @cached_property
    def _functions(self) -> list[Callable[[Any], Any]]:
        return [
            library_arrays(self._library, self._conversions[one.name].dtype) for one in self._arrays
        ]
