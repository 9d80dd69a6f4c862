"""The cast driver, with TensorStore as oracle."""

import pickle
from asyncio import CancelledError
from threading import Event

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import MetadataError
from tests.drivers.parity import LIBRARIES, agree, check, outcome
from tests.emulator.queue import ORDERS
from tests.matrix import each
from tests.on_device import emulated, on_host

KEYWORDS = {
    "dtype": "float32",
    "fill_value": 2.7,
    "chunk_layout": {"read_chunk": {"shape": [2, 3]}, "write_chunk": {"shape": [2, 3]}},
}
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6) + np.float32(0.5)


def opened(library, folder=None):
    """An array of float32 with labels, units and a fill value."""
    file = {"driver": "file", "path": f"{folder}/a/", "file_io_sync": False}
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/" if folder is None else file,
        "schema": {
            "domain": {"shape": [4, 6], "labels": ["x", "y"]},
            "dimension_units": ["4 nm", None],
            **KEYWORDS,
        },
    }
    store = library.open(spec, create=True, open=True).result()
    store[...] = VALUES
    return store


PARTS = {
    "dtype": lambda store: store.dtype.name,
    "fill value": lambda store: store.fill_value.tolist(),
    "codec": lambda store: store.codec,
    "layout": lambda store: store.chunk_layout,
    "units": lambda store: [str(unit) for unit in store.dimension_units],
    "schema": lambda store: store.schema,
    "domain": lambda store: store.domain,
    "mode": lambda store: store.mode,
    "kvstore": lambda store: store.kvstore.url,
    "url": lambda store: store.url,
    "base": lambda store: store.base.spec(),
    "base of a part": lambda store: store[1:3].base.domain,
    "spec": lambda store: store.spec(),
    "minimal spec": lambda store: store.spec(minimal_spec=True),
    "spec of a part": lambda store: store[1:3, 2].spec(minimal_spec=True),
    "values": lambda store: store.read().result().tolist(),
    "values of a part": lambda store: store[1:3, ::2].read().result().tolist(),
    "resized": lambda store: store.resize(exclusive_max=[5, 6]).result().domain,
    "resolved": lambda store: store.resolve().result().domain,
    "layout of a read": lambda store: store.read(order="F").result().flags.f_contiguous,
}


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex64", "string", "json", "bool"])
def test_opened_casts_have_the_properties_of_tensorstore(dtype):
    stores = [lib.cast(opened(lib), dtype) for lib in LIBRARIES]
    for part, what in PARTS.items():
        results = [outcome(lambda store=store, f=what: f(store)) for store in stores]
        assert agree(*results), (part, results)


def test_casts_of_casts():
    stores = [lib.cast(lib.cast(opened(lib), "uint8"), "float64") for lib in LIBRARIES]
    for part in ("spec", "fill value", "values", "base", "url"):
        results = [outcome(lambda store=store, f=PARTS[part]: f(store)) for store in stores]
        assert agree(*results), (part, results)


WRITES = {
    "number": lambda store: store.write(7).result(),
    "too large": lambda store: store.write(300).result(),
    "smaller integers": lambda store: store.write(np.arange(6, dtype=np.int8)).result(),
    "larger integers": lambda store: store.write(np.arange(6, dtype=np.int16)).result(),
    "one column": lambda store: store[:, 3].write(np.arange(4, dtype=np.int8)).result(),
}


@pytest.mark.parametrize("case", WRITES)
def test_writes_are_converted_as_by_tensorstore(case):
    def written(lib):
        base = opened(lib)
        WRITES[case](lib.cast(base, "int8"))
        return base.read().result().tolist()

    results = [outcome(lambda lib=lib: written(lib)) for lib in LIBRARIES]
    assert agree(*results), results


def test_writes_between_stores():
    base = opened(gpustore)
    source = gpustore.array(np.arange(24, dtype=np.int16).reshape(4, 6))
    base.write(gpustore.cast(source, "float32")).result()
    assert np.array_equal(base.read().result(), source.read().result())


