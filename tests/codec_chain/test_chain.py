"""Chains against TensorStore and zarr-python, limits, and the promises of decoding."""

import threading

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codec_chain.merge import complete_v3
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import DTYPES, int4, uint8, uint16
from gpustore.errors import CorruptChunkError, LimitError, MetadataError, UnsupportedError
from gpustore.metadata.component import select
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.limits import Limits
from tests.codecs.contract import make_payload
from tests.matrix import each

CHAINS = [
    ["bytes"],
    [{"name": "bytes", "configuration": {"endian": "big"}}],
    ["gzip"],
    ["zstd"],
    [{"name": "zstd", "configuration": {"checksum": True, "level": -3}}],
    ["crc32c"],
    ["blosc"],
    [{"name": "blosc", "configuration": {"cname": "zstd", "shuffle": "bitshuffle"}}],
    [{"name": "blosc", "configuration": {"cname": "blosclz", "shuffle": "noshuffle"}}],
    ["gzip", "crc32c"],
    ["crc32c", "zstd", "blosc"],
    [{"name": "blosc", "configuration": {"cname": "snappy"}}],
    ["blosc", "crc32c", "crc32c"],
    [{"name": "transpose", "configuration": {"order": "F"}}, "zstd"],
]
V3_TYPES = ["bool", "int4", "uint8", "int2", "uint16", "bfloat16", "float32", "complex128"]
COMPRESSORS = [
    None,
    {"id": "blosc"},
    {"id": "blosc", "cname": "zstd", "shuffle": 2, "clevel": 9},
    {"id": "blosc", "cname": "snappy"},
    {"id": "zlib"},
    {"id": "gzip", "level": 6},
    {"id": "bz2"},
    {"id": "zstd"},
]
V2_TYPES = ["|b1", "|u1", "<u2", ">i4", "<f8", ">c16", "bfloat16", "int4"]


def whole(dtype):
    """The component of stored elements that are numbers."""
    return select(dtype, "", as_void=False)


def named(codecs):
    return NamedConfiguration.list_from_json(codecs)


def values(shape, native):
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return (numbers % 2 if native.itemsize == 1 else numbers).astype(native)


def decoded_array(chain, encoded):
    layout = chain.layout
    return np.ndarray(layout.shape, layout.dtype, chain.decode(encoded), 0, layout.strides)


def encoded_array(chain, array):
    layout = chain.layout
    chunk = np.zeros(layout.nbytes, np.uint8)
    np.ndarray(layout.shape, layout.dtype, chunk, 0, layout.strides)[...] = array
    return bytes(chain.encode(memoryview(chunk)))


class Oracle:
    """One array of one chunk, in a memory kvstore of TensorStore's."""

    def __init__(self, spec, key):
        self.context = tensorstore.Context()
        spec = {**spec, "kvstore": "memory://"}
        self.store = tensorstore.open(spec, create=True, context=self.context).result()
        self.kvstore = tensorstore.KvStore.open("memory://", context=self.context).result()
        self.key = key

    def write(self, array):
        self.store.write(array).result()
        return self.kvstore.read(self.key).result().value

    def read(self, encoded):
        self.kvstore.write(self.key, encoded).result()
        return self.store.read().result()


@each("name", V3_TYPES)
@each("codecs", CHAINS)
def test_v3_chunks_are_those_of_tensorstore(codecs, name):
    data_type, shape = DTYPES[name], (6, 50)
    metadata = {"shape": shape, "data_type": name, "codecs": codecs}
    oracle = Oracle({"driver": "zarr3", "metadata": metadata}, "c/0/0")
    chain = resolve_v3(complete_v3(named(codecs), data_type, 2), data_type, shape)
    array = values(shape, data_type.numpy_dtype)
    encoded = oracle.write(array)
    assert len(encoded) <= chain.encoded_bound
    assert (decoded_array(chain, encoded).astype(array.dtype) == array).all()
    assert (oracle.read(encoded_array(chain, array)) == array).all()


