"""Caches of chunks in device memory: bounded, held while used, and dropped by writers."""

import threading

import numpy as np
import pytest

from gpustore.backends.device.cell_table import MISSING, NO_ENTRY
from gpustore.backends.device.chunk_cache import ChunkCache
from gpustore.backends.device.chunk_caches import ChunkCaches
from gpustore.backends.device.slab import EncodedSlab
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.headers import HeaderColumns
from gpustore.device.protocol import PinnedMemoryError
from gpustore.planning.cell_numbers import CellNumbers
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.runtime.cache import ArrayId
from tests.emulator.device import EmulatedDevice

ARRAY = ArrayId("store", "a/c/", "int16")
GRID = CellNumbers((4, 8), (1, 1))
SHARDS = CellNumbers((4, 4), (1, 2))
TABLE = 64 * 32 + 16
"""Bytes of the table of one of these arrays."""


@pytest.fixture
def device():
    device = EmulatedDevice()
    device.caches = []
    yield device
    for cache in device.caches:
        cache.clear()
    device.close()


def new_cache(device, limit=10**6, **options):
    cache = ChunkCache(device, limit, **options)
    device.caches.append(cache)
    return cache


def look(cache, numbers, *, array=ARRAY, grid=GRID, now=1.0, bound=0.0):
    return cache.find(array, grid, np.array(numbers, np.int64), now, bound)


def keep(cache, device, numbers, *, generation=b"g", nbytes=100, chunks=None, **options):
    """Put chunks of 100 bytes that were not there; whether there was room."""
    chunks = chunks or look(cache, numbers, **options)[0]
    chunks.generation[:] = generation
    rows = np.arange(len(numbers))
    stream = device.stream()
    slab = cache.reserve(nbytes * len(numbers), stream)
    if slab is None:
        return False
    device.synchronize(device.record(stream))  # Behind the copy of the chunks.
    cache.put(chunks, rows, slab, slab.start + nbytes * rows)
    cache.let_go(slab)
    return True


def known(cache, numbers, **options):
    return look(cache, numbers, **options)[0].is_known.tolist()


def test_what_was_put_is_found(device):
    cache = new_cache(device)
    assert known(cache, range(4)) == 4 * [False]
    assert keep(cache, device, [1, 3])
    chunks, old = look(cache, range(4))
    assert chunks.slab.tolist() == [NO_ENTRY, 1, NO_ENTRY, 1]
    assert chunks.position[3] - chunks.position[1] == 100
    assert chunks.generation.tolist() == [None, b"g", None, b"g"]
    assert len(old) == 0
    assert len(cache) == 2
    assert cache.nbytes == 200 + TABLE
    for other in ({"array": ARRAY._replace(meaning="x")}, {"grid": CellNumbers((4, 9), (1, 2))}):
        assert known(cache, [1], **other) == [False]
    del chunks
    cache.clear()
    assert cache.nbytes == len(cache) == 0


def test_the_least_recently_used_slabs_go(device):
    cache = new_cache(device, 3200 + TABLE)
    for number in range(3):
        assert keep(cache, device, [number], nbytes=1000)
    assert known(cache, [0]) == [True]  # It was used last.
    assert keep(cache, device, [3], nbytes=1000)
    assert known(cache, range(4)) == [True, False, True, True]
    assert cache.nbytes <= cache.limit
    assert not keep(cache, device, [4], nbytes=10**5)
    assert known(cache, range(4)) == [True, False, True, True]


def test_held_memory_stays_until_it_is_let_go(device):
    cache = new_cache(device, 1200 + TABLE)
    keep(cache, device, [0], nbytes=1000)
    chunks, _ = look(cache, [0])
    assert not keep(cache, device, [1], nbytes=1000)
    assert cache.give_back() == 0
    assert device.counts["free"] == 0
    part = chunks.take(np.array([0]))
    del chunks
    assert not keep(cache, device, [1], nbytes=1000)
    del part
    assert keep(cache, device, [1], nbytes=1000)
    assert known(cache, [0, 1]) == [False, True]
    chunks, _ = look(cache, [1])
    cache.clear()
    assert device.counts["free"] == 1
    del chunks
    cache.clear()
    assert device.counts["free"] == 2


