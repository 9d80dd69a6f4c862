"""Batches in the memory of a device, made on the stream of the program that uses them.

Windows are read into device memory. A batch is one launch that cuts the patches of all of its
arrays, converts and normalises them, and orders their dimensions. The program does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import gpustore
from gpustore import registry
from gpustore.loader.batch_maker import BatchMaker
from gpustore.loader.element_conversion import library_arrays
from gpustore.loader.fetched_window import REFLECT, FetchedWindow


class DeviceBatches(BatchMaker):
    """Makes batches of arrays on a device, ready in the order of the stream that uses them.

    A batch is one launch, or several if it has patches of more windows than may be kept. With
    library ``"numpy"`` batches are copied to host memory.

    Parameters
    ----------
    edge : {"shift", "reflect", "fill"}
    plan, numbers_volumes
        Parameters of :class:`BatchMaker`; all arrays lie on one device.

    Raises
    ------
    UnsupportedError
        If elements are not converted on a device, or the library lacks their data type.
    """

    def __init__(self, *plan: Any, edge: str, numbers_volumes: bool) -> None:
        super().__init__(*plan, numbers_volumes=numbers_volumes)
        self._edge = edge
        self._kept_nbytes = self._nbytes = 0
        self._cutter: Any = None
        can_cut = registry.public("device.kernels.patch", "can_cut")
        for one in self._arrays:
            conversion = self._conversions[one.name]
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

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is on the device."""
        return self.__dict__ | {"_cutter": None}

    def _begin(self, count: int) -> Any:
        self._nbytes = 0
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

    def _add(self, batch: Any, window: FetchedWindow, at: int, until: int) -> None:
        for number, array in enumerate(window.arrays):
            paired = array.array
            fill = None
            if self._edge != REFLECT:
                fill = np.array(paired.store.fill_value or 0, paired.dtype).tobytes()
            leading = np.zeros((until - at, len(paired.leading)), np.int64)
            batch.add(
                number,
                array.result(),
                np.concatenate([leading, array.origins[at:until]], axis=1),
                (*paired.leading, *paired.extent()),
                window.rows[at:until],
                low=(*leading[0], *array.low) if array.is_box else None,
                first_row=0 if array.is_box else at,
                fill=fill,
            )
        self._nbytes += window.nbytes
        if self._nbytes > self._kept_nbytes:
            self._launch(batch)

    def _end(self, batch: Any) -> Sequence[Any]:
        self._launch(batch)
        arrays: Sequence[Any] = batch.arrays
        return arrays

    def _launch(self, batch: Any) -> None:
        """Cut the patches added so far; their windows need not be kept any longer."""
        batch.launch()
        self._nbytes = 0

    def _givers(self) -> Sequence[Callable[[Any], Any]]:
        if self._library == "numpy":
            return [self._cutter.to_host] * len(self._arrays)
        return [
            library_arrays(self._shared, self._conversions[one.name].dtype) for one in self._arrays
        ]
