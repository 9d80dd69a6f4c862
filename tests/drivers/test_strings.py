"""Arrays of strings and bytes of any length: all that is done with arrays, against NumPy."""

import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.errors import (
    CorruptChunkError,
    LimitError,
    MetadataError,
    MismatchError,
    UnsupportedError,
)
from tests.matrix import each
from tests.on_device import emulated

KINDS = {"ustring": ("vlen-utf8", "string", ""), "string": ("vlen-bytes", "bytes", b"")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LAYOUTS = {"zarr2": ("C", "F"), "zarr3": ("C", "F", "shards", "F in shards", "shards in F")}


def metadata_of(driver, kind, layout, shape, chunks, *, codecs=(), fill=None):
    codec, data_type, _ = KINDS[kind]
    if driver == "zarr2":
        return {
            "shape": shape,
            "chunks": chunks,
            "dtype": "|O",
            "filters": [{"id": codec}],
            "order": layout,
            "compressor": codecs[0] if codecs else None,
            "fill_value": fill,
        }
    order = list(range(len(shape)))[::-1]
    transpose = {"name": "transpose", "configuration": {"order": order}}
    chain = [{"name": codec}, *codecs]
    if layout in ("F", "F in shards"):
        chain = [transpose, *chain]
    outer = chunks
    if "shards" in layout:
        outer = [2 * n for n in chunks]
        inner = chunks[::-1] if layout == "shards in F" else chunks
        index = ["bytes", "crc32c"]
        index[0] = {"name": "bytes", "configuration": {"endian": "little"}}
        configuration = {"chunk_shape": inner, "codecs": chain, "index_codecs": index}
        chain = [{"name": "sharding_indexed", "configuration": configuration}]
    if layout == "shards in F":
        chain = [transpose, *chain]
    return {
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "data_type": data_type,
        "codecs": chain,
        "fill_value": "" if fill is None else fill,
    }


def create(driver="zarr3", kind="ustring", layout="C", shape=(7, 5), chunks=(3, 2), **keywords):
    given = {name: keywords.pop(name) for name in ("codecs", "fill") if name in keywords}
    metadata = metadata_of(driver, kind, layout, list(shape), list(chunks), **given)
    spec = {"driver": driver, "kvstore": "memory://", "metadata": metadata}
    return gpustore.open(spec, create=True, **keywords).result()


def objects(elements, shape):
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def strings(kind, shape=(7, 5)):
    """Different ones; some are empty, long or not ASCII."""
    count = int(np.prod(shape))
    texts = [["", "é", "日本", "x" * 50, "\0"][i % 5] + str(i) * (i % 3) for i in range(count)]
    return objects([one if kind == "ustring" else one.encode() for one in texts], shape)


CASES = [(d, k, layout) for d in LAYOUTS for k in KINDS for layout in LAYOUTS[d]]


@each(("driver", "kind", "layout"), CASES)
def test_elements_are_read_as_they_were_written(driver, kind, layout):
    store = create(driver, kind, layout)
    empty, array = KINDS[kind][2], strings(kind)
    assert store.dtype == gpustore.dtype(kind)
    found = store.read().result()
    assert found.dtype == object
    assert found.dtype.metadata is None
    assert set(found.ravel()) == {empty}
    store.write(array).result()
    for where in (
        np.s_[:],
        np.s_[2:6, 1:4],
        np.s_[::-2, ::-1],
        np.s_[3],
        np.s_[4, 3],
        np.s_[[5, 0, 0, 6]],
        np.s_[[5, 0, 6], [1, 4, 4]],
        np.s_[np.newaxis, 1:2],
        np.s_[3:3],
    ):
        expected = array[where]
        assert np.array_equal(store[where].read().result(), expected), where
        assert np.array_equal(store[where].read(order="F").result(), expected), where
    out = np.full((14, 10), None)[::2, ::-2]
    assert store.read(out=out).result() is out
    assert np.array_equal(out, array)
    starts = [[0, 0], [4, 1], [2, 2], [2, 2]]
    crops = store.read_many(starts, (3, 3)).result()
    assert all(
        np.array_equal(crop, array[y : y + 3, x : x + 3]) for crop, (y, x) in zip(crops, starts)
    )
    with gpustore.Batch() as batch:
        reads = [store[i : i + 2].read(batch=batch) for i in range(5)]
    for i, read in enumerate(reads):
        assert np.array_equal(read.result(), array[i : i + 2])


@each(("driver", "kind", "layout"), CASES)
def test_parts_are_written_into_existing_chunks(driver, kind, layout):
    store, array = create(driver, kind, layout), strings(kind)
    store.write(array).result()
    other = strings(kind, (5, 7)).T
    store[2:5, ::2].write(other[2:5, ::2]).result()
    array[2:5, ::2] = other[2:5, ::2]
    one = other[6, 3] + other[6, 3]
    store[6, 3] = one
    array[6, 3] = one
    store[[0, 4], [1, 1]] = [one, array[0, 0]]
    array[[0, 4], [1, 1]] = [one, array[0, 0]]
    store[1:3, 4] = one
    array[1:3, 4] = one
    assert np.array_equal(store.read().result(), array)


@pytest.mark.matrix
@given(st.data())
def test_any_writes_in_any_layout_are_those_of_numpy(data):
    driver, kind, layout = data.draw(st.sampled_from(CASES))
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=2)))
    chunks = tuple(data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2)))
    fill = data.draw(TEXTS)
    encoded = fill if kind == "ustring" else list(fill.encode())
    element = TEXTS if kind == "ustring" else TEXTS.map(str.encode)
    store = create(driver, kind, layout, shape, chunks, fill=None if driver == "zarr2" else encoded)
    expected = objects([store.fill_value.item() if driver == "zarr3" else KINDS[kind][2]] * 25, 25)
    expected = expected[: shape[0] * shape[1]].reshape(shape)
    for _ in range(data.draw(st.integers(0, 3))):
        where = tuple(
            slice(*sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2))))
            for n in shape
        )
        size = expected[where].size
        values = data.draw(st.lists(element, min_size=size, max_size=size))
        values = objects(values, expected[where].shape)
        store[where].write(values).result()
        expected[where] = values
    assert np.array_equal(store.read().result(), expected)
    y, x = (data.draw(st.integers(0, n - 1)) for n in shape)
    assert store[y, x].read().result().item() == expected[y, x]


