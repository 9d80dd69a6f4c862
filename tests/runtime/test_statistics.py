"""Tests of the counters."""

import ast
import gc
import os
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.runtime.future import new
from gpustore.runtime.statistics import (
    COUNTERS,
    CURRENT,
    STATISTICS,
    Operation,
    Statistics,
    WriteOperation,
    attributed,
    begin_amount,
    current,
    operation,
)

PACKAGE = Path(__file__).parents[2] / "gpustore"


def test_what_is_counted_for_an_operation_counts_for_the_process():
    before = {name: STATISTICS[name] for name in COUNTERS}
    one, two = Operation(), Operation()
    one.add(reads=1, copies=2)
    attributed(two, lambda: STATISTICS.add(reads=1, waits=0))
    STATISTICS.add(copies=4)
    assert one.snapshot() == {"copies": 2, "reads": 1}
    assert two.snapshot() == {"reads": 1}
    assert (one["copies"], two["copies"], two["launches"]) == (2, 0, 0)
    assert (STATISTICS["copies"] - before["copies"], STATISTICS["reads"] - before["reads"]) == (
        6,
        2,
    )
    assert repr(one) == "Statistics({'copies': 2, 'reads': 1})"


def test_an_operation_within_another_is_a_part_of_it():
    found = []

    def begin():
        found.append(current())
        return 5

    assert operation(lambda: operation(begin)) == operation(begin) == 5
    assert CURRENT.operation is None
    assert found[0] is not found[1]
    with pytest.raises(ZeroDivisionError):
        operation(lambda: 1 / 0)
    assert CURRENT.operation is None


def test_futures_of_one_operation_have_one_statistics_although_it_is_made_late():
    def begin():
        first = new()
        STATISTICS.add(reads=1)
        return first, new()

    first, second = operation(begin)
    assert first.statistics is second.statistics
    assert first.statistics.snapshot() == {"reads": 1}
    outer, inner = operation(lambda: (new(), operation(new)), WriteOperation)
    assert inner.statistics is outer.statistics
    assert inner.statistics.kind == "write"


def test_work_under_way_is_counted_before_it_ends():
    one, two, done = Operation(), Operation(), [0]
    before = STATISTICS["bytes_decoded"]
    one.add(bytes_decoded=5)
    end = begin_amount("bytes_decoded", lambda: done[0] // 2, [one, two, None])
    done[0] = 6
    assert (one["bytes_decoded"], two["bytes_decoded"], one["reads"]) == (8, 3, 0)
    assert (one.snapshot(), two.snapshot()) == ({"bytes_decoded": 8}, {"bytes_decoded": 3})
    end(lambda: one.add(bytes_decoded=6))
    assert (one["bytes_decoded"], two["bytes_decoded"]) == (11, 0)
    assert STATISTICS["bytes_decoded"] - before == 11
    begun = attributed(two, lambda: begin_amount("reads", lambda: 1))
    assert two["reads"] == 1
    begun(lambda: None)
    assert two.snapshot() == {}
    begin_amount("reads", lambda: 1)(lambda: None)  # Of no operation.


@pytest.mark.parametrize("kind", [Statistics, Operation])
def test_reset_returns_what_was_counted(kind):
    before = STATISTICS["reads"]
    statistics = kind()
    for _ in range(250):
        statistics.add(reads=3)
    assert statistics.reset() == {"reads": 750}
    assert statistics.snapshot() == {}
    statistics.add(reads=1)
    assert statistics["reads"] == 1
    assert STATISTICS["reads"] - before == (751 if kind is Operation else 0)


@pytest.mark.parametrize("kind", [Statistics, Operation])
def test_many_threads_lose_nothing(kind):
    total = kind()

    def count():
        for i in range(2000):
            total.add(reads=1, bytes_fetched=10)
            if i % 300 == 0:
                total.snapshot()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.snapshot() == {"bytes_fetched": 80000, "reads": 8000}


def test_process_counter_exists():
    assert isinstance(STATISTICS, Statistics)


# --------------------------------------------------------------------------- what is counted

CHUNK_NBYTES = 4 * 4 * 2
INDEX_NBYTES = 4 * 16 + 4
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [4, 4],
        "codecs": [LITTLE],
        "index_codecs": [LITTLE, {"name": "crc32c"}],
    },
}


