"""Staging buffers: what lies where in them, and who has which."""

import os
import threading

import numpy as np
import pytest

from gpustore.backends.device import direct_read, staging_buffer
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.staging_buffer import StagingBuffer, StagingBuffers
from gpustore.errors import DeviceError
from tests.emulator.device import EmulatedDevice


@pytest.fixture
def device():
    device = EmulatedDevice()
    yield device
    device.close()


@pytest.fixture
def buffer(device, monkeypatch):
    monkeypatch.setattr(staging_buffer, "_SMALLEST_NBYTES", 1)
    buffer = StagingBuffer(device)
    yield buffer
    buffer.free()


def test_parts_begin_at_multiples_of_16_and_end_with_the_buffer(buffer):
    buffer.resize(100)
    assert [buffer.reserve(nbytes) for nbytes in (5, 16, 0, 20, 40)] == [0, 16, 32, 32, None]
    assert buffer.used == 52
    assert buffer.reserve(36) == 64
    assert buffer.reserve(1) is None
    buffer.clear()
    assert buffer.reserve(100) == 0


def test_what_is_in_the_buffer_is_where_its_copy_will_be(device, buffer):
    buffer.resize(200)
    start = buffer.reserve(50)
    buffer.view(start, 50)[:] = bytes(range(50))
    device.upload(buffer.pinned, 0, buffer.address(0), 200, buffer.stream)
    back = device.allocate_pinned(50)
    device.download(buffer.address(start), back, 0, 50, buffer.stream)
    device.synchronize(device.record(buffer.stream))
    assert bytes(back.view) == bytes(range(50))
    device.free_pinned(back)


def test_the_arena_hands_out_ordinary_memory_when_the_buffer_is_full(buffer):
    buffer.resize(64)
    inside, outside, small = buffer.arena.take(40), buffer.arena.take(40), buffer.arena.take(10)
    assert [len(view) for view in (inside, outside, small)] == [40, 40, 10]
    outside[:] = b"x" * 40
    inside[:] = b"y" * 40
    assert bytes(outside) == b"x" * 40
    found = buffer.hold([inside, small])
    assert found == [0, 48]
    assert buffer.used == 58


def test_values_from_elsewhere_are_brought_into_the_buffer(buffer):
    buffer.resize(200)
    inside = buffer.arena.take(30)
    inside[:] = b"i" * 30
    starts = buffer.hold([b"before", inside, bytearray(b"behind"), b"", inside[10:20]])
    assert starts == [32, 0, 48, 64, 10]
    assert bytes(buffer.view(32, 6)) == b"before"
    assert bytes(buffer.view(48, 6)) == b"behind"
    assert bytes(buffer.view(0, 30)) == b"i" * 30


@pytest.mark.parametrize("sizes", [[1], [16, 16], [15, 17, 1], [40, 40, 40], [0, 0]])
@pytest.mark.parametrize("room", [0, 1, 16, 100])
def test_what_the_buffer_lacks_is_enough(buffer, sizes, room):
    """Values of which some are in it, and room for more behind them."""
    buffer.resize(90)
    mine = buffer.arena.take(20)
    values = [mine, *(bytes(size) for size in sizes)]
    lacking = buffer.lacks(values, room)
    if lacking:
        values = [bytes(value) for value in values]
        buffer.clear()
        buffer.resize(lacking)
        assert buffer.nbytes >= lacking
    buffer.hold(values)
    assert buffer.reserve(room) is not None


def test_a_buffer_grows_and_never_shrinks(device, buffer):
    buffer.resize(100)
    first = buffer.address(0)
    buffer.resize(50)
    assert (buffer.nbytes, buffer.address(0)) == (100, first)
    buffer.resize(101)
    assert buffer.nbytes == 101
    assert device.counts["free_pinned"] == device.counts["free"] == 1


