"""The zarr2 driver: what it writes, byte for byte what TensorStore writes."""

import json
from functools import partial

import numcodecs
import numpy as np
import pytest
import zarr

import gpustore
from gpustore.metadata.data_type import V3_DATA_TYPES
from tests.drivers import parity
from tests.drivers.parity import check, files
from tests.matrix import each

RAW = parity.RAW["zarr2"]
created = partial(parity.created, "zarr2")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [name for name in V3_DATA_TYPES if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("fill", [False, True])
def test_data_type(dtype, fill, tmp_path):
    keywords = {"dtype": dtype, "shape": [5, 3]}
    if fill:
        keywords["fill_value"] = True if dtype == "bool" else 1
    check(created(RAW, keywords), tmp_path)


STORED = (
    *("|b1", "|i1", "|u1", "<i2", ">i2", ">u4", "<u8", ">f2", ">f4", "<f8", ">c8", "<c16"),
    *("bfloat16", "float8_e5m2", "int4"),
)


@each("dtype", STORED)
@each("order", ["C", "F"])
def test_stored_data_type_and_order(dtype, order, tmp_path):
    check(created(RAW | {"dtype": dtype, "order": order}, {"shape": [5, 3]}), tmp_path)


@pytest.mark.parametrize("dtype", ["<u1", ">b1"])
def test_byte_order_of_single_bytes_is_normalised(dtype, tmp_path):
    """TensorStore writes it as given, which means nothing."""
    created(RAW | {"dtype": dtype}, {"shape": [5, 3]})(gpustore, tmp_path)
    assert f'"dtype":"|{dtype[1:]}"' in files(tmp_path)["a/.zarray"].decode()


@pytest.mark.parametrize("dtype", ["<f16", [["x", "<c32"]], "|S0"])
def test_data_types_without_a_fixed_meaning_are_refused_by_name(dtype, tmp_path):
    with pytest.raises(gpustore.UnsupportedError, match="Unsupported zarr dtype"):
        created({"dtype": dtype}, {"shape": [5, 3]})(gpustore, tmp_path)
    assert files(tmp_path) == {}


COMPRESSORS = {
    "none": None,
    "blosc": {"id": "blosc"},
    "blosc zstd": {"id": "blosc", "cname": "zstd", "shuffle": 2},
    "blosc and more": {"id": "blosc", "foo": 1},
    "zlib": {"id": "zlib"},
    "zlib 10": {"id": "zlib", "level": 10},
    "gzip": {"id": "gzip", "level": 9},
    "bz2": {"id": "bz2"},
    "zstd": {"id": "zstd"},
    "zstd -5": {"id": "zstd", "level": -5},
    "unknown": {"id": "nope"},
}


@each("name", COMPRESSORS)
def test_compressor(name, tmp_path):
    metadata = {"compressor": COMPRESSORS[name]}
    check(created(metadata, {"dtype": "uint16", "shape": [5, 3]}), tmp_path)


@each("name", COMPRESSORS)
def test_codec(name, tmp_path):
    json = {"driver": "zarr", "compressor": COMPRESSORS[name]}
    if name in ("unknown", "blosc and more", "zlib 10"):
        with pytest.raises(gpustore.MetadataError, match="compressor"):
            gpustore.open(
                "memory://|zarr2:",
                create=True,
                dtype="int8",
                shape=[2],
                codec=gpustore.CodecSpec(json),
            ).result()
        return
    keywords = {"dtype": "uint16", "shape": [5, 3]}
    keywords["codec"] = lambda library: library.CodecSpec(json)
    check(created({}, keywords), tmp_path)


def test_no_codec_is_blosc(tmp_path):
    check(created({}, {"dtype": "uint16", "shape": [5, 3]}), tmp_path)


@pytest.mark.parametrize("filters", [None, []])
def test_no_filters(filters, tmp_path):
    metadata = RAW | {"filters": filters, "dtype": "<u2"}
    check(created(metadata, {"shape": [5, 3]}), tmp_path)


def test_filters_are_refused_and_nothing_is_created(tmp_path):
    metadata = RAW | {"filters": [{"id": "lzo", "dtype": "<u2"}], "dtype": "<u2"}
    with pytest.raises(gpustore.UnsupportedError, match="filters are not supported"):
        created(metadata, {"shape": [5, 3]})(gpustore, tmp_path)
    assert files(tmp_path) == {}


@each("dtype", ["<f4", "<i2", "|b1", "bfloat16", "<c8"])
@each("fill", [None, -1, 1.5, "1.5", True])
def test_fill_value(fill, dtype, tmp_path):
    metadata = RAW | {"dtype": dtype, "fill_value": fill}
    check(created(metadata, {"shape": [3]}), tmp_path)


@pytest.mark.parametrize("dtype", ["<f4", ">f8"])
@pytest.mark.parametrize("fill", ["NaN", "Infinity", "-Infinity"])
def test_fill_value_that_is_no_number(fill, dtype, tmp_path):
    """Without the schema, which TensorStore prints with ``null``."""

    def run(library, root):
        result = created(RAW | {"dtype": dtype, "fill_value": fill}, {"shape": [3]})(library, root)
        return result["files"], result["elements"]

    check(run, tmp_path)


@pytest.mark.parametrize("shape", [[5, 3], [3], []])
@pytest.mark.parametrize("separator", [".", "/"])
def test_keys(separator, shape, tmp_path):
    """By either of its names."""
    metadata = RAW | {"chunks": [2] * len(shape), "dtype": "<u2"}
    ones = lambda store: np.ones(store.shape, "u2")  # noqa: E731
    separated = metadata | {"dimension_separator": separator}
    check(created(separated, {"shape": shape}, elements=ones), tmp_path)
    check(
        created(metadata, {"shape": shape}, elements=ones, key_encoding=separator, path="b"),
        tmp_path,
    )


def test_metadata_key(tmp_path):
    create = created(RAW | {"dtype": "<u2"}, {"shape": [5, 3]}, metadata_key="zarray")

    def run(library, root):
        result = create(library, root)
        # Legal, but there is no URL for it: NotImplementedError says that better.
        del result["store"]["url"]
        return result

    check(run, tmp_path)


ORDERS = {
    "F": {"inner_order": [1, 0]},
    "C": {"inner_order": [0, 1]},
    "soft F": {"inner_order_soft_constraint": [1, 0]},
    "neither": {"inner_order": [1, 0, 2]},
    "soft neither": {"inner_order_soft_constraint": [1, 0, 2]},
}


@pytest.mark.parametrize("name", ORDERS)
def test_inner_order(name, tmp_path):
    shape = [5, 3, 2] if "neither" in name else [5, 3]
    keywords = {
        "shape": shape,
        "chunk_layout": lambda library: library.ChunkLayout(**ORDERS[name]),
    }
    check(created(RAW | {"dtype": "<u2"}, keywords), tmp_path)


@pytest.mark.parametrize("units", [["4nm", None], [None, None]])
def test_dimension_units(units, tmp_path):
    keywords = {"shape": [5, 3], "dimension_units": units}
    check(created(RAW | {"dtype": "<u2"}, keywords), tmp_path)


def test_chunks_that_differ_to_be_read_and_written(tmp_path):
    layout = {"read_chunk_shape": [2, 2], "write_chunk_shape": [4, 4]}
    keywords = {"shape": [5, 3], "chunk_layout": lambda library: library.ChunkLayout(**layout)}
    check(created(RAW | {"dtype": "<u2"}, keywords), tmp_path)


OPTIONS = {
    "default": {},
    "store_data_equal_to_fill_value": {"store_data_equal_to_fill_value": True},
    "fill_missing_data_reads": {"fill_missing_data_reads": False},
    "cache_pool": {"cache_pool": {"total_bytes_limit": 1000}},
    "unknown": {"foo": 1},
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("element", [0, 3])
@pytest.mark.parametrize("fill", [None, 0])
def test_option(name, element, fill, tmp_path):
    """Without a fill value, chunks of zeros are stored."""
    keywords = {"dtype": "uint16", "shape": [5, 3], "fill_value": fill}
    check(created(RAW, keywords, elements=lambda store: element, **OPTIONS[name]), tmp_path)


STORED_DOCUMENT = {
    "zarr_format": 2,
    "shape": [8],
    "chunks": [4],
    "dtype": "<u4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "dimension_separator": ".",
}


def test_unknown_members_stay_in_the_file_and_out_of_the_spec():
    kvstore = gpustore.KvStore.open("memory://a/").result()
    kvstore[".zarray"] = json.dumps({**STORED_DOCUMENT, "foo": 1}).encode()
    store = gpustore.open({"driver": "zarr"}, kvstore=kvstore).result()
    assert store.spec().to_json()["metadata"] == STORED_DOCUMENT
    assert "uint32" in repr(store)
    assert gpustore.Spec(store.spec().to_json()) == store.spec()
    store.resize(exclusive_max=[6]).result()
    assert json.loads(bytes(kvstore[".zarray"]))["foo"] == 1


_LZMA = {"id": "lzma", "check": -1, "preset": None, "filters": None}


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        (numcodecs.Zlib(-1).get_config(), {"id": "zlib", "level": 6}),
        (numcodecs.GZip(-1).get_config(), {"id": "gzip", "level": 6}),
        (numcodecs.LZ4(-3).get_config(), {"id": "lz4", "acceleration": 1}),
        (numcodecs.LZ4(10**6).get_config(), {"id": "lz4", "acceleration": 65537}),
        (numcodecs.LZMA(format=0).get_config(), {**_LZMA, "format": 0}),
        ({"id": "lzma"}, {**_LZMA, "format": 1}),
        ({"id": "zlib"}, {"id": "zlib", "level": 1}),
    ],
    ids=str,
)
def test_options_that_numcodecs_stores_are_those_it_means(stored, meant, tmp_path):
    directory = tmp_path / "a"
    directory.mkdir()
    document = json.dumps({**STORED_DOCUMENT, "compressor": stored})
    (directory / ".zarray").write_text(document)
    store = gpustore.open(str(directory)).result()
    assert store.codec.to_json()["compressor"] == meant
    assert store.schema.codec == store.codec
    spec = store.spec().to_json()
    assert spec["metadata"]["compressor"] == meant
    again = gpustore.open(spec, write=True).result()
    assert again.spec() == store.spec()
    values = np.arange(8, dtype=np.uint32)
    again.write(values).result()
    assert json.loads((directory / ".zarray").read_text())["compressor"] == stored
    assert np.array_equal(store.read().result(), values)
    theirs = zarr.open_array(directory, mode="r+")
    assert np.array_equal(theirs[:], values)
    if stored.get("format") != 0:  # numcodecs cannot encode it.
        theirs[:] = values + 1
        assert np.array_equal(store.read().result(), values + 1)
    anew = gpustore.open(spec, create=True, delete_existing=True).result()
    assert anew.spec() == store.spec()


@pytest.mark.parametrize("level", [-1, 10])
def test_options_of_a_spec_are_those_of_tensorstore(level, tmp_path):
    metadata = {"dtype": "<u2", "shape": [4], "compressor": {"id": "zlib", "level": level}}

    def run(library, root):
        spec = {"driver": "zarr2", "kvstore": f"file://{root}/a", "metadata": metadata}
        return library.Spec(spec).to_json()

    check(run, tmp_path)
