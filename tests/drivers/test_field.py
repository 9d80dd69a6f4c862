"""Structured data types, strings and raw bytes: fields are opened one by one, and keep each other.

Values are compared with NumPy's structured arrays and with TensorStore, in both directions.
"""

import base64
import json
import pickle
import threading

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.metadata.data_type import v2_dtype_to_json
from tests.matrix import each

RECORD = np.dtype(
    [("x", "<i2"), ("y", ">f4", (2, 3)), ("z", "S3"), ("v", "V2"), ("b", "?"), ("c", ">c8")]
)
COMPRESSORS = [None, {"id": "zlib", "level": 1}, {"id": "blosc", "cname": "lz4", "shuffle": 1}]


def spec_of(path, record=RECORD, field="", **metadata):
    members = {
        "dtype": v2_dtype_to_json(record),
        "shape": [5, 7],
        "chunks": [2, 3],
        "compressor": None,
        **metadata,
    }
    spec = {"driver": "zarr", "kvstore": f"file://{path}/a/", "metadata": members}
    return spec | ({"field": field} if field else {})


def opened(path, field="", *, library=gpustore, **members):
    spec = {"driver": "zarr", "kvstore": f"file://{path}/a/", **members}
    return library.open(spec | ({"field": field} if field else {})).result()


def random_records(record, shape, seed=0):
    """Records of random bytes that are legal values."""
    data = np.random.default_rng(seed).integers(0, 2, (*shape, record.itemsize), np.uint8)
    return data.view(record).reshape(shape)


def part(records, field):
    """A field as gpustore shows it: strings and bytes one by one, in native byte order."""
    values = np.array(records[field], order="C")
    if values.dtype.type in (np.void, np.bytes_):
        one = np.dtype(f"{values.dtype.kind}1")
        return values[..., None].view(one)
    return values.astype(values.dtype.newbyteorder("="))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_fields_are_those_of_numpy(order, compressor, tmp_path):
    records = random_records(RECORD, (5, 7))
    for i, field in enumerate(RECORD.names):
        spec = spec_of(tmp_path, field=field, order=order, compressor=compressor)
        store = gpustore.open(spec, create=True, open=True).result()
        assert store.shape == part(records, field).shape
        store.write(part(records, field)).result()
        for other in RECORD.names[: i + 1]:
            assert np.array_equal(opened(tmp_path, other).read().result(), part(records, other))
    for field in ("x", "y", "z", "b", "c"):
        # What its `read` returns for strings has elements without bytes.
        theirs = np.zeros_like(part(records, field))
        ts.array(theirs).write(opened(tmp_path, field, library=ts)).result()
        assert np.array_equal(theirs, part(records, field))
    void = opened(tmp_path, open_as_void=True)
    assert void.domain.exclusive_max == (5, 7, RECORD.itemsize)
    assert void.read().result().tobytes() == records.tobytes()


@pytest.mark.parametrize("order", "CF")
def test_writes_of_tensorstore_are_read(order, tmp_path):
    records = random_records(RECORD, (5, 7))
    for field in ("x", "y", "z", "b", "c"):
        spec = spec_of(tmp_path, field=field, order=order)
        store = ts.open(spec, create=True, open=True).result()
        store.write(part(records, field)).result()
    for field in ("x", "y", "z", "b", "c"):
        assert np.array_equal(opened(tmp_path, field).read().result(), part(records, field))


@pytest.mark.parametrize("field", ["x", "y", "z", "v", "c", ""])
def test_views_of_fields(field, tmp_path):
    records = random_records(RECORD, (5, 7))
    gpustore.open(spec_of(tmp_path, field="x"), create=True).result()
    selected = {} if field else {"open_as_void": True}
    store = opened(tmp_path, field, **selected)
    expected = part(records, field) if field else records[..., None].view("V1")
    store[...] = expected
    full = (slice(None),) * (store.rank - 2)
    for index in (
        (slice(1, 4), slice(None, None, 2), *full),
        (slice(4, None, -1), 3, *full),
        (2, 5),
        (slice(None), slice(None), *(1 for _ in full)),
        (..., slice(1, 2)),
        ([3, 0, 3], [1, 6, 1]),
    ):
        found = store[index].read().result()
        assert np.array_equal(found, expected[index]), index
    assert np.array_equal(store.T.read(order="F").result(), expected.T)
    out = np.zeros(store.shape, store.dtype.array_dtype)
    assert store.read(out=out).result() is out
    assert np.array_equal(out, expected)
    starts = [[0, 0, *(0 for _ in full)], [3, 4, *(0 for _ in full)]]
    crops = store.read_many(starts, [2, 3, *store.shape[2:]]).result()
    assert np.array_equal(crops, np.stack([expected[:2, :3], expected[3:, 4:]]))


