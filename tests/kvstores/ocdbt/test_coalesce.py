"""Reads of data files that are joined: the same bytes, with fewer ranges."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.errors import LimitError, MismatchError, StoreIOError
from gpustore.kvstores.arena import Arena
from gpustore.kvstores.columns import ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.ocdbt import coalesce
from gpustore.kvstores.ocdbt.coalesce import Coalescer, Coalescing
from gpustore.resources._duration import parse_duration
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.ocdbt.tensorstore_ocdbt import Opened, Recorded, TensorStoreDatabase
from tests.on_device import emulated, on_host

NAME = "experimental_read_coalescing_"
FILES = {"d/a": bytes(range(250)) * 4, "d/b": b"0123456789"}


def base_of(files, rules=()):
    store = KvStore.open("memory://").result()
    store.write_many(WriteRequest(list(files), list(files.values()))).raise_first()
    return Recorded(store.driver, rules)


def coalescer(base, threshold=None, merged=None, interval=None):
    duration = None if interval is None else parse_duration(interval)
    return Coalescer(base.read_many, Coalescing(threshold, merged, duration))


def request(rows, **options):
    return ReadRequest(
        [key for key, _, _ in rows],
        start=[start for _, start, _ in rows],
        stop=[stop for _, _, stop in rows],
        **options,
    )


RANGES = st.tuples(st.sampled_from(["d/a", "d/b", "d/none"]), st.integers(0, 1010)).flatmap(
    lambda row: st.integers(row[1], row[1] + 60).map(lambda stop: (*row, stop))
)


@given(
    st.lists(RANGES, max_size=12),
    st.none() | st.integers(0, 300),
    st.none() | st.integers(0, 200),
    st.booleans(),
)
def test_the_same_is_read_with_fewer_ranges(rows, threshold, merged, in_arena):
    base = base_of(FILES)
    into = Arena() if in_arena else None
    found = coalescer(base, threshold, merged).read(request(rows, into=into))
    ranges = len(base.read)
    wanted = base_of(FILES).read_many(request(rows))
    assert found.state == wanted.state
    assert sorted(found.error) == sorted(wanted.error)
    for i, value in enumerate(wanted.value):
        assert (None if found.value[i] is None else bytes(found.value[i])) == value
    if not found.error:
        assert ranges <= len(rows)


def test_gaps_and_lengths_are_bounded():
    rows = [("d/a", 10, 20), ("d/a", 25, 30), ("d/b", 0, 3), ("d/a", 36, 40), ("d/a", 12, 14)]

    def count(*coalescing):
        base = base_of(FILES)
        coalescer(base, *coalescing).read(request(rows)).raise_first()
        assert base.requests == 1
        return len(base.read)

    # Those within others are joined in any case.
    assert [count(n) for n in (None, 0, 4, 5, 6, 100)] == [4, 4, 4, 3, 2, 2]
    assert [count(100, n) for n in (0, 5, 10, 19, 20, 29, 30)] == [2, 5, 4, 3, 3, 3, 2]


def test_an_error_of_one_range_leaves_the_others():
    rows = [("d/b", 0, 5), ("d/b", 5, 10), ("d/b", 10, 12)]
    found = coalescer(base_of(FILES)).read(request(rows))
    assert sorted(found.error) == [2]
    assert isinstance(found.error[2], MismatchError)
    assert [bytes(value) for value in found.value[:2]] == [b"01234", b"56789"]
    found = coalescer(base_of(FILES)).read(request(rows[:2], max_nbytes=4))
    assert all(isinstance(found.error[i], LimitError) for i in (0, 1))


def test_threads_that_come_within_the_interval_read_together(monkeypatch):
    base = base_of(FILES)
    joined = coalescer(base, 0, None, "1ms")
    wait_for(joined, 3, monkeypatch)
    results = {}

    def read(i):
        results[i] = joined.read(request([("d/b", i, i + 1), ("d/a", i, i + 1)]))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for i in range(3):
        assert [bytes(value) for value in results[i].value] == [b"%d" % i, bytes([i])]
    assert base.requests == 1
    assert sorted(base.read) == ["d/a", "d/b"]


def wait_for(joined, count, monkeypatch, *, then=None):
    """Instead of waiting for some time, wait for some threads."""

    def sleep(interval_s):
        assert interval_s == 0.001
        end = time.monotonic() + 30
        while len(joined._waiting) < count:
            assert time.monotonic() < end
        if then is not None:
            raise then

    monkeypatch.setattr(coalesce.time, "sleep", sleep)


def test_thread_that_is_interrupted_leaves_the_reads_of_others(monkeypatch):
    base = base_of(FILES)
    joined = coalescer(base, 0, None, "1ms")
    wait_for(joined, 2, monkeypatch, then=KeyboardInterrupt)
    results = []

    def read():
        try:
            results.append(bytes(joined.read(request([("d/b", 0, 2)])).value[0]))
        except KeyboardInterrupt:
            results.append(b"interrupted")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [b"01", b"interrupted"]
    assert not joined._waiting


@pytest.mark.parametrize("interval", ["inf", "1h", "-1s", "-inf"])
def test_waits_are_bounded(interval):
    assert 0 <= coalescer(base_of(FILES), None, None, interval)._interval_s <= 1


def test_failure_of_the_base_is_an_error_of_each_row():
    base = base_of(FILES, [Rule(Fault.ERROR, times=100)])
    found = coalescer(base).read(request([("d/b", 0, 2), ("d/b", 2, 4)]))
    assert all(isinstance(found.error[i], StoreIOError) for i in (0, 1))
    assert found.state == [ReadState.UNSPECIFIED] * 2


def test_values_and_nodes_of_a_database_are_joined():
    members = {f"{NAME}threshold_bytes": 1000, f"{NAME}interval": "0"}
    config = {"max_inline_value_bytes": 0, "max_decoded_node_bytes": 200}
    plain = Opened(config)
    items = {f"k{i:02}": b"%02d" % i * 10 for i in range(40)}
    plain.apply(items)
    keys = [*items, "none"]
    counts = []
    for some in ({}, members):
        store, base = plain.record(**some)
        columns = store.read_many(ReadRequest(keys))
        columns.raise_first()
        assert [bytes(value) for value in columns.value[:-1]] == list(items.values())
        assert columns.state[-1] is ReadState.MISSING
        counts.append(sum(key.startswith("d/") for key in base.read))
        assert store.list().result() == [key.encode() for key in items]
    height = store.driver._version().root_height
    assert counts[0] > 50
    assert counts[1] == height + 2  # One range for each level, and one for the values.
    theirs = TensorStoreDatabase(files=plain.files, **members)
    assert theirs.items() == plain.items()
    assert store.spec().to_json() == theirs.store.spec().to_json()


def test_the_device_gets_the_same_bytes(tmp_path):
    kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/", f"{NAME}threshold_bytes": 100}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    layout = gpustore.ChunkLayout(chunk_shape=[100, 100])
    volume = np.arange(250 * 300, dtype="uint16").reshape(250, 300)
    made = gpustore.open(
        spec, create=True, dtype="uint16", shape=[250, 300], chunk_layout=layout
    ).result()
    made[...] = volume
    with emulated() as device:
        store = gpustore.open(spec, device=device.name).result()
        assert "straight to the device" not in str(store.explain())
        future = store.read()
        assert np.array_equal(on_host(device, future.result()), volume)
        assert future.statistics["bytes_direct"] == 0
        del store, future


def test_faulty_base_is_no_missing_value():
    plain = Opened({"max_inline_value_bytes": 0}, **{f"{NAME}merged_bytes": 10})
    plain.apply({"a": b"1" * 20})
    assert isinstance(plain.record()[1], FaultyKvStore)
    for skip in range(3):
        store, base = plain.record([Rule(Fault.ERROR, skip=skip)])
        with pytest.raises(StoreIOError, match="injected"):
            store["a"]
        assert base.rules[0].injected == 1
        assert store["a"] == b"1" * 20
