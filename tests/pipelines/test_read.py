"""Reads of small arrays: what goes wrong is named, what changes meanwhile is read again."""

import asyncio
import gc
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpustore.backends.base import Output
from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    LimitError,
    MismatchError,
    NotFoundError,
    OutOfBoundsError,
    StoreIOError,
)
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.columns import WriteRequest
from gpustore.pipelines.fetch import ATTEMPTS
from gpustore.pipelines.read import SMALL_ROWS, read
from gpustore.pipelines.write import write
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.executor import Executor
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS
from gpustore.sharding.refiner import Probe
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each
from tests.pipelines.arrays import BYTES, GZIP, make_array, memory, put, stored, whole
from tests.waiting import wait_until

CHAINS = {"raw": (BYTES,), "gzip": (BYTES, GZIP)}


def numbered(array):
    """Fill `array` with 1, 2, 3, ... and return those."""
    model = np.arange(1, np.prod(array.shape, dtype=int) + 1, dtype=array.dtype)
    model = model.reshape(array.shape)
    write(array, whole(array), model).result()
    return model


class WatchedStore(FaultyKvStore):
    """Remembers the threads that read, and calls `before` with the keys."""

    def __init__(self, base, rules=(), *, before=lambda keys: None):
        super().__init__(base, rules)
        self.threads = []
        self.before = before

    def read_many(self, request):
        self.threads.append(threading.get_ident())
        self.before(request.keys)
        return super().read_many(request)


# ---- what is read


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("order", "CF")
def test_parts_are_read_as_numpy_reads_them(codecs, order):
    array = make_array((7, 10), (3, 4), codecs=codecs)
    model = numbered(array)
    for index in (
        np.s_[:],
        np.s_[2:6, ::3],
        np.s_[::-1, 9:0:-2],
        np.s_[4],
        np.s_[6, 9],
        np.s_[3:3],
    ):
        found = read(array, whole(array)[index], Output(order=order)).result()
        assert found.dtype == np.uint16
        assert np.array_equal(found, model[index])
        assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_a_reversed_chunk_is_not_decoded_where_it_would_lie_forwards(codecs):
    array = make_array((4, 6), (2, 6), codecs=codecs)
    model = numbered(array)
    base = np.zeros((6, 10), "u2")
    out = base[1:5, 2:8][::-1, ::-1]
    read(array, whole(array)[::-1, ::-1], Output(out)).result()
    assert np.array_equal(base[1:5, 2:8], model)
    base[1:5, 2:8] = 0
    assert not base.any(), "nothing beside it was touched"


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("chunk", [8, 40_000])
def test_many_chunks_are_read_by_many_tasks(is_local, chunk):
    array = make_array((10 * chunk + 5,), (chunk,), dtype="uint32")
    array.store.is_local = is_local
    model = numbered(array)
    assert array.parts(array.plans(whole(array), (4,))[0][1]) == (1 if chunk == 8 else 2)
    assert np.array_equal(read(array, whole(array)).result(), model)
    out = np.zeros(array.shape[0] * 2, "u4")[::-2]
    assert read(array, whole(array), Output(out)).result() is out
    assert np.array_equal(out, model)


def test_bounds_and_limits_are_checked_before_any_io():
    array = make_array((8,), (2,), store=(Rule(Fault.ERROR, times=9),))
    with pytest.raises(OutOfBoundsError, match=r"existing bounds \[0, 9\)"):
        read(array, IndexTransform(IndexDomain(shape=[9])))
    with pytest.raises(OutOfBoundsError, match=r"existing bounds \[-1, 0\)"):
        read(array, IndexTransform(IndexDomain(inclusive_min=[-1], shape=[1])))
    small = replace(array, limits=Limits(chunks_per_request=3))
    with pytest.raises(LimitError, match="of 4 chunks exceeds the limit"):
        read(small, whole(small))
    with pytest.raises(MismatchError, match="out has shape"):
        read(array, whole(array), Output(np.zeros(9, "u2")))
    assert array.store.rules[0].injected == 0


def test_zero_sized_reads_touch_nothing():
    array = make_array((8, 3), (2, 2), store=(Rule(Fault.ERROR, times=9),))
    assert read(array, whole(array)[2:2]).result().shape == (0, 3)
    empty = make_array((0, 3), (2, 2))
    assert read(empty, whole(empty)).result().shape == (0, 3)