def array_of_four(codecs, chunk, shared=None, **context):
    """An array of 8 x 8, raw chunks of 4 x 4 inside; all are stored but the last."""
    metadata = {
        "shape": [8, 8],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    context = shared or gpustore.Context(context)
    store = gpustore.open(spec, create=True, context=context).result()
    values = np.arange(1, 65, dtype=np.uint16).reshape(8, 8)
    values[4:, 4:] = 0
    store.write(values).result()
    return store, values


def counted(operation):
    """Counters of an operation when it is done."""
    future = operation()
    future.result()
    return future.statistics.snapshot()


def test_counts_of_chunks():
    store, values = array_of_four([LITTLE], [4, 4])
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1}
    fetched = {"key_reads": 4, "bytes_fetched": 3 * CHUNK_NBYTES}
    assert counted(store.read) == {**whole, **fetched, "bytes_decoded": 3 * CHUNK_NBYTES}
    # The rows of a raw chunk that are wanted.
    row = {"reads": 1, "chunks_planned": 1, "key_reads": 1}
    row |= {"bytes_fetched": 4 * 2, "bytes_decoded": 4 * 2}
    assert counted(store[1, :4].read) == row
    missing = {"reads": 1, "chunks_planned": 1, "key_reads": 1, "chunks_missing": 1}
    assert counted(store[6, 6].read) == missing
    crops = {"reads": 1, "chunks_planned": 1, "key_reads": 1}
    crops |= {"bytes_fetched": CHUNK_NBYTES, "bytes_decoded": CHUNK_NBYTES}
    assert counted(lambda: store.read_many([[0, 0], [2, 2]], [2, 2])) == crops
    one = {"writes": 1, "chunks_planned": 1, "values_stored": 1}
    one |= {"bytes_stored": CHUNK_NBYTES, "bytes_encoded": CHUNK_NBYTES}
    assert counted(lambda: store[:4, :4].write(values[:4, :4])) == one
    read = {"key_reads": 1, "bytes_fetched": CHUNK_NBYTES}
    assert counted(lambda: store[1, :4].write(7)) == one | read
    # A chunk of nothing but the fill value is not stored.
    assert counted(lambda: store[4:, 4:].write(0)) == {"writes": 1, "chunks_planned": 1}


def test_counts_of_a_shard():
    store, values = array_of_four([SHARDED], [8, 8])
    index = {"key_reads": 2, "bytes_fetched": INDEX_NBYTES + 3 * CHUNK_NBYTES}
    index["bytes_decoded"] = 3 * CHUNK_NBYTES
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1}
    assert counted(store.read) == whole | index
    inner = {"reads": 1, "chunks_planned": 1, "key_reads": 2}
    fetched = {"bytes_fetched": INDEX_NBYTES + CHUNK_NBYTES, "bytes_decoded": CHUNK_NBYTES}
    assert counted(store[:4, :4].read) == inner | fetched
    missing = {"chunks_missing": 1, "key_reads": 1, "bytes_fetched": INDEX_NBYTES}
    assert counted(store[5, 5].read) == inner | missing
    nbytes = INDEX_NBYTES + 3 * CHUNK_NBYTES
    shard = {"writes": 1, "chunks_planned": 4, "values_stored": 1, "bytes_stored": nbytes}
    encoded = {"bytes_encoded": 3 * CHUNK_NBYTES}
    assert counted(lambda: store.write(values)) == shard | encoded
    part = {"chunks_planned": 1, "key_reads": 1, "bytes_fetched": nbytes}
    part["bytes_encoded"] = CHUNK_NBYTES
    assert counted(lambda: store[:4, :4].write(9)) == shard | part
    del store.kvstore["c/0/0"]
    assert counted(store[0, 0].read) == {**inner, "key_reads": 1, "chunks_missing": 1}


def test_counts_of_the_cache():
    store, _ = array_of_four([LITTLE], [4, 4], cache_pool={"total_bytes_limit": 1 << 20})
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1, "key_reads": 4}
    fetched = {"bytes_fetched": 3 * CHUNK_NBYTES, "bytes_decoded": 3 * CHUNK_NBYTES}
    assert counted(store.read) == whole | fetched
    # Each key is asked for its generation; no bytes come.
    assert counted(store.read) == {**whole, "cache_hits": 4}
    store.kvstore["c/0/0"] = bytes(store.kvstore["c/0/1"])
    changed = {"cache_hits": 3, "key_reads": 5, "bytes_fetched": CHUNK_NBYTES}
    changed["bytes_decoded"] = CHUNK_NBYTES
    assert counted(store.read) == whole | changed


@pytest.mark.parametrize("kind", ["chunks", "shard"])
def test_batch_counts_each_chunk_once(kind):
    store, _ = array_of_four(*(([LITTLE], [4, 4]) if kind == "chunks" else ([SHARDED], [8, 8])))

    def reads():
        with gpustore.Batch() as batch:
            several = [store[i, :4].read(batch=batch) for i in range(3)]
        for one in several[1:]:
            one.result()
        return several[0]

    wanted = {"reads": 3, "chunks_planned": 1, "key_reads": 1, "bytes_fetched": CHUNK_NBYTES}
    wanted["bytes_decoded"] = CHUNK_NBYTES
    if kind == "shard":
        wanted |= {"key_reads": 2, "bytes_fetched": INDEX_NBYTES + CHUNK_NBYTES}
    assert counted(reads) == wanted