@each("name", V2_TYPES)
@each("order", ["C", "F"])
@each("compressor", COMPRESSORS)
def test_v2_chunks_are_those_of_tensorstore(compressor, order, name):
    shape = (6, 50)
    native = DTYPES[name].numpy_dtype if name in DTYPES else np.dtype(name)
    metadata = {"shape": shape, "dtype": name, "order": order, "compressor": compressor}
    oracle = Oracle({"driver": "zarr", "metadata": metadata}, "0.0")
    chain = resolve_v2(compressor, None, whole(native), shape, order)
    array = values(shape, native.newbyteorder("="))
    encoded = oracle.write(array)
    assert len(encoded) <= chain.encoded_bound
    assert (decoded_array(chain, encoded).astype(array.dtype) == array).all()
    assert (oracle.read(encoded_array(chain, array)) == array).all()


@each(
    "codecs",
    [
        zarr.codecs.GzipCodec(level=1),
        zarr.codecs.ZstdCodec(),
        zarr.codecs.ZstdCodec(level=3, checksum=True),
        zarr.codecs.Crc32cCodec(),
        *(zarr.codecs.BloscCodec(cname=c) for c in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")),
        zarr.codecs.BloscCodec(shuffle="bitshuffle", clevel=9),
        zarr.codecs.BloscCodec(shuffle="noshuffle", blocksize=1024),
    ],
)
@each("dtype", ["uint8", "uint16", "float64"])
def test_v3_chunks_of_zarr_python_are_read(codecs, dtype):
    store = {}
    written = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=(600,),
        chunks=(600,),
        dtype=dtype,
        compressors=[codecs],
        filters=None,
        serializer=zarr.codecs.BytesCodec(endian="big") if dtype != "uint8" else "auto",
    )
    array = values((600,), np.dtype(dtype))
    written[:] = array
    stored = named(written.metadata.to_dict()["codecs"])
    chain = resolve_v3(stored, DTYPES[dtype], (600,))
    assert (decoded_array(chain, store["c/0"].to_bytes()) == array).all()
    store["c/0"] = zarr.core.buffer.cpu.Buffer.from_bytes(encoded_array(chain, array * 2))
    assert (written[:] == array * 2).all()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    codecs=st.sampled_from(CHAINS),
    kind=st.sampled_from(["zeros", "noise", "steps"]),
)
def test_round_trip_through_whole_chains(sizes, codecs, kind):
    chain = resolve_v3(complete_v3(named(codecs), uint16, len(sizes)), uint16, sizes)
    nbytes = chain.layout.nbytes
    payload = make_payload(nbytes, kind)
    encoded = chain.encode(payload)
    assert len(encoded) <= chain.encoded_bound
    assert bytes(chain.decode(encoded)) == payload
    out = bytearray(nbytes)
    assert bytes(chain.decode(encoded, memoryview(out))) == payload
    assert chain.is_raw or out == payload


@given(codecs=st.sampled_from(CHAINS[1:]), seed=st.integers(0, 2**16))
def test_damage_to_whole_chains_is_an_error_or_harmless(codecs, seed):
    chain = resolve_v3(complete_v3(named(codecs), uint16, 1), uint16, (2000,))
    random = np.random.default_rng(seed)
    encoded = bytearray(chain.encode(make_payload(4000, "steps", seed)))
    for position in random.integers(0, len(encoded), random.integers(1, 4)):
        encoded[position] ^= random.integers(1, 256)
    if random.integers(4) == 0:
        del encoded[random.integers(len(encoded)) :]
    try:
        decoded = chain.decode(bytes(encoded))
    except CorruptChunkError:
        return
    assert len(decoded) == 4000


def test_raw_chunks_are_not_copied():
    chain = resolve_v3(named([{"name": "bytes"}]), uint8, (4,))
    assert chain.is_raw
    assert chain.is_view
    assert chain.encoded_bound == 4
    assert chain.decode(encoded := b"abcd") is encoded
    assert chain.decode(encoded, memoryview(bytearray(4))) is encoded
    assert chain.encode(encoded) is encoded


