"""The zarr3 driver: what it writes, byte for byte what TensorStore writes."""

import json
from functools import partial

import numpy as np
import pytest

import gpustore
from gpustore.metadata.data_type import V3_DATA_TYPES
from tests.drivers import parity
from tests.drivers.parity import check, files
from tests.matrix import each

NO_NUMBERS = ("NaN", "Infinity", "-Infinity")

FILL = {
    "bool": True,
    "complex64": 1 + 2j,
    "complex128": 1 - 2j,
    "float4_e2m1fn": 1.5,
    "float16": -0.0,
    "float64": -1.5,
    "int8": -3,
}

RAW = parity.RAW["zarr3"]
created = partial(parity.created, "zarr3")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [name for name in V3_DATA_TYPES if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("fill", [False, True])
def test_data_type(dtype, fill, tmp_path):
    keywords = {"dtype": dtype, "shape": [5, 3]}
    if fill:
        keywords["fill_value"] = FILL.get(dtype, 1)
    check(created(RAW, keywords), tmp_path)


def test_data_type_without_a_zero(tmp_path):
    """The bits are zero, as TensorStore's; it writes the value as 0.0."""
    url = f"file://{tmp_path}/a|zarr3:"
    store = gpustore.open(url, create=True, dtype="float8_e8m0fnu", shape=[2]).result()
    assert '"fill_value":"0x00"' in files(tmp_path)["a/zarr.json"].decode()
    assert store.read().result().tobytes() == b"\0\0"


CODECS = {
    "none": [],
    "bytes": ["bytes"],
    "gzip": ["gzip"],
    "gzip 9": [{"name": "gzip", "configuration": {"level": 9}}],
    "gzip 10": [{"name": "gzip", "configuration": {"level": 10}}],
    "zstd": ["zstd"],
    "zstd checksum": [{"name": "zstd", "configuration": {"level": 3, "checksum": True}}],
    "blosc": ["blosc"],
    "blosc zstd": [{"name": "blosc", "configuration": {"cname": "zstd", "shuffle": "noshuffle"}}],
    "crc32c": ["crc32c"],
    "three": ["bytes", "gzip", "crc32c"],
    "big endian": [{"name": "bytes", "configuration": {"endian": "big"}}],
    "big endian, crc32c": [{"name": "bytes", "configuration": {"endian": "big"}}, "crc32c"],
    "unknown": ["nope"],
    "wrong order": ["gzip", "bytes"],
    "bytes twice": ["bytes", "bytes"],
    "crc32c twice": ["crc32c", "crc32c"],
}


@pytest.mark.matrix("costly")
@each("dtype", ["uint8", "uint16"])
@each("name", CODECS)
def test_codecs_in_the_metadata(name, dtype, tmp_path):
    check(created({"codecs": CODECS[name]}, {"dtype": dtype, "shape": [5, 3]}), tmp_path)


VALID = [
    name for name in CODECS if name not in ("gzip 10", "unknown", "wrong order", "bytes twice")
]


@pytest.mark.matrix("costly")
@each("dtype", ["uint8", "uint16"])
@each("name", VALID)
def test_codecs_in_the_schema(name, dtype, tmp_path):
    json = {"driver": "zarr3", "codecs": CODECS[name]}
    keywords = {"dtype": dtype, "shape": [5, 3], "codec": lambda library: library.CodecSpec(json)}
    check(created({}, keywords), tmp_path)


@each("dtype", ["float32", "int16", "bool", "bfloat16", "complex64"])
@each("fill", [0, -1, 1.5, "1.5", True, None, [1, 2]])
def test_fill_value(fill, dtype, tmp_path):
    check(created({"data_type": dtype, "fill_value": fill}, {"shape": [3]}), tmp_path)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *((dtype, fill) for dtype in ("float32", "float64", "bfloat16") for fill in NO_NUMBERS),
        ("float32", "0x7fc00001"),
        ("bfloat16", "0x7fc1"),
    ],
)
def test_fill_value_that_is_no_number(dtype, fill, tmp_path):
    """Without the schema, which TensorStore prints with ``null``."""
    metadata = {"data_type": dtype, "fill_value": fill}

    def run(library, root):
        result = created(metadata, {"shape": [3]})(library, root)
        return result["files"], result["elements"]

    check(run, tmp_path)