# --------------------------------------------------------------------------- of one operation

ROWS = [[LITTLE], [4, 4]]
ARRAYS = {
    "chunks": (ROWS, {}),
    "shard": (([SHARDED], [8, 8]), {}),
    "cached": (ROWS, {"cache_pool": {"total_bytes_limit": 1 << 20}}),
}
SPANS = [slice(0, 8), slice(1, 2), slice(3, 7), slice(4, 8), slice(7, 0, -2)]

boxes = st.tuples(st.sampled_from(SPANS), st.sampled_from(SPANS))
operations = st.one_of(
    st.tuples(st.just("read"), boxes),
    st.tuples(st.just("crops"), st.lists(st.tuples(*[st.integers(0, 5)] * 2), min_size=1)),
    st.tuples(st.just("batch"), st.lists(boxes, min_size=1, max_size=4)),
    st.tuples(st.just("write"), boxes),
    st.tuples(st.just("copy"), boxes),
)


def begin(store, name, what):
    """The Futures of one operation, or of the reads of a batch."""
    if name == "crops":
        return [store.read_many(what, [3, 2])]
    if name == "batch":
        with gpustore.Batch() as batch:
            return [store[box].read(batch=batch) for box in what]
    part = store[what]
    if name == "copy":
        return [part.write(part)]
    return [part.write(5) if name == "write" else part.read()]


@given(
    kind=st.sampled_from(sorted(ARRAYS)),
    program=st.lists(operations, min_size=1, max_size=6),
    random=st.randoms(use_true_random=False),
)
def check_a_program(kind, program, random):
    order = list(range(sum(len(what) if name == "batch" else 1 for name, what in program)))
    random.shuffle(order)  # Hypothesis may end an example here: nothing has begun.
    layout, context = ARRAYS[kind]
    store, _ = array_of_four(*layout, **context)
    before = {name: STATISTICS[name] for name in COUNTERS}
    futures = [future for name, what in program for future in begin(store, name, what)]
    for number in order:
        futures[number].result()
    distinct = {id(future.statistics): future.statistics for future in futures}
    for name in COUNTERS:
        total = sum(statistics[name] for statistics in distinct.values())
        assert total == STATISTICS[name] - before[name], name
    assert sum(statistics["reads"] for statistics in distinct.values()) >= sum(
        name in ("read", "crops") for name, _ in program
    )


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_operations_together_count_what_the_process_counts():
    """In a child process, where no thread and no garbage of another test counts meanwhile."""
    child = os.fork()
    if child == 0:
        gc.freeze()
        status = 1
        try:
            check_a_program()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_read_counts_what_it_does_and_nothing_else():
    store, _ = array_of_four([LITTLE], [4, 4])
    first, second = store.read(), store[1, :4].read()
    second.result()
    first.result()
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1}
    assert first.statistics.snapshot() == {
        **whole,
        "key_reads": 4,
        "bytes_fetched": 3 * CHUNK_NBYTES,
        "bytes_decoded": 3 * CHUNK_NBYTES,
    }
    row = {"reads": 1, "chunks_planned": 1, "key_reads": 1}
    row |= {"bytes_fetched": 4 * 2, "bytes_decoded": 4 * 2}
    assert second.statistics.snapshot() == row
    assert store.kvstore.read("c/0/0").statistics.snapshot() == {}
    assert gpustore.Future(3).statistics.snapshot() == {}


def test_reads_of_many_threads_are_told_apart():
    store, _ = array_of_four([LITTLE], [4, 4])
    found = []

    def read(i):
        for _ in range(50):
            future = store[: 4 + 4 * (i % 2), :4].read()
            future.force()
            future.result()
            found.append((1 + i % 2, future.statistics["key_reads"]))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 300
    assert all(planned == read for planned, read in found)


def test_reads_that_a_batch_joins_have_one_statistics():
    store, _ = array_of_four([LITTLE], [4, 4])
    with gpustore.Batch() as batch:
        first, second = (store[i, :4].read(batch=batch) for i in range(2))
        alone = store.vindex[[0, 1], [0, 1]].read(batch=batch)
    for future in (first, second, alone):
        future.result()
    assert first.statistics is second.statistics
    assert first.statistics["reads"] == 2
    assert first.statistics["key_reads"] == 1
    assert alone.statistics["reads"] == alone.statistics["key_reads"] == 1


