"""Tests of every registered kvstore: the contract, faults, and reads to a device.

| kvstore | contract | state machine with faults | reads to the emulated device |
| ------- | -------- | ------------------------- | ---------------------------- |
| each    | the module of its name | here, of what it lies in | here, in four formats |
"""

import importlib

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import gpustore
from gpustore import registry
from gpustore.errors import GpustoreError
from gpustore.kvstores.buckets.kvstore import BucketKvStore
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from tests.emulator.queue import ORDERS
from tests.kvstores import contract, read_contract
from tests.kvstores.places import PLACES
from tests.on_device import emulated, on_host

OF_NUMBERS = "neuroglancer_uint64_sharded"
"""Kvstore whose keys are numbers, with tests of its own in place of these."""

IDS = [id for id in registry.ids("kvstores") if id != OF_NUMBERS]


@pytest.mark.parametrize("id", IDS)
def test_contract_is_kept(id):
    """The module of its tests has taken over the whole contract, of reading or also of writing."""
    name = f"{id}.test_{id}"
    module = importlib.import_module(f"tests.kvstores.{name}")
    can_write = registry.find("kvstores", id).id != "http"
    suite = contract if can_write else read_contract
    wanted = {name for name in suite.__all__ if name.startswith("test_")}
    assert len(wanted) > 10
    assert {
        name for name in wanted if getattr(module, name, None) is getattr(suite, name)
    } == wanted
    assert hasattr(module, "make_store" if can_write else "make_filled")


@pytest.fixture
def make_place(id, tmp_path, monkeypatch):
    with PLACES[id](tmp_path, monkeypatch) as make:
        yield make


# ------------------------------------------------------------------------- faults

KEYS = ["a", "b/c", "b/d"]
VALUES = st.none() | st.binary(max_size=6) | st.integers(1, 9).map(lambda n: bytes([n]) * 3000)


class Model(RuleBasedStateMachine):
    """Each key has one of some values: more than one after a write of which nobody knows."""

    make_place = None

    def __init__(self):
        super().__init__()
        self.place = self.make_place()
        self.store = self.place.store
        self.possible = {key: {None} for key in KEYS}

    @property
    def can_write(self):
        return self.store.driver.can_write

    def expect(self, key, value):
        assert value in self.possible[key]
        self.possible[key] = {value}

    @rule(number=st.integers(0, 100), skip=st.integers(0, 6))
    def plan(self, number, skip):
        faults = self.place.faults
        self.place.plan(faults[number % len(faults)], skip)

    @rule(some=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1))
    def write(self, some):
        if not self.can_write:
            self.place.fill(some)
            self.possible.update({key: {value} for key, value in some.items()})
            return
        columns = self.store.write_many(WriteRequest(list(some), list(some.values())))
        for row, (key, value) in enumerate(some.items()):
            if row in columns.error:
                assert isinstance(columns.error[row], GpustoreError)
                assert columns.generation[row] == b""
                self.possible[key] |= {value}
            else:
                assert (columns.generation[row] == ABSENT) == (value is None)
                self.possible[key] = {value}

    @precondition(lambda self: self.can_write)
    @rule(key=st.sampled_from(KEYS), value=VALUES)
    def write_if_unchanged(self, key, value):
        read = self.store.read_many(ReadRequest([key]))
        if read.error:
            return
        columns = self.store.write_many(WriteRequest([key], [value], read.generation))
        if columns.error:
            self.possible[key] |= {value}
        else:
            # Nobody else has written, so the condition held.
            assert columns.generation[0]
            self.possible[key] = {value}

    @precondition(lambda self: self.can_write)
    @rule(key=st.sampled_from(KEYS), value=VALUES)
    def write_if_otherwise(self, key, value):
        columns = self.store.write_many(WriteRequest([key], [value], [b"77"]))
        # A bucket that has lost an answer takes equal bytes for its own.
        same = isinstance(self.store.driver, BucketKvStore) and value in self.possible[key] - {None}
        assert columns.error or columns.generation == [b""] or same

    @precondition(lambda self: self.can_write)
    @rule(low=st.sampled_from(["", "b", "b/d"]))
    def delete_range(self, low):
        path = self.store.path
        try:
            self.store.driver.delete_range(path + low, path + "z")
        except GpustoreError:
            gone = False
        else:
            gone = True
        for key in KEYS:
            if key >= low:
                self.possible[key] = {None} if gone else self.possible[key] | {None}

    @rule(stop=st.none() | st.just(0))
    def read(self, stop):
        columns = self.store.read_many(ReadRequest(KEYS, start=[0] * 3, stop=[stop] * 3))
        for row, key in enumerate(KEYS):
            if row in columns.error:
                assert isinstance(columns.error[row], GpustoreError)
                assert columns.value[row] is None
                assert columns.state[row] is ReadState.UNSPECIFIED
                continue
            value = columns.value[row]
            assert (columns.state[row] is ReadState.MISSING) == (value is None)
            assert (columns.generation[row] == ABSENT) == (value is None)
            if stop is None:
                self.expect(key, None if value is None else bytes(value))
            else:
                is_there = {one is not None for one in self.possible[key]}
                assert value in (None, b"")
                assert (value is not None) in is_there

    @precondition(lambda self: self.store.driver.can_list)
    @rule()
    def list(self):
        try:
            found = self.store.list().result()
        except GpustoreError:
            return
        assert found == sorted(found)
        for key in KEYS:
            assert (key.encode() in found) in {one is not None for one in self.possible[key]}

    @rule()
    def look(self):
        """Past the faults."""
        found = self.place.values()
        for key in KEYS:
            self.expect(key, found.get(key))


