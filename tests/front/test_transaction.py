"""Arrays in transactions: staged writes, reads through them, commits; beside TensorStore's."""

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpustore
from gpustore import ConflictError, TransactionError, UnsupportedError
from tests.matrix import each
from tests.on_device import emulated, on_host

FORMATS = ["zarr3", "zarr2"]


def make(url="memory://a/", driver="zarr3", shape=(8,), chunks=(4,), **options):
    return gpustore.open(
        {"driver": driver, "kvstore": url},
        create=True,
        dtype="uint8",
        shape=shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=chunks),
        **options,
    ).result()


def values(store):
    return store.read().result().tolist()


@each("url", ["memory://a/", "file:"])
@each("driver", FORMATS)
def test_writes_are_seen_inside_at_once_and_outside_after_the_commit(url, driver, tmp_path):
    store = make(url.replace("file:", f"file://{tmp_path}/"), driver)
    transaction = gpustore.Transaction()
    assert (transaction.open, transaction.aborted, transaction.commit_started) == (1, 0, 0)
    staged = store.with_transaction(transaction)
    assert staged.transaction is transaction
    assert staged[1:].transaction is transaction
    assert staged.kvstore.transaction is transaction
    assert store.transaction is None
    futures = staged[0:2].write(1)
    assert futures.copy.done()
    assert futures.commit.done()
    staged[5] = 2
    assert values(staged) == [1, 1, 0, 0, 0, 2, 0, 0]
    assert values(store) == [0] * 8
    store[3] = 9  # Beside staged elements of the same chunk.
    assert values(staged) == [1, 1, 0, 9, 0, 2, 0, 0]
    transaction.commit_async().result()
    assert (transaction.open, transaction.aborted, transaction.commit_started) == (0, 0, 1)
    assert values(store) == [1, 1, 0, 9, 0, 2, 0, 0]
    nothing = staged[2:2]
    for use in (staged.read, lambda: staged.write(1), lambda: nothing.write(1), staged.resolve):
        with pytest.raises(TransactionError, match=r"^Transaction not open \(commit already st"):
            use().result()
    assert values(staged.with_transaction(None)) == values(store)


def test_many_small_writes_of_a_chunk_cost_one_encoding_and_one_write():
    store = make(shape=(64,), chunks=(64,))
    store[...] = 7
    before = gpustore.statistics.snapshot()
    with gpustore.Transaction() as transaction:
        for i in range(50):
            store.with_transaction(transaction)[i] = i
    after = gpustore.statistics.snapshot()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["writes"] == 50
    assert grown["bytes_encoded"] == 64
    assert (grown["values_stored"], grown["key_reads"]) == (1, 1)
    assert values(store) == [*range(50), *[7] * 14]


def test_reads_between_writes_cost_no_more_as_writes_add_up():
    store = make(shape=(64,), chunks=(64,))
    store[...] = 7
    transaction = gpustore.Transaction()
    staged = store.with_transaction(transaction)
    for i in range(4):
        staged[i] = i
        assert values(staged) == [*range(i + 1), *[7] * (63 - i)]
    before = gpustore.statistics["bytes_encoded"]
    staged[4] = 4
    staged.read().result()
    staged.read().result()
    assert gpustore.statistics["bytes_encoded"] - before == 64
    transaction.commit_sync()
    assert values(store) == [*range(5), *[7] * 59]


def test_source_may_change_once_it_is_staged():
    store, source = make(), np.arange(8, dtype="uint8")
    with gpustore.Transaction() as transaction:
        store.with_transaction(transaction).write(source).copy.result()
        source[:] = 0
    assert values(store) == list(range(8))