BASES = ["|b1", "|i1", "<u2", ">i4", "<u8", ">f2", "<f8", ">c8", "|S1", "|S4", "|V3", "int4"]


@st.composite
def structures(draw):
    names = draw(st.lists(st.sampled_from("abcdé"), min_size=1, max_size=4, unique=True))
    fields = []
    for name in names:
        shape = draw(st.sampled_from([(), (), (1,), (3,), (2, 2)]))
        base = draw(st.sampled_from(BASES))
        fields.append([name, base, list(shape)] if shape else [name, base])
    rank = draw(st.integers(0, 2))
    shape = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    return {
        "dtype": fields,
        "shape": shape,
        "chunks": [draw(st.integers(1, n + 1)) for n in shape],
        "order": draw(st.sampled_from("CF")),
        "compressor": draw(st.sampled_from(COMPRESSORS)),
    }


@pytest.mark.matrix
@given(structures(), st.booleans(), st.integers(0, 2**32 - 1))
def test_random_structures(metadata, has_fill, seed):
    from gpustore.metadata.data_type import parse_v2_dtype

    record = parse_v2_dtype(metadata["dtype"])
    fill = random_records(record, (), seed + 1)
    members = metadata | {
        "fill_value": base64.b64encode(fill.tobytes()).decode() if has_fill else None
    }
    model = np.full(metadata["shape"], fill if has_fill else np.zeros((), record), record)
    rng = np.random.default_rng(seed)
    context = gpustore.Context()
    stores = {}
    for field in record.names:
        spec = {"driver": "zarr", "kvstore": "memory://", "metadata": members, "field": field}
        stores[field] = gpustore.open(spec, create=True, open=True, context=context).result()
        assert np.array_equal(stores[field].read().result(), part(model, field))
    for _ in range(6):
        field = str(rng.choice(record.names))
        box = []
        for size in metadata["shape"]:
            a, b = sorted(int(i) for i in rng.integers(0, size + 1, 2))
            box.append(slice(a, b))
        values = random_records(record, metadata["shape"], int(rng.integers(2**32)))
        full = (slice(None),) * (stores[field].rank - len(box))
        stores[field][(*box, *full)].write(part(values, field)[tuple(box)]).result()
        model[field][tuple(box)] = values[field][tuple(box)]
        for other in record.names:
            assert np.array_equal(stores[other].read().result(), part(model, other))
    spec = {"driver": "zarr", "kvstore": "memory://", "open_as_void": True}
    void = gpustore.open(spec, context=context).result()
    assert void.read().result().tobytes() == model.tobytes()


def test_writers_of_two_fields_keep_each_other(tmp_path):
    record = np.dtype([("a", "<u4"), ("b", "<u4")])
    stores = {
        field: gpustore.open(
            spec_of(tmp_path, record, field, chunks=[5, 7]), create=True, open=True
        ).result()
        for field in "ab"
    }

    def work(field):
        for i in range(1, 41):
            stores[field][i % 5, i % 7] = i

    threads = [threading.Thread(target=work, args=field) for field in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.zeros((5, 7), "u4")
    for i in range(1, 41):
        expected[i % 5, i % 7] = i
    for field in "ab":
        assert np.array_equal(stores[field].read().result(), expected)


def test_chunks_of_the_fill_record_are_not_stored(tmp_path):
    record = np.dtype([("a", "<u2"), ("b", "<u2")])
    fill = base64.b64encode(bytes([1, 0, 2, 0])).decode()
    store = gpustore.open(spec_of(tmp_path, record, "a", fill_value=fill), create=True).result()
    assert store.fill_value == 1
    store[...] = 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".zarray"]
    store[0, 0] = 7
    assert opened(tmp_path, "b").read().result().tolist() == [[2] * 7] * 5
    store[0, 0] = 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".zarray"]


