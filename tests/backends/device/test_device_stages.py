"""Chains of codecs of values, decoded by an emulated device: bit for bit what the host reads.

Each cell is one array (codecs, types, byte order, order of dimensions, sharding) and one selection
of it. The device decodes all chunks of all of them, which is counted.
"""

import itertools

import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError
from tests.backends.device.test_device_matrix import SELECTIONS, TOGETHER
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = [needs_compiler, pytest.mark.matrix]

SHAPE = (37, 41)

ZLIB = {"id": "zlib", "level": 1}
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
SCALED = {"id": "fixedscaleoffset", "scale": 10, "offset": 3}


def cast(array, stored):
    return {"id": "astype", "encode_dtype": stored, "decode_dtype": array}


V2 = {
    "spec": ("<f8", [{"id": "delta", "dtype": "<f8", "astype": "<f4"}], BLOSC),
    "delta": ("<i2", [{"id": "delta", "dtype": "<i2"}], None),
    "delta big": (">u4", [{"id": "delta", "dtype": ">u4"}], ZLIB),
    "delta float": (">f4", [{"id": "delta", "dtype": ">f4"}], None),
    "delta half": ("<f2", [{"id": "delta", "dtype": "<f2"}], ZLIB),
    "delta complex": ("<c8", [{"id": "delta", "dtype": "<c8"}], ZLIB),
    "scaled to bytes": ("<f8", [{**SCALED, "dtype": "<f8", "astype": "|u1"}], ZLIB),
    "scaled to words": ("<f4", [{**SCALED, "dtype": "<f4", "astype": ">i2"}], BLOSC),
    "scaled floats": (">f4", [{**SCALED, "dtype": ">f4"}], None),
    "scaled halves": ("<f2", [{**SCALED, "dtype": "<f2"}], None),
    "scaled to integers": ("<i8", [{**SCALED, "dtype": "<i8", "astype": "<f8"}], ZLIB),
    "quantize": ("<f8", [{"id": "quantize", "digits": 2, "dtype": "<f8"}], ZLIB),
    "quantize cast": (
        ">f8",
        [{"id": "quantize", "digits": 2, "dtype": ">f8", "astype": "<f4"}],
        ZLIB,
    ),
    "bitround": ("<f4", [{"id": "bitround", "keepbits": 8}], ZLIB),
    "bitround raw": (">f8", [{"id": "bitround", "keepbits": 8}], None),
    "astype": ("<f8", [cast("<f8", ">f4")], ZLIB),
    "astype wider": ("<i4", [cast("<i4", "<i8")], None),
    "astype bytes": ("<u8", [cast("<u8", "|i1")], ZLIB),
    "astype bool": ("|b1", [cast("|b1", "<i2")], ZLIB),
    "astype from bool": ("<i4", [cast("<i4", "|b1")], None),
    "astype complex": ("<c16", [cast("<c16", ">c8")], ZLIB),
    "astype real": ("<c8", [cast("<c8", "<f4")], ZLIB),
    "packbits": ("|b1", [{"id": "packbits"}], ZLIB),
    "packbits raw": ("|b1", [{"id": "packbits"}], None),
    "cast, delta": (
        "<f8",
        [cast("<f8", "<i4"), {"id": "delta", "dtype": "<i4", "astype": "<i2"}],
        ZLIB,
    ),
    "scaled, delta, shuffle": (
        "<f8",
        [
            {**SCALED, "dtype": "<f8", "astype": "<i4"},
            {"id": "delta", "dtype": "<i4"},
            {"id": "shuffle", "elementsize": 4},
        ],
        BLOSC,
    ),
    "quantize, bitround, cast": (
        "<f8",
        [
            {"id": "quantize", "digits": 1, "dtype": "<f8", "astype": "<f4"},
            {"id": "bitround", "keepbits": 10},
            cast("<f4", ">f2"),
        ],
        ZLIB,
    ),
    "seen as bytes": ("<u4", [cast("<u2", "|u1"), {"id": "delta", "dtype": "|u1"}], ZLIB),
    "checked": ("<i2", [{"id": "delta", "dtype": "<i2"}, {"id": "crc32c"}], None),
}
"""Type, filters and compressor."""


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


def to(data_type, **options):
    return named("cast_value", data_type=data_type, **options)


LITTLE, BIG = named("bytes", endian="little"), named("bytes", endian="big")
ZSTD = named("zstd", level=1, checksum=False)
TURNED = named("transpose", order=[1, 0])
MAP = {"encode": [["NaN", -1]], "decode": [[-1, "NaN"]]}

