"""What is remembered of metadata documents and constraints."""

import itertools
import json

import pytest

import gpustore
from gpustore import Spec, registry
from gpustore.drivers import _remembered
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers._remembered import described
from gpustore.errors import GpustoreError, MetadataError
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.limits import DEFAULT_LIMITS
from tests.matrix import each

V2 = {
    "zarr_format": 2,
    "shape": [],
    "chunks": [2, 3],
    "dtype": [["a", "<u2"], ["b", "<f4", [2]]],
    "compressor": {"id": "zlib", "level": 1},
    "fill_value": None,
    "order": "F",
    "filters": None,
}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": "NaN",
    "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
    "attributes": {"shape": [1], "dimension_units": ["4 nm", None]},
    "dimension_names": ["x", None],
}
INNER = {"chunk_shape": [1, 3], "codecs": ["bytes"], "index_codecs": ["bytes"]}
EDGES = {"kind": "inline", "chunk_shapes": [[2, 5], 3]}
DOCUMENTS = {
    "v2": V2,
    "v2 chunks of nothing": {**V2, "dtype": "<i2", "fill_value": 0, "chunks": [0, 3]},
    "v3": V3,
    "v3 shards": {**V3, "codecs": [{"name": "sharding_indexed", "configuration": INNER}]},
    "v3 edges": {**V3, "chunk_grid": {"name": "rectilinear", "configuration": EDGES}},
    "v3 chunks of nothing": {
        **V3,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 3]}},
    },
}
SHAPES = (
    *([4, 6], [7, 1], [8, 1], [0, 6], [4, 0], [2**62, 1], [2**62 + 1, 1], [-1, 6], [4.0, 6]),
    *([True, 6], [4], [4, 6, 1], [], "4", None, {}),
)


def file_of(document):
    format_ = registry.find("drivers", f"zarr{document['zarr_format']}").format
    store = KvStore.open("memory://").result().driver
    return MetadataFile(format_, store, "a", DEFAULT_LIMITS, format_.no_constraints, None)


def outcome(document):
    """All that a document says, or the error."""
    file = file_of(document)
    try:
        metadata = file.of_value(json.dumps(document).encode())
        found = described(file.format, metadata, DEFAULT_LIMITS)
    except GpustoreError as error:
        return type(error), str(error), error.key
    parts = (found.domain, found.chunk_shape, found.read_shape, found.dtype, found.labels)
    return metadata.to_json(), *parts, found.units, found.codec_json, found.grid is None


CACHES = (
    *(_remembered.decoded, _remembered._first, _remembered._described),
    *(_remembered._constraints, _remembered._merged, _remembered._created),
)


def forget():
    for cache in CACHES:
        cache.cache_clear()


@each("name", DOCUMENTS)
@each("first", SHAPES[:5])
def test_what_is_remembered_of_one_shape_is_right_for_others(name, first):
    document = DOCUMENTS[name]
    for shape in SHAPES:
        forget()
        expected = repr(outcome({**document, "shape": shape}))
        forget()
        outcome({**document, "shape": first})
        assert repr(outcome({**document, "shape": shape})) == expected, shape


def test_documents_that_differ_in_shape_are_decoded_and_described_once(monkeypatch):
    forget()
    format_ = registry.find("drivers", "zarr3").format
    calls = []
    describe = type(format_).describe
    monkeypatch.setattr(
        type(format_), "describe", lambda *a, **k: calls.append(a) or describe(*a, **k)
    )
    for extent in range(1, 100):
        assert outcome({**V3, "shape": [extent, 6]})[0]["shape"] == [extent, 6]
    assert len(calls) == 1


def create(root, format_, name, **metadata):
    spec = {"driver": f"zarr{format_}", "kvstore": f"file://{root}/{name}/", "metadata": metadata}
    return gpustore.open(spec, create=True).result()


def test_arrays_that_are_alike_are_created_alike(tmp_path):
    metadata = {
        "shape": [4, 6],
        "data_type": "uint8",
        "attributes": {"a": {"b": [1]}},
        "codecs": ["bytes", {"name": "zstd", "configuration": {"level": 1}}],
    }
    first = create(tmp_path, 3, "first", **metadata)
    # Neither the caller's objects nor those of another array are shared.
    metadata["attributes"]["a"]["b"].append(2)
    first.spec().to_json()["metadata"]["attributes"]["a"]["b"].append(3)
    first.schema.update(dimension_units=["nm", "nm"])
    second = create(tmp_path, 3, "second", **{**metadata, "attributes": {"a": {"b": [1]}}})
    assert first.schema == second.schema
    documents = [(tmp_path / name / "zarr.json").read_bytes() for name in ("first", "second")]
    assert documents[0] == documents[1]
    first.resize(exclusive_max=[9, 6]).result()
    assert create(tmp_path, 3, "third", **json.loads(documents[1])).shape == (4, 6)


@each("value", [1, 1.0, True, "1", [1], None])
def test_constraints_are_told_from_others_by_their_text(value, tmp_path):
    for number, attribute in enumerate([1, 1.0, True, "1", [1], None]):
        create(tmp_path, 3, number, shape=[1], data_type="bool", attributes={"a": attribute})
    last = create(tmp_path, 3, "last", shape=[1], data_type="bool", attributes={"a": value})
    assert repr(last.spec().to_json()["metadata"]["attributes"]) == repr({"a": value})


def test_wrong_constraints_are_refused_each_time(tmp_path):
    for _ in range(3):
        with pytest.raises(MetadataError, match="Expected one of"):
            create(tmp_path, 2, "a", shape=[4], dtype="|u1", order="X")
        with pytest.raises(MetadataError, match='"dtype" must be specified'):
            create(tmp_path, 2, "a", shape=[4])
        assert [*tmp_path.iterdir()] == []


def test_caches_are_bounded():
    for extent, level in itertools.product(range(1, 20), range(9)):
        outcome({**V2, "shape": [extent, 6], "compressor": {"id": "zlib", "level": level}})
        Spec({"driver": "zarr2", "kvstore": "memory://", "metadata": {"shape": [extent, level]}})
    for cache in CACHES:
        info = cache.cache_info()
        assert info.currsize <= info.maxsize <= 64
