"""Codecs that change elements: numcodecs' filters bit for bit, and where they stand in chains."""

import json

import hypothesis.strategies as st
import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs
from hypothesis import given

import gpustore
from gpustore.codec_chain.chain_spec import parse_v3
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import DTYPES
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration

INTEGERS = ["|i1", "<i2", ">i4", "<i8", "|u1", "<u2", ">u4", "<u8"]
FLOATS = ["<f2", ">f4", "<f4", "<f8"]


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


LITTLE, BIG = codec("bytes", endian="little"), codec("bytes", endian="big")
TRANSPOSE = codec("transpose", order=[1, 0])


def whole(dtype):
    dtype = np.dtype(dtype)
    order = "<" if dtype.str[0] == "|" else dtype.str[0]
    return Component.whole(DTYPES[dtype.name]).with_byteorder(order)


def elements_of(dtype, count, seed):
    """Elements around zero, around the limits, and of any bits."""
    dtype, random = np.dtype(dtype), np.random.default_rng(seed)
    if seed % 3 == 0:
        return np.frombuffer(random.bytes(count * dtype.itemsize), dtype)
    near = random.integers(-40, 40, count)
    return near.astype(dtype) if seed % 3 == 1 else (near * 1.7).astype(dtype)


TYPE = st.sampled_from(INTEGERS + FLOATS)