V3 = {
    "cast": ("float64", [to("int16", rounding="nearest-even")], [LITTLE, ZSTD]),
    "cast big": ("float32", [to("uint32", rounding="towards-zero")], [BIG]),
    "cast bytes": ("float32", [to("uint8", out_of_range="clamp")], [LITTLE, ZSTD]),
    "cast map": ("float64", [to("int32", scalar_map=MAP, rounding="nearest-away")], [BIG, ZSTD]),
    "cast integers": ("int64", [to("uint16", out_of_range="wrap")], [BIG]),
    "cast narrow": ("int16", [to("int4", out_of_range="wrap")], [named("bytes"), ZSTD]),
    "cast to narrow": ("int4", [to("int32")], [LITTLE]),
    "cast bfloat16": ("bfloat16", [to("float32")], [BIG, ZSTD]),
    "cast to bfloat16": ("float32", [to("bfloat16")], [LITTLE]),
    "cast float8": ("float32", [to("float8_e4m3fn", out_of_range="clamp")], [named("bytes")]),
    "scale": ("float64", [named("scale_offset", scale=0.1, offset=5)], [LITTLE, ZSTD]),
    "scale single": ("float32", [named("scale_offset", scale=0.1, offset=5)], [BIG, ZSTD]),
    "scale half": ("float16", [named("scale_offset", scale=3, offset=5)], [LITTLE]),
    "scale bfloat16": ("bfloat16", [named("scale_offset", scale=3, offset=5)], [LITTLE]),
    "scale integers": ("int32", [named("scale_offset", scale=3, offset=-7)], [BIG, ZSTD]),
    "scale bytes": ("int8", [named("scale_offset", scale=1, offset=-7)], [named("bytes"), ZSTD]),
    "scale and cast": (
        "float32",
        [named("scale_offset", scale=10, offset=3), to("int16", rounding="nearest-even")],
        [BIG, ZSTD],
    ),
    "bitround": ("float32", [named("bitround", keepbits=4)], [LITTLE, ZSTD]),
    "bitround big": ("int32", [named("bitround", keepbits=3)], [BIG]),
    "bitround complex": ("complex64", [named("bitround", keepbits=3)], [BIG, ZSTD]),
    "packbits": ("bool", [], [named("packbits", padding_encoding="first_byte"), ZSTD]),
    "packbits signed": ("int16", [], [named("packbits", last_bit=8)]),
    "packbits narrow": ("int4", [], [named("packbits", padding_encoding="last_byte")]),
    "packbits complex": ("complex64", [], [named("packbits"), ZSTD]),
    "cast and pack": ("float64", [to("uint16")], [named("packbits", last_bit=10), ZSTD]),
    "numcodecs": (
        "float64",
        [named("numcodecs.fixedscaleoffset", scale=2, offset=1, dtype="<f8", astype="<i2")],
        [LITTLE, ZSTD],
    ),
    "delta, transpose": ("int32", [named("numcodecs.delta", dtype="<i4"), TURNED], [BIG, ZSTD]),
}
"""Type, codecs before the array -> bytes codec, and those from it on."""

IN_SHARDS = [
    name
    for name, (_, before, _) in V3.items()
    if not any("numcodecs" in one["name"] for one in before)
]


def elements_of(dtype):
    """What all codecs above can encode."""
    random = np.random.default_rng(7)
    found = random.integers(0, 2 if dtype.kind == "b" else 7, SHAPE)
    if dtype.name not in ("bool", "int4") and dtype.itemsize > 1:
        found = found * 3 + 20
    return found.astype(dtype)


def counted(ask):
    before = gpustore.statistics.snapshot()
    ask()
    after = gpustore.statistics.snapshot()
    return {key: after[key] - before.get(key, 0) for key in after}


def _compare(host, there, device):
    for selection, select in SELECTIONS.items():
        expected = select(host).read().result()
        found = on_host(device, select(there).read().result())
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), selection
    for together, ask in TOGETHER.items():
        for one, other in zip(ask(there), ask(host), strict=True):
            found = on_host(device, one.result())
            assert found.tobytes() == other.result().tobytes(), together


