"""Staging buffers: what lies where in them, and who has which."""

import gc

import numpy as np
import pytest

from gpustore.backends.device import staging_buffer
from gpustore.backends.device.staging_buffer import (
    LARGE,
    SMALL,
    StagingArena,
    StagingBuffer,
    StagingBuffers,
)
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
    assert buffer.used == 64
    assert buffer.left == 36
    assert buffer.reserve(36) == 64
    assert buffer.reserve(1) is None
    buffer.clear()
    assert buffer.reserve(100) == 0


def test_values_leave_room_for_tables(buffer):
    buffer.resize(100)
    buffer.room = 40
    assert buffer.left == 60
    assert buffer.reserve(61) is None
    assert buffer.reserve(50) == 0
    assert buffer.reserve(1) is None
    assert buffer.reserve_table(36) == 64
    assert buffer.reserve_table(1) is None
    buffer.clear()
    assert buffer.room == 0


def test_the_end_grows_only_while_the_native_core_fills_nothing(buffer):
    buffer.resize(1000)
    assert buffer.begin_fill() == buffer.begin_fill() == 1000
    assert buffer.reserve_end(100, 1) is None
    buffer.end_fill()
    assert buffer.reserve_end(100, 1) is None
    buffer.end_fill()
    assert buffer.reserve_end(100, 1) == 900
    assert buffer.begin_fill() == 900
    buffer.end_fill()


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


def test_an_arena_hands_out_ordinary_memory_when_the_buffer_is_full(buffer):
    buffer.resize(64)
    arena = StagingArena(buffer)
    inside, outside, small = arena.take(40), arena.take(40), arena.take(10)
    assert [len(view) for view in (inside, outside, small)] == [40, 40, 10]
    outside[:] = b"x" * 40
    inside[:] = b"y" * 40
    assert bytes(outside) == b"x" * 40
    assert [buffer.start_of(view) for view in (inside, outside, small, small[3:])] == [
        0,
        None,
        48,
        51,
    ]
    assert bytes(buffer.view(0, 40)) == b"y" * 40
    assert buffer.start_of(b"") is None


def test_a_buffer_grows_and_never_shrinks(device, buffer):
    buffer.resize(100)
    first = buffer.address(0)
    buffer.resize(50)
    assert (buffer.nbytes, buffer.address(0)) == (100, first)
    buffer.resize(101)
    assert buffer.nbytes == 101
    assert device.counts["free_pinned"] == device.counts["free"] == 1


def test_a_buffer_grows_around_what_is_in_it(device, buffer):
    buffer.resize(100)
    start = buffer.reserve(70)
    buffer.view(start, 70)[:] = b"v" * 70
    device.upload(buffer.pinned, 0, buffer.address(0), 70, buffer.stream)
    buffer.grow(300)
    assert bytes(buffer.view(0, 70)) == b"v" * 70
    assert buffer.reserve_table(300) == 80
    for kind in ("pinned", "allocations"):
        number = device.counts["allocate_pinned" if kind == "pinned" else "allocations"]
        setattr(device.faults, kind, {number})
        with pytest.raises(MemoryError):
            buffer.grow(1000)
    assert bytes(buffer.view(0, 70)) == b"v" * 70


@pytest.mark.parametrize("lacking", ["pinned", "allocations"])
def test_without_memory_a_buffer_has_none_at_all(device, buffer, lacking):
    buffer.resize(100)
    number = device.counts["allocate_pinned" if lacking == "pinned" else "allocations"]
    setattr(device.faults, lacking, {number})
    with pytest.raises(MemoryError):
        buffer.resize(1000)
    assert buffer.nbytes == buffer.used == 0
    assert buffer.reserve(1) is None
    assert len(StagingArena(buffer).take(10)) == 10  # Ordinary memory.
    buffer.resize(1000)
    assert buffer.reserve(1000) == 0


def test_pinned_memory_is_as_large_as_device_memory(device):
    buffer = StagingBuffer(device)
    buffer.resize(10)
    assert buffer.nbytes == staging_buffer._SMALLEST_NBYTES == len(buffer.pinned.view)
    (allocation,) = device._memory.live()
    assert allocation.nbytes == buffer.nbytes
    assert np.shares_memory(buffer.data, np.frombuffer(buffer.pinned.view, np.uint8))
    buffer.free()


# --------------------------------------------------------------------------- several


