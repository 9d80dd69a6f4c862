"""Patches that are cut out of arrays on a device, on the stream of whoever uses them.

A batch of patches is one upload, of tables, and one launch on the caller's stream; nothing is
waited for. What that stream is given afterwards runs behind them. New arrays are allocated for that
stream, so that their memory is used again in its order alone.

Arrays that patches are cut out of are those of reads for :attr:`PatchCutter.source_stream`. It is
ordered behind each launch, so that their memory is not used again before the patches are cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device import DeviceBackend
from gpustore.backends.device.submissions import DeviceMemory
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.patch import Patches, patch_launches
from gpustore.device.protocol import Event, Pinned, Spans, Stream
from gpustore.errors import DeviceError, ForkError, LimitError
from gpustore.runtime.statistics import STATISTICS

Integers = NDArray[np.int64]

_AHEAD: Final = 16
"""Most uploads of tables under way: the host waits for the first of them before it queues more."""

_SMALLEST_NBYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class PatchArray:
    """New array of patches.

    Attributes
    ----------
    shape : tuple of int
        Shape; patches are its rows.
    dims : tuple of int or None
        Dimension of the source for each dimension of a row; None for one of length 1.
    patch : tuple of int
        Elements of a patch along each dimension of the source.
    dtype : numpy.dtype
    offset, scale : float or None
        See :class:`gpustore.device.kernels.patch.Patches`.
    """

    shape: tuple[int, ...]
    dims: tuple[int | None, ...]
    patch: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: float | None = None
    scale: float | None = None


class PatchCutter:
    """Cuts patches out of arrays of one device; for one thread at a time.

    Parameters
    ----------
    backend : DeviceBackend

    Attributes
    ----------
    source_stream : Stream
        Stream for which the arrays are read that patches are cut out of.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self.backend = backend
        self.source_stream = backend.driven.stream()
        self._tables: deque[tuple[Pinned, Event]] = deque()

    def batch(self, arrays: Sequence[PatchArray], stream: Any = None) -> PatchBatch:
        """Allocate the arrays of a batch.

        Parameters
        ----------
        arrays : sequence of PatchArray
        stream : object, optional
            Stream on which they are used; by default that of the calling thread.

        Raises
        ------
        LimitError
            If there is not enough memory.
        """
        return PatchBatch(self, arrays, self.backend.caller_stream(stream))

    def to_host(self, array: Any) -> NDArray[Any]:
        """Copy an array that is used on the stream of the calling thread to host memory."""
        return self.backend.to_host(array)

    def launch(self, patches: Sequence[Patches], stream: Stream) -> None:
        """Queue the launch that cuts patches, and have :attr:`source_stream` wait for it.

        Raises
        ------
        LimitError
            If there is not enough memory for tables, or a patch is too large.
        """
        device, none = self.backend.driven, np.zeros(0, np.uint64)
        commands = CommandList(device, stream, np.zeros(0, np.int64), Spans(none, none))
        commands.launch_tables(patch_launches(patches))
        nbytes = commands.table_nbytes
        if not nbytes:
            return
        try:
            pinned = self._pinned(nbytes)
            commands.write_tables(pinned.view)
            try:
                tables = self.backend.with_memory(lambda: device.allocate(nbytes, stream))
                try:
                    device.upload(pinned, 0, tables.address, nbytes, stream)
                    commands.run(tables.address, 0)
                finally:
                    device.free(tables, stream)
            finally:
                event = device.record(stream)
                self._tables.append((pinned, event))
                device.wait(self.source_stream, event)
        except MemoryError as error:
            raise LimitError(
                f"Tables of {nbytes} bytes do not fit the memory of device {device.name}; choose "
                "smaller batches"
            ) from error
        STATISTICS.add(copies=1, launches=1, bytes_to_device=nbytes)

    def _pinned(self, nbytes: int) -> Pinned:
        """Return pinned memory that is in no use, of at least a number of bytes."""
        device = self.backend.driven
        if len(self._tables) >= _AHEAD:
            found, event = self._tables.popleft()
            device.synchronize(event)
            STATISTICS.add(waits=1)
            if len(found.view) >= nbytes:
                return found
            device.free_pinned(found)
        size = max(nbytes, _SMALLEST_NBYTES)
        return self.backend.with_memory(lambda: device.allocate_pinned(size))

    def close(self) -> None:
        """Wait for all launches, and free the memory of their tables."""
        device = self.backend.driven
        while self._tables:
            pinned, event = self._tables.popleft()
            # A device that is lost has lost its memory; a forked process has none.
            with suppress(DeviceError, ForkError):
                device.synchronize(event)
                device.free_pinned(pinned)


class PatchBatch:
    """Arrays of one batch, of which patches are added and then cut together.

    Attributes
    ----------
    arrays : list
        Arrays on the device; their elements are there once :meth:`launch` was called, in the order
        of the stream.
    """

    def __init__(self, cutter: PatchCutter, arrays: Sequence[PatchArray], stream: Stream) -> None:
        self._cutter, self._targets, self._stream = cutter, arrays, stream
        self._memories: list[DeviceMemory] = [
            cutter.backend.empty(one.shape, one.dtype, "C", stream) for one in arrays
        ]
        self._patches: list[Patches] = []
        self._held: list[Any] = []

    @property
    def arrays(self) -> list[Any]:
        return [one.array for one in self._memories]

    def add(
        self,
        number: int,
        source: Any,
        first: Integers,
        size: Sequence[int],
        rows: Integers,
        *,
        low: Sequence[int] | None,
        first_row: int,
        fill: bytes | None,
    ) -> None:
        """Add patches of an array to one of the batch.

        Parameters
        ----------
        number : int
            Number of the array of the batch.
        source : array
            Array on the device: the region of a larger one that has all elements that are taken, or
            whole patches, one a row.
        first : integers, shape (n, rank)
            Index in the larger array of the first element of each patch.
        size : sequence of int, length rank
            Elements of the larger array, beyond which there are none.
        rows : integers, shape (n,)
            Row of each patch in the array of the batch.
        low : sequence of int, length rank, or None
            Index in the larger array of the first element of the region; None for whole patches.
        first_row : int
            Row of the first of whole patches.
        fill : bytes or None
            Element for indices beyond the larger array; None mirrors them.
        """
        view = self._cutter.backend.driven.wrap(source)
        assert view is not None
        target, memory = self._targets[number], self._memories[number]
        src_stride = np.array(view.strides if low is not None else view.strides[1:], np.int64)
        if low is None:
            src = (first_row + np.arange(len(rows))) * view.strides[0] - first @ src_stride
        else:
            src = np.full(len(rows), -(np.array(low, np.int64) @ src_stride))
        dst_stride = [0] * len(target.patch)
        for d, step in zip(target.dims, memory.strides[1:], strict=True):
            if d is not None:
                dst_stride[d] = step
        patches = Patches(
            src=view.address + src,
            src_stride=src_stride.tolist(),
            first=first,
            size=size,
            shape=target.patch,
            dst=memory.view.address + rows * memory.strides[0],
            dst_stride=dst_stride,
            src_dtype=view.dtype,
            dst_dtype=target.dtype,
            fill=fill,
            offset=target.offset,
            scale=target.scale,
        )
        self._patches.append(patches)
        self._held.append(source)

    def launch(self) -> None:
        """Queue the launch that cuts all patches that were added."""
        self._cutter.launch(self._patches, self._stream)
        self._patches, self._held = [], []
