"""The worked examples of TensorStore's pages on the zarr2 and zarr3 drivers, values only."""

import json

import pytest
import tensorstore as ts

import gpustore

SHAPE = [1000, 2000, 3000]
CHUNKS = [100, 200, 300]
ORDER = {"C": [0, 1, 2], "F": [2, 1, 0]}


def layout(read, write=None, order="C"):
    """The layout of an array of three dimensions, as JSON."""
    return {
        "grid_origin": [0, 0, 0],
        "inner_order": ORDER[order],
        "read_chunk": {"shape": read},
        "write_chunk": {"shape": write or read},
    }


DOMAIN = {"exclusive_max": [[1000], [2000], [3000]], "inclusive_min": [0, 0, 0]}

ZARR2 = {
    "zarr_format": 2,
    "shape": SHAPE,
    "chunks": CHUNKS,
    "dtype": "<u2",
    "compressor": None,
    "fill_value": 42,
    "order": "C",
    "filters": None,
}

ZARR3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": SHAPE,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNKS}},
    "chunk_key_encoding": {"name": "default"},
    "data_type": "uint16",
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 42,
}

SCHEMAS = {
    "zarr2": (
        ZARR2,
        {
            "chunk_layout": layout(CHUNKS),
            "codec": {"compressor": None, "driver": "zarr", "filters": None},
            "domain": DOMAIN,
            "dtype": "uint16",
            "fill_value": 42,
            "rank": 3,
        },
    ),
    "zarr3": (
        ZARR3,
        {
            "chunk_layout": layout(CHUNKS),
            "codec": {
                "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
                "driver": "zarr3",
            },
            "domain": DOMAIN,
            "dtype": "uint16",
            "fill_value": 42,
            "rank": 3,
        },
    ),
}

KEYS = {"zarr2": ".zarray", "zarr3": "zarr.json"}


def stored(driver, metadata):
    """Opens metadata that somebody stored."""
    context = gpustore.Context()
    kvstore = gpustore.KvStore.open("memory://a/", context=context).result()
    kvstore[KEYS[driver]] = json.dumps(metadata)
    return gpustore.open(f"memory://a/|{driver}:", context=context).result()


@pytest.mark.parametrize("driver", SCHEMAS)
def test_schema_of_stored_metadata(driver):
    metadata, schema = SCHEMAS[driver]
    assert stored(driver, metadata).schema.to_json() == schema


@pytest.mark.parametrize("driver", SCHEMAS)
def test_schema_of_the_metadata_of_a_new_array(driver):
    metadata, schema = SCHEMAS[driver]
    spec = {"driver": driver, "kvstore": "memory://", "metadata": metadata}
    assert gpustore.open(spec, create=True).result().schema.to_json() == schema


@pytest.mark.parametrize("order", ["C", "F"])
def test_inner_order(order):
    found = stored("zarr2", ZARR2 | {"order": order}).chunk_layout
    assert found.to_json() == layout(CHUNKS, order=order)


def test_dimension_names():
    domain = stored("zarr3", ZARR3 | {"dimension_names": ["x", "y", "z"], "fill_value": 0}).domain
    assert domain.to_json() == DOMAIN | {"labels": ["x", "y", "z"]}


def test_domain_of_a_rank_2_array():
    domain = stored("zarr2", ZARR2 | {"shape": [100, 200], "chunks": [100, 200]}).domain
    assert domain == gpustore.IndexDomain(json={"shape": [[100], [200]]})


STRUCTURED = ZARR2 | {
    "dtype": [["x", "<u2", [2, 3]], ["y", "<f4", [5]]],
    "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    "fill_value": "AQACAAMABAAFAAYAAAAgQQAAMEEAAEBBAABQQQAAYEE=",
    "order": "F",
}


FIELDS = {
    "x": ([2, 3], "uint16", [[1, 2, 3], [4, 5, 6]]),
    "y": ([5], "float32", [10.0, 11.0, 12.0, 13.0, 14.0]),
}


@pytest.mark.parametrize("field", FIELDS)
def test_schema_of_a_field(field):
    inner, dtype, fill_value = FIELDS[field]
    spec = {"driver": "zarr2", "kvstore": "memory://", "metadata": STRUCTURED, "field": field}
    outer = [1000, 2000, 3000]
    chunk = {"shape": [100, 200, 300, *inner]}
    compressor = {"blocksize": 0, "clevel": 5, "cname": "lz4", "id": "blosc", "shuffle": 1}
    expected = {
        "chunk_layout": {
            "grid_origin": [0] * (3 + len(inner)),
            "inner_order": [2, 1, 0, *range(3, 3 + len(inner))],
            "read_chunk": chunk,
            "write_chunk": chunk,
        },
        "codec": {"compressor": compressor, "driver": "zarr", "filters": None},
        "domain": {
            "exclusive_max": [*([size] for size in outer), *inner],
            "inclusive_min": [0] * (3 + len(inner)),
        },
        "dtype": dtype,
        "fill_value": fill_value,
        "rank": 3 + len(inner),
    }
    assert gpustore.Spec(spec).schema.to_json() == expected
    assert gpustore.open(spec, create=True).result().schema.to_json() == expected


