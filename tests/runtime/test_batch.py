"""Batch against TensorStore's: when reads begin, what may be batched, what errors say."""

import asyncio
import copy
import gc
import pickle
import threading

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import GpustoreError, MetadataError, StoreIOError
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.future import new
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule

LIBRARIES = pytest.mark.parametrize("library", [gpustore, ts], ids=["gpustore", "tensorstore"])


@pytest.fixture
def opened(library, tmp_path):
    """An array of 20 x 20 numbered elements in files."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    layout = library.ChunkLayout(chunk_shape=[5, 5])
    store = library.open(
        spec, create=True, dtype="uint16", shape=[20, 20], chunk_layout=layout
    ).result()
    store[...] = np.arange(400, dtype="u2").reshape(20, 20)
    return store


def waits(future):
    """Whether a Future is not ready, although it was asked for and given time."""
    future.force()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.02)
    return not future.done()


@LIBRARIES
def test_reads_begin_when_the_batch_is_submitted(library, opened):
    batch = library.Batch()
    calls = []
    first, second = opened[:3].read(batch=batch), opened[2:].read(batch=batch, order="F")
    first.add_done_callback(calls.append)
    assert waits(first)
    assert calls == []
    batch.submit()
    assert first.result().tolist() == np.arange(60).reshape(3, 20).tolist()
    assert second.result().flags.f_contiguous
    first.add_done_callback(calls.append)
    assert calls[-1] is first


@LIBRARIES
def test_a_batch_is_submitted_at_the_end_of_with_also_after_an_error(library, opened):
    with library.Batch() as batch:
        assert batch.__enter__() is batch
        future = opened.read(batch=batch)
    assert future.result().shape == (20, 20)
    futures = []

    def fail():
        with library.Batch() as batch:
            futures.append(opened.read(batch=batch))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert futures[0].result().shape == (20, 20)


@LIBRARIES
def test_a_dropped_batch_is_submitted(library, opened):
    batch = library.Batch()
    future = opened[1].read(batch=batch)
    assert waits(future)
    del batch
    gc.collect()
    assert future.result(timeout=60).shape == (20,)


@LIBRARIES
def test_submitting_again_does_nothing_but_later_reads_are_errors(library, opened):
    with library.Batch() as batch:
        batch.submit()
    batch.submit()
    for begin in (
        lambda: opened.read(batch=batch),
        lambda: opened.resolve(batch=batch),
        lambda: opened.kvstore.read("zarr.json", batch=batch),
        lambda: library.array(np.arange(3)).read(batch=batch),
    ):
        with pytest.raises(ValueError, match="batch was already submitted"):
            begin()
    assert library.open(opened.spec(), batch=batch).result().shape == (20, 20)
    opened.write(opened, batch=batch).result()


@LIBRARIES
def test_open_and_resolve_and_copies_wait_for_the_batch(library, opened):
    with library.Batch() as batch:
        one = library.open(opened.spec(), batch=batch)
        assert waits(one)
        two = opened.resolve(batch=batch)
        three = opened[10:].write(opened[:10], batch=batch)
        assert waits(three.commit)
    assert one.result().shape == (20, 20)
    assert two.result().shape == (20, 20)
    three.copy.result()
    three.commit.result()
    assert opened[10:].read().result().tolist() == np.arange(200).reshape(10, 20).tolist()


@LIBRARIES
def test_only_a_tensorstore_is_written_in_a_batch(library, opened):
    with library.Batch() as batch:
        with pytest.raises(ValueError, match="Invalid batch: batch can only be specified when cop"):
            opened.write(np.ones((20, 20), "u2"), batch=batch)
        with pytest.raises(TypeError, match="Invalid batch"):
            opened.write(opened, batch=3)
        with pytest.raises(TypeError, match="Invalid batch"):
            library.open(opened.spec(), batch=3)
        for begin in (
            lambda: opened.read(batch=3),
            lambda: opened.resolve(batch=3),
            lambda: opened.kvstore.read("zarr.json", batch=3),
        ):
            with pytest.raises(TypeError):
                begin()


@LIBRARIES
def test_a_batch_is_no_data(library):
    batch = library.Batch()
    for make in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"cannot pickle '.*Batch' object"):
            make(batch)
    with pytest.raises(TypeError):
        library.Batch(3)
    with pytest.raises(AttributeError):
        batch.x = 1
    assert batch != library.Batch()
    assert len({batch, batch}) == 1


@LIBRARIES
def test_batches_are_awaited(library, opened):
    async def main():
        with library.Batch() as batch:
            futures = [opened[i].read(batch=batch) for i in range(3)]
        return [(await future).tolist() for future in futures]

    assert asyncio.run(main()) == np.arange(60).reshape(3, 20).tolist()


def test_a_failed_copy_fails_both_futures():
    context = gpustore.Context()
    stores = [
        gpustore.open(
            f"memory://{name}/|zarr3:", create=True, dtype="uint8", shape=[4], context=context
        ).result()
        for name in "ab"
    ]
    source, target = stores
    source.kvstore["c/0"] = b"xyz"
    with gpustore.Batch() as batch:
        written = target.write(source, batch=batch)
    for future in (written.copy, written.commit, written):
        with pytest.raises(GpustoreError, match="c/0"):
            future.result()


# ---- keys


class CountingStore(FaultyKvStore):
    """Remembers the keys of each call."""

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.calls = []

    def read_many(self, request):
        self.calls.append(list(request.keys))
        return super().read_many(request)


def test_keys_of_one_kvstore_are_one_request():
    driver = KvStore.open("memory://").result().driver
    one, two = KvStore(CountingStore(driver), "d/"), KvStore(CountingStore(driver))
    one["a"], one["b"] = b"0123456789", b"xyz"
    generation = one.read("b").result().stamp.generation
    one.driver.calls.clear()
    one.driver.rules.append(Rule(Fault.ERROR, key="bad"))
    with gpustore.Batch() as batch:
        futures = [
            one.read("a", batch=batch),
            one.read("a", batch=batch, byte_range=slice(2, 4)),
            one.read("b", batch=batch, if_not_equal=generation),
            one.read("c", batch=batch),
        ]
        failed = one.read("bad", batch=batch)
        outside = one.read("b", batch=batch, byte_range=slice(2, 40))
        other = two.read("d/b", batch=batch)
        later = one.read("b", batch=batch, staleness_bound=1.0)
    results = [future.result() for future in futures]
    assert [result.state for result in results] == ["value", "value", "unspecified", "missing"]
    assert [result.value for result in results[:2]] == [b"0123456789", b"23"]
    assert results[2].stamp.generation == generation
    assert other.result().value == later.result().value == b"xyz"
    with pytest.raises(StoreIOError, match="bad"):
        failed.result()
    with pytest.raises(ValueError, match="Requested byte range"):
        outside.result()
    assert two.driver.calls == [["d/b"]]
    assert sorted(one.driver.calls) == [["d/a", "d/a", "d/b", "d/c", "d/bad", "d/b"], ["d/b"]]


def test_a_group_that_cannot_be_started_fails_its_reads_only():
    class Broken(FaultyKvStore):
        def read_many(self, request):
            raise RuntimeError("broken")

    driver = KvStore.open("memory://").result().driver
    good, bad = KvStore(driver), KvStore(Broken(driver))
    good["a"] = b"1"
    with gpustore.Batch() as batch:
        futures = [bad.read("a", batch=batch) for _ in range(2)]
        fine = good.read("a", batch=batch)
    for future in futures:
        with pytest.raises(RuntimeError, match="broken"):
            future.result()
    assert fine.result().value == b"1"


def test_many_threads_may_fill_one_batch():
    store = gpustore.array(np.arange(1000))
    chunked = gpustore.open("memory://a|zarr3:", create=True, dtype="int64", shape=[1000]).result()
    chunked[...] = np.arange(1000)
    batch = gpustore.Batch()
    futures = {}

    def fill(first):
        for i in range(first, first + 50):
            futures[i] = chunked[i : i + 3].read(batch=batch)

    threads = [threading.Thread(target=fill, args=(50 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch.submit()
    for i, future in futures.items():
        assert future.result().tolist() == [i, i + 1, i + 2]
    with pytest.raises(MetadataError, match="already submitted"):
        store.read(batch=batch)


def test_ctrl_c_while_a_batch_is_submitted_cancels_the_reads_that_have_not_begun():
    batch, futures = gpustore.Batch(), [new() for _ in range(4)]

    def interrupted(items):
        raise KeyboardInterrupt

    begin = futures[0]._finish
    for key, run, future in zip(
        "abbc", (lambda _: begin(1, None), interrupted, interrupted, None), futures, strict=True
    ):
        batch._join(key, run, key, future)
    with pytest.raises(KeyboardInterrupt):
        batch.submit()
    assert [future.cancelled() for future in futures] == [False, True, True, True]
    assert futures[0].result() == 1
    batch.submit()