KEYS = {
    f"{name} {separator}": {"name": name}
    | ({} if separator is None else {"configuration": {"separator": separator}})
    for name in ("default", "v2")
    for separator in (None, "/", ".")
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("shape", [[5, 3], [3], []])
def test_chunk_key_encoding(name, shape, tmp_path):
    grid = {"name": "regular", "configuration": {"chunk_shape": [2] * len(shape)}}
    metadata = {"chunk_key_encoding": KEYS[name], "data_type": "uint8", "chunk_grid": grid}
    ones = created(metadata, {"shape": shape}, elements=lambda store: np.ones(store.shape, "u1"))
    check(ones, tmp_path)


@pytest.mark.parametrize(
    "names", [["x", "y"], ["x", None], [None, None], ["", ""], ["x", ""], ["x", "y", "z"]]
)
def test_dimension_names(names, tmp_path):
    metadata = {"dimension_names": names, "data_type": "uint8", "shape": [5, 3, 1][: len(names)]}
    check(created(metadata, {}), tmp_path)


def test_dimension_names_twice(tmp_path):
    """TensorStore stores and then refuses them."""
    with pytest.raises(gpustore.MetadataError, match="not unique"):
        created({"dimension_names": ["x", "x"]}, {"dtype": "uint8", "shape": [5, 3]})(
            gpustore, tmp_path
        )
    assert files(tmp_path) == {}


@pytest.mark.parametrize("labels", [["x", "y"], ["x", ""]])
def test_labels(labels, tmp_path):
    keywords = {"domain": lambda library: library.IndexDomain(shape=[5, 3], labels=labels)}
    check(created({"data_type": "uint8"}, keywords), tmp_path)


@pytest.mark.parametrize(
    "units", [["4nm", None], ["", None], [None, None], [(3, "s"), "um"], ["4nm"], ["nm"] * 3]
)
def test_dimension_units(units, tmp_path):
    keywords = {"shape": [5, 3], "dimension_units": units}
    check(created({"data_type": "uint8"}, keywords), tmp_path)


def test_dimension_units_of_metadata_and_schema(tmp_path):
    metadata = {"data_type": "uint8", "attributes": {"dimension_units": ["4 nm", None], "b": 1}}
    keywords = {"shape": [5, 3], "dimension_units": [None, "3s"]}
    check(created(metadata, keywords), tmp_path)
    keywords["dimension_units"] = ["5nm", None]
    with pytest.raises(gpustore.MetadataError, match="Cannot merge dimension units"):
        created(metadata, keywords)(gpustore, tmp_path / "b")


MEMBERS = {
    "attributes": {"attributes": {"b": [1, {"c": None}], "a": "é", "Z": 1.5}},
    "unknown": {"foo": 1},
    "not to be understood": {"foo": {"must_understand": False}},
    "storage_transformers": {"storage_transformers": []},
    "format": {"zarr_format": 3, "node_type": "array"},
    "another format": {"zarr_format": 2},
    "group": {"node_type": "group"},
}


@pytest.mark.parametrize("name", MEMBERS)
def test_metadata_member(name, tmp_path):
    check(created({"data_type": "uint8"} | MEMBERS[name], {"shape": [5, 3]}), tmp_path)


OPTIONS = {
    "default": {},
    "store_data_equal_to_fill_value": {"store_data_equal_to_fill_value": True},
    "fill_missing_data_reads": {"fill_missing_data_reads": False},
    "cache_pool": {"cache_pool": {"total_bytes_limit": 1000}},
    "unknown": {"metadata_key": "zarr.json"},
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("element", [0, 3])
def test_option(name, element, tmp_path):
    keywords = {"dtype": "uint16", "shape": [5, 3], "fill_value": 0}
    check(
        created(RAW, keywords, elements=lambda store: element, **OPTIONS[name]),
        tmp_path,
    )


@pytest.mark.parametrize("names", [["x", "x"], ["x", "", "x"], ["x", "y", None, "x"]])
def test_names_that_are_no_labels_stay_in_the_file_and_out_of_the_spec(names, tmp_path):
    rank = len(names)
    directory = tmp_path / "a"
    spec = {"driver": "zarr3", "kvstore": f"file://{directory}/"}
    gpustore.open(spec, create=True, dtype="uint8", shape=[4] * rank).result()
    document = json.loads((directory / "zarr.json").read_text())
    (directory / "zarr.json").write_text(json.dumps({**document, "dimension_names": names}))
    store = gpustore.open(spec).result()
    assert store.domain.labels == store.schema.domain.labels == ("",) * rank
    assert "dimension_names" not in store.spec().to_json()["metadata"]
    assert "uint8" in repr(store)
    again = gpustore.open(store.spec().to_json()).result()
    assert again.spec() == store.spec()
    assert again.domain == store.domain
    assert again[(0,) * rank].read().result() == 0
    # Another domain may give them labels; what is stored stays.
    labels = [f"d{dimension}" for dimension in range(rank)]
    labelled = gpustore.IndexDomain(shape=[4] * rank, labels=labels)
    assert gpustore.open(spec, domain=labelled).result().domain.labels == tuple(labels)
    again.resize(exclusive_max=[3] * rank).result()
    assert json.loads((directory / "zarr.json").read_text())["dimension_names"] == names
    anew = gpustore.open(store.spec(), create=True, delete_existing=True).result()
    assert anew.domain == store.domain