# ---- missing chunks


def test_missing_chunks_read_as_the_fill_value():
    array = make_array((5,), (2,), fill_value=np.array(7, "u2"))
    put(array, "c/1", b"\1\0\2\0")
    STATISTICS.reset()
    assert read(array, whole(array)).result().tolist() == [7, 7, 1, 2, 7]
    counts = STATISTICS.snapshot()
    assert (counts["reads"], counts["chunks_planned"], counts["chunks_missing"]) == (1, 3, 2)
    assert counts["bytes_fetched"] == 4


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_missing_chunks_are_an_error_if_asked_for(codecs):
    array = make_array((5, 2), (2, 2), codecs=codecs, fill_missing=False)
    with pytest.raises(NotFoundError) as caught:
        read(array, whole(array)[4, 1]).result()
    assert str(caught.value) == (
        'NOT_FOUND: chunk {2, 0} stored at "c/2/0" is missing; pass fill_missing_data_reads=True '
        "to read it as the fill value"
    )
    assert caught.value.key == "c/2/0"


# ---- failures


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_an_injected_error_names_the_key_and_is_the_error_of_the_future(codecs, is_local):
    array = make_array((6,), (2,), codecs=codecs, store=(Rule(Fault.ERROR, key="c/1"),))
    array.store.is_local = is_local
    numbered(array)
    future = read(array, whole(array))
    error = future.exception()
    assert isinstance(error, StoreIOError)
    assert 'injected failure to read "c/1"' in str(error)
    assert error.key == "c/1"
    with pytest.raises(StoreIOError):
        future.result()
    assert read(array, whole(array)).result().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("index", [np.s_[:], np.s_[1:2]], ids=["whole", "part"])
@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_a_short_read_is_a_corrupt_chunk(codecs, index):
    array = make_array((8,), (8,), codecs=codecs, store=(Rule(Fault.SHORT_READ, key="c/0"),))
    numbered(array)
    with pytest.raises(CorruptChunkError, match='Error reading "c/0"') as caught:
        read(array, whole(array)[index]).result()
    assert caught.value.key == "c/0"


@each("index", [np.s_[:], np.s_[1:2], np.s_[6:8]], ids=["all", "first", "last"])
@each("nbytes", [0, 3, 15, 17, 10_000])
def test_a_stored_chunk_of_wrong_length_is_corrupt(index, nbytes):
    array = make_array((8,), (8,))
    put(array, "c/0", bytes(nbytes))
    with pytest.raises(CorruptChunkError, match="c/0") as caught:
        read(array, whole(array)[index]).result()
    assert caught.value.key == "c/0"


def test_the_first_corrupt_chunk_of_a_batch_is_named():
    array = make_array((8,), (2,), codecs=CHAINS["gzip"])
    numbered(array)
    for key in ("c/1", "c/3"):
        put(array, key, stored(array)[key][:-3])
    with pytest.raises(CorruptChunkError, match='Error reading "c/1"'):
        read(array, whole(array)).result()


def test_up_to_ten_corrupt_chunks_of_a_batch_are_named():
    array = make_array((30,), (2,), codecs=CHAINS["gzip"])
    numbered(array)
    for number in (14, 3, 7):
        put(array, f"c/{number}", stored(array)[f"c/{number}"][:-3])
    with pytest.raises(CorruptChunkError) as caught:
        read(array, whole(array)).result()
    assert caught.value.key == "c/3"
    assert str(caught.value).endswith('; 3 chunks are wrong: "c/3", "c/7", "c/14"')
    for number in range(15):
        put(array, f"c/{number}", b"no gzip")
    with pytest.raises(CorruptChunkError) as caught:
        read(array, whole(array)).result()
    named = ", ".join(f'"c/{number}"' for number in range(10))
    assert str(caught.value).endswith(f"; 15 chunks are wrong: {named}, and 5 more")