@pytest.mark.parametrize("driver", LAYOUTS)
def test_chunks_of_the_fill_value_are_not_stored(driver):
    context = gpustore.Context()
    store = create(driver, fill="né", context=context)
    assert store.fill_value.item() == "né"
    store.write(np.full((7, 5), "né", object)).result()
    keys = [key for key in store.kvstore.list().result() if not key.endswith((b"json", b".zarray"))]
    assert keys == []
    store[0, 0] = "x"
    store[6, 4] = "né"
    keys = [key for key in store.kvstore.list().result() if not key.endswith((b"json", b".zarray"))]
    assert len(keys) == 1
    assert store[:2, :2].read().result().tolist() == [["x", "né"], ["né", "né"]]
    store[0, 0] = "né"
    assert len(store.kvstore.list().result()) == 1
    again = gpustore.open(store.spec(), context=context).result()
    assert again.fill_value.item() == "né"


@pytest.mark.parametrize("driver", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_array_has_all_required_properties(driver, kind):
    codec, data_type, empty = KINDS[kind]
    spec, context = {"driver": driver, "kvstore": "memory://"}, gpustore.Context()
    store = gpustore.open(spec, create=True, dtype=kind, shape=[3], context=context).result()
    metadata = json.loads(store.kvstore["zarr.json" if driver == "zarr3" else ".zarray"])
    if driver == "zarr3":
        assert metadata["data_type"] == data_type
        assert metadata["codecs"] == [{"name": codec}]
        assert metadata["fill_value"] == ""
    else:
        assert metadata["dtype"] == "|O"
        assert metadata["filters"] == [{"id": codec}]
    assert store.read().result().tolist() == [empty] * 3
    assert gpustore.open(store.spec(), context=context).result().dtype == store.dtype
    again = gpustore.open(spec, dtype=kind, open=True, context=context).result()
    assert again.codec == store.codec
    other = "string" if kind == "ustring" else "ustring"
    with pytest.raises(MismatchError):
        gpustore.open(spec, dtype=other, context=context).result()


def test_a_fill_value_is_compared_by_value():
    context = gpustore.Context()
    store = create(fill="ab", context=context)
    spec = store.spec(minimal_spec=True)
    again = gpustore.open(spec, fill_value="".join(["a", "b"]), context=context).result()
    assert again.fill_value.item() == "ab"
    with pytest.raises(MismatchError, match="fill_value"):
        gpustore.open(spec, fill_value="ac", context=context).result()
    made = gpustore.open(
        "memory://|zarr3:", create=True, dtype="ustring", shape=[2], fill_value="q"
    ).result()
    assert made.read().result().tolist() == ["q", "q"]


@pytest.mark.parametrize("layout", ["C", "shards"])
def test_the_cache_keeps_streams(layout):
    context = {"cache_pool": {"total_bytes_limit": 10**6}}
    store, array = create(layout=layout, context=gpustore.Context(context)), strings("ustring")
    store.write(array).result()
    assert np.array_equal(store.read().result(), array)
    read = store[1:, ::-1].read()
    found = read.result()
    assert np.array_equal(found, array[1:, ::-1])
    assert read.statistics["cache_hits"] == 9
    found[...] = "changed"
    store[2, 2] = "other"
    array[2, 2] = "other"
    assert np.array_equal(store.read().result(), array)


def test_resized_arrays_keep_their_elements():
    store, array = create(), strings("ustring")
    store.write(array).result()
    larger = store.resize(exclusive_max=[9, 5]).result()
    assert np.array_equal(larger[:7].read().result(), array)
    assert set(larger[7:].read().result().ravel()) == {""}
    smaller = larger.resize(exclusive_max=[4, 5]).result()
    assert np.array_equal(smaller.read().result(), array[:4])
    assert np.array_equal(pickle.loads(pickle.dumps(array)), array)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("ustring", np.array(["a", "bcd"])),
        ("ustring", np.array(["a", "bcd"], np.dtypes.StringDType())),
        ("ustring", ["a", "bcd"]),
        ("ustring", np.array(["a", "bcd"], object)),
        ("ustring", [np.str_("a"), "bcd"]),
        ("string", np.array([b"a", b"bcd"])),
        ("string", [b"a", b"bcd"]),
    ],
)
def test_sources_are_converted(kind, source):
    store = create(kind=kind, shape=(2,), chunks=(2,))
    store.write(source).result()
    assert store.read().result().tolist() == list(source)


