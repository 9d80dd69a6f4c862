"""Batches in the memory of a device, made on the stream of the program that uses them.

Windows are read into device memory. A batch is one launch that cuts the patches of all of its
arrays, converts and normalises them, and orders their dimensions. The program does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.loader.batches import Batch
from gpustore.loader.element_conversion import ElementConversion, library_arrays
from gpustore.loader.fetched_window import REFLECT, FetchedArray
from gpustore.loader.layout import Layout
from gpustore.loader.statistics import LoaderStatistics
from gpustore.loader.volume import PairedArray
from gpustore.loader.window_reads import Part


class DeviceBatches:
    """Makes batches of arrays on a device; see :class:`gpustore.loader.host_batches.HostBatches`.

    Parameters
    ----------
    arrays : sequence of PairedArray
        Arrays of a volume, on one device.
    conversions, layouts : mapping of str to ElementConversion, and to Layout
        By name of the array.
    library : {"cupy", "torch", "jax", "numpy"}
        With ``"numpy"`` batches are copied to host memory.
    statistics : LoaderStatistics
    edge : {"shift", "reflect", "fill"}
    numbers_volumes : bool

    Raises
    ------
    UnsupportedError
        If elements are not converted on a device, or the library lacks their data type.
    """

    def __init__(
        self,
        arrays: Sequence[PairedArray],
        conversions: Mapping[str, ElementConversion],
        layouts: Mapping[str, Layout],
        library: str,
        statistics: LoaderStatistics,
        *,
        edge: str,
        numbers_volumes: bool,
    ) -> None:
        self._arrays, self._conversions, self._layouts = arrays, conversions, layouts
        self._library, self._statistics = library, statistics
        self._edge, self._numbers_volumes = edge, numbers_volumes
        self._kept_nbytes = 0
        self._cutter: Any = None
        can_cut = registry.public("device.kernels.patch", "can_cut")
        for one in arrays:
            conversion = conversions[one.name]
            if not can_cut(one.dtype, conversion.dtype, is_scaled=conversion.scale is not None):
                done = "converted" if conversion.scale is None else "normalised"
                raise gpustore.UnsupportedError(
                    f"array {one.name!r} of {one.store.dtype.name} is not {done} to "
                    f"{conversion.dtype} on {one.store.device}; read it as another type first, "
                    'such as gpustore.cast(store, "float32")'
                )
            library_arrays(self._shared, conversion.dtype)

    @property
    def _shared(self) -> str:
        """Library whose arrays share the memory of those on the device, if it is not their own."""
        return "numpy" if self._library == "cupy" else self._library

    @property
    def source_stream(self) -> Any:
        """Stream for which windows are read."""
        return self._cutter.source_stream

    @contextmanager
    def iteration(self, window_nbytes: int) -> Iterator[None]:
        """Make batches of one iteration in the block, which leaves nothing of it on the device.

        Parameters
        ----------
        window_nbytes : int
            Most bytes of windows. Half of them may be kept while later ones are read, for batches
            that have patches of both.
        """
        self._kept_nbytes = window_nbytes // 2
        cutter = registry.public("front.patch_cutter", "patch_cutter")(self._arrays[0].store)
        self._cutter = cutter
        try:
            yield
        finally:
            cutter.close()

    def close(self) -> None:
        """Nothing is kept between iterations."""

    def made(self, count: int, parts: Iterable[Part]) -> Batch:
        """Return the batch of the patches of some parts of windows, which were read.

        Its arrays are ready in the order of the stream on which they are used, which gets one
        launch, or several if the batch has patches of more windows than may be kept.

        Parameters
        ----------
        count : int
            Number of patches of all parts.
        parts : iterable of Part
            Each is dropped before the next is taken, but for what is read of it.
        """
        begun = self._begun(count)
        origin = np.empty((count, len(self._arrays[0].patch)), np.int64)
        volume = np.empty(count, np.int64)
        kept = 0
        for window, at, until in parts:
            for number, array in enumerate(window.arrays):
                with self._statistics.spending("cut_s"):
                    self._add(begun, number, array, window.rows, at, until)
            rows = window.rows[at:until]
            origin[rows] = window.origins[at:until]
            volume[rows] = window.volume
            kept += window.nbytes
            if kept > self._kept_nbytes:
                begun.launch()
                kept = 0
            del window, array
        with self._statistics.spending("cut_s"):
            begun.launch()
        with self._statistics.spending("convert_s"):
            batch: Batch = {
                one.name: convert(array)
                for one, convert, array in zip(
                    self._arrays, self._library_arrays(), begun.arrays, strict=True
                )
            }
        batch["origin"] = origin
        if self._numbers_volumes:
            batch["volume"] = volume
        self._statistics.add(batches=1, patches=count)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is on the device."""
        return self.__dict__ | {"_cutter": None}

    def _begun(self, count: int) -> Any:
        """Allocate the arrays of a batch, for the stream on which they are used."""
        patch_array = registry.public("backends.device.patch_cutter", "PatchArray")
        arrays = []
        for one in self._arrays:
            conversion, layout = self._conversions[one.name], self._layouts[one.name]
            array = patch_array(
                shape=(count, *layout.shape),
                dims=layout.dims,
                patch=one.patch_shape,
                dtype=conversion.dtype,
                offset=conversion.offset,
                scale=conversion.scale,
            )
            arrays.append(array)
        stream = None
        if self._library == "torch":
            stream = registry.guest("torch").current_stream(self._arrays[0].store.device)
        return self._cutter.batch(arrays, stream)

    def _add(
        self,
        begun: Any,
        number: int,
        array: FetchedArray,
        rows: NDArray[np.int64],
        at: int,
        until: int,
    ) -> None:
        """Add patches of an array that is read to an array of a batch."""
        paired = array.array
        fill = None
        if self._edge != REFLECT:
            fill = np.array(paired.store.fill_value or 0, paired.dtype).tobytes()
        leading = np.zeros((until - at, len(paired.leading)), np.int64)
        begun.add(
            number,
            array.result(),
            np.concatenate([leading, array.origins[at:until]], axis=1),
            (*paired.leading, *paired.extent()),
            rows[at:until],
            low=(*leading[0], *array.low) if array.is_box else None,
            first_row=0 if array.is_box else at,
            fill=fill,
        )

    def _library_arrays(self) -> list[Callable[[Any], Any]]:
        """Return functions that give arrays on the device to the library."""
        if self._library == "numpy":
            return [self._cutter.to_host] * len(self._arrays)
        return [
            library_arrays(self._shared, self._conversions[one.name].dtype) for one in self._arrays
        ]
