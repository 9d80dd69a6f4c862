"""Transfers of whole arrays between host memory and a device, beside those of reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.staging_buffer import StagingBuffer, StagingBuffers
from gpustore.backends.device.submissions import DeviceMemory
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.launch import copy_launches
from gpustore.device.kernels.run import Rows
from gpustore.device.protocol import Device, DeviceArray, Pinned, Spans, Stream
from gpustore.errors import DeviceError, LimitError
from gpustore.runtime.statistics import STATISTICS


class Transfers:
    """Copies of whole arrays, and launches that no read or write submits.

    Parameters
    ----------
    device : Device
    buffers : StagingBuffers
        Small ones hold the tables of launches.
    with_memory : callable
        ``with_memory(work)`` does work again while it lacks memory that is kept for later work.
    """

    def __init__(
        self,
        device: Device,
        buffers: StagingBuffers,
        with_memory: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._device = device
        self._buffers = buffers
        self._with_memory = with_memory

    def download(self, view: DeviceArray) -> NDArray[Any]:
        """Copy a device array to host memory."""
        array = np.empty(view.shape, view.dtype)
        if not array.nbytes:
            return array
        device = self._device
        stream = device.caller_stream()
        try:
            pinned = self._with_memory(lambda: device.allocate_pinned(array.nbytes))
        except MemoryError as error:
            raise LimitError(
                f"A source of {array.nbytes} bytes does not fit the pinned memory it is copied "
                f"through; write in parts"
            ) from error
        try:
            if view.strides == array.strides:
                device.download(view.address, pinned, 0, array.nbytes, stream)
                device.synchronize(device.record(stream))
                STATISTICS.add(copies=1, waits=1, bytes_to_host=array.nbytes)
            else:
                self._download_strided(view, array.strides, array.nbytes, pinned, stream)
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(pinned.view, np.uint8)[
                : array.nbytes
            ]
        except BaseException:
            # The copy may still be on its way, after Ctrl-C too.
            with suppress(DeviceError):
                device.synchronize(device.record(stream))
            raise
        finally:
            device.free_pinned(pinned)
        return array

    def _download_strided(
        self,
        view: DeviceArray,
        strides: tuple[int, ...],
        nbytes: int,
        pinned: Pinned,
        stream: Stream,
    ) -> None:
        """Copy an array that is not in C order: packed on the device, then downloaded."""
        device = self._device
        try:
            packed = self._with_memory(lambda: device.allocate(nbytes, stream))
        except MemoryError as error:
            raise LimitError(
                f"A source of {nbytes} bytes that is not in C order is packed on device "
                f"{device.name} before it is copied, and does not fit its memory; write in parts"
            ) from error
        try:
            rows = Rows(
                [view.address],
                [packed.address],
                np.array(view.shape, np.int64)[:, None],
                view.strides,
                strides,
            )
            ready = DeviceMemory(view, device.record(stream))
            launches = copy_launches(rows, view.dtype.itemsize)
            self.launch(lambda commands: commands.launch_tables(launches), [ready])
            device.download(packed.address, pinned, 0, nbytes, stream)
            device.synchronize(device.record(stream))
            STATISTICS.add(copies=1, waits=1, bytes_to_host=nbytes)
        finally:
            device.free(packed, stream)

    def upload(self, array: NDArray[Any], out: DeviceMemory) -> None:
        """Copy a host array to a device array of the same shape."""
        device = self._device
        array = np.ascontiguousarray(array)
        stream = device.caller_stream()
        packed = None
        try:
            pinned = self._with_memory(lambda: device.allocate_pinned(array.nbytes))
        except MemoryError as error:
            raise self._no_room(array) from error
        try:
            pinned.view[: array.nbytes] = array.reshape(-1).view(np.uint8).data
            address = out.view.address
            if out.strides != array.strides:
                packed = self._with_memory(lambda: device.allocate(array.nbytes, stream))
                address = packed.address
            device.wait(stream, out.ready)
            device.upload(pinned, 0, address, array.nbytes, stream)
            STATISTICS.add(copies=1, waits=1, bytes_to_device=array.nbytes)
            if packed is not None:
                rows = Rows(
                    [address],
                    [out.view.address],
                    np.array(array.shape, np.int64)[:, None],
                    array.strides,
                    out.strides,
                )
                uploaded = DeviceMemory(out.view, device.record(stream))
                launches = copy_launches(rows, array.itemsize)
                self.launch(lambda commands: commands.launch_tables(launches), [uploaded])
        except MemoryError as error:
            raise self._no_room(array) from error
        finally:
            # Nothing may still read or write what is freed, whatever failed.
            device.synchronize(device.record(stream))
            device.free_pinned(pinned)
            if packed is not None:
                device.free(packed, stream)

    def _no_room(self, array: NDArray[Any]) -> LimitError:
        return LimitError(
            f"{array.nbytes} bytes that the host converted do not fit the memory through which "
            f"they are copied to device {self._device.name}; read in parts"
        )

    def launch(
        self, record: Callable[[CommandList], None], memories: Sequence[DeviceMemory]
    ) -> None:
        """Run the commands of `record`, which read and write `memories`, and wait for them."""
        device = self._device
        kept = self._buffers.take(record, is_small=True)
        buffer = StagingBuffer(device, is_small=True) if kept is None else kept
        none = np.zeros(0, np.uint64)
        commands = CommandList(device, buffer.stream, np.zeros(0, np.int64), Spans(none, none))
        try:
            record(commands)
            self._with_memory(lambda: buffer.resize(commands.table_nbytes))
            buffer.clear()
            start = buffer.reserve_table(commands.table_nbytes)
            assert start is not None
            commands.write_tables(buffer.view(start, commands.table_nbytes))
            for memory in memories:
                device.wait(buffer.stream, memory.ready)
            device.upload(
                buffer.pinned, start, buffer.address(start), commands.table_nbytes, buffer.stream
            )
            commands.run(buffer.address(start), 0)
            device.synchronize(device.record(buffer.stream))
            STATISTICS.add(
                copies=1, waits=1, launches=commands.launches, bytes_to_device=commands.table_nbytes
            )
        except BaseException as error:
            # Work queued before the error, or before Ctrl-C, may still run.
            with suppress(DeviceError):
                device.synchronize(device.record(buffer.stream))
            if isinstance(error, MemoryError):
                raise LimitError(
                    f"Tables of {commands.table_nbytes} bytes do not fit the memory of device "
                    f"{self._device.name}; read fewer elements at once"
                ) from error
            raise
        finally:
            if kept is None:
                buffer.free()
            else:
                self._buffers.put(kept)