def test_out_is_not_touched_once_the_future_has_failed():
    def until_another_failed(keys):
        token = CancelToken.current()
        wait_until(lambda: "c/0" in keys or token.cancelled)

    store = WatchedStore(memory(), before=until_another_failed)
    store.is_local = False
    with_writes = make_array((40 * 20_000,), (20_000,), store=store)
    numbered(with_writes)
    store.rules.append(Rule(Fault.ERROR, key="c/0"))
    array = replace(with_writes, executor=Executor(4))
    all_idle = threading.Barrier(5)
    out = np.zeros(array.shape, "u2")
    assert isinstance(read(array, whole(array), Output(out)).exception(), StoreIOError)
    before = out.copy()
    reads = len(store.threads)
    for _ in range(4):
        array.executor.submit(all_idle.wait)
    all_idle.wait(30)
    assert np.array_equal(out, before)
    assert len(store.threads) == reads <= 4, "no task is begun after the failure"


def test_cancelling_skips_what_has_not_begun():
    began, go = threading.Event(), threading.Event()

    def wait(keys):
        began.set()
        assert go.wait(30)

    store = WatchedStore(memory(), before=wait)
    store.is_local = False
    array = make_array((40 * 20_000,), (20_000,), store=store, executor=Executor(1))
    future = read(array, whole(array))
    assert began.wait(30)
    assert future.cancel()
    assert future.cancelled()
    go.set()
    array.executor.submit(lambda: None).result()
    assert len(store.threads) == 1


# ---- threads


def test_small_local_reads_run_on_the_asking_thread():
    store = WatchedStore(memory())
    array = make_array((6,), (2,), store=store)
    numbered(array)
    store.threads.clear()
    future = read(array, whole(array))
    assert not store.threads, "nothing happens before somebody asks"
    assert future.result().tolist() == [1, 2, 3, 4, 5, 6]
    assert store.threads == [threading.get_ident()]

    async def wait():
        return await read(array, whole(array))

    store.threads.clear()
    assert asyncio.run(wait()).tolist() == [1, 2, 3, 4, 5, 6]
    assert threading.get_ident() not in store.threads, "an event loop is not blocked"


