"""New arrays by short words: equal to those made by schemas, and readable by zarr-python."""

import numpy as np
import pytest

import gpustore
from tests.matrix import each

VALUES = np.arange(120, dtype="uint16").reshape(10, 12)


def metadata(store):
    return store.spec().to_json()["metadata"]


@each("driver", ["zarr3", "zarr2"])
def test_words_are_the_constraints_they_stand_for(driver):
    words = {"chunks": 5, "codec": "zstd:5", "dtype": "uint16", "shape": (10, 12)}
    short = gpustore.open(f"memory://a|{driver}:", create=True, **words).result()
    codec = {
        "zarr3": {"driver": "zarr3", "codecs": [{"name": "zstd", "configuration": {"level": 5}}]},
        "zarr2": {"driver": "zarr2", "compressor": {"id": "zstd", "level": 5}},
    }[driver]
    long = gpustore.open(
        f"memory://a|{driver}:",
        create=True,
        shape=[10, 12],
        dtype="uint16",
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[5, 5]),
        codec=gpustore.CodecSpec(codec),
    ).result()
    assert metadata(short) == metadata(long)
    for form in ((5, 5), {"chunk": {"shape": [5, 5]}}):
        store = gpustore.open(
            f"memory://b|{driver}:", create=True, chunk_layout=form, codec=codec, shape=[10, 12],
            dtype="uint16", context={"memory_key_value_store": {}},
        ).result()  # fmt: skip
        assert metadata(store) == metadata(long)


def test_shards_dims_units_and_attributes():
    store = gpustore.create_array(
        "memory://a/",
        data=VALUES,
        chunks=(5, 6),
        shards=(10, 12),
        codec=["blosc-lz4:3", {"name": "crc32c"}],
        dims=("y", None),
        units={"y": "4nm"},
        attributes={"who": ["me"]},
    ).result()
    assert (store.chunks, store.shards, store.domain.labels) == ((5, 6), (10, 12), ("y", ""))
    assert store.dimension_units == (gpustore.Unit("4nm"), None)
    assert store.attrs["who"] == ["me"]
    names = [
        codec["name"] for codec in store.codec.to_json()["codecs"][0]["configuration"]["codecs"]
    ]
    assert names == ["bytes", "blosc", "crc32c"]
    np.testing.assert_array_equal(store, VALUES)


@each("zarr_format", [2, 3])
def test_zarr_python_reads_what_save_writes(zarr_format, tmp_path):
    zarr = pytest.importorskip("zarr")
    gpustore.save(
        tmp_path / "x.zarr", VALUES, dims=("y", "x"), attributes={"a": 1}, zarr_format=zarr_format
    )
    found = zarr.open_array(tmp_path / "x.zarr", mode="r")
    np.testing.assert_array_equal(found[...], VALUES)
    assert found.metadata.zarr_format == zarr_format
    assert found.attrs["a"] == 1
    if zarr_format == 3:
        assert found.metadata.dimension_names == ("y", "x")
    else:
        assert found.attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]


def test_save_chooses_chunks_of_a_mebibyte(tmp_path):
    wide = gpustore.save("memory://wide/", np.zeros((600, 600), "float64"))
    assert (wide.chunks, wide.shards) == ((362, 362), None)
    store = gpustore.save(tmp_path / "x.zarr", np.zeros((200, 300, 400), "uint16"))
    assert 0.5 <= np.prod(store.chunks) * 2 / 2**20 <= 1
    assert store.chunks[0] == store.chunks[1] == store.chunks[2]
    assert gpustore.save(tmp_path / "s.zarr", [1.5, 2.5]).dtype == "float64"


@pytest.mark.parametrize(
    ("data", "words", "error", "message"),
    [
        (np.array([1, 2]), {"dtype": "i2"}, TypeError, "the rule 'safe'"),
        (VALUES, {"shape": (10, 13)}, gpustore.MismatchError, "source dimension 1"),
        (VALUES, {"shape": (12,)}, gpustore.MismatchError, "has no target dimension"),
        (np.array(["a", 1], object), {}, gpustore.MetadataError, 'dtype="ustring"'),
        (np.zeros(2, "i4,f8"), {}, gpustore.MetadataError, r"records: store each field \(f0, f1"),
        (VALUES, {"units": "nm"}, TypeError, "one unit a dimension"),
        (VALUES, {"attributes": "nm"}, TypeError, "expected a mapping"),
    ],
)
def test_elements_that_do_not_fit_leave_nothing_behind(tmp_path, data, words, error, message):
    with pytest.raises(error, match=message):
        gpustore.save(tmp_path / "x.zarr", data, **words)
    group = gpustore.open_group("memory://g/", create=True).result()
    with pytest.raises(error, match=message):
        group.create_array("x", data=np.asarray(data), **words).result()
    assert [*tmp_path.iterdir()] == []
    assert "x" not in group


def test_elements_are_broadcast_to_a_shape_that_is_given():
    store = gpustore.save("memory://x/", np.float32(3), shape=(2, 3), dtype="f8", chunks=np.int8(2))
    assert (store.shape, store.dtype, store.numpy[1, 2]) == ((2, 3), "float64", 3)
    assert gpustore.save("memory://y/", [[1, 2]], shape=(3, 2), chunks=np.array([1, 2])).shape


