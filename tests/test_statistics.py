"""Tests of the counters."""

import ast
import threading
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore.statistics import COUNTERS, STATISTICS, Statistics

PACKAGE = Path(__file__).parents[1] / "gpustore"


def test_counts_reach_all_ancestors():
    process = Statistics()
    store = Statistics(process)
    one, two = Statistics(store), Statistics(store)
    one.add(reads=1, copies=2)
    two.add(reads=1, waits=0)
    assert process.snapshot() == store.snapshot() == {"copies": 2, "reads": 2}
    assert two.snapshot() == {"reads": 1}
    assert (one["copies"], two["copies"], two["launches"]) == (2, 0, 0)
    assert repr(one) == "Statistics({'copies': 2, 'reads': 1})"


def test_reset_returns_what_was_counted():
    parent = Statistics()
    child = Statistics(parent)
    child.add(reads=3)
    assert child.reset() == {"reads": 3}
    assert child.snapshot() == {}
    assert parent["reads"] == 3


def test_many_threads_lose_nothing():
    total = Statistics()
    parts = [Statistics(total) for _ in range(4)]

    def count(part):
        for _ in range(2000):
            part.add(reads=1, bytes_fetched=10)

    threads = [threading.Thread(target=count, args=(part,)) for part in parts]
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


def array_of_four(codecs, chunk, **context):
    """An array of 8 x 8, raw chunks of 4 x 4 inside; all are stored but the last."""
    metadata = {
        "shape": [8, 8],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    store = gpustore.open(spec, create=True, context=gpustore.Context(context)).result()
    values = np.arange(1, 65, dtype=np.uint16).reshape(8, 8)
    values[4:, 4:] = 0
    store.write(values).result()
    return store, values


def counted(operation):
    """What an operation adds to the counters of this process."""
    before = {name: STATISTICS[name] for name in COUNTERS}
    operation().result()
    return {n: STATISTICS[n] - before[n] for n in COUNTERS if STATISTICS[n] != before[n]}


def test_counts_of_chunks():
    store, values = array_of_four([LITTLE], [4, 4])
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1}
    assert counted(store.read) == {**whole, "key_reads": 4, "bytes_fetched": 3 * CHUNK_NBYTES}
    # The rows of a raw chunk that are wanted.
    row = {"reads": 1, "chunks_planned": 1, "key_reads": 1, "bytes_fetched": 4 * 2}
    assert counted(store[1, :4].read) == row
    missing = {"reads": 1, "chunks_planned": 1, "key_reads": 1, "chunks_missing": 1}
    assert counted(store[6, 6].read) == missing
    crops = {"reads": 1, "chunks_planned": 1, "key_reads": 1, "bytes_fetched": CHUNK_NBYTES}
    assert counted(lambda: store.read_many([[0, 0], [2, 2]], [2, 2])) == crops
    one = {"writes": 1, "chunks_planned": 1, "bytes_stored": CHUNK_NBYTES}
    assert counted(lambda: store[:4, :4].write(values[:4, :4])) == one
    read = {"key_reads": 1, "bytes_fetched": CHUNK_NBYTES}
    assert counted(lambda: store[1, :4].write(7)) == one | read
    # A chunk of nothing but the fill value is not stored.
    assert counted(lambda: store[4:, 4:].write(0)) == {"writes": 1, "chunks_planned": 1}


def test_counts_of_a_shard():
    store, values = array_of_four([SHARDED], [8, 8])
    index = {"key_reads": 2, "bytes_fetched": INDEX_NBYTES + 3 * CHUNK_NBYTES}
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1}
    assert counted(store.read) == whole | index
    inner = {"reads": 1, "chunks_planned": 1, "key_reads": 2}
    assert counted(store[:4, :4].read) == {**inner, "bytes_fetched": INDEX_NBYTES + CHUNK_NBYTES}
    missing = {"chunks_missing": 1, "key_reads": 1, "bytes_fetched": INDEX_NBYTES}
    assert counted(store[5, 5].read) == inner | missing
    nbytes = INDEX_NBYTES + 3 * CHUNK_NBYTES
    shard = {"writes": 1, "chunks_planned": 4, "bytes_stored": nbytes}
    assert counted(lambda: store.write(values)) == shard
    part = {"chunks_planned": 1, "key_reads": 1, "bytes_fetched": nbytes}
    assert counted(lambda: store[:4, :4].write(9)) == shard | part
    del store.kvstore["c/0/0"]
    assert counted(store[0, 0].read) == {**inner, "key_reads": 1, "chunks_missing": 1}


def test_counts_of_the_cache():
    store, _ = array_of_four([LITTLE], [4, 4], cache_pool={"total_bytes_limit": 1 << 20})
    whole = {"reads": 1, "chunks_planned": 4, "chunks_missing": 1, "key_reads": 4}
    assert counted(store.read) == {**whole, "bytes_fetched": 3 * CHUNK_NBYTES}
    # Each key is asked for its generation; no bytes come.
    assert counted(store.read) == {**whole, "cache_hits": 4}
    store.kvstore["c/0/0"] = bytes(store.kvstore["c/0/1"])
    changed = {"cache_hits": 3, "key_reads": 5, "bytes_fetched": CHUNK_NBYTES}
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
    if kind == "shard":
        wanted |= {"key_reads": 2, "bytes_fetched": INDEX_NBYTES + CHUNK_NBYTES}
    assert counted(reads) == wanted


def test_package_uses_only_counters_that_are_explained():
    unknown = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "add"
                and node.keywords
            ):
                names = {keyword.arg for keyword in node.keywords}
                unknown += [f"{path.name}: {name}" for name in sorted(names - COUNTERS.keys())]
    assert unknown == []
