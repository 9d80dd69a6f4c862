"""Slabs of pinned memory: what lies where in them, and who has which."""

import os
import threading

import numpy as np
import pytest

from gpustore.backends.device import direct_read, staging_buffer
from gpustore.backends.device.staging_buffer import Slot, Slots
from gpustore.errors import DeviceError
from tests.emulator.device import EmulatedDevice


@pytest.fixture
def device():
    device = EmulatedDevice()
    yield device
    device.close()


@pytest.fixture
def slot(device, monkeypatch):
    monkeypatch.setattr(staging_buffer, "_SMALLEST_NBYTES", 1)
    slot = Slot(device)
    yield slot
    slot.free()


def test_parts_begin_at_multiples_of_16_and_end_with_the_slab(slot):
    slot.resize(100)
    assert [slot.reserve(nbytes) for nbytes in (5, 16, 0, 20, 40)] == [0, 16, 32, 32, None]
    assert slot.used == 52
    assert slot.reserve(36) == 64
    assert slot.reserve(1) is None
    slot.arena.reset()
    assert slot.reserve(100) == 0


def test_what_is_in_the_slab_is_where_its_copy_will_be(device, slot):
    slot.resize(200)
    start = slot.reserve(50)
    slot.view(start, 50)[:] = bytes(range(50))
    device.upload(slot.pinned, 0, slot.address(0), 200, slot.stream)
    back = device.allocate_pinned(50)
    device.download(slot.address(start), back, 0, 50, slot.stream)
    device.synchronize(device.record(slot.stream))
    assert bytes(back.view) == bytes(range(50))
    device.free_pinned(back)


def test_the_arena_hands_out_ordinary_memory_when_the_slab_is_full(slot):
    slot.resize(64)
    inside, outside, small = slot.arena.take(40), slot.arena.take(40), slot.arena.take(10)
    assert [len(view) for view in (inside, outside, small)] == [40, 40, 10]
    outside[:] = b"x" * 40
    inside[:] = b"y" * 40
    assert bytes(outside) == b"x" * 40
    found = slot.hold([inside, small])
    assert found == [0, 48]
    assert slot.used == 58


def test_values_from_elsewhere_are_brought_into_the_slab(slot):
    slot.resize(200)
    inside = slot.arena.take(30)
    inside[:] = b"i" * 30
    starts = slot.hold([b"before", inside, bytearray(b"behind"), b"", inside[10:20]])
    assert starts == [32, 0, 48, 64, 10]
    assert bytes(slot.view(32, 6)) == b"before"
    assert bytes(slot.view(48, 6)) == b"behind"
    assert bytes(slot.view(0, 30)) == b"i" * 30


@pytest.mark.parametrize("sizes", [[1], [16, 16], [15, 17, 1], [40, 40, 40], [0, 0]])
@pytest.mark.parametrize("room", [0, 1, 16, 100])
def test_what_the_slab_lacks_is_enough(slot, sizes, room):
    """Values of which some are in it, and room for more behind them."""
    slot.resize(90)
    mine = slot.arena.take(20)
    values = [mine, *(bytes(size) for size in sizes)]
    lacking = slot.lacks(values, room)
    if lacking:
        values = [bytes(value) for value in values]
        slot.arena.reset()
        slot.resize(lacking)
        assert slot.nbytes >= lacking
    slot.hold(values)
    assert slot.reserve(room) is not None


def test_a_slab_grows_and_never_shrinks(device, slot):
    slot.resize(100)
    first = slot.address(0)
    slot.resize(50)
    assert (slot.nbytes, slot.address(0)) == (100, first)
    slot.resize(101)
    assert slot.nbytes == 101
    assert device.counts["free_pinned"] == device.counts["free"] == 1


@pytest.mark.parametrize("lacking", ["pinned", "allocations"])
def test_without_memory_a_slot_has_none_at_all(device, slot, lacking):
    slot.resize(100)
    number = device.counts["allocate_pinned" if lacking == "pinned" else "allocations"]
    setattr(device.faults, lacking, {number})
    with pytest.raises(MemoryError):
        slot.resize(1000)
    assert slot.nbytes == slot.used == 0
    assert slot.reserve(1) is None
    assert len(slot.arena.take(10)) == 10  # Ordinary memory.
    slot.resize(1000)
    assert slot.reserve(1000) == 0


# --------------------------------------------------------------------------- several


@pytest.fixture
def slots(device):
    slots = Slots(device, 2)
    yield slots
    if device._lost is None:
        slots.free()


def test_slots_are_made_when_they_are_wanted_and_used_again(device, slots):
    first = slots.take(wait=False)
    slots.put(first)
    assert slots.take(wait=True) is first
    second = slots.take(wait=False)
    assert second is not first
    assert slots.take(wait=False) is None
    assert device.counts["stream"] == 2
    slots.put(first)
    assert slots.take(wait=False) is first
    slots.put(first)
    slots.put(second)


def test_a_slot_is_empty_when_it_is_taken(slots):
    slot = slots.take(wait=True)
    slot.resize(100)
    slot.reserve(60)
    slots.put(slot)
    again = slots.take(wait=True)
    assert again is slot
    assert again.used == 0
    assert again.nbytes >= 100
    slots.put(again)


def test_who_waits_gets_the_first_that_comes_back(slots):
    taken = [slots.take(wait=True) for _ in range(2)]
    got = []
    thread = threading.Thread(target=lambda: got.append(slots.take(wait=True)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    slots.put(taken[1])
    thread.join(20)
    assert got == [taken[1]]
    for slot in taken:
        slots.put(slot)


def test_memory_of_slots_that_somebody_has_is_not_given_back(device, slots):
    kept, idle = slots.take(wait=True), slots.take(wait=True)
    for slot in (kept, idle):
        slot.resize(100)
    slots.put(idle)
    slots.free()
    assert idle.nbytes == 0
    assert kept.nbytes >= 100
    slots.put(kept)


def test_a_slot_that_cannot_be_made_is_still_to_be_had_later(device, slots):
    device.faults.failing = {("stream", number): False for number in range(5)}
    for _ in range(5):
        with pytest.raises(DeviceError, match="injected"):
            slots.take(wait=True)
    taken = [slots.take(wait=False) for _ in range(2)]
    assert None not in taken
    for slot in taken:
        slots.put(slot)


def test_a_slot_whose_last_read_failed_is_not_lost_itself(device, slots, tmp_path, monkeypatch):
    """Waiting for reads of files may say that the device is lost; slots are had all the same."""
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})
    (tmp_path / "file").write_bytes(bytes(5000))
    slot = slots.take(wait=True)
    slot.resize(1 << 20)
    slot.files = direct_read.Files(device)
    with (tmp_path / "file").open("rb") as file:
        status = os.fstat(file.fileno())
        assert slot.begin_read(0, file.fileno(), status, 10, 3000) is not None
    device.faults.failing = {("file_result", 0): True}
    slots.put(slot)
    assert device.counts["file_result"] == 1
    assert slots.take(wait=True) is slot
    assert (slot.used, slot.has_direct) == (0, False)
    slots.put(slot)
    slot.files.close_idle()


def test_pinned_memory_is_as_large_as_device_memory(device):
    slot = Slot(device)
    slot.resize(10)
    assert slot.nbytes == staging_buffer._SMALLEST_NBYTES == len(slot.pinned.view)
    (allocation,) = device._memory.live()
    assert allocation.nbytes == slot.nbytes
    assert np.frombuffer(slot.pinned.view, np.uint8).ctypes.data == slot._origin
    slot.free()