def test_schema_fill_values_are_broadcast_to_the_subarray(tmp_path):
    record = np.dtype([("y", ">i2", (2, 3))])
    spec = spec_of(tmp_path, record)
    store = gpustore.open(spec, create=True, fill_value=[1, 2, 3]).result()
    assert store.spec().to_json()["metadata"]["fill_value"] == "AAEAAgADAAEAAgAD"
    assert store.read().result()[4, 6].tolist() == [[1, 2, 3]] * 2
    assert opened(tmp_path, library=ts).fill_value.tolist() == [[1, 2, 3]] * 2
    with pytest.raises(gpustore.MetadataError, match="Cannot broadcast"):
        gpustore.open(spec, create=True, delete_existing=True, fill_value=[1, 2]).result()
    with pytest.raises(gpustore.MetadataError, match="through schema for structured"):
        gpustore.open(spec_of(tmp_path / "b", field="x"), create=True, fill_value=1).result()


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, 'Must specify a "field" that is one of: ["x","y","z","v","b","c"]'),
        ({"field": "q"}, 'Requested field "q" is not one of: ["x","y","z","v","b","c"]'),
        ({"field": "x", "open_as_void": True}, '"field" and "open_as_void" are mutually exclusive'),
    ],
)
def test_the_part_to_open_must_be_named(members, text, tmp_path):
    ts.open(spec_of(tmp_path, field="x"), create=True).result()
    for library in (ts, gpustore):
        with pytest.raises(ValueError, match="field") as caught:
            opened(tmp_path, library=library, **members)
        assert text in str(caught.value)


def test_a_field_of_numbers_does_not_exist(tmp_path):
    spec = spec_of(tmp_path, np.dtype("<i2")) | {"field": "x"}
    for library in (ts, gpustore):
        with pytest.raises(ValueError, match='"x" but dtype does not have named fields'):
            library.open(spec, create=True).result()


@pytest.mark.parametrize("field", ["x", "y", "z"])
def test_specs_are_those_of_tensorstore(field, tmp_path):
    theirs = ts.open(spec_of(tmp_path, field=field), create=True).result()
    ours = opened(tmp_path, field)
    for minimal in (False, True):
        found, expected = (s.spec(minimal_spec=minimal).to_json() for s in (ours, theirs))
        assert found == expected
    assert str(ours.domain) == str(theirs.domain)
    assert ours.chunk_layout.to_json() == theirs.chunk_layout.to_json()
    assert ours.schema.to_json() == theirs.schema.to_json()
    again = pickle.loads(pickle.dumps(ours))
    assert again.spec().to_json() == ours.spec().to_json()
    with pytest.raises(gpustore.UnsupportedError, match="URL syntax not supported with selected_"):
        _ = ours.url


def test_a_single_field_need_not_be_named(tmp_path):
    gpustore.open(spec_of(tmp_path, np.dtype([("x", "<i2")])), create=True).result()
    for library in (ts, gpustore):
        assert opened(tmp_path, library=library).spec().to_json()["field"] == "x"


def test_resize_of_one_of_several_fields(tmp_path):
    store = gpustore.open(spec_of(tmp_path, field="y"), create=True).result()
    for new, text in (
        ([8, None, None, None], "would affect other fields but `resize_tied_bounds` was not"),
        ([None, None, 3, None], "Cannot change explicit upper bound"),
    ):
        with pytest.raises(ValueError, match=text):
            store.resize(exclusive_max=new).result()
    store[...] = 1
    grown = store.resize(exclusive_max=[8, 9, None, None], resize_tied_bounds=True).result()
    assert grown.shape == (8, 9, 2, 3)
    assert grown[:5, :7].read().result().all()
    assert json.loads((tmp_path / "a/.zarray").read_bytes())["shape"] == [8, 9]
    assert opened(tmp_path, "x").resolve().result().shape == (8, 9)