def test_a_device_short_of_memory_gets_it_back(device):
    cache = new_cache(device)
    for number in range(5):
        keep(cache, device, [number], nbytes=1000)
    assert [cache.give_back() for _ in range(4)] == [3000, 1000, 1000, 0]
    assert cache.give_back() == 0
    assert known(cache, range(5)) == 5 * [False]


def test_no_memory_is_no_error(device):
    cache = new_cache(device)
    keep(cache, device, [0], nbytes=1000)
    first = device.counts["allocations"]
    device.faults.allocations = {first}
    assert keep(cache, device, [1], nbytes=1000)
    assert known(cache, [0, 1]) == [False, True]
    device.faults.allocations = {first + 2, first + 3}
    assert not keep(cache, device, [2], nbytes=1000)


def test_missing_chunks_are_entries(device):
    cache = new_cache(device, 3 * TABLE)
    chunks, _ = look(cache, [5])
    cache.put(chunks, np.array([0]), None, np.zeros(1, np.int64))
    assert look(cache, [5])[0].slab.tolist() == [MISSING]
    assert len(cache) == 1
    far = CellNumbers((10**6,), (1,))
    for number in range(0, 10**6, 10**4):  # They take no more room than any.
        chunks, _ = look(cache, [number], grid=far)
        cache.put(chunks, np.array([0]), None, np.zeros(1, np.int64))
        assert cache.nbytes <= cache.limit
    assert known(cache, [990_000], grid=far) == [True]


@pytest.mark.parametrize("grid", [GRID, SHARDS], ids=["chunks", "shards"])
def test_writers_drop_all_chunks_of_their_keys(device, grid):
    cache = new_cache(device)
    keep(cache, device, range(16), grid=grid)
    larger = CellNumbers((5, *grid.keys[1:]), grid.inner)
    keep(cache, device, range(16), grid=larger)
    cache.forget(ARRAY, [(0, 1), (9, 9)])
    gone = range(grid.per_key, 2 * grid.per_key)
    for one in (grid, larger):
        assert known(cache, range(16), grid=one) == [number not in gone for number in range(16)]
    cache.forget_range("store", "b/")
    cache.forget_range("elsewhere", "a/")
    assert len(cache) == 32 - 2 * grid.per_key
    cache.forget_range("store", "a/")
    assert len(cache) == 0
    assert cache.nbytes == 0


@pytest.mark.parametrize("inner", [(1, 1), (1, 2)], ids=["chunks", "shards"])
def test_an_array_of_another_extent_has_the_same_chunks(device, inner):
    grids = [CellNumbers(keys, inner) for keys in ((4, 8), (6, 3), (2, 9))]
    cells = np.indices((4, 8 * inner[1])).reshape(2, -1)
    cache = new_cache(device)
    numbers = grids[0].of_cells(cells, inner)
    keep(cache, device, numbers[::2], grid=grids[0], generation=b"x", now=5.0)
    missing, _ = look(cache, numbers[1:2], grid=grids[0], now=5.0)
    cache.put(missing, np.array([0]), None, np.zeros(1, np.int64))
    there = {tuple(cell) for cell in cells.T[::2].tolist()} | {tuple(cells.T[1].tolist())}
    before, _ = look(cache, numbers, grid=grids[0])
    for grid in grids[1:]:
        every = np.indices(np.multiply(grid.keys, inner)).reshape(2, -1)
        chunks, old = look(cache, grid.of_cells(every, inner), grid=grid, bound=5.0)
        is_there = [tuple(cell) in there for cell in every.T.tolist()]
        assert chunks.is_known.tolist() == is_there
        assert len(old) == 0
        assert set(chunks.generation[chunks.slab > MISSING]) == {b"x"}
        for cell, slab, address in zip(every.T.tolist(), chunks.slab, chunks.position, strict=True):
            if tuple(cell) in there:
                row = int(np.flatnonzero((cell == cells.T).all(axis=1))[0])
                assert (slab, address) == (before.slab[row], before.position[row])
    del chunks, before, missing
    cache.forget(ARRAY, [(0, 0)])
    assert not any(known(cache, [0], grid=grid)[0] for grid in grids)
    assert known(cache, grids[1].of_cells(([1], [0]), inner), grid=grids[1]) == [True]
    cache.give_back()
    assert cache.give_back() == 0
    assert not any(any(known(cache, range(2, 18), grid=grid)) for grid in grids)