@pytest.fixture
def pool(device):
    pool = StagingBuffers(device)
    yield pool
    pool.free()


def test_buffers_are_made_when_they_are_wanted_and_used_again(device, pool):
    first = pool.take(pool, is_small=False)
    pool.put(first)
    assert pool.take(pool, is_small=False) is first
    others = [pool.take(pool, is_small=False) for _ in range(LARGE - 1)]
    assert len({id(one) for one in (first, *others)}) == LARGE
    assert pool.take(pool, is_small=False) is None
    assert device.counts["stream"] == device.counts["allocate_pinned"] == 0
    assert pool.taken == LARGE
    small = pool.take(pool, is_small=True)
    assert (small.is_small, first.is_small) == (True, False)
    for buffer in (first, *others, small):
        pool.put(buffer)
    assert pool.taken == 0


def test_a_buffer_is_empty_when_it_is_taken(pool):
    buffer = pool.take(pool, is_small=True)
    buffer.resize(100)
    buffer.reserve(60)
    pool.put(buffer)
    again = pool.take(pool, is_small=True)
    assert again is buffer
    assert again.used == 0
    assert again.nbytes >= 100
    pool.put(again)


@pytest.mark.parametrize(("is_small", "count"), [(True, SMALL), (False, LARGE)])
def test_whoever_puts_a_buffer_back_begins_the_reads_that_wait_in_their_order(
    pool, is_small, count
):
    taken = [pool.take(pool, is_small=is_small) for _ in range(count)]
    got = []
    for name in ("first", "second"):
        later = lambda buffer, name=name: got.append((name, buffer))  # noqa: E731
        assert pool.take(pool, is_small=is_small, later=later) is None
    assert pool.is_wanted(is_small=is_small)
    assert not pool.is_wanted(is_small=not is_small)
    pool.put(taken[1])
    assert got == [("first", taken[1])]
    assert pool.taken == count
    pool.put(taken[0])
    assert got[1:] == [("second", taken[0])]
    assert not pool.is_wanted(is_small=is_small)
    for buffer in taken:
        pool.put(buffer)
    assert pool.taken == 0


def test_memory_of_buffers_that_somebody_has_is_not_given_back(pool):
    kept, idle = pool.take(pool, is_small=False), pool.take(pool, is_small=False)
    for buffer in (kept, idle):
        buffer.resize(100)
    pool.put(idle)
    pool.free()
    assert idle.nbytes == 0
    assert kept.nbytes >= 100
    pool.put(kept)


def test_buffers_of_a_read_that_is_gone_are_taken_again(device, pool):
    """Ctrl-C may end a read before it puts them back."""

    class Read:
        pass

    reads = [Read() for _ in range(LARGE)]
    buffers = [pool.take(one, is_small=False) for one in reads]
    assert pool.taken == LARGE
    del reads[0]
    gc.collect()
    assert pool.taken == LARGE - 1
    buffers[0].resize(100)
    before = device.counts["synchronize"]
    assert pool.take(pool, is_small=False) is buffers[0]
    assert device.counts["synchronize"] == before + 1
    for buffer in buffers:
        pool.put(buffer)
    assert pool.taken == 0


def test_a_buffer_is_taken_once_if_a_read_begins_while_its_owner_is_looked_at(pool):
    """As the garbage collector may begin one there."""
    owners = [type("Owner", (), {})() for _ in range(3)]
    first = pool.take(owners[0], is_small=True)
    taken = []

    def is_gone():
        first.owner = None
        taken.append(pool.take(owners[1], is_small=True))

    first.owner = is_gone
    taken.append(pool.take(owners[2], is_small=True))
    assert taken[0] is first
    assert taken[1] is not first
    for buffer in taken:
        pool.put(buffer)


def test_a_small_buffer_that_has_grown_is_kept_without_its_memory(device, monkeypatch):
    monkeypatch.setattr(staging_buffer, "SMALL_NBYTES", 2 << 20)
    buffers = StagingBuffers(device)
    for nbytes, kept in ((2 << 20, 2 << 20), ((2 << 20) + 1, 0)):
        buffer = buffers.take(device, is_small=True)
        buffer.resize(nbytes)
        buffers.put(buffer)
        assert buffer.nbytes == kept
    large = buffers.take(device, is_small=False)
    large.resize(3 << 20)
    buffers.put(large)
    assert large.nbytes == 3 << 20
    buffers.free()
