"""What is remembered of metadata documents and constraints."""

import itertools
import json
from dataclasses import replace

import pytest

import gpustore
from gpustore import Spec, registry
from gpustore.drivers import _remembered
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers._remembered import described
from gpustore.errors import GpustoreError, MetadataError
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
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
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
INNER = {"chunk_shape": [1, 3], "codecs": [LITTLE], "index_codecs": [LITTLE]}
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
    return MetadataFile(
        format_, store, "a", DEFAULT_LIMITS, format_.no_constraints, None, pool=None
    )


def outcome(document):
    """All that a document says, or the error."""
    file = file_of(document)
    try:
        metadata = file.of_value(json.dumps(document).encode())
        found = described(file.format, metadata, DEFAULT_LIMITS)
    except GpustoreError as error:
        return type(error), str(error), error.key
    parts = (found.domain, found.chunk_shape, found.read_shape, found.dtype, found.labels)
    parts += tuple(map(bits, (found.fill_value, found.blank, metadata.fill_value)))
    parts += (metadata.encode(), found.units, found.codec_json, found.grid is None)
    return metadata.to_json(), *parts, missing_chunk(found.chain)


def bits(array):
    if array is None:
        return None
    return array.dtype, array.tolist(), b"" if array.dtype.hasobject else array.tobytes()


def missing_chunk(chain):
    """What shards that are encoded as a whole read where inner chunks are missing."""
    return [stage.missing for stage in chain.stages if hasattr(stage, "missing")]


CACHES = (
    *(_remembered._constraints, _remembered._merged, _remembered._created),
    _remembered._encoded,
)


def forget():
    _remembered._recent.clear()
    for cache in CACHES:
        cache.cache_clear()


TYPES_V2 = (
    *("<f4", ">i2", "<c8", "|b1", "<M8[s]", "<U2", "|S3", "|V2", ">f2"),
    [["a", ">u2", [2]]],
)
TYPES_V3 = (
    *("float32", "int8", "complex64", "bool", "string", "r16", "uint64"),
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}},
    {"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}},
)
FILL_VALUES = (
    *(
        0,
        1,
        -1,
        0.0,
        -0.0,
        1.5,
        1e300,
        300,
        2**63,
        True,
        False,
        None,
        "",
        "a",
        "abcd",
        "NaN",
        "NaT",
    ),
    *(
        float("nan"),
        float("-inf"),
        "Infinity",
        "0x7fc00001",
        "0xff",
        "AAA=",
        "AQAAAA==",
        "AQAAAAAAAAA=",
    ),
    *([1.0, 2], ["NaN", float("inf")], [1, 2, 3], {"a": 1}, [], {}),
)
MORE = (
    *({}, {"attributes": {}}, {"attributes": {"dimension_units": ["2 nm", "s"]}}),
    *({"attributes": {"dimension_units": [1, None]}}, {"attributes": {"dimension_units": ["m"]}}),
    *({"attributes": {"a": float("nan")}}, {"attributes": []}, {"attributes": None}),
    *({"other": 1}, {"other": float("inf")}, {"other": {"must_understand": False}}),
    {"consolidated_metadata": None},
)


def same_as_alone(first, others):
    """Documents mean the same, or raise the same error, after `first` was remembered."""
    for document in others:
        forget()
        expected = repr(outcome(document))
        forget()
        outcome(first)
        assert repr(outcome(document)) == expected, document
        assert repr(outcome(document)) == expected, document


def typed(version, dtype):
    if version == 2:
        return {**V2, "shape": [4, 6], "dtype": dtype}
    codecs = ["vlen-utf8"] if dtype == "string" else V3["codecs"]
    if dtype == "r16":
        codecs = ["bytes"]
    return {**V3, "shape": [4, 6], "data_type": dtype, "codecs": codecs, "fill_value": None}


@pytest.mark.matrix("costly")
@each("version, dtype", [*((2, one) for one in TYPES_V2), *((3, one) for one in TYPES_V3)])
def test_what_is_remembered_of_one_fill_value_is_right_for_others(version, dtype):
    document = typed(version, dtype)
    documents = [{**document, "fill_value": value} for value in FILL_VALUES]
    readable = [one for one in documents if isinstance(outcome(one)[0], dict)]
    assert len(readable) > 1
    for first in readable[:2]:
        same_as_alone(first, documents)


@each("name", DOCUMENTS)
def test_what_is_remembered_of_attributes_is_right_for_others(name):
    document = {key: one for key, one in DOCUMENTS[name].items() if key != "attributes"}
    document["shape"] = [4, 6]
    for more in ({}, {"attributes": {"dimension_units": ["4 nm", None]}}, {"other": "x"}):
        others = [{**document, **one, "fill_value": 0} for one in MORE]
        same_as_alone({**document, **more}, others)


def test_documents_after_one_with_a_refused_fill_value_mean_what_they_say():
    cast = {"name": "cast_value", "configuration": {"data_type": "uint8"}}
    document = {**V3, "shape": [4, 6], "data_type": "float64", "codecs": [cast, "bytes"]}
    refused = {**document, "fill_value": "NaN"}
    assert "fill_value cannot be encoded" in outcome(refused)[1]
    others = [{**document, "fill_value": value} for value in (0, 1, 256)]
    assert outcome(others[0])[0]["fill_value"] == 0
    same_as_alone(refused, [*others, {**refused, "shape": [7, 1]}, {**others[0], "attributes": {}}])


def test_whole_shards_of_another_fill_value_have_that_one():
    codecs = [{"name": "sharding_indexed", "configuration": INNER}, "crc32c"]
    document = {**V3, "shape": [4, 6], "data_type": "uint8", "codecs": codecs}
    documents = [{**document, "fill_value": value} for value in (3, 4, 256)]
    assert outcome(documents[0])[-1] == [b"\3"]
    same_as_alone(documents[0], documents)


@pytest.mark.matrix("costly")
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


def test_documents_that_are_alike_are_decoded_and_described_once(monkeypatch):
    forget()
    format_ = registry.find("drivers", "zarr3").format
    calls = []
    describe = type(format_).describe
    monkeypatch.setattr(
        type(format_), "describe", lambda *a, **k: calls.append(a) or describe(*a, **k)
    )
    for extent in range(1, 100):
        document = {**V3, "fill_value": extent, "attributes": {"a": extent}}
        assert outcome({**document, "shape": [extent, 6]})[0]["shape"] == [extent, 6]
    assert len(calls) == 1


def test_attributes_of_n5_with_the_names_of_zarr_members_mean_nothing(tmp_path):
    metadata = {"dimensions": [8], "blockSize": [4], "dataType": "uint8"}
    for name, attributes in (
        ("a", {"shape": [2], "fill_value": 1}),
        ("b", {"shape": [4], "fill_value": 1}),
        ("c", {"shape": [2], "fill_value": 0}),
    ):
        document = {**metadata, "compression": {"type": "raw"}, **attributes}
        (tmp_path / name).mkdir()
        (tmp_path / name / "attributes.json").write_text(json.dumps(document))
        store = gpustore.open(f"{tmp_path}/{name}|n5:").result()
        assert (store.shape, store.attrs["shape"]) == ((8,), attributes["shape"])


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
        file = file_of(V3)
        file = replace(file, limits=Limits(rank=1 + extent))
        file.of_value(json.dumps({**V3, "shape": [1, 6], "attributes": {}}).encode())
    assert 0 < len(_remembered._recent) <= 8
    assert all(0 < len(one.documents) <= 16 for one in _remembered._recent.values())
    for cache in CACHES:
        info = cache.cache_info()
        assert info.currsize <= info.maxsize <= 64
