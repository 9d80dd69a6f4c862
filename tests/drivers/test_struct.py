"""Zarr v3 records and raw bits: ``struct``, ``structured``, ``r<N>``, through every kind of chain.

TensorStore 0.1.86 aborts the process for some raw bits, so it is asked about numbers only; where it
has no answer the model is NumPy's structured array.
"""

import base64
import json

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore

FIELDS = {"a": "int16", "b": "r24", "c": "float32", "d": "bool", "e": "complex64", "f": "int4"}
NUMBERS = {name: kind for name, kind in FIELDS.items() if kind != "r24"}
CHAINS = {
    "little": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "big": [{"name": "bytes", "configuration": {"endian": "big"}}],
    "blosc": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": {"shuffle": "shuffle", "typesize": 8}},
    ],
    "transpose": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        "crc32c",
    ],
    "sharded": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 3],
                "codecs": [
                    {"name": "transpose", "configuration": {"order": [1, 0]}},
                    {"name": "bytes", "configuration": {"endian": "big"}},
                    "zstd",
                ],
            },
        }
    ],
    "transposed shards": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 2]}},
    ],
}


def struct(fields):
    members = [{"name": name, "data_type": kind} for name, kind in fields.items()]
    return {"name": "struct", "configuration": {"fields": members}}


def record_of(fields):
    def part(kind):
        return np.dtype("V3") if kind == "r24" else gpustore.dtype(kind).array_dtype

    return np.dtype([(name, part(kind)) for name, kind in fields.items()])


def spec_of(kvstore, data_type, codecs, field="", shape=(5, 7), chunk=(4, 6), **metadata):
    members = {
        "data_type": data_type,
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": codecs,
        **metadata,
    }
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": members}
    return spec | ({"field": field} if field else {})


def random_records(record, shape, seed):
    data = np.random.default_rng(seed).integers(0, 2, (*shape, record.itemsize), np.uint8)
    return data.view(record).reshape(shape)


def part(records, field):
    values = np.array(records[field], order="C")
    return values[..., None].view("V1") if values.dtype.type is np.void else values


@pytest.mark.matrix
@pytest.mark.parametrize("chain", CHAINS)
def test_fields_keep_each_other(chain, tmp_path):
    record = record_of(FIELDS)
    records = random_records(record, (5, 7), 0)
    for field in FIELDS:
        spec = spec_of(f"file://{tmp_path}/a/", struct(FIELDS), CHAINS[chain], field)
        store = gpustore.open(spec, create=True, open=True).result()
        store[...] = part(records, field)
        assert np.array_equal(store.read().result(), part(records, field))
        crops = store.read_many([[1, 2, *(0,) * (store.rank - 2)]], [3, 4, *store.shape[2:]])
        assert np.array_equal(crops.result()[0], part(records, field)[1:4, 2:6])
        assert np.array_equal(store[::-2, 3].read().result(), part(records, field)[::-2, 3])
        assert np.array_equal(
            store[[4, 0], [1, 1]].read().result(), part(records, field)[[4, 0], 1]
        )
    void = gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "open_as_void": True}
    ).result()
    order = ">" if chain in ("big", "transpose", "sharded") else "<"
    assert void.read().result().tobytes() == records.astype(record.newbyteorder(order)).tobytes()
    void[0, 0] = np.zeros(record.itemsize, "V1")
    assert not opened(tmp_path, "c")[0, 0].read().result()


def opened(path, field="", *, library=gpustore, **members):
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/a/", **members}
    return library.open(spec | ({"field": field} if field else {})).result()


@pytest.mark.parametrize("chain", CHAINS)
def test_tensorstore_agrees_about_numbers(chain, tmp_path):
    records = random_records(record_of(NUMBERS), (5, 7), 1)
    codecs = CHAINS[chain]
    for writer, reader, kvstore in (
        (ts, gpustore, f"file://{tmp_path}/ts/a/"),
        (gpustore, ts, f"file://{tmp_path}/ours/a/"),
    ):
        for field in NUMBERS:
            spec = spec_of(kvstore, struct(NUMBERS), codecs, field)
            writer.open(spec, create=True, open=True).result().write(records[field]).result()
        for field in NUMBERS:
            store = reader.open({"driver": "zarr3", "kvstore": kvstore, "field": field}).result()
            assert np.array_equal(store.read().result(), records[field])
    ours, theirs = (
        json.loads((tmp_path / name / "a/zarr.json").read_bytes()) for name in ("ours", "ts")
    )
    assert ours == theirs


