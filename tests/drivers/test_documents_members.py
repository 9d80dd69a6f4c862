"""The members of metadata and specs on TensorStore's pages about Zarr, and their defaults."""

import json

import pytest
import tensorstore as ts

import gpustore
from tests.drivers.documents import STRUCTURED, ZARR2, ZARR3, document_of, stored
from tests.matrix import each

# --------------------------------------------------------------------------- Zarr v2, members

ZARR2_TYPES = {
    "bool": ["|b1"],
    "int4": ["int4"],
    "uint8": ["|u1"],
    "int8": ["|i1"],
    **{
        f"{kind}{8 * n}": [f"<{kind[0]}{n}", f">{kind[0]}{n}"]
        for kind in ("uint", "int", "float")
        for n in (2, 4, 8)
    },
    **{
        name: [name]
        for name in (
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e4m3b11fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e3m4",
            "bfloat16",
            "int2",
        )
    },
    "complex64": ["<c8", ">c8"],
    "complex128": ["<c16", ">c16"],
}


@each("name", ZARR2_TYPES)
def test_zarr2_data_types(name):
    for form in ZARR2_TYPES[name]:
        assert stored("zarr2", ZARR2 | {"dtype": form, "fill_value": None}).dtype.name == name
    # A new array has the native byte order.
    spec = {"driver": "zarr2", "schema": {"dtype": name, "domain": {"shape": [3]}}}
    assert document_of(gpustore, spec)["dtype"] == ZARR2_TYPES[name][0]


COMPRESSORS = [
    ({"id": "gzip", "level": 9}, {"id": "gzip", "level": 9}),
    ({"id": "zlib"}, {"id": "zlib", "level": 1}),
    ({"id": "zstd", "level": 6}, {"id": "zstd", "level": 6}),
    ({"id": "zstd"}, {"id": "zstd", "level": 1}),
    ({"id": "bz2"}, {"id": "bz2", "level": 1}),
    (
        {"id": "blosc", "cname": "blosclz", "clevel": 9, "shuffle": 2},
        {"id": "blosc", "cname": "blosclz", "clevel": 9, "shuffle": 2, "blocksize": 0},
    ),
    (
        {"id": "blosc"},
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0},
    ),
    (None, None),
]


@each(("given", "full"), COMPRESSORS)
def test_zarr2_compressors(given, full):
    for library in (gpustore, ts):
        spec = {"driver": "zarr", "metadata": {"shape": [3], "dtype": "<i2", "compressor": given}}
        assert document_of(library, spec)["compressor"] == full
        codec = library.CodecSpec({"driver": "zarr", "compressor": given})
        by_schema = {
            "driver": "zarr",
            "dtype": "int16",
            "schema": {"domain": {"shape": [3]}, "codec": codec.to_json()},
        }
        assert document_of(library, by_schema)["compressor"] == full


def test_zarr2_defaults():
    metadata = {"shape": [500, 500, 500], "chunks": [64, 64, 64], "dtype": "<i2"}
    for library in (gpustore, ts):
        assert document_of(library, {"driver": "zarr", "metadata": metadata}) == {
            **metadata,
            "zarr_format": 2,
            "order": "C",
            "fill_value": None,
            "filters": None,
            "dimension_separator": ".",
            "compressor": COMPRESSORS[6][1],
        }


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("form", ["dimension_separator", "key_encoding"])
def test_zarr2_keys(form, separator):
    metadata = {"shape": [4, 4], "chunks": [2, 2], "dtype": "|u1"}
    spec = {"driver": "zarr2", "kvstore": "memory://a/", "metadata": metadata}
    (metadata if form == "dimension_separator" else spec)[form] = separator
    for library in (gpustore, ts):
        context = library.Context()
        store = library.open(spec, create=True, context=context).result()
        store[2:, :2] = 1
        kvstore = library.KvStore.open("memory://a/", context=context).result()
        assert sorted(kvstore.list().result()) == [b".zarray", f"1{separator}0".encode()]
        assert json.loads(kvstore[".zarray"])["dimension_separator"] == separator


def test_zarr2_metadata_key_and_path():
    spec = {
        "driver": "zarr2",
        "kvstore": "memory://a/",
        "path": "path/to/data",
        "metadata_key": "zarray",
        "metadata": {"shape": [4], "dtype": "|u1"},
    }
    for library in (gpustore, ts):
        context = library.Context()
        library.open(spec, create=True, context=context).result()[...] = 1
        kvstore = library.KvStore.open("memory://", context=context).result()
        assert sorted(kvstore.list().result()) == [b"a/path/to/data/0", b"a/path/to/data/zarray"]
        again = library.open(
            {"driver": "zarr2", "kvstore": "memory://a/path/to/data/", "metadata_key": "zarray"},
            context=context,
        ).result()
        assert again.shape == (4,)