@pytest.mark.parametrize("dtype", ["char", "byte"])
def test_impossible_conversions_are_errors(tmp_path, dtype):
    check(lambda lib, root: lib.cast(opened(lib, root), dtype), tmp_path)
    check(
        lambda lib, root: (
            opened(lib, root) and lib.open(f"file://{root}/a/|zarr3:|cast:{dtype}").result()
        ),
        tmp_path,
    )


@each(("dtype", "base"), [("string", "float32"), ("bool", "complex64")])
@each("access", [{}, {"read": True}, {"write": True}, {"read": True, "write": True}])
def test_access_in_one_direction(tmp_path, dtype, base, access):
    def mode(lib, root):
        kvstore = f"file://{root}/b/"
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore,
            "dtype": base,
            "schema": {"domain": {"shape": [3]}},
        }
        lib.open(spec, create=True, open=True).result()
        store = lib.open(f"{kvstore}|zarr3:|cast:{dtype}", **access).result()
        return store.mode, store.readable, store.writable

    check(mode, tmp_path)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_missing_access_is_an_error(tmp_path, operation):
    def tried(lib, root):
        if operation == "write":
            return lib.cast(opened(lib, root), "string").write(b"a").result()
        zeros = lib.array(np.zeros(2, np.complex64))
        return lib.cast(zeros, "bool").read().result()

    check(tried, tmp_path)


ZARR3 = {"driver": "zarr3", "kvstore": "memory://a/"}
SPECS = [
    {},
    {"dtype": "int8"},
    {"base": ZARR3},
    {"base": 5, "dtype": "int8"},
    {"base": ZARR3, "dtype": "nope"},
    {"base": ZARR3, "dtype": "int8"},
    {"base": "memory://a|zarr3:", "dtype": "int8"},
    {"base": "memory://a", "dtype": "int8"},
    {"base": "memory://a|", "dtype": "int8"},
    {"base": ZARR3, "dtype": "int8", "create": True},
    {"base": ZARR3, "dtype": "int8", "open": True},
    {"base": ZARR3, "dtype": "int8", "kvstore": "memory://"},
    {"base": ZARR3, "dtype": "int8", "rank": 2},
    {"base": ZARR3, "dtype": "int8", "schema": {"rank": 2, "fill_value": 3}},
    {"base": ZARR3, "dtype": "int8", "schema": {"dtype": "int16"}},
    {"base": ZARR3, "dtype": "int8", "transform": {"input_shape": [3, 4]}},
    {"base": {**ZARR3, "dtype": "float32"}, "dtype": "string"},
    {"base": {**ZARR3, "dtype": "float32"}, "dtype": "char"},
    {"base": {**ZARR3, "create": True, "dtype": "float32"}, "dtype": "int8"},
    {"base": ZARR3, "dtype": "int8", "data_copy_concurrency": {"limit": 3}},
    {"base": ZARR3, "dtype": "int8", "context": {"data_copy_concurrency": {"limit": 3}}},
    {"base": ZARR3, "dtype": "int8", "foo": 3},
    {"base": {"driver": "cast", "base": ZARR3, "dtype": "uint8"}, "dtype": "int8"},
]
# TensorStore repeats within the base what the base said about its domain.
REPEATED = [
    {"base": {**ZARR3, "rank": 2}, "dtype": "int8"},
    {"base": {**ZARR3, "transform": {"input_shape": [3, 4]}}, "dtype": "int8"},
    {"base": {"driver": "array", "array": [1, 2], "dtype": "int32"}, "dtype": "int8"},
    {"base": {"driver": "json", "kvstore": "memory://a"}, "dtype": "int8"},
]
MEMBERS = {
    "json": lambda spec: spec.to_json(),
    "url": lambda spec: spec.url,
    "dtype": lambda spec: spec.dtype,
    "rank": lambda spec: spec.rank,
    "domain": lambda spec: spec.domain,
    "mode": lambda spec: spec.open_mode,
    "base": lambda spec: spec.base.dtype,
    "kvstore": lambda spec: spec.kvstore,
    "fill value": lambda spec: spec.fill_value,
}