def compare(spec, order):
    with emulated(order, seed=5) as device:
        host = gpustore.open(spec, create=True).result()
        elements = elements_of(host.dtype.numpy_dtype)
        host[:24], host[32:] = elements[:24], elements[32:]
        there = gpustore.open(spec, device=device.name).result()
        assert there.explain().host_reason is None

        counts = counted(lambda there=there: _compare(host, there, device))
        assert counts["chunks_decoded_device"]
        assert not counts.get("host_fallbacks")
        assert not counts.get("retries")
        del there


def v2_spec(path, dtype, filters, compressor, order="C", shape=SHAPE):
    metadata = {"shape": list(shape), "chunks": [8, 9], "dtype": dtype, "order": order}
    metadata |= {"filters": filters, "compressor": compressor}
    return {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}


def v3_spec(path, dtype, codecs, shard=False, shape=SHAPE):
    chunk = [8, 9]
    if shard:
        index = [LITTLE, named("crc32c")]
        codecs = [named("sharding_indexed", chunk_shape=chunk, codecs=codecs, index_codecs=index)]
        chunk = [16, 18]
    metadata = {
        "shape": list(shape),
        "chunk_grid": named("regular", chunk_shape=chunk),
        "data_type": dtype,
        "codecs": codecs,
    }
    return {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}


@pytest.mark.long
@pytest.mark.parametrize("name", V2)
def test_v2(tmp_path, name):
    dtype, filters, compressor = V2[name]
    orders = itertools.cycle(ORDERS)
    for order in "CF":
        spec = v2_spec(tmp_path / order, dtype, filters, compressor, order)
        compare(spec, next(orders))


@pytest.mark.long
@pytest.mark.parametrize("name", V3)
def test_v3(tmp_path, name):
    dtype, before, behind = V3[name]
    orders = itertools.cycle(ORDERS)
    for turned, shard in forms(name):
        codecs = [*([TURNED] if turned else []), *before, *behind]
        spec = v3_spec(tmp_path / f"{turned}{shard}", dtype, codecs, shard)
        compare(spec, next(orders))


def forms(name):
    """Whether the chunks of an array of Zarr v3 are transposed, and whether they are in shards."""
    return list(itertools.product((False, True), (False, True) if name in IN_SHARDS else (False,)))


def test_at_least_2000_cells_are_compared():
    arrays = 2 * len(V2) + sum(len(forms(name)) for name in V3)
    assert arrays * (len(SELECTIONS) + len(TOGETHER)) >= 2000


# --------------------------------------------------------------------------- a few always

FEW = ["spec", "scaled, delta, shuffle", "packbits raw", "astype complex"]


@pytest.mark.parametrize("name", FEW)
def test_some_of_v2(tmp_path, name):
    compare(v2_spec(tmp_path, *V2[name], "F"), "random")


@pytest.mark.parametrize("name", ["scale and cast", "cast map", "cast and pack"])
def test_some_of_v3_in_shards(tmp_path, name):
    dtype, before, behind = V3[name]
    compare(v3_spec(tmp_path, dtype, [TURNED, *before, *behind], True), "lazy")


@pytest.mark.parametrize("name", ["scaled, delta, shuffle", "quantize, bitround, cast", "bitround"])
def test_launches_do_not_grow_with_chunks(tmp_path, name):
    dtype, filters, _ = V2[name]
    with emulated() as device:
        plain, few, many = (
            counts_of(tmp_path / f"{n}{some is None}", dtype, some, n, device)
            for some, n in ((None, 2), (filters, 2), (filters, 8))
        )
        for count in ("launches", "copies", "waits"):
            assert few[count] == many[count]
        assert many["chunks_decoded_device"] == 64
        alone = {"bitround": 0, "quantize, bitround, cast": 1, "scaled, delta, shuffle": 3}
        assert many["launches"] == plain["launches"] + alone[name]


def test_fields_of_records_that_are_filtered(tmp_path):
    record = [["a", "|b1"], ["b", ">i2"], ["c", "|u1"]]
    for field in "abc":
        filters = [{"id": "delta", "dtype": "<u4"}]
        spec = {**v2_spec(tmp_path / field, record, filters, ZLIB), "field": field}
        compare(spec, "random")


def counts_of(path, dtype, filters, n, device):
    spec = v2_spec(path, dtype, filters, ZLIB, shape=(8 * n, 9 * n))
    store = gpustore.open(spec, create=True).result()
    store[...] = np.arange(9 * n).astype(dtype) % 5
    there = gpustore.open(spec, device=device.name).result()
    return counted(lambda: there.read().result())