def test_zarr2_undefined_fill_value():
    """An undefined fill value reads as zero, and written zeros are stored."""
    for library in (gpustore, ts):
        context = library.Context()
        spec = {
            "driver": "zarr2",
            "kvstore": "memory://a/",
            "metadata": {"shape": [4], "chunks": [2], "dtype": "|u1", "fill_value": None},
        }
        store = library.open(spec, create=True, context=context).result()
        store[:2] = 0
        assert store.read().result().tolist() == [0, 0, 0, 0]
        kvstore = library.KvStore.open("memory://a/", context=context).result()
        assert sorted(kvstore.list().result()) == [b".zarray", b"0"]


@pytest.mark.parametrize(
    ("driver", "members"),
    [
        *(("zarr3", {"codecs": one}) for one in ([], [{"name": "x"}], [{"name": "bytes"}] * 2)),
        ("zarr2", {"compressor": {"id": "x"}}),
        ("zarr2", {"filters": 5}),
        ("neuroglancer_precomputed", {"num_channels": 0}),
    ],
    ids=str,
)
def test_wrong_stored_members_are_told_as_by_tensorstore(driver, members, tmp_path):
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/"}
    gpustore.open(spec, create=True, dtype="uint8", shape=[3, 3, 3, 1]).result()
    (document,) = tmp_path.iterdir()
    document.write_text(json.dumps(json.loads(document.read_text()) | members))
    words = []
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="Error reading") as caught:
            library.open(spec).result()
        words.append(str(caught.value).partition(" [tensorstore_spec")[0])
    assert words[0].startswith(words[1])


def test_zarr2_fill_value_beside_null_is_refused():
    metadata = {"dtype": "|i1", "fill_value": None}
    spec = {"driver": "zarr2", "kvstore": "memory://", "metadata": metadata}
    words = []
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="fill value of 3") as caught:
            library.open(spec, create=True, shape=[3], fill_value=3).result()
        words.append(str(caught.value).partition(" [")[0])
    assert words[0] == words[1]


@pytest.mark.parametrize("driver", ["zarr2", "zarr3", "n5"])
def test_codec_of_another_driver(driver):
    other = {"zarr2": "zarr3", "zarr3": "zarr", "n5": "zarr3"}[driver]
    spec = {"driver": driver, "kvstore": "memory://", "schema": {"codec": {"driver": other}}}
    words = []
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="codec") as caught:
            library.open(spec, create=True, dtype="uint8", shape=[3]).result()
        words.append(str(caught.value).partition(" [")[0])
    assert words[0] == words[1]


# --------------------------------------------------------------------------- Zarr v3, members

ZARR3_TYPES = (
    *("bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@each("name", ZARR3_TYPES)
def test_zarr3_data_types(name):
    documents = [
        document_of(library, {"driver": "zarr3", "metadata": {"shape": [3], "data_type": name}})
        for library in (gpustore, ts)
    ]
    assert documents[0] == documents[1]
    assert documents[0]["data_type"] == name
    default = {"bool": False, "complex64": [0, 0], "complex128": [0, 0]}.get(name, 0)
    assert documents[0]["fill_value"] == default
    assert stored("zarr3", documents[0]).dtype.name == name


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C = {"name": "crc32c"}
SHARDING = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [64, 64, 64],
        "codecs": [BYTES, {"name": "gzip", "configuration": {"level": 5}}],
        "index_codecs": [BYTES, CRC32C],
        "index_location": "end",
    },
}
BLOSC = {"cname": "blosclz", "clevel": 9, "typesize": 2, "shuffle": "bitshuffle"}

CODECS = {
    "transpose": ({"name": "transpose", "configuration": {"order": [2, 0, 1]}}, None),
    "transpose F": (
        {"name": "transpose", "configuration": {"order": "F"}},
        {"name": "transpose", "configuration": {"order": [2, 1, 0]}},
    ),
    "bytes": (BYTES, None),
    "sharding_indexed": (SHARDING, None),
    "gzip": ({"name": "gzip", "configuration": {"level": 9}}, None),
    "blosc": (
        {"name": "blosc", "configuration": BLOSC},
        {"name": "blosc", "configuration": BLOSC | {"blocksize": 0}},
    ),
    "blosc defaults": (
        {"name": "blosc"},
        {
            "name": "blosc",
            "configuration": {
                **{"cname": "lz4", "clevel": 5, "typesize": 2, "shuffle": "shuffle"},
                "blocksize": 0,
            },
        },
    ),
    "zstd": (
        {"name": "zstd", "configuration": {"level": 6}},
        {"name": "zstd", "configuration": {"level": 6, "checksum": False}},
    ),
    "crc32c": (CRC32C, None),
    "crc32c, a string": ("crc32c", CRC32C),
}