@each("members", SPECS)
def test_specs_have_the_json_of_tensorstore(members):
    spec = {"driver": "cast", **members}
    for member, what in MEMBERS.items():
        results = [outcome(lambda lib=lib, f=what: f(lib.Spec(dict(spec)))) for lib in LIBRARIES]
        assert agree(*results), (member, results)


@pytest.mark.parametrize("members", REPEATED, ids=str)
def test_members_about_the_domain_of_the_base_appear_once(members):
    spec = gpustore.Spec({"driver": "cast", **members})
    theirs = ts.Spec({"driver": "cast", **members})
    json = spec.to_json()
    assert not json["base"].keys() & {"rank", "transform"}
    assert gpustore.Spec(json) == gpustore.Spec(theirs.to_json()) == spec
    assert ts.Spec(json).domain == theirs.domain
    assert str(spec.base.transform) == str(theirs.base.transform)


URLS = [
    *("memory://a|cast:int32", "memory://a|auto:|cast:int32", "memory://a|cast:int32|cast:int8"),
    *("memory://a|zarr3:|cast:float8_e5m2", "memory://a|cast://int8"),
    *("memory://a|cast:int32|zarr3:", "cast:int32", "memory://a|cast:int8?q", "memory://a|cast:int8#f"),
    *("memory://a|cast:json", "memory://a|zarr3:|cast:string|cast:json"),
]  # fmt: skip


@each("url", URLS)
def test_urls_are_read_and_printed_as_by_tensorstore(url):
    def printed(lib):
        spec = lib.Spec(url)
        return [spec.url, spec.to_json()]

    results = [outcome(lambda lib=lib: printed(lib)) for lib in LIBRARIES]
    assert agree(*results), results


@pytest.mark.parametrize("name", ["", "foo", "<u2", "uint4_"])
def test_a_url_names_a_data_type(name):
    with pytest.raises(MetadataError) as caught:
        gpustore.Spec(f"memory://a|cast:{name}")
    with pytest.raises(ValueError, match="ppported") as theirs:
        ts.Spec(f"memory://a|cast:{name}")
    assert str(caught.value) == str(theirs.value).replace("ppported", "pported")


def test_documents_examples(tmp_path, monkeypatch):
    """The examples with adapters of the auto driver's page work."""
    monkeypatch.chdir(tmp_path)
    gpustore.open("file://tmp/dataset.zarr|zarr3", dtype="int32", shape=[5], create=True).result()
    auto = {"driver": "auto", "kvstore": {"driver": "file", "path": "tmp/dataset.zarr"}}
    spec = {"base": auto, "driver": "cast", "dtype": "int64"}
    assert gpustore.Spec("file://tmp/dataset.zarr|cast:int64").to_json() == spec
    assert gpustore.Spec("file://tmp/dataset.zarr|auto|cast:int64").to_json() == spec
    table = gpustore.Spec("file:///tmp/dataset.zarr/|auto:|cast:uint32").to_json()
    auto = {"driver": "auto", "kvstore": {"driver": "file", "path": "/tmp/dataset.zarr/"}}
    assert table == {"driver": "cast", "dtype": "uint32", "base": auto}
    store = gpustore.open("file://tmp/dataset.zarr|cast:int64").result()
    json = store.spec().to_json()
    assert json["driver"] == "cast"
    assert json["dtype"] == "int64"
    assert json["transform"] == {"input_exclusive_max": [[5]], "input_inclusive_min": [0]}
    assert json["base"] == {
        "driver": "zarr3",
        "dtype": "int32",
        "kvstore": {"driver": "file", "path": "tmp/dataset.zarr/"},
        "metadata": {
            "chunk_grid": {"configuration": {"chunk_shape": [5]}, "name": "regular"},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
            "data_type": "int32",
            "fill_value": 0,
            "node_type": "array",
            "shape": [5],
            "zarr_format": 3,
        },
    }