@each("driver", FORMATS)
def test_arrays_are_made_and_resized_in_a_transaction(driver, tmp_path):
    url = f"file://{tmp_path}/"
    transaction = gpustore.Transaction()
    made = make(url, driver, transaction=transaction)
    made[:] = 3
    opened = gpustore.open(url, transaction=transaction).result()
    assert values(opened) == [3] * 8
    shrunk = opened.resize(exclusive_max=[3]).result()
    assert values(shrunk) == [3] * 3
    grown = shrunk.resize(exclusive_max=[8]).result()
    assert values(grown) == [3] * 4 + [0] * 4  # What lies in the kept chunk comes back.
    grown.attrs["stain"] = "DAPI"
    with pytest.raises(gpustore.NotFoundError):
        gpustore.open(url).result()
    transaction.commit_sync()
    store = gpustore.open(url).result()
    assert values(store) == [3] * 4 + [0] * 4
    assert store.attrs["stain"] == "DAPI"


def test_array_of_another_rank_replaces_one_in_files(tmp_path):
    url = f"file://{tmp_path}/"
    make(url, shape=(4, 4), chunks=(2, 2)).write(1).result()
    with gpustore.Transaction() as transaction:
        make(url, delete_existing=True, transaction=transaction).write(2).result()
    assert values(gpustore.open(url + "|zarr3:").result()) == [2] * 8


def test_abort_drops_everything():
    store = make()
    for end in (lambda t: t.abort(), lambda t: t.__exit__(KeyError, KeyError(), None)):
        transaction = gpustore.Transaction()
        store.with_transaction(transaction)[...] = 1
        end(transaction)
        assert (transaction.open, transaction.aborted, transaction.commit_started) == (0, 1, 0)
        with pytest.raises(TransactionError, match=r"^CANCELLED: Transaction aborted$"):
            transaction.commit_sync()
        with pytest.raises(TransactionError, match=r"^Transaction not open \(aborted\)$"):
            store.with_transaction(transaction).read().result()
    assert values(store) == [0] * 8


def test_dropped_transaction_is_gone_at_once():
    store, transaction = make(), gpustore.Transaction()
    staged = store.with_transaction(transaction)
    staged[0] = 1
    staged.read().result()
    gone = weakref.ref(transaction)
    gc.disable()
    try:
        del staged, transaction
        assert gone() is None
    finally:
        gc.enable()
    assert values(store) == [0] * 8


def test_waiting_for_the_future_commits():
    store, transaction = make(), gpustore.Transaction()
    first = transaction.future
    store.with_transaction(transaction)[0] = 1
    assert not first.done()
    assert transaction.open
    transaction.future.result()
    assert transaction.commit_started
    assert first.done()
    assert store[0].read().result() == 1


def test_cancelling_a_wait_for_the_commit_does_not_end_it():
    store, transaction = make(), gpustore.Transaction()
    store.with_transaction(transaction)[0] = 1
    waits = [transaction.commit_async(), transaction.future]
    assert waits[0].cancel()
    waits[1].cancel()
    assert waits[0].cancelled()
    transaction.commit_sync()
    transaction.future.result()
    assert store[0].read().result() == 1


def test_commit_ends_when_a_function_is_cancelled():
    def write(*_):
        raise asyncio.CancelledError

    store = gpustore.virtual_chunked(None, write, dtype="uint8", shape=[4])
    transaction = gpustore.Transaction()
    store.with_transaction(transaction).write(1).result()
    with pytest.raises(asyncio.CancelledError):
        transaction.commit_async().result(timeout=60)
    assert transaction.future.cancelled()


def test_store_of_a_transaction_is_not_pickled():
    store = make().with_transaction(gpustore.Transaction())
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TransactionError, match=r"^Cannot serialize TensorStore with bound tr"):
            take(store)


def test_async_block_commits_or_aborts():
    store = make()

    async def write(value, error=None):
        async with gpustore.Transaction() as transaction:
            store.with_transaction(transaction)[0] = value
            if error:
                raise error
        return (await store.read()).tolist()

    assert asyncio.run(write(1)) == [1] + [0] * 7
    with pytest.raises(KeyError, match="stop"):
        asyncio.run(write(2, KeyError("stop")))
    assert values(store) == [1] + [0] * 7