@st.composite
def filters(draw):
    """A filter of elements, and the type of the elements it is for."""
    id = draw(
        st.sampled_from(["delta", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround"])
    )
    dtype, astype = draw(TYPE), draw(TYPE)
    if id == "delta":
        if not np.can_cast(np.dtype(astype), np.dtype(dtype), "same_kind"):
            astype = dtype
        return {"id": id, "dtype": dtype, "astype": astype}, dtype
    if id == "fixedscaleoffset":
        scale = draw(st.sampled_from([1, 10, 0.5, -3.0, 2.5]))
        offset = draw(st.sampled_from([0, 3, 1.5]))
        return {
            "id": id,
            "scale": scale,
            "offset": offset,
            "dtype": dtype,
            "astype": astype,
        }, dtype
    if id == "astype":
        return {"id": id, "encode_dtype": astype, "decode_dtype": dtype}, dtype
    if id == "packbits":
        return {"id": id}, "|b1"
    if id == "quantize":
        dtype, astype = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(FLOATS))
        digits = draw(st.integers(-3, 8))
        return {"id": id, "digits": digits, "dtype": dtype, "astype": astype}, dtype
    dtype = draw(st.sampled_from(["<f2", "<f4", "<f8"]))
    return {"id": id, "keepbits": draw(st.integers(0, 10))}, dtype


@given(filters(), st.integers(1, 90), st.integers(0, 10_000))
def test_filters_are_those_of_numcodecs(made, count, seed):
    config, dtype = made
    elements = elements_of(dtype, count, seed)
    if dtype == "|b1":
        elements = elements_of("|u1", count, seed) % 3 != 0
    theirs = numcodecs.get_codec(dict(config))
    with np.errstate(all="ignore"):
        try:
            expected = np.asarray(theirs.encode(elements.copy()))
        except OverflowError:  # Its first element must fit.
            assert config["id"] == "delta"
            elements = elements_of(dtype, count, 1) % 100
            expected = np.asarray(theirs.encode(elements.copy()))
        decoded = np.asarray(theirs.decode(expected))
    chain = resolve_v2(None, [config], whole(dtype), (count,), "C")
    encoded = chain.encode(memoryview(bytearray(elements.tobytes())))
    assert bytes(encoded) == expected.tobytes()
    assert bytes(chain.decode(encoded)) == decoded.tobytes()
    out = memoryview(bytearray(elements.nbytes))
    assert bytes(chain.decode(encoded, out)) == bytes(out) == decoded.tobytes()


@given(filters(), st.integers(2, 200), st.data())
def test_parts_are_those_of_the_whole(made, count, data):
    config, dtype = made
    chain = resolve_v2(None, [config], whole(dtype), (count,), "C")
    size = np.dtype(dtype).itemsize
    encoded = chain.encode(elements_of("|u1", count * size, 1) if size > 1 else bytes(count))
    expected = bytes(chain.decode(encoded))
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    scratch = memoryview(bytearray(count * size))
    found, begin = chain.decode_part(encoded, first * size, last * size, scratch)
    assert (
        bytes(found)[first * size - begin : last * size - begin]
        == (expected[first * size : last * size])
    )


@given(filters(), st.integers(1, 60), st.integers(-9, 9).filter(bool))
def test_wrong_sizes_are_damage(made, count, more):
    config, dtype = made
    chain = resolve_v2(None, [config], whole(dtype), (count,), "C")
    encoded = bytes(chain.encode(bytes(count * np.dtype(dtype).itemsize)))
    damaged = encoded[:more] if more < 0 else encoded + bytes(more)
    with pytest.raises(CorruptChunkError) as caught:
        chain.decode(damaged)
    assert caught.value.codec == config["id"]


# --------------------------------------------------------------------------- arrays of Zarr v2


def test_the_example_of_the_specification(tmp_path):
    """Zarr v2 specification, "Metadata": delta ``<f8`` to ``<f4``, Blosc, fill value NaN."""
    metadata = {
        "chunks": [1000, 1000],
        "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        "dtype": "<f8",
        "fill_value": "NaN",
        "filters": [{"id": "delta", "dtype": "<f8", "astype": "<f4"}],
        "order": "C",
        "shape": [10000, 10000],
        "zarr_format": 2,
    }
    (tmp_path / ".zarray").write_text(json.dumps(metadata))
    ours = gpustore.open(f"file://{tmp_path}").result()
    theirs = zarr.open_array(str(tmp_path), mode="r+")
    assert np.isnan(ours[:3, :3].read().result()).all()
    # Whole chunks: a NaN would spread to all elements behind it.
    written = np.arange(1e6).reshape(1000, 1000) % 1000 * 3
    ours[:1000, 4000:5000] = written
    assert np.array_equal(theirs[:1000, 4000:5000], written)
    theirs[1000:2000, :1000] = written + 1
    assert np.array_equal(ours[1000:2000, :1000].read().result(), written + 1)
    codec = ours.codec.to_json()
    assert codec["filters"] == metadata["filters"]


V2_CHAINS = {
    "delta": ("<i4", [{"id": "delta", "dtype": "<i4"}]),
    "big": (">i4", [{"id": "delta", "dtype": ">i4", "astype": ">i2"}]),
    "scaled": (
        "<f4",
        [{"id": "fixedscaleoffset", "scale": 10, "offset": 2, "dtype": "<f4", "astype": "<i2"}],
    ),
    "four": (
        "<f8",
        [
            {"id": "quantize", "digits": 1, "dtype": "<f8", "astype": "<f4"},
            {"id": "delta", "dtype": "<f4"},
            {"id": "shuffle"},
            {"id": "crc32"},
        ],
    ),
    "narrow": ("<u8", [{"id": "astype", "encode_dtype": "<u2", "decode_dtype": "<u8"}]),
    "bools": ("|b1", [{"id": "packbits"}]),
    "rounded": ("<f4", [{"id": "bitround", "keepbits": 5}, {"id": "adler32"}]),
    "after a compressor": ("<u2", [{"id": "shuffle", "elementsize": 2}, {"id": "zlib"}]),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", V2_CHAINS)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("as_compressor", [False, True], ids=["filters", "compressor"])
def test_zarr_reads_what_is_written_and_the_reverse(tmp_path, name, order, as_compressor):
    dtype, filters = V2_CHAINS[name]
    compressor = {"id": "zlib", "level": 1}
    if as_compressor:
        *filters, compressor = filters
    if name == "rounded":
        order = "C"  # numcodecs copies its elements in that order, which zarr-python overlooks.
    written = (np.random.default_rng(1).integers(0, 4000, (30, 20)) / 8).astype(dtype)
    metadata = {"shape": [30, 20], "chunks": [8, 6], "dtype": dtype, "order": order}
    metadata |= {"compressor": compressor, "filters": filters or None}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    store[...] = written
    ours = store.read().result()
    array = zarr.open_array(str(tmp_path), mode="r+")
    assert np.array_equal(array[...], ours)
    array[...] = written
    assert np.array_equal(store.read().result(), ours)
    assert np.array_equal(store[7:20:3, 5].read().result(), ours[7:20:3, 5])
    assert gpustore.open(spec).result().codec == store.codec


# --------------------------------------------------------------------------- arrays of Zarr v3

DELTA = codec("numcodecs.delta", dtype="<i4", astype="<i2")
V3_CHAINS = {
    "delta": [DELTA, LITTLE],
    "twice": [DELTA, codec("numcodecs.delta", dtype="<i2"), LITTLE],
    "scaled": [codec("numcodecs.fixedscaleoffset", scale=1, offset=7, astype="<i2"), LITTLE],
    "narrow": [codec("numcodecs.astype", encode_dtype="<i2"), LITTLE],
    "typed": [codec("numcodecs.astype", encode_dtype="<i2", decode_dtype="<i4"), LITTLE],
    "transposed": [TRANSPOSE, codec("numcodecs.astype", encode_dtype="<i2"), LITTLE],
    "inside": [codec("sharding_indexed", chunk_shape=[4, 3], codecs=[DELTA, LITTLE])],
    "checksums": [
        LITTLE,
        *(codec(f"numcodecs.{id}") for id in ("crc32", "adler32", "crc32c", "fletcher32")),
        codec("numcodecs.jenkins_lookup3"),
        codec("numcodecs.crc32", location="end"),
    ],
    "compressors": [
        LITTLE,
        codec("numcodecs.shuffle", elementsize=4),
        *(codec(f"numcodecs.{id}") for id in ("blosc", "zlib", "gzip", "bz2", "lzma", "lz4")),
        codec("numcodecs.zstd", level=1),
    ],
}
"""What zarr-python 3.1.6 can do too, on elements of type int32."""


def create(path, codecs, dtype="int32", **metadata):
    grid = codec("regular", chunk_shape=[8, 6])
    metadata = {"shape": [30, 20], "chunk_grid": grid, "data_type": dtype, **metadata}
    spec = {"driver": "zarr3", "kvstore": path, "metadata": {**metadata, "codecs": codecs}}
    return gpustore.open(spec, create=True).result()


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("codecs", V3_CHAINS.values(), ids=list(V3_CHAINS))
def test_zarr_reads_v3_and_the_reverse(tmp_path, codecs):
    written = np.random.default_rng(1).integers(0, 4000, (30, 20)).astype("i4")
    store = create(f"file://{tmp_path}", codecs)
    store[...] = written
    assert np.array_equal(store.read().result(), written)
    array = zarr.open_array(str(tmp_path), mode="r+")
    assert np.array_equal(array[...], written)
    array[...] = written + 1
    assert np.array_equal(store.read().result(), written + 1)
    assert np.array_equal(store[7:20:3, 5].read().result(), written[7:20:3, 5] + 1)


@pytest.mark.parametrize(
    "codecs",
    [
        [DELTA, BIG],
        [TRANSPOSE, DELTA, TRANSPOSE, BIG],
        [DELTA, TRANSPOSE, codec("numcodecs.delta", dtype="<i2"), TRANSPOSE, LITTLE, "zstd"],
        [codec("sharding_indexed", chunk_shape=[4, 3], codecs=[TRANSPOSE, DELTA, TRANSPOSE, BIG])],
        [TRANSPOSE, codec("sharding_indexed", chunk_shape=[3, 4], codecs=[DELTA, BIG])],
    ],
    ids=str,
)
def test_the_order_of_codecs_is_the_one_that_is_stored(codecs):
    """Against NumPy: a transpose after a delta moves differences."""
    written = np.random.default_rng(1).integers(0, 4000, (30, 20)).astype("i4")
    store = create("memory://a/", codecs)
    store[...] = written
    assert np.array_equal(store.read().result(), written)
    if codecs[-1] in (LITTLE, BIG):
        chunk, dtype = written[:8, :6], "<i4"
        for one in codecs:
            if one == TRANSPOSE:
                chunk = chunk.T
            elif one["name"] == "numcodecs.delta":
                dtype = "<i2"
                chunk = np.diff(chunk.reshape(-1), prepend=0).reshape(chunk.shape)
        order = "<" if codecs[-1] == LITTLE else ">"
        expected = np.ascontiguousarray(chunk).astype(np.dtype(dtype).newbyteorder(order))
        assert bytes(store.kvstore["c/0/0"]) == expected.tobytes()


def test_what_a_chain_cannot_be_is_refused_by_name():
    for codecs, dtype, error, match in (
        ([codec("numcodecs.delta", dtype="<i2"), LITTLE], "int32", MetadataError, "not int32"),
        ([codec("numcodecs.delta"), LITTLE], "int32", MetadataError, "no_error"),
        ([codec("numcodecs.delta", dtype="|b1"), LITTLE], "bool", MetadataError, "of kind i or u"),
        (
            [codec("numcodecs.delta", dtype="<i4", astype=">i2"), LITTLE],
            "int32",
            MetadataError,
            'byte order, which the codec "bytes"',
        ),
        ([LITTLE, DELTA], "int32", MetadataError, "Expected bytes -> bytes codec"),
        ([codec("numcodecs.bitround", keepbits=3), LITTLE], "int32", MetadataError, "not int32"),
        ([codec("numcodecs.bitround", keepbits=30), LITTLE], "float32", MetadataError, "23 bits"),
        ([codec("numcodecs.packbits"), LITTLE], "uint8", MetadataError, "not uint8"),
        (
            [DELTA, codec("sharding_indexed", chunk_shape=[4, 3], codecs=[LITTLE])],
            "int32",
            UnsupportedError,
            'put it among the "codecs" of the shards',
        ),
        ([codec("numcodecs.pickle"), LITTLE], "int32", MetadataError, "is not registered"),
        ([codec("zfp")], "float32", MetadataError, '"mode"'),
    ):
        if match == "no_error":
            assert create("memory://b/", codecs, dtype).codec.to_json()["codecs"][0] == (
                codec("numcodecs.delta", dtype="<i4")
            )
            continue
        with pytest.raises(error, match=match):
            create("memory://a/", codecs, dtype)


def test_every_codec_that_zarr_python_takes_from_numcodecs_is_known():
    classes = vars(zarr.codecs.numcodecs).values()
    names = {getattr(one, "codec_name", None) for one in classes} - {None}
    assert len(names) > 20
    for name in sorted(names):
        # Without options that must be given an error is about those.
        try:
            parse_v3([NamedConfiguration(name)], stored=False)
        except MetadataError as error:
            found = str(error)
        else:
            found = "configuration"
        assert "configuration" in found


def test_codecs_of_elements_are_not_for_records():
    fields = [{"name": name, "data_type": "int32"} for name in "ab"]
    metadata = {
        "shape": [30, 20],
        "data_type": codec("struct", fields=fields),
        "codecs": [DELTA, LITTLE],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata, "field": "b"}
    with pytest.raises(UnsupportedError, match="not supported for records"):
        gpustore.open(spec, create=True).result()


@pytest.mark.parametrize("name", ["numcodecs.delta", "numcodecs.quantize", "numcodecs.astype"])
def test_stored_options_must_be_whole(name):
    named = NamedConfiguration.list_from_json([codec(name), LITTLE])
    if name == "numcodecs.delta":
        assert resolve_v3(named, DTYPES["float32"], (4,)).stages[0].name == "delta"
        return
    with pytest.raises(MetadataError, match="but member is missing"):
        resolve_v3(named, DTYPES["float32"], (4,))