def test_constraints_go_to_the_base(tmp_path):
    opened(gpustore, tmp_path)
    url = f"file://{tmp_path}/a/|zarr3:|cast:int8"
    assert gpustore.open(url, dtype="int8", shape=[4, 6]).result().dtype == gpustore.int8
    with pytest.raises(MetadataError, match="dtype"):
        gpustore.open(url, dtype="int16")
    with pytest.raises(ValueError, match='Error opening "cast" driver: Error opening "zarr3"'):
        gpustore.open(url, shape=[4, 7]).result()
    made = gpustore.open(
        {"driver": "cast", "dtype": "int16",
         "base": {"driver": "zarr3", "kvstore": f"file://{tmp_path}/n/", "dtype": "float64"}},
        create=True, shape=[3], fill_value=5,
    ).result()  # fmt: skip
    assert made.base.dtype == gpustore.float64
    assert made.base.fill_value == 5.0
    assert made.read().result().tolist() == [5, 5, 5]


def test_the_base_may_have_a_context_of_its_own():
    context = {"memory_key_value_store": {}, "cache_pool": {"total_bytes_limit": 9}}
    base = {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "a/"}}
    spec = {"driver": "cast", "dtype": "int8", "base": {**base, "context": context}}
    assert gpustore.Spec(spec).to_json() == spec
    assert pickle.loads(pickle.dumps(gpustore.Spec(spec))).to_json() == spec
    made = gpustore.open(
        {**spec, "base": {**spec["base"], "dtype": "int16", "create": True,
                          "schema": {"domain": {"shape": [2]}}}}
    ).result()  # fmt: skip
    assert made.spec(unbind_context=True).to_json()["context"]["cache_pool"] == {
        "total_bytes_limit": 9
    }


def test_a_cast_is_pickled(tmp_path):
    store = gpustore.cast(opened(gpustore, tmp_path), "int8")[1:3]
    again = pickle.loads(pickle.dumps(store))
    assert repr(again) == repr(store)
    assert np.array_equal(again.read().result(), store.read().result())
    memory = gpustore.open(ZARR3, create=True, dtype="int8", shape=[2]).result()
    kept = gpustore.cast(memory, "float32").spec(retain_context=True)
    memory[0] = 3
    assert gpustore.open(kept).result()[0].read().result() == 3.0


def test_specs_are_cast_too():
    base = {"driver": "array", "array": [1, 2], "dtype": "int32"}

    def printed(lib):
        spec = lib.cast(lib.Spec(dict(base)), "int8")
        return [spec.to_json(), spec[1].to_json()]

    results = [outcome(lambda lib=lib: printed(lib)) for lib in LIBRARIES]
    assert agree(*results), results
    with pytest.raises(TypeError, match="expected a TensorStore or a Spec"):
        gpustore.cast(3, "int8")


def test_reads_into_the_callers_memory(tmp_path):
    store = gpustore.cast(opened(gpustore, tmp_path), "int16")
    out = np.zeros((8, 12), np.int16)[::2, ::-2]
    assert store.read(out=out).result() is out
    assert np.array_equal(out, VALUES.astype(np.int16))
    with pytest.raises(ValueError, match="out has dtype float32, expected int16"):
        store.read(out=np.zeros((4, 6), np.float32))
    same = gpustore.cast(store.base, "float32")
    out = np.zeros((4, 6), np.float32)
    assert same.read(out=out).result() is out
    assert np.array_equal(out, VALUES)


def test_crops_and_batches(tmp_path):
    store = gpustore.cast(opened(gpustore, tmp_path), "uint8")
    crops = store.read_many([[0, 1], [2, 3]], [2, 3]).result()
    expected = VALUES.astype(np.uint8)
    assert np.array_equal(crops, [expected[0:2, 1:4], expected[2:4, 3:6]])
    with gpustore.Batch() as batch:
        futures = [store[i].read(batch=batch) for i in range(4)]
        assert not any(future.done() for future in futures)
    assert np.array_equal([future.result() for future in futures], expected)
    assert futures[0].statistics["chunks_planned"]