def test_raw_chunks_of_the_wrong_length_are_corrupt():
    chain = resolve_v2(None, None, whole(np.dtype("<u2")), (4,), "C")
    for encoded, reason in (
        (b"1234567", "Not enough data: expected at least 8 or 1 more; at byte 7"),
        (b"", "Not enough data: expected at least 8 or 8 more; at byte 0"),
        (b"123456789", "End of data expected; remaining length: 1; at byte 8"),
    ):
        with pytest.raises(CorruptChunkError) as caught:
            chain.decode(encoded)
        assert str(caught.value) == f"FAILED_PRECONDITION: {reason}"


def test_a_chunk_longer_than_any_encoding_is_refused_unseen():
    chain = resolve_v2({"id": "zlib"}, None, whole(np.dtype("u1")), (10,), "C")
    with pytest.raises(CorruptChunkError, match="Encoded chunk of 9999 bytes; no encoding of 10"):
        chain.decode(bytes(9999))


def test_bounds_go_through_all_stages():
    codecs = [{"name": "crc32c"}, {"name": "crc32c"}]
    chain = resolve_v3(named([{"name": "bytes"}, *codecs]), uint8, (10,))
    assert chain.encoded_bound == 18
    assert chain.is_view
    assert not chain.is_raw


@pytest.mark.parametrize("codecs", [["bytes"], ["gzip"], ["crc32c"]], ids=str)
def test_illegal_elements_are_refused_whatever_the_codecs(codecs):
    chain = resolve_v3(complete_v3(named(codecs), DTYPES["bool"], 1), DTYPES["bool"], (3,))
    encoded = chain.encode(b"\0\1\3")
    for out in (None, memoryview(bytearray(3))):
        with pytest.raises(CorruptChunkError, match="Invalid bool value: 3; at byte 2"):
            chain.decode(encoded, out)
    with pytest.raises(CorruptChunkError, match="Invalid bool value: 3; at byte 1"):
        chain.check(b"\1\3")


@pytest.mark.parametrize("codecs", [["bytes"], ["gzip"], ["crc32c"]], ids=str)
def test_unused_bits_are_cleared_both_ways(codecs):
    chain = resolve_v3(complete_v3(named(codecs), int4, 1), int4, (2,))
    plain = resolve_v3(complete_v3(named(codecs), uint8, 1), uint8, (2,))
    assert bytes(chain.decode(plain.encode(b"\xff\x71"))) == b"\x0f\x01"
    out = bytearray(2)
    assert bytes(chain.decode(plain.encode(b"\xff\x71"), memoryview(out))) == b"\x0f\x01"
    assert bytes(plain.decode(chain.encode(b"\xff\x71"))) == b"\x0f\x01"
    assert bytes(chain.check(b"\x71")) == b"\x01"


def test_limits():
    codecs = named([{"name": "bytes"}, *[{"name": "crc32c"}] * 3])
    assert resolve_v3(codecs, uint8, (1,), limits=Limits(codecs=4)).encoded_bound == 13
    with pytest.raises(LimitError, match="codecs is 4, which exceeds the limit of 3"):
        resolve_v3(codecs, uint8, (1,), limits=Limits(codecs=3))
    with pytest.raises(LimitError, match="chunk_nbytes is 2417851639229258349412352"):
        resolve_v3(codecs, uint8, (2**41, 2**40))
    with pytest.raises(LimitError, match="chunk_nbytes is 8"):
        resolve_v2(None, None, whole(np.dtype("f8")), (1,), "C", limits=Limits(chunk_nbytes=7))


def test_filters_come_before_the_compressor():
    chain = resolve_v2(
        {"id": "zlib", "level": 1},
        [{"id": "shuffle", "elementsize": 2}, {"id": "shuffle"}],
        whole(np.dtype("u1")),
        (8,),
        "C",
    )
    assert [stage.name for stage in chain.stages] == ["shuffle", "shuffle", "zlib"]
    assert not chain.is_view
    assert not chain.is_raw
    assert chain.to_json() == {
        "compressor": {"id": "zlib", "level": 1},
        "filters": [{"id": "shuffle", "elementsize": 2}, {"id": "shuffle", "elementsize": 4}],
    }
    assert chain.decode(chain.encode(bytes(range(8)))) == bytes(range(8))