@pytest.mark.parametrize("lacking", ["pinned", "allocations"])
def test_without_memory_a_buffer_has_none_at_all(device, buffer, lacking):
    buffer.resize(100)
    number = device.counts["allocate_pinned" if lacking == "pinned" else "allocations"]
    setattr(device.faults, lacking, {number})
    with pytest.raises(MemoryError):
        buffer.resize(1000)
    assert buffer.nbytes == buffer.used == 0
    assert buffer.reserve(1) is None
    assert len(buffer.arena.take(10)) == 10  # Ordinary memory.
    buffer.resize(1000)
    assert buffer.reserve(1000) == 0


# --------------------------------------------------------------------------- several


@pytest.fixture
def buffers(device):
    buffers = StagingBuffers(device, 2)
    yield buffers
    if device._lost is None:
        buffers.free()


def test_buffers_are_made_when_they_are_wanted_and_used_again(device, buffers):
    first = buffers.take(wait=False)
    buffers.put(first)
    assert buffers.take(wait=True) is first
    second = buffers.take(wait=False)
    assert second is not first
    assert buffers.take(wait=False) is None
    assert device.counts["stream"] == 2
    buffers.put(first)
    assert buffers.take(wait=False) is first
    buffers.put(first)
    buffers.put(second)


def test_a_buffer_is_empty_when_it_is_taken(buffers):
    buffer = buffers.take(wait=True)
    buffer.resize(100)
    buffer.reserve(60)
    buffers.put(buffer)
    again = buffers.take(wait=True)
    assert again is buffer
    assert again.used == 0
    assert again.nbytes >= 100
    buffers.put(again)


def test_who_waits_gets_the_first_that_comes_back(buffers):
    taken = [buffers.take(wait=True) for _ in range(2)]
    got = []
    thread = threading.Thread(target=lambda: got.append(buffers.take(wait=True)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    buffers.put(taken[1])
    thread.join(20)
    assert got == [taken[1]]
    for buffer in taken:
        buffers.put(buffer)


def test_memory_of_buffers_that_somebody_has_is_not_given_back(device, buffers):
    kept, idle = buffers.take(wait=True), buffers.take(wait=True)
    for buffer in (kept, idle):
        buffer.resize(100)
    buffers.put(idle)
    buffers.free()
    assert idle.nbytes == 0
    assert kept.nbytes >= 100
    buffers.put(kept)


def test_a_buffer_that_cannot_be_made_is_still_to_be_had_later(device, buffers):
    device.faults.failing = {("stream", number): False for number in range(5)}
    for _ in range(5):
        with pytest.raises(DeviceError, match="injected"):
            buffers.take(wait=True)
    taken = [buffers.take(wait=False) for _ in range(2)]
    assert None not in taken
    for buffer in taken:
        buffers.put(buffer)


def test_a_buffer_whose_last_read_failed_is_not_lost_itself(device, buffers, tmp_path, monkeypatch):
    """Waiting for reads of files may say that the device is lost; buffers are had all the same."""
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})
    (tmp_path / "file").write_bytes(bytes(5000))
    buffer = buffers.take(wait=True)
    buffer.resize(1 << 20)
    files = OpenFiles(device)
    direct = buffer.arena.direct = direct_read.DirectReads(device, files, buffer)
    with (tmp_path / "file").open("rb") as file:
        status = os.fstat(file.fileno())
        assert direct.begin(0, file.fileno(), status, 10, 3000) is not None
    device.faults.failing = {("file_result", 0): True}
    buffers.put(buffer)
    assert device.counts["file_result"] == 1
    assert buffers.take(wait=True) is buffer
    assert (buffer.used, buffer.has_end) == (0, False)
    buffers.put(buffer)
    files.close_idle()


def test_pinned_memory_is_as_large_as_device_memory(device):
    buffer = StagingBuffer(device)
    buffer.resize(10)
    assert buffer.nbytes == staging_buffer._SMALLEST_NBYTES == len(buffer.pinned.view)
    (allocation,) = device._memory.live()
    assert allocation.nbytes == buffer.nbytes
    assert np.frombuffer(buffer.pinned.view, np.uint8).ctypes.data == buffer._origin
    buffer.free()