DAMAGED = {
    "too short": ("<i2", [{"id": "delta", "dtype": "<i2"}], None, lambda value: value[:-2]),
    "too long": ("<f8", [cast("<f8", "<f4")], None, lambda value: value + b"1234"),
    "odd": ("<f4", [{"id": "bitround", "keepbits": 3}], None, lambda value: value[:-1]),
    "padding": ("|b1", [{"id": "packbits"}], None, lambda value: b"\5" + value[1:]),
    "bool": ("<i4", [cast("<i4", "|b1")], None, lambda value: b"\2" + value[1:]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_chunks_are_the_errors_of_the_host(tmp_path, name):
    dtype, filters, compressor, damage = DAMAGED[name]
    check_damage(tmp_path, v2_spec(tmp_path, dtype, filters, compressor), "1.1", damage)


ILLEGAL = {
    "NaN is no integer": ("int32", [to("float32")], [LITTLE], b"\0\0\xc0\x7f"),
    "out of range": ("int8", [to("int32")], [BIG], b"\0\0\1\0"),
    "no multiple": ("int32", [named("scale_offset", scale=3, offset=0)], [LITTLE], b"\4\0\0\0"),
    "overflow": (
        "float32",
        [named("scale_offset", scale=0.125, offset=0)],
        [LITTLE],
        b"\xff\xff\x7f\x7f",
    ),
    "byte": ("int8", [named("scale_offset", scale=3, offset=0)], [named("bytes")], b"\4"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_elements_are_the_errors_of_the_host(tmp_path, name):
    dtype, before, behind, element = ILLEGAL[name]
    spec = v3_spec(tmp_path, dtype, [*before, *behind])
    check_damage(tmp_path, spec, "c/1/1", lambda value: element + value[len(element) :])


def check_damage(path, spec, key, damage):
    host = gpustore.open(spec, create=True).result()
    # Chunks of zeros would be left out; all of these are multiples of 3.
    elements = np.indices(SHAPE).sum(axis=0) % 2 * 3
    host[...] = elements.astype(host.dtype.numpy_dtype)
    file = path / key
    file.write_bytes(damage(file.read_bytes()))
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        with pytest.raises(CorruptChunkError) as expected:
            host.read().result()
        with pytest.raises(CorruptChunkError) as found:
            there.read().result()
        assert str(found.value) == str(expected.value)
        assert found.value.key == expected.value.key == str(file)
        whole = there[:8, :9].read().result()
        assert on_host(device, whole).tobytes() == host[:8, :9].read().result().tobytes()
        del there, whole, found


def test_what_c_leaves_undefined_is_decoded_by_the_host(tmp_path):
    spec = v2_spec(tmp_path, "<i4", [cast("<i4", "<f4")], None)
    host = gpustore.open(spec, create=True).result()
    host[...] = np.ones(SHAPE, "i4")
    (tmp_path / "0.0").write_bytes(np.full(72, np.nan, "<f4").tobytes())
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        found = []
        counts = counted(lambda there=there: found.append(there.read().result()))
        assert on_host(device, found.pop()).tobytes() == host.read().result().tobytes()
        assert (counts["retries"], counts["host_fallbacks"]) == (1, 1)
        assert counts["chunks_decoded_device"] == 24
        del there


def test_explain_says_who_decodes(tmp_path):
    spec = v2_spec(tmp_path, *V2["quantize, bitround, cast"])
    with emulated() as device:
        there = gpustore.open(spec, create=True, device=device.name).result()
        text = str(there.explain())
        there[...] = np.ones(SHAPE)
        del there
    assert (
        "zlib by nvcomp, astype by own kernels, bitround as it is, quantize by own kernels" in text
    )


def test_what_stays_on_the_host_says_why(tmp_path):
    filters = {
        "delta: the host sums int32 as float32": {"id": "delta", "dtype": "<f4", "astype": "<i4"},
        "complex numbers are converted to bool by the host": cast("|b1", "<c8"),
        "a scale of 0 and an offset of 1 are left to the host": {
            **SCALED,
            "dtype": "<f4",
            "scale": 0,
            "offset": 1,
        },
    }
    with emulated() as device:
        for number, (reason, one) in enumerate(filters.items()):
            dtype = one.get("dtype", one.get("decode_dtype"))
            spec = v2_spec(tmp_path / str(number), dtype, [one], None)
            there = gpustore.open(spec, create=True, device=device.name).result()
            assert there.explain().host_reason == reason
            del there
