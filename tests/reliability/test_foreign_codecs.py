"""Every codec numcodecs knows, and every way to hide code in data: read, or refused; never run."""

import base64
import json
import pickle
import sys

import numcodecs
import numcodecs.registry
import numpy as np
import pytest

import gpustore
from gpustore import registry
from gpustore.errors import CorruptChunkError, GpustoreError, MetadataError, UnsupportedError
from tests.matrix import each

IDS = sorted({*numcodecs.registry.codec_registry, *numcodecs.registry.entries})
"""All ids numcodecs has registered, also those of other packages' entry points."""

WRITTEN = np.arange(1, 65, dtype="<u4")


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.fixture
def trap(tmp_path):
    """The bytes that run code when unpickled, and the file that shows they were."""
    path = tmp_path / "unpickled"
    payload = pickle.dumps(Payload(path))
    pickle.loads(payload).close()
    assert path.exists()  # The trap works.
    path.unlink()
    return payload, path


def test_registry_is_the_one_that_is_meant():
    assert len(IDS) >= 20
    assert {"pickle", "json2", "vlen-utf8", "delta", "zlib", "blosc", "categorize"} <= set(IDS)


def configuration_of(id):
    """A legal configuration of a codec, as zarr-python stores it."""
    options = {
        "astype": {"encode_dtype": "<u2", "decode_dtype": "<u4"},
        "bitround": {"keepbits": 3},
        "categorize": {"labels": ["a", "b"], "dtype": "|O", "astype": "|u1"},
        "delta": {"dtype": "<u4"},
        "fixedscaleoffset": {"scale": 1, "offset": 0, "dtype": "<f4"},
        "quantize": {"digits": 2, "dtype": "<f4"},
        "vlen-array": {"dtype": "<u4"},
        "pickle": {"protocol": 5},
    }
    return {"id": id, **options.get(id, {})}


def outcome(directory, files, trap):
    """Store files, then open and read in each way: what was read, or the error."""
    _, path = trap
    for name, data in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    modules = set(sys.modules)
    opening = gpustore.open(str(directory))
    found = opening.exception()
    if found is None:
        reading = opening.result().read()
        found = reading.exception()
    if found is None:
        found = reading.result()
        assert np.array_equal(opening.result()[3:7].read().result(), found[3:7])
    else:
        assert isinstance(found, GpustoreError), repr(found)
        assert str(directory) in str(found)
    assert not path.exists()
    assert not any("pickle" in name for name in set(sys.modules) - modules)
    return found


def check_refusal(error, id):
    assert isinstance(error, MetadataError | UnsupportedError), repr(error)
    assert json.dumps(id)[1:-1] in str(error) or "filters are not supported" in str(error)


def zarray(**members):
    return {
        "zarr_format": 2,
        "shape": [64],
        "chunks": [64],
        "dtype": "<u4",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **members,
    }


@pytest.mark.matrix("costly")
@each("id", IDS)
@each("place", ["compressor", "filters"])
@each("form", ["whole", "id alone"])
def test_v2(tmp_path, trap, id, place, form):
    config = configuration_of(id) if form == "whole" else {"id": id}
    members = {place: config if place == "compressor" else [config]}
    # First what belongs there: some codecs are ours and give the elements.
    try:
        encoded = bytes(numcodecs.get_codec(dict(config)).encode(WRITTEN))
    except (TypeError, ValueError, KeyError, AssertionError):
        encoded = WRITTEN.tobytes()
    found = outcome(tmp_path / "a", {".zarray": zarray(**members), "0": encoded}, trap)
    if isinstance(found, GpustoreError):
        check_refusal(found, id)
    else:
        whole = numcodecs.get_codec(dict(config)).decode(encoded)
        assert np.array_equal(found, np.frombuffer(whole, WRITTEN.dtype))
    # Then the trap.
    refused = outcome(tmp_path / "b", {".zarray": zarray(**members), "0": trap[0]}, trap)
    assert isinstance(refused, GpustoreError)
    if isinstance(found, GpustoreError):
        check_refusal(refused, id)
    else:
        assert isinstance(refused, CorruptChunkError)
        assert refused.key == f"{tmp_path}/b/0"


