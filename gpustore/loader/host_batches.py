"""Batches in host memory, made of patches of windows that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpustore.loader.batches import Batch
from gpustore.loader.element_conversion import ElementConversion, library_arrays
from gpustore.loader.volume import PairedArray
from gpustore.loader.window_reads import Part


class HostBatches:
    """Makes batches: cuts patches, converts their elements, and gives arrays of a library.

    Parameters
    ----------
    arrays : sequence of PairedArray
        Arrays of a volume; those of others have patches of the same shapes and data types.
    conversions : mapping of str to ElementConversion
        By name of the array.
    library : {"numpy", "torch", "jax"}
    numbers_volumes : bool
        Whether batches have the number of each patch's volume.
    """

    def __init__(
        self,
        arrays: Sequence[PairedArray],
        conversions: Mapping[str, ElementConversion],
        library: str,
        *,
        numbers_volumes: bool,
    ) -> None:
        self._arrays, self._conversions = arrays, conversions
        self._library, self._numbers_volumes = library, numbers_volumes
        self._given = self._library_arrays()

    def made(self, parts: Sequence[Part]) -> Batch:
        """Return the batch of some patches of each of some windows, which are waited for."""
        batch: Batch = {}
        for i, one in enumerate(self._arrays):
            convert = self._conversions[one.name]
            pieces = []
            for window, at, until in parts:
                array = window.arrays[i]
                if array.is_box:
                    room = np.empty((until - at, *one.patch_shape), array.array.dtype)
                    array.cut(at, room, array.array.store.fill_value or 0)
                else:
                    # A view would keep the memory of the whole window.
                    room = np.array(array.result()[at:until])
                pieces.append(convert(room))
            found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            batch[one.name] = self._given[one.name](found)
        batch["origin"] = np.concatenate([w.origins[at:until] for w, at, until in parts])
        if self._numbers_volumes:
            batch["volume"] = np.repeat([w.volume for w, *_ in parts], [b - a for _, a, b in parts])
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
