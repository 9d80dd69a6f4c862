"""Metadata documents that are read and remembered."""

import itertools
import json

from gpustore import registry
from gpustore.drivers import _metadata_file
from gpustore.drivers._metadata_file import MetadataFile, described
from gpustore.errors import GpustoreError
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


def forget():
    for cache in (_metadata_file._remembered, _metadata_file._first, _metadata_file._described):
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


def test_caches_are_bounded():
    for extent, level in itertools.product(range(1, 20), range(9)):
        outcome({**V2, "shape": [extent, 6], "compressor": {"id": "zlib", "level": level}})
    for cache in (_metadata_file._remembered, _metadata_file._first, _metadata_file._described):
        info = cache.cache_info()
        assert info.currsize <= info.maxsize <= 64