def test_large_reads_are_converted_in_parts():
    values = np.arange(3 * 2**19, dtype=np.int32).reshape(3, -1)
    store = gpustore.cast(gpustore.array(values), "float64")
    assert np.array_equal(store.read().result(), values)
    assert np.array_equal(store.T.read().result(), values.T)
    assert np.array_equal(store.read(order="F").result(), values)


def test_errors_of_the_base_come_through(tmp_path):
    store = gpustore.cast(opened(gpustore, tmp_path), "uint8")
    (tmp_path / "a/c/0/0").write_bytes(b"short")
    with pytest.raises(gpustore.CorruptChunkError, match="c/0/0"):
        store.read().result()
    with gpustore.Batch() as batch:
        future = store.read(batch=batch)
    with pytest.raises(gpustore.CorruptChunkError, match="c/0/0"):
        future.result()


def test_a_cast_can_be_cancelled(tmp_path):
    store = gpustore.cast(opened(gpustore, tmp_path), "uint8")
    batch = gpustore.Batch()
    future = store.read(batch=batch)
    done = Event()
    future.add_done_callback(lambda _: done.set())
    assert future.cancel()
    assert done.wait(30)
    batch.submit()
    with pytest.raises(CancelledError):
        future.result()


@pytest.mark.parametrize("order", ORDERS)
def test_a_device_converts_supported_types_itself(tmp_path, order):
    opened(gpustore, tmp_path)
    with emulated(order) as device:
        for target in ("float16", "bfloat16", "float64", "uint8", "int64"):
            _converted_by_the_device(device, f"file://{tmp_path}/a/|zarr3:|cast:{target}")


def _converted_by_the_device(device, url):
    store = gpustore.open(url, device=device.name).result()
    whole = VALUES.astype(store.dtype.numpy_dtype)
    assert store.device == device.name
    future = store[:, 1::2].read()
    assert np.array_equal(on_host(device, future.result()), whole[:, 1::2])
    assert future.statistics["host_conversions"] == future.statistics["bytes_to_host"] == 0
    crops = store.read_many([[0, 1], [2, 3]], [2, 3], order="F").result()
    assert np.array_equal(on_host(device, crops), [whole[0:2, 1:4], whole[2:4, 3:6]])
    assert on_host(device, store[1, 2].read().result()) == whole[1, 2]
    assert on_host(device, store[0:0].read().result()).shape == (0, 6)


@pytest.mark.parametrize("order", ORDERS)
def test_the_host_converts_the_rest_and_that_is_counted(tmp_path, order):
    opened(gpustore, tmp_path)
    with emulated(order) as device:
        _converted_by_the_host(device, f"file://{tmp_path}/a/|zarr3:|cast:float8_e5m2")
    assert gpustore.open(tmp_path / "a").result()[0, 0].read().result() == 10.0


def _converted_by_the_host(device, url):
    store = gpustore.open(url, device=device.name).result()
    dtype = store.dtype.numpy_dtype
    whole = VALUES.astype(dtype)
    for view, expected, layout in (
        (store, whole, "C"),
        (store, whole, "F"),
        (store[1:3, ::2], whole[1:3, ::2], "C"),
    ):
        future = view.read(order=layout)
        assert np.array_equal(on_host(device, future.result()), expected)
        assert future.statistics["host_conversions"] == 1
        assert future.statistics["bytes_to_host"] == view.size * 4
    out = device.empty((4, 6), dtype, "F", device.caller_stream()).array
    assert store.read(out=out).result() is out
    assert np.array_equal(on_host(device, out), whole)
    # Objects are in host memory whatever the device.
    texts = gpustore.cast(store, "string")
    assert texts.device == "cpu"
    assert texts[0, :2].read().result().tolist() == [b"0.5", b"1.5"]
    store[0, 0] = 10