def wait_for(future):
    """Return once it is done, without asking for its result."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(30)


@pytest.mark.parametrize(
    ("shape", "chunks", "is_local"),
    [((6,), (2,), False), ((2 * SMALL_ROWS + 1,), (2,), True), ((4 << 20,), (4 << 20,), True)],
    ids=["remote", "many", "large"],
)
def test_other_reads_run_on_the_pool_at_once(shape, chunks, is_local):
    store = WatchedStore(memory())
    store.is_local = is_local
    array = make_array(shape, chunks, store=store)
    future = read(array, whole(array))
    assert not future.is_deferred
    wait_for(future)
    assert threading.get_ident() not in store.threads


def test_reads_begun_before_the_first_is_asked_for_run_on_the_pool():
    store = WatchedStore(memory())
    array = make_array((8,), (2,), store=store)
    first, second = read(array, whole(array)), read(array, whole(array))
    assert not second.is_deferred
    wait_for(second)
    assert first.is_deferred
    assert threading.get_ident() not in store.threads
    store.threads.clear()
    assert first.result().tolist() == second.result().tolist()
    assert set(store.threads) == {threading.get_ident()}


def test_futures_nobody_waits_for_do_no_harm():
    array = make_array((6,), (2,), store=(Rule(Fault.ERROR, times=100),))
    array.store.is_local = False
    for _ in range(5):
        read(array, whole(array))
    gc.collect()
    array.store.rules.clear()
    assert read(array, whole(array)).result().tolist() == [0] * 6


# ---- values that change between the probe and the fetch


class Headed(BytesCodec):
    """Puts a 4-byte offset before the elements, and that many bytes of junk between them."""

    name = "headed"

    def __init__(self):
        self.junk = 0

    def encoded_bound(self, decoded_nbytes):
        return decoded_nbytes + 4 + 100

    def encode(self, decoded):
        self.junk = (self.junk + 1) % 100
        return self.junk.to_bytes(4, "little") + b"\xff" * self.junk + bytes(decoded)

    def decode(self, encoded, decoded_max, *, exact, out=None):
        data = bytes(encoded)[4 + int.from_bytes(bytes(encoded[:4]), "little") :]
        if out is None:
            return data
        out[: len(data)] = data
        return out


@dataclass(frozen=True)
class HeadRefiner:
    """Reads the 4-byte offset, then only the span of the elements wanted."""

    itemsize: int

    def probe(self, rows):
        return Probe(range(len(rows)), [0] * len(rows), [4] * len(rows))

    def refine(self, rows, heads, totals):
        first, _, shapes = rows.rows()
        starts, stops = [], []
        for head, low, shape in zip(heads, first, shapes, strict=True):
            reach = zip(rows.src_stride, shape, strict=True)
            high = low + sum(stride * (count - 1) for stride, count in reach) + self.itemsize
            base = 0 if head is None else 4 + int.from_bytes(bytes(head), "little")
            starts.append(base + low)
            stops.append(base + high)
        parts = {"byte_start": starts, "byte_stop": stops, "narrowed": True}
        return replace(rows, src_start=[0] * len(rows), **parts)


class Replacing(FaultyKvStore):
    """Replaces every value it is asked for between a probe and its fetch, `times` times."""

    def __init__(self, base, make_value, times):
        super().__init__(base)
        self.make_value, self.times = make_value, times
        self.replaced = 0

    def read_many(self, request):
        if request.if_equal is not None and self.replaced < self.times:
            self.replaced += 1
            for key in request.keys:
                self.driver.write_many(WriteRequest([key], [self.make_value(self.replaced)]))
        columns = super().read_many(request)
        columns.total = [-1] * len(request.keys)  # A store need not know the sizes of values.
        return columns


def headed_array(times):
    """One chunk of 8 elements; each of its versions holds one number and another offset."""
    stage = Headed()
    layout = ChunkBytes.contiguous(np.dtype("<u2"), (8,))
    chain = CodecChain(layout, (stage,), {})

    def version(number):
        return stage.encode(np.full(8, number, "<u2").tobytes())

    store = Replacing(memory(), version, times)
    array = make_array((8,), (8,), store=store, chain=chain, refiners=(HeadRefiner(2),))
    put(array, "c/0", version(0))
    return array


@pytest.mark.parametrize("times", range(ATTEMPTS))
def test_a_value_replaced_after_its_probe_is_read_again(times):
    array = headed_array(times)
    STATISTICS.reset()
    assert read(array, whole(array)[2:5]).result().tolist() == [times] * 3
    assert array.store.replaced == times
    assert STATISTICS["retries"] == times


def test_a_value_that_never_holds_still_is_a_conflict():
    array = headed_array(1000)
    with pytest.raises(ConflictError, match='Error reading "c/0"') as caught:
        read(array, whole(array)[2:5]).result()
    assert caught.value.key == "c/0"
    assert array.store.replaced == ATTEMPTS == 5


class Busy(FaultyKvStore):
    """Replaces one of several values each time they are asked for together."""

    replaced = 0

    def read_many(self, request):
        if request.if_equal is not None and len(request.keys) > 1:
            self.replaced += 1
            key = request.keys[self.replaced % len(request.keys)]
            value = Headed().encode(np.full(8, 9, "<u2").tobytes())
            self.driver.write_many(WriteRequest([key], [value]))
        columns = super().read_many(request)
        columns.total = [-1] * len(request.keys)
        return columns


def test_of_many_values_one_may_change_at_every_attempt():
    chain = CodecChain(ChunkBytes.contiguous(np.dtype("<u2"), (8,)), (Headed(),), {})
    store = Busy(memory())
    array = make_array((80,), (8,), store=store, chain=chain, refiners=(HeadRefiner(2),))
    for i in range(10):
        put(array, f"c/{i}", Headed().encode(np.full(8, 9, "<u2").tobytes()))
    assert read(array, whole(array)).result().tolist() == [9] * 80
    assert store.replaced == 9 > ATTEMPTS


def test_a_missing_value_stays_missing_or_is_read_again():
    array = headed_array(0)
    put(array, "c/0", None)
    assert read(array, whole(array)[2:5]).result().tolist() == [0, 0, 0]
    array.store.times = 1
    assert read(array, whole(array)[2:5]).result().tolist() == [1, 1, 1]
    array.store.times, array.store.replaced = 2, 1
    array.store.make_value = lambda _: None
    assert read(array, whole(array)[2:5]).result().tolist() == [0, 0, 0]
