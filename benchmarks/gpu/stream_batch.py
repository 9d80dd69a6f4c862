"""Compressed streams on a device, all at addresses of their own, decoded alone."""

import numpy as np

from gpustore.device.kernels import instance
from gpustore.device.protocol import CodecBatch, Spans

_TABLE_NBYTES = 32
_RESULT_NBYTES = 12


def packed(streams):
    """Streams in one array, each at a multiple of 16, and their offsets and sizes."""
    sizes = np.array([len(stream) for stream in streams], np.int64)
    room = -(-(sizes + 16) // 16) * 16
    offsets = np.cumsum(room) - room
    out = np.full(int(room.sum()), 0x5A, np.uint8)
    for offset, stream in zip(offsets.tolist(), streams):
        out[offset : offset + len(stream)] = np.frombuffer(stream, np.uint8)
    return out, offsets, sizes


class StreamBatch:
    """`count` streams: those given, again and again. No cache holds them, nor what they decode to.

    Parameters
    ----------
    target : CudaTarget or EmulatedTarget
    codec : str
        Name of a :class:`~gpustore.device.protocol.DeviceCodec`.
    streams : list of bytes
    sizes : list of int
        Decoded bytes of each.
    count : int

    Attributes
    ----------
    array
        What they decode to, one behind the other, on the device.
    nbytes, encoded_nbytes : int
        Decoded and encoded bytes of all together.
    temp_nbytes : int
        Scratch memory of the decoder.
    """

    def __init__(self, target, codec, streams, sizes, count):
        device = self._device = target.device
        self._count = count
        self.stream = device.stream()
        arena, offsets, encoded = packed(streams)
        which = np.arange(count) % len(streams)
        turn = np.arange(count) // len(streams)
        copies = int(turn[-1]) + 1
        capacity = np.asarray(sizes, np.int64)[which]
        self.nbytes, self.encoded_nbytes = int(capacity.sum()), int(encoded[which].sum())
        self.temp_nbytes = 0
        if device.codec(codec) is not None:
            sizes = count, int(capacity.max()), self.nbytes
            self.temp_nbytes = device.decompress_temp_nbytes(codec, *sizes)
        self._pinned = device.allocate_pinned(max(arena.nbytes, _TABLE_NBYTES * count))
        view = device.empty((self.nbytes,), np.dtype(np.uint8), "C", self.stream)
        self.array = view.array
        room = copies * arena.nbytes, (_TABLE_NBYTES + _RESULT_NBYTES) * count, self.temp_nbytes
        self._memory = [device.allocate(max(1, nbytes), self.stream) for nbytes in room]
        at, table, temp = (memory.address for memory in self._memory)
        self._upload(arena, *range(at, at + room[0], arena.nbytes))
        src = at + turn * arena.nbytes + offsets[which]
        dst = view.address + np.cumsum(capacity) - capacity
        spans = [
            Spans(address.astype(np.uint64), nbytes.astype(np.uint64))
            for address, nbytes in ((src, encoded[which]), (dst, capacity))
        ]
        self._upload(CodecBatch.columns(*spans).reshape(-1).view(np.uint8), table)
        self._batch = CodecBatch(
            codec,
            *spans,
            table=table,
            result=table + _TABLE_NBYTES * count,
            temp=temp if self.temp_nbytes else 0,
            temp_nbytes=self.temp_nbytes,
        )

    def _upload(self, array, *addresses):
        """Copy an array to device memory; done when this returns."""
        device = self._device
        np.frombuffer(self._pinned.view, np.uint8)[: array.nbytes] = array
        for address in addresses:
            device.upload(self._pinned, 0, address, array.nbytes, self.stream)
        device.synchronize(device.record(self.stream))

    def decompress(self):
        """Queue the decoder's call."""
        self._device.decompress(self._batch, self.stream)

    def decode_by(self, expression):
        """Queue a kernel of the family ``lz`` in place of the decoder's call."""
        device, count = self._device, self._count
        kernel, batch = device.kernel("lz", expression), self._batch
        addresses = np.uint64(batch.result), np.uint64(batch.result + 8 * count)
        blocks = -(-count // (instance.THREADS_PER_BLOCK // 32))
        arguments = [np.uint64(batch.table), np.uint32(count), *addresses]
        device.launch(kernel, blocks, arguments, self.stream)

    def is_right(self):
        """Whether all statuses and sizes of the last call are right."""
        device, nbytes = self._device, _RESULT_NBYTES * self._count
        device.download(self._batch.result, self._pinned, 0, nbytes, self.stream)
        device.synchronize(device.record(self.stream))
        found = np.frombuffer(self._pinned.view, np.uint8)[:nbytes]
        sizes, statuses = CodecBatch.results(found)
        return not statuses.any() and np.array_equal(sizes, self._batch.dst.nbytes)

    def close(self):
        device = self._device
        device.synchronize(device.record(self.stream))
        device.free_pinned(self._pinned)
        for memory in self._memory:
            device.free(memory, self.stream)
        self.array = None