OURS_V3 = {"bitround", "blosc", "crc32c", "gzip", "packbits", "zstd"}
OURS = set(registry.ids("codecs")) - {"bytes", "transpose", "sharding_indexed"}


def test_v2_reads_the_compressors_that_other_libraries_write():
    ours = {"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"}
    assert ours <= set(IDS)
    for id in ours:
        store = gpustore.open(
            {
                "driver": "zarr2",
                "kvstore": "memory://",
                "metadata": {"shape": [64], "dtype": "<u4", "compressor": {"id": id}},
            },
            create=True,
        ).result()
        store.kvstore["0"] = bytes(numcodecs.get_codec({"id": id}).encode(WRITTEN))
        assert np.array_equal(store.read().result(), WRITTEN)


def zarr_json(*codecs, **members):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [64],
        "data_type": "uint32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": list(codecs),
        **members,
    }


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.matrix("costly")
@each("id", IDS)
@each("prefix", ["", "numcodecs.", "https://codec/"])
@each("place", ["after", "before", "alone", "inside", "index"])
def test_v3(tmp_path, trap, id, prefix, place):
    configuration = {k: v for k, v in configuration_of(id).items() if k != "id"}
    codec = {"name": prefix + id, "configuration": configuration}
    inner = {"chunk_shape": [16], "codecs": [LITTLE], "index_codecs": [LITTLE]}
    sharding = {"name": "sharding_indexed", "configuration": inner}
    if place == "inside":
        inner["codecs"] = [LITTLE, codec]
    if place == "index":
        inner["index_codecs"] = [LITTLE, codec]
    codecs = {
        "after": [LITTLE, codec],
        "before": [codec, LITTLE],
        "alone": [codec],
    }.get(place, [sharding])
    found = outcome(tmp_path / "a", {"zarr.json": zarr_json(*codecs), "c/0": trap[0]}, trap)
    assert isinstance(found, MetadataError | UnsupportedError | CorruptChunkError), repr(found)
    if isinstance(found, CorruptChunkError):
        assert prefix in ("", "numcodecs.")
        assert id in OURS if prefix else id in OURS_V3


# --------------------------------------------------------------------------- object types


@each("dtype", ["|O", "O", "object", "|O8", [["a", "|O"]], [["a", "<u2"], ["b", "|O"]]])
@each("id", [None, "pickle", "json2", "vlen-utf8", "msgpack2", "vlen-bytes"])
def test_v2_objects(tmp_path, trap, dtype, id):
    filters = None if id is None else [configuration_of(id)]
    found = outcome(
        tmp_path / "a",
        {".zarray": zarray(dtype=dtype, filters=filters, fill_value=None), "0": trap[0]},
        trap,
    )
    if dtype == "|O" and id in ("vlen-utf8", "vlen-bytes"):
        assert isinstance(found, CorruptChunkError)  # These are ours; the trap is none of them.
        assert found.key == f"{tmp_path}/a/0"
        return
    assert isinstance(found, MetadataError | UnsupportedError), repr(found)
    assert found.key == f"{tmp_path}/a/.zarray"


@pytest.mark.parametrize(
    "member", ["fill_value", "attributes", "codecs", "data_type", "chunk_grid"]
)
def test_pickles_in_metadata_are_text(tmp_path, trap, member):
    text = base64.b64encode(trap[0]).decode()
    for value in (text, {"py/reduce": [text]}, {"name": "pickle", "configuration": {"data": text}}):
        document = {**zarr_json(LITTLE), member: [value] if member == "codecs" else value}
        found = outcome(tmp_path / "a", {"zarr.json": document}, trap)
        if member == "attributes" and isinstance(value, dict):
            assert isinstance(found, np.ndarray)
        else:
            assert isinstance(found, MetadataError | UnsupportedError), repr(found)


def test_objects_cannot_be_written():
    store = gpustore.open("memory://a/|zarr3:", create=True, dtype="uint32", shape=[64]).result()
    with pytest.raises((TypeError, ValueError)):
        store.write(np.array([object()] * 64, dtype=object)).result()
    for dtype in ("object", "O"):
        with pytest.raises((GpustoreError, TypeError)):
            gpustore.open("memory://b/|zarr3:", create=True, dtype=dtype, shape=[64]).result()