def test_lists_are_of_the_type_that_is_given():
    store = gpustore.save("memory://x/", [1, 2], dtype="i2")
    assert (store.dtype, *store.numpy[:]) == ("int16", 1, 2)
    group = gpustore.open_group("memory://g/", create=True).result()
    assert group.create_array("x", data=[[1.5]], dtype="f4").result().numpy[0, 0] == 1.5
    assert [*gpustore.save("memory://y/", ["a", "bc"], dtype=str).numpy[:]] == ["a", "bc"]
    with pytest.raises(TypeError, match="by round"):
        gpustore.save("memory://z/", [1.5], dtype="i2")
    with pytest.raises(OverflowError):
        gpustore.save("memory://z/", [300], dtype="u1")


@pytest.mark.parametrize("shape", [6, np.int64(6)])
def test_words_of_numpy_are_taken(shape):
    store = gpustore.create_array("memory://x/", shape=shape, dtype=">u2", chunks=4).result()
    assert (store.shape, store.dtype, store.chunks) == ((6,), "uint16", (4,))


def test_save_overwrites_only_when_asked(tmp_path):
    gpustore.save(tmp_path / "x.zarr", [1, 2])
    with pytest.raises(gpustore.AlreadyExistsError, match=r"x\.zarr"):
        gpustore.save(tmp_path / "x.zarr", [3])
    np.testing.assert_array_equal(gpustore.save(tmp_path / "x.zarr", [3], overwrite=True), [3])


@each("zarr_format", [2, 3])
def test_groups_make_arrays_by_the_same_words(zarr_format):
    group = gpustore.open_group("memory://g/", create=True, zarr_format=zarr_format).result()
    store = group.create_array(
        "a/b", data=VALUES, chunks=5, codec="gzip:1", dims=("y", "x"), attributes={"k": 2}
    ).result()
    assert (store.chunks, store.attrs["k"]) == ((5, 5), 2)
    np.testing.assert_array_equal(group["a/b"], VALUES)
    if zarr_format == 2:
        assert store.attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]
    else:
        assert store.domain.labels == ("y", "x")


@each("last", ["zstd:3", {"id": "zstd", "level": 3}, None])
def test_filters_of_zarr_v2_stand_before_the_compressor(last):
    delta = {"id": "delta", "dtype": VALUES.dtype.str, "astype": VALUES.dtype.str}
    codec = [delta] if last is None else [delta, last]
    store = gpustore.create_array(
        "memory://x/", data=VALUES, codec=codec, zarr_format=2, overwrite=True
    ).result()
    found = store.spec().to_json()["metadata"]
    assert found["filters"] == [delta]
    assert found["compressor"] == (None if last is None else {"id": "zstd", "level": 3})
    np.testing.assert_array_equal(store, VALUES)


def test_arrays_in_memory_take_the_words():
    store = gpustore.array(VALUES, dims=("y", "x"))
    assert (store.domain.labels, store.spec().to_json()["driver"]) == (("y", "x"), "array")
    store = gpustore.array(VALUES, chunks=4, codec="zstd", attributes={"k": 1}, write=False)
    other = gpustore.array(VALUES + 1, chunks=4)
    assert (store.chunks, store.writable, store.attrs["k"]) == ((4, 4), False, 1)
    np.testing.assert_array_equal(store, VALUES)
    np.testing.assert_array_equal(other, VALUES + 1)
    with pytest.raises(ValueError, match="copy=False"):
        gpustore.array(VALUES, chunks=4, copy=False)


@pytest.mark.parametrize(
    ("spec", "keywords", "text"),
    [
        ("memory://x/", {"codec": "lzma"}, "expected none, zstd, gzip, blosc or blosc-CNAME"),
        ("memory://x/", {"shards": 4, "zarr_format": 2}, "Zarr v2 has no shards"),
        ("memory://x|zarr2:", {"zarr_format": 3}, 'zarr_format=3, but the driver is "zarr"'),
        ("memory://x/", {"zarr_format": 4}, "zarr_format: expected 2 or 3"),
        ("memory://x/", {"units": {"z": "1m"}, "dims": ("y", "x")}, "units name the dimension 'z'"),
        ("memory://x/", {"codec": [{"id": "bz2"}]}, "Zarr v3 has no codec bz2"),
        ("memory://x|zarr2:", {"codec": ["gzip", "zstd"]}, "Zarr v2 cannot encode as gzip, zstd"),
        ("memory://x|zarr2:", {"codec": ["gzip", {"id": "zstd"}]}, "expected a filter of Zarr v2"),
        ("memory://x/", {"chunks": (2,)}, "^chunks has 1 value, but the array has rank 2"),
        ("memory://x/", {"dims": ["t", "y", "x"]}, "^dims has 3 values, but the array has rank 2"),
        ("memory://x|n5:", {"shards": 4}, "N5 has no shards"),
        ("memory://x|n5:", {"codec": ["zstd", "gzip"]}, "N5 has no such compression"),
    ],
)
def test_wrong_words_are_named(spec, keywords, text):
    with pytest.raises(gpustore.GpustoreError, match=text):
        gpustore.create_array(spec, data=VALUES, **keywords).result()


@pytest.mark.parametrize(
    "keywords", [{"codec": 5}, {"dims": "yx"}, {"chunks": "x"}, {"context": 5}], ids=str
)
def test_values_of_another_type_are_type_errors(keywords):
    with pytest.raises(TypeError, match=next(iter(keywords))):
        gpustore.create_array("memory://x/", data=VALUES, **keywords).result()


def test_elements_and_attributes_are_those_of_new_arrays():
    context = gpustore.Context()
    gpustore.create_array("memory://x/", data=VALUES, context=context).result()
    for keywords in ({"data": VALUES}, {"attributes": {"a": 1}}):
        for mode in ({}, {"open": True}, {"open": True, "create": True}):
            with pytest.raises(gpustore.MetadataError, match="those of a new array"):
                gpustore.open("memory://x|zarr3:", context=context, **mode, **keywords)