def check_faults(make_place, examples):
    Machine = type("Machine", (Model,), {"make_place": staticmethod(make_place)})
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=15,
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.matrix
@pytest.mark.parametrize("id", IDS)
def test_faults_are_errors_and_nothing_is_lost(make_place):
    check_faults(make_place, 15)


@pytest.mark.long
@pytest.mark.parametrize("id", IDS)
def test_faults_are_errors_and_nothing_is_lost_long(make_place):
    check_faults(make_place, 200)


# ------------------------------------------------------------------------- devices

SHAPE = (40, 50)
VOLUME = np.arange(40 * 50, dtype="uint16").reshape(SHAPE)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDS = {"chunk_shape": [5, 10], "codecs": [BYTES, {"name": "crc32c"}]}
FORMATS = {
    "raw": ("zarr3", {"codecs": [BYTES]}),
    "zstd": ("zarr3", {"codecs": [BYTES, {"name": "zstd"}]}),
    "shards": ("zarr3", {"codecs": [{"name": "sharding_indexed", "configuration": SHARDS}]}),
    "blosc": ("zarr", {"compressor": {"id": "blosc"}}),
}


def fill_with_arrays(place):
    """Store an array of each format, written in memory."""
    context = gpustore.Context()
    for name, (driver, metadata) in FORMATS.items():
        kvstore = {"driver": "memory", "path": f"{name}/"}
        layout = {"grid_origin": [0, 0], "write_chunk": {"shape": [10, 20]}}
        schema = {"dtype": "uint16", "domain": {"shape": list(SHAPE)}, "chunk_layout": layout}
        spec = {"driver": driver, "kvstore": kvstore, "metadata": metadata, "schema": schema}
        gpustore.open(spec, create=True, context=context).result()[...] = VOLUME
    values = gpustore.KvStore.open("memory://", context=context).result()
    place.fill({key.decode(): values[key] for key in values.list().result()})


def check_device(place, name, device):
    driver = FORMATS[name][0]
    kvstore = {**place.json, "path": f"{place.json.get('path', '')}{name}/"}
    array = {"driver": driver, "kvstore": kvstore}
    # As it is, as it is found, and as another type.
    for spec in (array, {"driver": "auto", "kvstore": kvstore}):
        store = gpustore.open(spec, device=device.name, context=place.context).result()
        for part in (np.s_[:, :], np.s_[3:38:5, 49:7:-2]):
            assert np.array_equal(on_host(device, store[part].read().result()), VOLUME[part])
        del store
    cast = {"driver": "cast", "base": array, "dtype": "float32"}
    store = gpustore.open(cast, device=device.name, context=place.context).result()
    found = on_host(device, store.read().result())
    assert found.dtype == np.float32
    assert np.array_equal(found, VOLUME)


@pytest.mark.matrix
@pytest.mark.parametrize("id", IDS)
def test_the_device_reads_the_same_bytes(make_place):
    place = make_place()
    fill_with_arrays(place)
    with emulated() as device:
        for name in FORMATS:
            check_device(place, name, device)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("id", IDS)
def test_the_device_reads_the_same_bytes_in_all_orders(make_place, name, order):
    place = make_place()
    fill_with_arrays(place)
    with emulated(order, seed=1) as device:
        check_device(place, name, device)