def test_a_reader_that_fetched_before_a_change_keeps_nothing(device):
    cache = new_cache(device)
    chunks, _ = look(cache, [7, 8])
    cache.forget(ARRAY, [(0, 7)])
    keep(cache, device, [7, 8], chunks=chunks)
    assert known(cache, [7, 8]) == [False, True]
    chunks, _ = look(cache, [9])
    cache.forget_range("store", "")
    keep(cache, device, [9], chunks=chunks)
    assert len(cache) == 0
    assert cache.nbytes == 0  # Not even its memory.


def test_old_entries_are_confirmed_or_not_used(device):
    cache = new_cache(device)
    keep(cache, device, [0, 1, 2], generation=[b"a", b"b", b""], now=10.0)
    assert look(cache, range(4), bound=10.0)[1].tolist() == []
    chunks, old = look(cache, range(4), now=20.0, bound=15.0)
    assert old.tolist() == [0, 1, 2]
    cache.confirm(chunks, old, [b"a", b"x", b""])
    assert chunks.is_known.tolist() == [True, False, False, False]
    assert look(cache, range(4), bound=15.0)[1].tolist() == [1, 2]
    keep(cache, device, [1], generation=b"x", now=20.0)
    chunks, _ = look(cache, [1])
    assert chunks.generation.tolist() == [b"x"]


def test_parts_of_one_chunk_are_one_entry(device):
    cache = new_cache(device)
    keep(cache, device, [3, 1, 3])
    assert len(cache) == 2
    cache.forget(ARRAY, [(0, 3)])
    assert len(cache) == 1


def test_threads_share_a_small_cache(device):
    """Each chunk's entry says what it is, whoever made it; nothing is freed while it is held."""
    cache = new_cache(device, 900 + TABLE)
    failures = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(150):
            numbers = np.unique(random.integers(0, 12, 4))
            chunks, _ = look(cache, numbers)
            with device.lock:
                live = {one.address: one.nbytes for one in device._memory.live()}
            for number, slab, address in zip(numbers, chunks.slab, chunks.position, strict=True):
                if slab > 0 and not any(at <= address < at + n for at, n in live.items()):
                    failures.append(int(number))
            keep(cache, device, numbers, chunks=chunks)
            if random.random() < 0.3:
                cache.forget(ARRAY, [(0, int(numbers[0] % 8))])
            if cache.nbytes > cache.limit:
                failures.append("limit")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.clear()
    assert not device._memory.live()


def test_tables_go_with_the_first_change(device):
    grid = CellNumbers((4, 1), (1, 1), chunks=4)
    tables = ChunkTables(0, sums=np.zeros((1, 5), np.uint64))
    limit = 400 + 32 + TABLE + tables.nbytes
    cache = new_cache(device, limit)
    stream = device.stream()

    def resident():
        """Put all chunks one by one, and their tables."""
        for number in range(4):
            keep(cache, device, [number], grid=grid)
        chunks, _ = look(cache, range(4), grid=grid)
        found = cache.entries(chunks)
        slab = cache.reserve_left(32, stream, tables.nbytes)
        device.synchronize(device.record(stream))
        cache.put_tables(chunks, slab, tables, found.changes)
        cache.let_go(slab)
        assert found.position.tolist() == chunks.position.tolist()
        return slab

    assert cache.entries(look(cache, range(4), grid=grid)[0]) is None
    slab = resident()
    assert cache.nbytes == cache.limit
    chunks, _ = look(cache, [2], grid=grid)
    assert chunks.tables.address == slab.start
    assert cache.entries(chunks) is None  # They are there.
    cache.forget(ARRAY, [(1, 0)])
    assert look(cache, [2], grid=grid)[0].tables is None
    assert cache.nbytes == limit - 100  # They are held.
    del chunks
    look(cache, [], grid=grid)
    assert cache.nbytes == 300 + TABLE
    keep(cache, device, [1], grid=grid)
    assert cache.entries(look(cache, [1], grid=grid)[0]) is None  # Too few lookups.
    resident()
    assert cache.reserve_left(1, stream, 0) is cache.reserve_left(0, stream, 1) is None
    keep(cache, device, [0, 1], array=ARRAY._replace(meaning="x"))  # In place of some.
    assert look(cache, [2], grid=grid)[0].tables is None