def test_filters_are_refused_by_name():
    assert resolve_v2(None, [], whole(np.dtype("u1")), (1,), "C").is_raw
    for name in ("filter", "bytes", "value", "transpose", "numcodecs.delta"):
        with pytest.raises(UnsupportedError) as caught:
            resolve_v2(None, [{"id": name}], whole(np.dtype("u1")), (1,), "C")
        assert str(caught.value) == (
            'Error parsing object member "filters": filters are not supported, except "adler32", '
            '"astype", "base64", "bitround", "blosc", "bz2", "categorize", "crc32", "crc32c", '
            '"delta", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", '
            f'"packbits", "pcodec", "quantize", "shuffle", "zfpy", "zlib", "zstd": "{name}"'
        )
    for name in ("pickle", "json2", "json", "msgpack2", "msgpack"):
        with pytest.raises(UnsupportedError) as caught:
            resolve_v2(None, [{"id": name}], whole(np.dtype("u1")), (1,), "C")
        assert str(caught.value) == (
            f'Error parsing object member "filters": filter "{name}" is not supported: it makes '
            f"objects of bytes, which runs what the bytes say or is no array"
        )
    with pytest.raises(MetadataError) as error:
        resolve_v2(None, [{"id": "shuffle"}] * 2, whole(np.dtype("u2")), (5,), "C")
    assert str(error.value) == (
        'Error parsing object member "filters": Error parsing value at position 0: "elementsize" '
        "of 4 does not divide chunks of 10 bytes"
    )


def test_stored_chains_must_be_whole():
    with pytest.raises(MetadataError, match="array -> bytes codec must be specified"):
        resolve_v3(named(["crc32c"]), uint8, (1,))
    with pytest.raises(MetadataError) as caught:
        resolve_v3(named(["bytes"]), uint16, (1,))
    assert str(caught.value) == (
        'Error resolving codec spec through codec {"name":"bytes"}: "bytes" codec requires that '
        '"endian" option is specified for data type uint16'
    )


def test_fields_are_parts_of_packed_records():
    record = np.dtype([("a", "u1"), ("b", ">u2", (2,)), ("c", "S3")])
    b, c, every = (
        resolve_v2({"id": "blosc"}, None, select(record, field, as_void=not field), (2, 3), "F")
        for field in ("b", "c", "")
    )
    assert (b.layout.shape, b.layout.strides, b.layout.offset) == ((2, 3, 2), (8, 16, 2), 1)
    assert (c.layout.shape, c.layout.strides, c.layout.offset) == ((2, 3, 3), (8, 16, 1), 5)
    assert {chain.layout.nbytes for chain in (b, c, every)} == {48}
    assert {chain.layout.record for chain in (b, c, every)} == {8}
    assert [chain.layout.is_dense for chain in (b, c, every)] == [False, False, True]
    assert b.inner_order == (1, 0, 2)


def test_to_json_has_every_option():
    chain = resolve_v2({"id": "zlib"}, None, whole(np.dtype("u1")), (1,), "C")
    assert chain.to_json() == {"compressor": {"id": "zlib", "level": 1}, "filters": None}
    stored = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]
    chain = resolve_v3(named(stored), uint8, (1,))
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    assert chain.to_json() == {"codecs": [{"name": "bytes"}, zstd]}
    assert repr(chain).startswith('CodecChain({"codecs":[{"name":"bytes"},')


def test_one_chain_serves_many_threads():
    chains = [
        resolve_v3(complete_v3(named(codecs), uint16, 1), uint16, (20_000,)) for codecs in CHAINS
    ]
    payloads = [make_payload(40_000, "steps", seed) for seed in range(8)]
    encoded = [[bytes(chain.encode(payload)) for payload in payloads] for chain in chains]
    wrong = []

    def work(seed):
        for chain, chunks in zip(chains, encoded, strict=True):
            for payload, chunk in zip(payloads, chunks, strict=True):
                if bytes(chain.decode(chunk)) != payload:
                    wrong.append(chain)
            if bytes(chain.decode(chain.encode(payloads[seed]))) != payloads[seed]:
                wrong.append(chain)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