@pytest.mark.parametrize("order", ["C", "F"])
def test_layout_of_a_subarray(order):
    metadata = {"dtype": [["x", "<u2", [2, 3]]], "shape": [100, 200], "chunks": [100, 200]}
    found = stored("zarr2", ZARR2 | metadata | {"order": order, "fill_value": None})
    assert found.domain.to_json() == {
        "exclusive_max": [[100], [200], 2, 3],
        "inclusive_min": [0] * 4,
    }
    assert found.chunk_layout.write_chunk.shape == (100, 200, 2, 3)
    assert found.chunk_layout.inner_order == ((0, 1, 2, 3) if order == "C" else (1, 0, 2, 3))


CHUNKINGS = {
    "unconstrained": ({}, [101, 101, 101]),
    "chunk_shape": ({"chunk_shape": CHUNKS}, CHUNKS),
    "aspect ratio": ({"chunk_aspect_ratio": [1, 2, 2]}, [64, 128, 128]),
    "aspect ratio and elements": (
        {"chunk_aspect_ratio": [1, 2, 2], "chunk_elements": 2_000_000},
        [79, 159, 159],
    ),
}


def created(library, driver, constraints):
    return library.open(
        {"driver": driver, "kvstore": "memory://"},
        create=True,
        dtype="uint16",
        shape=SHAPE,
        chunk_layout=library.ChunkLayout(**constraints),
    ).result()


@pytest.mark.parametrize("driver", SCHEMAS)
@pytest.mark.parametrize("name", CHUNKINGS)
def test_chunk_layout_of_a_new_array(name, driver):
    constraints, chunks = CHUNKINGS[name]
    assert created(gpustore, driver, constraints).chunk_layout.to_json() == layout(chunks)


TWO_LEVELS = {
    "elements": (
        {
            "chunk_aspect_ratio": [2, 1, 1],
            "read_chunk_elements": 2_000_000,
            "write_chunk_elements": 1_000_000_000,
        },
        layout([200, 100, 100], [1000, 1000, 1000]),
    ),
    "shapes": (
        {"read_chunk_shape": [64, 64, 64], "write_chunk_shape": [512, 512, 512]},
        layout([64, 64, 64], [512, 512, 512]),
    ),
}


@pytest.mark.parametrize("name", TWO_LEVELS)
def test_chunks_within_chunks(name):
    """They need the codec sharding_indexed: refused by name, or laid out as documented."""
    constraints, expected = TWO_LEVELS[name]
    assert created(ts, "zarr3", constraints).chunk_layout.to_json() == expected
    try:
        store = created(gpustore, "zarr3", constraints)
    except gpustore.UnsupportedError as error:
        assert "sharding_indexed" in str(error)  # noqa: PT017
    else:
        assert store.chunk_layout.to_json() == expected


@pytest.mark.parametrize("name", TWO_LEVELS)
def test_zarr2_has_one_level_of_chunks(name):
    constraints, _ = TWO_LEVELS[name]
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match="hard constraint"):
            created(library, "zarr2", constraints)


URLS = {
    "file:///tmp/dataset.zarr/|zarr2:": "/tmp/dataset.zarr/",
    "file:///tmp/dataset.zarr|zarr2:path/within/hierarchy": (
        "/tmp/dataset.zarr/path/within/hierarchy/"
    ),
}


@pytest.mark.parametrize("url", URLS)
def test_url(url):
    kvstore = {"driver": "file", "path": URLS[url]}
    assert gpustore.Spec(url) == gpustore.Spec({"driver": "zarr2", "kvstore": kvstore})


def test_example_specs():
    """The two specs at the top of the pages, in a store that exists here."""
    zarr2 = gpustore.open(
        {
            "driver": "zarr2",
            "kvstore": {"driver": "memory", "path": "path/to/array/"},
            "key_encoding": ".",
            "metadata": {
                "shape": [1000, 1000],
                "chunks": [100, 100],
                "dtype": "<i2",
                "order": "C",
                "compressor": {"id": "blosc", "shuffle": -1, "clevel": 5, "cname": "lz4"},
            },
        },
        create=True,
    ).result()
    assert (zarr2.dtype, zarr2.shape) == (gpustore.int16, (1000, 1000))
    zarr3 = gpustore.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "memory", "path": "path/to/array/"},
            "metadata": {
                "shape": [1000, 1000],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100, 100]}},
                "chunk_key_encoding": {"name": "default"},
                "codecs": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5}}],
                "data_type": "int4",
            },
        },
        create=True,
    ).result()
    assert (zarr3.dtype, zarr3.shape) == (gpustore.int4, (1000, 1000))
    assert zarr3.codec.to_json()["codecs"][1]["configuration"]["shuffle"] == "bitshuffle"