@each(
    ("kind", "source"),
    [
        ("ustring", [b"a", b"b"]),
        ("ustring", [1, 2]),
        ("ustring", np.array([1, 2])),
        ("ustring", ["a", None]),
        ("ustring", np.array(["a", None], object)),
        ("ustring", np.array(["a", b"b"], object)),
        ("string", ["a", "b"]),
        ("string", np.array(["a", "b"])),
        ("string", bytearray(b"ab")),
    ],
)
def test_other_sources_are_refused_before_anything_is_written(kind, source):
    store = create(kind=kind, shape=(2,), chunks=(1,))
    with pytest.raises((TypeError, MismatchError)):
        store.write(source).result()
    assert len(store.kvstore.list().result()) == 1


def test_a_string_without_utf8_is_an_error_that_names_the_key():
    store = create(shape=(2,), chunks=(2,))
    with pytest.raises(MismatchError, match=r'Error writing "c/0": .* cannot be stored as UTF-8'):
        store.write(["a", "\udc80"]).result()


@pytest.mark.parametrize("layout", ["C", "shards"])
def test_a_damaged_chunk_names_its_key_and_spoils_no_other(layout):
    store = create(layout=layout, shape=(8,), chunks=(2,))
    store.write(objects([*"abcdefgh"], 8)).result()
    key = "c/1" if layout == "C" else "c/0"
    value = bytearray(store.kvstore[key])
    where = value.index(struct.pack("<II", 2, 1)) if layout == "C" else 14
    value[where + 4] = 200
    store.kvstore[key] = bytes(value)
    for read in (store.read(), store[2:3].read(), store.read_many([[2]], (2,))):
        with pytest.raises(CorruptChunkError) as caught:
            read.result()
        assert caught.value.key == key
        assert caught.value.codec == "vlen-utf8"
    with pytest.raises(CorruptChunkError) as caught:
        store[2] = "x"
    assert caught.value.key == key
    assert store[:2].read().result().tolist() == ["a", "b"]
    store[2:4] = ["y", "z"]
    assert store.read().result().tolist() == ["a", "b", "y", "z", "e", "f", "g", "h"]


