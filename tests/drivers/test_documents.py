"""The worked examples of TensorStore's pages on the zarr2 and zarr3 drivers, values only."""

import pytest
import tensorstore as ts

import gpustore
from tests.drivers.documents import CHUNKS, SHAPE, STRUCTURED, ZARR2, ZARR3, document_of, stored
from tests.matrix import each

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


DRIVERS = {"zarr": "zarr2", "zarr2": "zarr2", "zarr3": "zarr3"}
"""Names of drivers, and of the formats they are for."""


@pytest.mark.parametrize("driver", DRIVERS)
def test_schema_of_stored_metadata(driver):
    metadata, schema = SCHEMAS[DRIVERS[driver]]
    field = {} if driver == "zarr3" else {"field": ""}
    assert stored(driver, metadata, **field).schema.to_json() == schema


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
    assert stored("zarr2", STRUCTURED, field=field).schema.to_json() == expected
    assert gpustore.Spec(spec).schema.to_json() == expected
    assert gpustore.open(spec, create=True).result().schema.to_json() == expected


def test_a_field_must_be_named_if_there_are_several():
    for library in (gpustore, ts):
        with pytest.raises(ValueError, match=r'Must specify a "field" that is one of: \["x","y"\]'):
            stored("zarr2", STRUCTURED, library)


@pytest.mark.parametrize("order", ["C", "F"])
def test_inner_order_of_a_subarray(order):
    metadata = {"dtype": [["x", "<u2", [2, 3]]], "order": order, "fill_value": None}
    layout = stored("zarr2", ZARR2 | metadata).chunk_layout
    assert layout.inner_order == ((0, 1, 2, 3, 4) if order == "C" else (2, 1, 0, 3, 4))


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


@each("driver", DRIVERS)
@each("name", CHUNKINGS)
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
    constraints, expected = TWO_LEVELS[name]
    store = created(gpustore, "zarr3", constraints)
    assert store.chunk_layout.to_json() == expected
    assert [codec["name"] for codec in store.codec.to_json()["codecs"]] == ["sharding_indexed"]


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


EXAMPLES = {
    "zarr2": {
        "driver": "zarr2",
        "key_encoding": ".",
        "metadata": {
            "shape": [1000, 1000],
            "chunks": [100, 100],
            "dtype": "<i2",
            "order": "C",
            "compressor": {"id": "blosc", "shuffle": -1, "clevel": 5, "cname": "lz4"},
        },
    },
    "zarr3": {
        "driver": "zarr3",
        "metadata": {
            "shape": [1000, 1000],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100, 100]}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5}}],
            "data_type": "int4",
        },
    },
}
"""The specs at the top of the pages, to which the tests add a store that exists here."""


@pytest.mark.parametrize("driver", EXAMPLES)
def test_example_specs(driver):
    spec = EXAMPLES[driver]
    document = document_of(gpustore, spec)
    assert document == document_of(ts, spec)
    given = dict(spec["metadata"])
    if driver == "zarr3":
        codecs = given.pop("codecs")
        blosc = {**codecs[0]["configuration"], "blocksize": 0, "typesize": 1}
        assert document["codecs"] == [
            {"name": "bytes"},
            {"name": "blosc", "configuration": blosc | {"shuffle": "bitshuffle"}},
        ]
    else:
        given["compressor"] = given["compressor"] | {"blocksize": 0}
        assert document["dimension_separator"] == spec["key_encoding"]
    assert {name: document[name] for name in given} == given
    kvstore = {"driver": "memory", "path": "path/to/array/"}
    store = gpustore.open({**spec, "kvstore": kvstore}, create=True).result()
    assert store.shape == (1000, 1000)
    assert store.dtype.name == {"zarr2": "int16", "zarr3": "int4"}[driver]