@pytest.mark.parametrize("field", NUMBERS)
def test_specs_are_those_of_tensorstore(field, tmp_path):
    spec = spec_of(f"file://{tmp_path}/a/", struct(NUMBERS), CHAINS["sharded"], field)
    theirs = ts.open(spec, create=True).result()
    ours = opened(tmp_path, field)
    for minimal in (False, True):
        found, expected = (s.spec(minimal_spec=minimal).to_json() for s in (ours, theirs))
        assert found == expected
    assert ours.schema.to_json() == theirs.schema.to_json()
    assert gpustore.Spec(spec).schema.to_json() == ts.Spec(spec).schema.to_json()


FILL = {"a": -3, "b": "AQID", "c": "NaN", "d": True, "e": [1.0, "-Infinity"], "f": -8}


def test_fill_values(tmp_path):
    spec = spec_of(f"file://{tmp_path}/a/", struct(FIELDS), CHAINS["big"], "b", fill_value=FILL)
    store = gpustore.open(spec, create=True).result()
    assert store.domain.exclusive_max == (5, 7, 3)
    assert store.fill_value.tobytes() == b"\1\2\3"
    assert json.loads((tmp_path / "a/zarr.json").read_bytes())["fill_value"] == FILL
    for view in (store, store[1:3, ::2, ::-1], store[[0, 1], [2, 3]]):
        shown = view.read().result()
        expected = [3, 2, 1] if view.shape == (2, 4, 3) else [1, 2, 3]
        assert (shown.view("u1") == expected).all()
    store[0, 0, 1] = np.void(b"\7")
    for field in FIELDS:
        shown = opened(tmp_path, field)
        if field != "b":
            element = np.broadcast_to(shown.fill_value, shown.shape)
            assert np.array_equal(shown.read().result().view("V1"), element.copy().view("V1"))
    assert opened(tmp_path, "b")[0, :2].read().result().tobytes() == b"\1\7\3\1\2\3"
    assert opened(tmp_path, "a").fill_value == -3


@pytest.mark.parametrize(
    ("data_type", "fill_value", "shown"),
    [
        ("r16", "AQI=", b"\1\2"),
        ("r16", [1, 2], b"\1\2"),
        ({"name": "raw_bytes", "configuration": {"length_bytes": 3}}, "AQID", b"\1\2\3"),
        ({"name": "structured", "configuration": {"fields": [["x", "uint16"]]}}, "AQI=", b"\1\2"),
        ([["x", "uint16"]], [513], b"\1\2"),
        ({"name": "struct", "configuration": {"fields": [["x", "uint16"]]}}, 513, b"\1\2"),
    ],
)
def test_forms_of_other_writers(data_type, fill_value, shown, tmp_path):
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    spec = spec_of("memory://", data_type, codecs, fill_value=fill_value)
    store = gpustore.open(spec, create=True).result()
    assert store.fill_value.tobytes() == shown
    document = json.loads(store.kvstore["zarr.json"])
    if store.dtype == gpustore.byte:
        assert document["data_type"] == f"r{8 * len(shown)}"
        assert base64.b64decode(document["fill_value"]) == shown
        values = np.arange(35 * len(shown), dtype="u1").view("V1").reshape(5, 7, -1)
        store[...] = values
        assert np.array_equal(store.read().result(), values)
    else:
        assert document["data_type"]["name"] == "struct"
        assert document["fill_value"] == 513