@each("name", CODECS)
def test_zarr3_codecs(name):
    given, full = CODECS[name]
    metadata = {
        "shape": [300, 400, 500],
        "data_type": "uint16",
        "codecs": [given],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64, 64, 64]}},
    }
    documents = [
        document_of(library, {"driver": "zarr3", "metadata": metadata})
        for library in (gpustore, ts)
    ]
    assert documents[0] == documents[1]
    codecs = documents[0]["codecs"]
    found = next(codec for codec in codecs if codec["name"] == name.split()[0].rstrip(","))
    expected = full or given
    if name == "sharding_indexed":
        # The end is where the index is anyway.
        inner = SHARDING["configuration"] | {}
        del inner["index_location"]
        expected = SHARDING | {"configuration": inner}
    assert found == expected
    assert [codec["name"] for codec in codecs].count("bytes") == (name != "sharding_indexed")


def test_zarr3_gzip_level_of_the_sharding_example_is_no_string():
    codecs = [{"name": "gzip", "configuration": {"level": "5"}}]
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"codecs": codecs}}
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="level"):
            library.Spec(spec)


KEY_ENCODINGS = [
    ({}, "c/1/0"),
    ({"name": "default"}, "c/1/0"),
    ({"name": "default", "configuration": {"separator": "/"}}, "c/1/0"),
    ({"name": "default", "configuration": {"separator": "."}}, "c.1.0"),
    ({"name": "v2"}, "1.0"),
    ({"name": "v2", "configuration": {"separator": "."}}, "1.0"),
    ({"name": "v2", "configuration": {"separator": "/"}}, "1/0"),
]


@pytest.mark.parametrize(("encoding", "key"), KEY_ENCODINGS, ids=str)
def test_zarr3_keys(encoding, key):
    metadata = {
        "shape": [4, 4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        **({"chunk_key_encoding": encoding} if encoding else {}),
    }
    for library in (gpustore, ts):
        context = library.Context()
        spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
        store = library.open(spec, create=True, context=context).result()
        store[2:, :2] = 1
        kvstore = library.KvStore.open("memory://a/", context=context).result()
        assert sorted(kvstore.list().result()) == sorted([key.encode(), b"zarr.json"])


def test_zarr3_dimension_units():
    units = ["2 nm", "3 nm", "50 nm"]
    store = stored("zarr3", ZARR3 | {"attributes": {"dimension_units": units}})
    assert [str(unit) for unit in store.dimension_units] == units
    for library in (gpustore, ts):
        spec = {"driver": "zarr3", "schema": {"dimension_units": [[2, "nm"], [3, "nm"], "50 nm"]}}
        document = document_of(library, spec | {"dtype": "uint8", "metadata": {"shape": [4, 5, 6]}})
        assert document["attributes"]["dimension_units"] == units


NAMES = [
    (["x", "y", "z"], ("x", "y", "z")),
    (["x", None, ""], ("x", "", "")),
    (["x", "x", "z"], ("", "", "")),
]


@pytest.mark.parametrize(("names", "labels"), NAMES, ids=str)
def test_zarr3_dimension_names(names, labels):
    """Names that are no valid labels leave all dimensions without labels."""
    metadata = ZARR3 | {"dimension_names": names}
    assert tuple(stored("zarr3", metadata).domain.labels) == labels
    if any(labels):
        assert tuple(stored("zarr3", metadata, ts).domain.labels) == labels
    else:
        # TensorStore 0.1.86 does not do what its page says.
        with pytest.raises(ValueError, match="not unique"):
            stored("zarr3", metadata, ts)


@pytest.mark.parametrize("names", [["x", "y", None], ["x", "x", None]], ids=str)
def test_zarr3_names_attributes_and_unknown_members_outlive_a_resize(names):
    extra = {
        "dimension_names": names,
        "attributes": {"dimension_units": ["2 nm", None, ""], "note": {"a": [1, None]}},
        "later": {"must_understand": False, "value": 3},
    }
    store = stored("zarr3", ZARR3 | extra)
    store.resize(exclusive_max=[1001, 2000, 3000]).result()
    assert json.loads(store.kvstore["zarr.json"]) == ZARR3 | extra | {"shape": [1001, 2000, 3000]}
    assert stored("zarr3", ZARR3 | extra).dimension_units == store.dimension_units


def test_zarr2_unknown_members_outlive_a_resize():
    extra = {"later": {"value": [3, None]}, "dimension_separator": "/"}
    for library in (gpustore, ts):
        store = stored("zarr2", ZARR2 | extra, library)
        store.resize(exclusive_max=[1001, 2000, 3000]).result()
        assert json.loads(store.kvstore[".zarray"]) == ZARR2 | extra | {"shape": [1001, 2000, 3000]}


def test_bounds_are_resizable_but_those_of_subarrays():
    for library in (gpustore, ts):
        store = stored("zarr2", STRUCTURED, library, field="x")
        assert store.domain.implicit_upper_bounds == (True, True, True, False, False)
        assert store.domain.implicit_lower_bounds == (False,) * 5
        outer, options = [10, 20, 30], {"resize_tied_bounds": True}
        resized = store.resize(exclusive_max=[*outer, None, None], **options).result()
        assert resized.shape == (*outer, 2, 3)
        with pytest.raises(ValueError, match="Cannot change explicit upper bound"):
            store.resize(exclusive_max=[*outer, 2, 4], **options).result()