def test_strings_and_bytes_are_one_type_with_an_inner_dimension(tmp_path):
    values = np.array([[b"a", b"bcd"], [b"", b"efghi"]], "S5")
    spec = spec_of(tmp_path, np.dtype("S5"), shape=[2, 2])
    store = gpustore.open(spec, create=True).result()
    assert (store.dtype, store.shape) == (gpustore.char, (2, 2, 5))
    store[...] = values[..., None].view("S1")
    import zarr

    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], values)
    assert np.array_equal(store.read().result().view("S5")[..., 0], values)
    assert store.resize(exclusive_max=[3, None, None]).result().shape == (3, 2, 5)


def test_a_damaged_bool_of_a_record_is_an_error(tmp_path):
    record = np.dtype([("a", "u1"), ("b", "?")])
    gpustore.open(spec_of(tmp_path, record, "b", shape=[2], chunks=[2]), create=True).result()
    (tmp_path / "a/0").write_bytes(bytes([9, 1, 9, 2]))
    assert opened(tmp_path, "a").read().result().tolist() == [9, 9]
    with pytest.raises(gpustore.CorruptChunkError, match=r"/a/0.*Invalid bool value: 2"):
        opened(tmp_path, "b").read().result()


def test_the_schema_of_a_field_that_is_a_record_is_json(tmp_path):
    fields = [["a", [["x", "<i2"], ["y", "|S3", [2]]]], ["b", "<f4"]]
    spec = spec_of(tmp_path, np.dtype([("a", "V8"), ("b", "<f4")]), "a", shape=[2], chunks=[2])
    fill = base64.b64encode(b"\1\0abcdefgijk").decode()
    spec["metadata"] |= {"dtype": fields, "fill_value": fill}
    schema = gpustore.open(spec, create=True).result().schema
    assert schema.to_json()["fill_value"] == {"x": 1, "y": ["YWJj", "ZGVm"]}
    assert gpustore.Schema(schema.to_json()) == schema
    assert "YWJj" in repr(schema)


def test_too_many_dimensions(tmp_path):
    record = np.dtype([("a", "u1", (1,) * 31)])
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="32"):
            library.open(spec_of(tmp_path, record), create=True).result()


def test_create_as_void(tmp_path):
    spec = spec_of(tmp_path) | {"open_as_void": True}
    store = gpustore.open(spec, create=True).result()
    assert store.dtype == gpustore.byte
    assert store.shape == (5, 7, RECORD.itemsize)
    assert store.spec().to_json()["open_as_void"] is True
    theirs = opened(tmp_path, library=ts, open_as_void=True)
    assert str(theirs.domain) == str(store.domain)


@each("dtype", ["|V2", "|S2"])
@each("value", [0, "ab", [1, 2], np.array([1, 2], np.uint8)])
def test_fill_values_of_bytes_are_not_made_of_other_things(dtype, value):
    for library in (gpustore, ts):
        spec = {
            "driver": "zarr",
            "kvstore": "memory://",
            "metadata": {"shape": [4], "dtype": dtype},
        }
        keywords = {}
        if isinstance(value, np.ndarray):
            keywords["fill_value"] = value
        else:
            spec["schema"] = {"fill_value": value}
        with pytest.raises(
            ValueError, match=r"Invalid fill_value: Cannot convert \w+ -> (byte|char)"
        ):
            library.open(spec, create=True, context=library.Context(), **keywords).result()


@pytest.mark.parametrize(("dtype", "fill"), [("|V2", "AAE="), ("|S2", "QUI=")])
def test_schemas_with_a_fill_value_of_bytes_are_printed(dtype, fill):
    """JSON has no form for it, so there is no more to print."""
    metadata = {"shape": [4], "chunks": [2], "dtype": dtype, "fill_value": fill}
    for library in (gpustore, ts):
        spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
        store = library.open(spec, create=True, context=library.Context()).result()
        assert repr(store.schema) == repr(store.spec().schema) == "Schema(...)"
        with pytest.raises(ValueError, match=r"Conversion from (byte|char) to JSON"):
            store.schema.to_json()