def test_the_limit_of_a_chunk_counts_its_stream():
    small = gpustore.Context({"limits": {"chunk_nbytes": 100}})
    store = create(shape=(4,), chunks=(4,), context=small)
    store.write(["x" * 20] * 4).result()
    with pytest.raises(LimitError, match="chunk_nbytes is 104, which exceeds the limit of 100"):
        store.write(["x" * 21] * 4).result()
    store.kvstore["c/0"] = struct.pack("<I", 4) + (struct.pack("<I", 21) + b"x" * 21) * 4
    with pytest.raises(LimitError, match=r"has 104 bytes, .* chunk_nbytes together, .* is 100"):
        store.read().result()
    with pytest.raises(LimitError, match="chunk_nbytes is 320"):
        create(shape=(40,), chunks=(40,), context=gpustore.Context(small.spec))


@pytest.mark.parametrize("driver", LAYOUTS)
def test_parts_of_elements_are_not_opened(driver):
    store = create(driver)
    spec = store.spec().to_json()
    with pytest.raises(UnsupportedError, match="have any length"):
        gpustore.open({**spec, "open_as_void": True}).result()
    with pytest.raises(MismatchError, match="field"):
        gpustore.open({**spec, "field": "x"}).result()


@pytest.mark.parametrize("driver", LAYOUTS)
def test_wrong_codecs_are_refused(driver):
    metadata = metadata_of(driver, "ustring", "C", [4], [4])
    other = metadata_of(driver, "string", "C", [4], [4])
    name = "filters" if driver == "zarr2" else "codecs"
    spec = {"driver": driver, "kvstore": "memory://"}
    if driver == "zarr3":
        with pytest.raises(MetadataError, match="for elements of string"):
            gpustore.open(
                {**spec, "metadata": {**metadata, name: other[name]}}, create=True
            ).result()
    number = {"dtype": "<u2"} if driver == "zarr2" else {"data_type": "uint16"}
    metadata |= {**number, "fill_value": 0}
    with pytest.raises(MetadataError, match="is for elements of ustring"):
        gpustore.open({**spec, "metadata": metadata}, create=True).result()


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_that_numcodecs_would_have_is_read(kind):
    name = KINDS[kind][0]
    context = gpustore.Context()
    metadata = metadata_of("zarr3", kind, "C", [4], [2])
    metadata["codecs"] = [{"name": f"numcodecs.{name}"}]
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    store = gpustore.open(spec, create=True, context=context).result()
    store.write(strings(kind, (4,))).result()
    again = gpustore.open(store.spec(), context=context).result()
    assert np.array_equal(again.read().result(), strings(kind, (4,)))
    assert again.codec.to_json()["codecs"] == [{"name": name}]
    stored = json.loads(store.kvstore.read("zarr.json").result().value)
    assert stored["codecs"] == [{"name": name}]


def test_numbers_cannot_be_strings_by_schema():
    with pytest.raises(UnsupportedError, match="json data type"):
        gpustore.open("memory://|zarr3:", create=True, dtype="json", shape=[2]).result()


def test_a_store_on_a_device_gives_host_arrays_and_counts():
    with emulated() as device:
        store = create(shape=(6,), chunks=(2,), device=device.name)
        assert store.device == "cpu"
        store[:4] = [*"abcd"]
        read = store.read()
        found = read.result()
        assert type(found) is np.ndarray
        assert found.tolist() == ["a", "b", "c", "d", "", ""]
        assert read.statistics["host_fallbacks"] == 2
        assert read.statistics["launches"] == 0
        numbers = gpustore.open(
            "memory://n|zarr3:", create=True, dtype="uint8", shape=[2], device=device.name
        ).result()
        assert numbers.device == device.name
    assert create(shape=(2,), chunks=(2,)).read().statistics["host_fallbacks"] == 0