def test_repeatable_read_fails_if_what_was_read_has_changed():
    for change in (lambda s: s[0].write(1).result(), lambda s: None):
        store = make()
        store[...] = 5
        transaction = gpustore.Transaction(repeatable_read=True)
        staged = store.with_transaction(transaction)
        assert values(staged) == [5] * 8
        change(staged)
        store[6] = 9
        with pytest.raises(
            ConflictError, match=r'^ABORTED: Error writing "a/c/1": Generation mism'
        ):
            transaction.commit_sync()
        assert values(store) == [5] * 6 + [9, 5]


def test_atomic_over_several_files_is_refused(tmp_path):
    store = make(f"file://{tmp_path}/")
    transaction = gpustore.Transaction(atomic=True)
    staged = store.with_transaction(transaction)
    staged[0] = 1  # One chunk is one file.
    text = "^Cannot read/write local file .*c/0. and read/write .*c/1. as single atomic transaction"
    with pytest.raises(TransactionError, match=text):
        staged[4] = 1
    assert transaction.aborted
    with pytest.raises(TransactionError, match=text):
        transaction.commit_sync()
    with gpustore.Transaction(atomic=True) as transaction:
        store.with_transaction(transaction)[1:3] = 2
    assert values(store) == [0, 2, 2, 0, 0, 0, 0, 0]


def test_views_and_adapters_take_the_transaction_along():
    store, transaction = make(), gpustore.Transaction()
    wide = gpustore.cast(store, "int32").with_transaction(transaction)
    wide[2] = 7
    assert wide.transaction is transaction
    assert wide.base.transaction is transaction
    assert values(store.with_transaction(transaction)) == [0, 0, 7, 0, 0, 0, 0, 0]
    assert values(gpustore.downsample(store, [4], "max").with_transaction(transaction)) == [7, 0]
    plain = gpustore.array([1, 2]).with_transaction(transaction)
    assert values(plain) == [1, 2]
    with pytest.raises(UnsupportedError, match=r'^"array" driver does not support transactions$'):
        plain[0] = 1


def test_arrays_of_functions_are_stored_by_the_commit():
    stored = np.zeros(4, "uint8")

    def read(domain, chunk, _):
        chunk[...] = stored[domain.index_exp]

    def write(domain, chunk, _):
        stored[domain.index_exp] = chunk

    layout = gpustore.ChunkLayout(chunk_shape=[2])
    store = gpustore.virtual_chunked(read, write, dtype="uint8", shape=[4], chunk_layout=layout)
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        staged[1] = 3
        staged[2:] = 4
        assert values(staged) == [0, 3, 4, 4]
        assert stored.tolist() == [0, 0, 0, 0]
    assert stored.tolist() == [0, 3, 4, 4]


def test_layers_of_a_stack_share_a_transaction():
    stores = [make("memory://a/"), make("memory://b/")]
    transaction = gpustore.Transaction()
    with transaction:
        stack = gpustore.concat(stores, axis=0).with_transaction(transaction)
        stack[7:9] = 5
        assert values(stack)[6:10] == [0, 5, 5, 0]
        bound = [one.with_transaction(transaction) for one in stores]
        assert gpustore.stack(bound).transaction is transaction
        with pytest.raises(TransactionError, match="Layer 1: Transaction mismatch"):
            gpustore.stack([bound[0], stores[1]])
        assert values(stores[1]) == [0] * 8
    assert values(stores[1]) == [5] + [0] * 7


def test_store_of_an_open_transaction_is_not_bound_again():
    store, transaction = make(), gpustore.Transaction()
    staged = store.with_transaction(transaction)
    for other in (None, transaction, gpustore.Transaction()):
        with pytest.raises(TransactionError, match=r"^Cannot rebind transaction when existing"):
            staged.with_transaction(other)
    with pytest.raises(TransactionError, match="Cannot serialize TensorStore with bound transac"):
        pickle.dumps(staged)
    opened = gpustore.open(staged.kvstore).result()
    assert opened.transaction is transaction
    with pytest.raises(TransactionError, match="Invalid kvstore: Inconsistent transactions spec"):
        gpustore.open(staged.kvstore, transaction=gpustore.Transaction())
    with pytest.raises(TypeError, match="Invalid transaction"):
        store.with_transaction(3)
    with pytest.raises(TypeError, match="Invalid transaction"):
        gpustore.open("memory://a/", transaction=3)