def test_headers_count_as_memory(device):
    cache = new_cache(device, 1000 + TABLE + 100)
    stream = device.stream()
    chunks, _ = look(cache, [4, 2])
    slab = cache.reserve(1000, stream)
    device.synchronize(device.record(stream))
    address = slab.start + np.array([0, 400])
    sizes = np.array([300, 200])
    too_many = HeaderColumns((np.zeros(300, np.int64),))
    assert not cache.describe(slab, EncodedSlab(address, sizes, too_many))
    before = cache.nbytes
    headers = HeaderColumns((np.array([7, 8]),))
    assert cache.describe(slab, EncodedSlab(address, sizes, headers))
    assert cache.nbytes == before + 6 * 8
    cache.put(chunks, np.arange(2), slab, address)
    cache.let_go(slab)
    found, _ = look(cache, [2, 3, 4])
    encoded = found.slabs[slab.number].encoded
    sizes, columns = encoded.find(found.position[[0, 2]])
    assert sizes.tolist() == [200, 300]
    assert columns.columns[0].tolist() == [8, 7]
    del found, encoded
    cache.clear()
    assert cache.nbytes == 0


def test_pinned_memory_of_about_the_size_is_taken_over(device):
    cache = new_cache(device, 3000 + TABLE, is_pinned=True)
    for number, nbytes in enumerate((1000, 1500, 1000)):
        assert keep(cache, device, [number], nbytes=nbytes)
    assert device.counts["allocate_pinned"] == 2  # The third has the memory of the first one...
    assert known(cache, [0, 1, 2]) == [False, True, True]
    held, _ = look(cache, [1])
    assert not keep(cache, device, [3], nbytes=2000)  # ... and another would not do.
    del held
    assert keep(cache, device, [3], nbytes=2000)
    assert known(cache, range(4)) == [False, False, False, True]
    assert device.counts["allocate_pinned"] == 3
    assert device.counts["free_pinned"] == 2
    assert cache.nbytes <= cache.limit
    assert device.counts["allocate"] == 0


def test_lack_of_pinned_memory_is_no_error(device):
    cache = new_cache(device, is_pinned=True)
    keep(cache, device, [0], nbytes=1000)
    first = device.counts["allocate_pinned"]
    device.faults.pinned = {first}
    assert keep(cache, device, [1], nbytes=1000)
    assert known(cache, [0, 1]) == [False, True]
    device.faults.pinned = {first + 2, first + 3}
    assert not keep(cache, device, [2], nbytes=1000)


def test_only_memory_of_the_kind_that_is_lacking_is_given_back(device):
    caches = ChunkCaches(device)
    pools = [DeviceCachePool(10**6, memory=memory) for memory in ("device", "pinned")]
    there, pinned = map(caches.of, pools)
    device.caches += there, pinned
    for cache in (there, pinned):
        keep(cache, device, [0], nbytes=1000)
    assert caches.give_back(lacking=PinnedMemoryError) == 1000
    assert known(there, [0]) == [True]
    assert known(pinned, [0]) == [False]
    keep(pinned, device, [0], nbytes=1000)
    assert caches.give_back() == 1000
    assert known(there, [0]) == [False]
    assert known(pinned, [0]) == [True]