def test_writes_of_zarr_python_are_read(tmp_path):
    import zarr

    record = np.dtype([("x", "<i2"), ("y", "<f4")])
    records = np.zeros((5, 7), record)
    records["x"] = np.arange(35).reshape(5, 7)
    records["y"] = records["x"] / 2
    with pytest.warns(zarr.errors.UnstableSpecificationWarning):
        array = zarr.create_array(
            tmp_path / "a", shape=(5, 7), chunks=(2, 3), dtype=record, zarr_format=3
        )
    array[...] = records
    for field in "xy":
        assert np.array_equal(opened(tmp_path, field).read().result(), records[field])


def test_resize_and_names_of_dimensions(tmp_path):
    spec = spec_of(f"file://{tmp_path}/a/", struct(FIELDS), CHAINS["sharded"], "b")
    spec["metadata"]["dimension_names"] = ["y", "x"]
    spec["metadata"]["attributes"] = {"dimension_units": ["nm", None]}
    store = gpustore.open(spec, create=True).result()
    assert store.domain.labels == ("y", "x", "")
    assert [None if unit is None else str(unit) for unit in store.dimension_units] == [
        "nm",
        None,
        None,
    ]
    assert store.chunk_layout.read_chunk.shape == (2, 3, 3)
    assert store.chunk_layout.write_chunk.shape == (4, 6, 3)
    assert store.chunk_layout.inner_order == (1, 0, 2)
    with pytest.raises(gpustore.MismatchError, match="would affect other fields"):
        store.resize(exclusive_max=[8, None, None]).result()
    grown = store.resize(exclusive_max=[8, None, None], resize_tied_bounds=True).result()
    assert grown.shape == (8, 7, 3)
    assert opened(tmp_path, "a").shape == (8, 7)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, 'Must specify a "field" that is one of: ["a","b","c","d","e","f"]'),
        ({"field": "q"}, 'Requested field "q" is not one of'),
        ({"field": "a", "open_as_void": True}, "are mutually exclusive"),
    ],
)
def test_the_part_to_open_must_be_named(members, text, tmp_path):
    spec = spec_of(f"file://{tmp_path}/a/", struct(FIELDS), CHAINS["little"], "a")
    gpustore.open(spec, create=True).result()
    with pytest.raises(ValueError, match="field") as caught:
        opened(tmp_path, **members)
    assert text in str(caught.value)


@st.composite
def structures(draw):
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    sharded = draw(st.booleans())
    rank = draw(st.integers(0, 2))
    inner = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    chunk = tuple(n * draw(st.integers(1, 3)) for n in inner) if sharded else inner
    endian = {
        "name": "bytes",
        "configuration": {"endian": draw(st.sampled_from(["little", "big"]))},
    }
    codecs = [endian, *draw(st.sampled_from([[], ["gzip"], ["crc32c"], ["blosc"]]))]
    if rank == 2 and draw(st.booleans()):
        codecs.insert(0, {"name": "transpose", "configuration": {"order": [1, 0]}})
    if sharded:
        configuration = {"chunk_shape": list(inner), "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    shape = tuple(draw(st.integers(0, 2 * n + 1)) for n in chunk)
    return {name: FIELDS[name] for name in names}, codecs, shape, chunk


@pytest.mark.matrix
@given(structures(), st.integers(0, 2**32 - 1))
def test_random_structures(case, seed):
    fields, codecs, shape, chunk = case
    record = record_of(fields)
    rng = np.random.default_rng(seed)
    model = np.zeros(shape, record)
    context = gpustore.Context()
    stores = {}
    for field in fields:
        spec = spec_of("memory://", struct(fields), codecs, field, shape, chunk)
        stores[field] = gpustore.open(spec, create=True, open=True, context=context).result()
    for _ in range(5):
        field = str(rng.choice(list(fields)))
        box = []
        for size in shape:
            a, b = sorted(int(i) for i in rng.integers(0, size + 1, 2))
            box.append(slice(a, b))
        values = random_records(record, shape, int(rng.integers(2**32)))
        full = (slice(None),) * (stores[field].rank - len(box))
        stores[field][(*box, *full)].write(part(values, field)[tuple(box)]).result()
        model[field][tuple(box)] = values[field][tuple(box)]
        for other in fields:
            assert np.array_equal(stores[other].read().result(), part(model, other))