def test_caches_forget_what_a_commit_changed():
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1 << 20}})
    store = make(context=context, recheck_cached_data=False)
    assert values(store) == [0] * 8
    with gpustore.Transaction() as transaction:
        store.with_transaction(transaction)[0] = 1
        assert values(store) == [0] * 8
    assert values(store) == [1] + [0] * 7


@each("url", ["memory://a/", "file:"])
def test_commits_of_parts_of_one_chunk_keep_each_other(url, tmp_path):
    store = make(url.replace("file:", f"file://{tmp_path}/"), shape=(16,), chunks=(16,))
    begin = threading.Barrier(4)

    def write(first):
        begin.wait()
        for i in range(first, 16, 4):
            with gpustore.Transaction() as transaction:
                staged = store.with_transaction(transaction)
                staged[i] = int(staged[i].read().result()) + i

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert values(store) == list(range(16))


def test_array_that_another_made_meanwhile_is_kept():
    context, transaction = gpustore.Context(), gpustore.Transaction()
    make(context=context, transaction=transaction)[...] = 1
    other = make(context=context, shape=(3,))
    with pytest.raises(ConflictError, match=r"zarr\.json.: Generation mismatch"):
        transaction.commit_sync()
    assert other.resolve().result().shape == (3,)


def test_failed_writes_fail_before_anything_is_staged():
    store, transaction = make(), gpustore.Transaction()
    staged = store.with_transaction(transaction)
    with pytest.raises(TypeError, match="safe"):
        staged.write(np.zeros(8))
    with pytest.raises(gpustore.MismatchError):
        staged.write(np.zeros(5, "uint8"))
    with pytest.raises(gpustore.OutOfBoundsError):
        staged[5:20].write(1)
    assert staged.kvstore.list().result() == [b"zarr.json"]
    transaction.commit_sync()


def test_damaged_chunk_fails_the_commit_and_stays():
    store = make(codec="gzip")
    store[...] = 1
    store.kvstore["c/0"] = b"damaged"
    transaction = gpustore.Transaction()
    staged = store.with_transaction(transaction)
    staged[0] = 2
    staged[4:] = 3
    with pytest.raises(gpustore.CorruptChunkError, match="c/0"):
        staged.read().result()
    with pytest.raises(gpustore.CorruptChunkError, match="c/0"):
        transaction.commit_sync()
    assert store.kvstore["c/0"] == b"damaged"


def test_commit_waits_for_operations_that_were_begun():
    store = make()
    store[...] = 1
    transaction = gpustore.Transaction()
    staged = store.with_transaction(transaction)
    reads = [staged[i : i + 1].read() for i in range(8)]
    resized = staged.resize(exclusive_max=[9])
    transaction.commit_async()
    assert [int(one.result()[0]) for one in reads] == [1] * 8
    assert resized.result().shape == (9,)
    transaction.commit_sync()
    assert store.resolve().result().shape == (9,)


def test_device_arrays_are_staged_in_host_memory(tmp_path):
    make(f"file://{tmp_path}/a/")[...] = 7
    make(f"file://{tmp_path}/b/")[...] = np.arange(8)[::-1].astype("uint8")
    with emulated() as device:
        _on_a_device(device, tmp_path)
    assert values(gpustore.open(tmp_path / "a").result()) == [7, 7, 4, 3, 2, 1, 0, 7]


def _on_a_device(device, path):
    store = gpustore.open(path / "a", device=device.name).result()
    source = gpustore.open(path / "b", device=device.name).result()[3:8].read().result()
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        before = gpustore.statistics["bytes_to_host"]
        staged[2:7].write(source).result()
        assert gpustore.statistics["bytes_to_host"] - before == 5
        assert on_host(device, staged.read().result()).tolist() == [7, 7, 4, 3, 2, 1, 0, 7]
        assert on_host(device, store.read().result()).tolist() == [7] * 8