def test_reads_that_a_batch_repeats_count_all_they_did():
    store, _ = array_of_four([LITTLE], [4, 4])
    store.kvstore["c/0/1"] = b"short"
    with gpustore.Batch() as batch:
        good, bad = (store[0, 4 * j : 4 * j + 4].read(batch=batch) for j in range(2))
    assert good.result().shape == (4,)
    with pytest.raises(gpustore.CorruptChunkError):
        bad.result()
    assert good.statistics is bad.statistics
    assert good.statistics["reads"] == 2 + 2


def test_a_write_counts_the_read_of_its_source():
    store, _ = array_of_four([LITTLE], [4, 4])
    source, _ = array_of_four([LITTLE], [4, 4])
    write = store[:4, :4].write(source[4:, :4])
    write.result()
    counts = write.statistics.snapshot()
    assert (counts["reads"], counts["writes"], counts["bytes_stored"]) == (1, 1, CHUNK_NBYTES)
    assert write.copy.statistics is write.commit.statistics is write.statistics
    batch = gpustore.Batch()
    later = store[:4, :4].write(source[:4, :4], batch=batch)
    batch.submit()
    later.result()
    assert later.statistics["writes"] == 1


def test_reads_within_rechecked_bounds_count_too():
    context = gpustore.Context()
    store, _ = array_of_four([LITTLE], [4, 4], context)
    again = gpustore.open(store.spec(), context=context, recheck_cached_metadata=True).result()
    batch = gpustore.Batch()
    futures = [again.read(), again[:4].read(batch=batch), again.read_many([[0, 0]], [2, 2])]
    batch.submit()
    for future, chunks in zip(futures, (4, 2, 1), strict=True):
        future.result()
        assert future.statistics["key_reads"] == chunks


def test_what_a_callback_begins_is_no_part_of_the_operation():
    store, _ = array_of_four([LITTLE], [4, 4])
    begun = []
    write = store[:4, :4].write(7)
    write.copy.add_done_callback(lambda _: begun.append(store[1, :4].read()))
    write.result()
    (read,) = begun
    read.result()
    assert "reads" not in write.statistics.snapshot()
    assert read.statistics["reads"] == 1


def test_statistics_of_a_failed_and_of_a_cancelled_read_stay():
    store, _ = array_of_four([LITTLE], [4, 4])
    store.kvstore["c/0/0"] = b"short"
    failed = store.read()
    with pytest.raises(gpustore.CorruptChunkError):
        failed.result()
    assert failed.statistics["key_reads"] >= 1
    cancelled = store.read()
    cancelled.cancel()
    assert cancelled.statistics.snapshot() == {"chunks_planned": 4, "reads": 1}


def test_package_uses_only_counters_that_are_explained():
    unknown = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "loader":
            continue  # Loaders have statistics of their own: tests/loader/test_statistics.py.
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if ".add(" in text else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "add"
                and ast.unparse(node.func.value) != "np"
                and node.keywords
            ):
                names = {keyword.arg for keyword in node.keywords if keyword.arg}
                unknown += [f"{path.name}: {name}" for name in sorted(names - COUNTERS.keys())]
    assert unknown == []


@given(st.integers(1, 9), st.dictionaries(st.sampled_from(sorted(COUNTERS)), st.integers(0, 50)))
def test_work_is_divided_between_operations_without_rest(count, amounts):
    shared, operations = Operation(), [Operation() for _ in range(count)]
    Statistics.add(shared, **amounts)
    shared.divide([None, *operations, operations[0]])
    for name, amount in amounts.items():
        expected = [amount * i // count - amount * (i - 1) // count for i in range(1, count + 1)]
        assert [one[name] for one in operations] == expected
    shared.divide([None])


class AddsAtItsEnd:
    """Garbage of the collector, whose finalizer counts."""

    def __init__(self):
        self.me = self

    def __del__(self):
        STATISTICS.add(reads=1)


@pytest.mark.matrix("costly")
def test_a_finalizer_may_count_wherever_the_collector_runs():
    shared, parts = Operation(), [Operation() for _ in range(3)]
    steps = [
        lambda: attributed(shared, lambda: STATISTICS.add(key_reads=3)),
        shared.snapshot,
        partial(shared.divide, parts),
        shared.reset,
        STATISTICS.snapshot,
    ]

    def run():
        thresholds = gc.get_threshold()
        for allocations in range(1, 25):
            for step in steps:
                gc.collect()
                AddsAtItsEnd()
                gc.set_threshold(allocations)
                step()
                gc.set_threshold(*thresholds)

    before = STATISTICS["reads"]
    thread = threading.Thread(target=run, daemon=True)
    gc.freeze()  # Collections are quick from here on.
    thread.start()
    thread.join(60)
    gc.unfreeze()
    assert not thread.is_alive()
    gc.collect()
    assert STATISTICS["reads"] == before + 24 * len(steps)
