"""The codec ``packbits`` of Zarr v3, against a reference of single bits."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration

BITS = {"bool": 1, "int2": 2, "int4": 4, "uint2": 2, "uint4": 4, "float4_e2m1fn": 4}
BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}
TYPES = [*BITS, "int8", "uint8", "int16", "uint32", "int64", "float32", "bfloat16", "complex64"]


def chain(dtype, count, **options):
    named = NamedConfiguration("packbits", options)
    return resolve_v3([named], DataType(dtype), (count,))


def packed(values, first, last):
    """Bits of Python integers as bytes, from the specification."""
    bits = [value >> bit & 1 for value in values for bit in range(first, last + 1)]
    unused = -len(bits) % 8
    bits += [0] * unused
    return bytes(
        sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
    ), unused


def kept(value, first, last, width, *, signed):
    """The bits of a component that come back."""
    found = value & ((1 << (last + 1)) - (1 << first))
    if signed and value >> last & 1:
        found |= (1 << width) - (1 << (last + 1))
    return found


@given(st.sampled_from(TYPES), st.integers(1, 40), st.integers(0, 9999), st.data())
def test_bits_are_those_of_the_reference(dtype, count, seed, data):
    size = DataType(dtype).array_dtype.itemsize // (2 if dtype == "complex64" else 1)
    parts = count * (2 if dtype == "complex64" else 1)
    width = BITS.get(dtype, 8 * size)
    first = data.draw(st.integers(0, width - 1))
    last = data.draw(st.integers(first, width - 1))
    padding = data.draw(st.sampled_from(["none", "first_byte", "last_byte"]))
    raw = np.frombuffer(np.random.default_rng(seed).bytes(parts * size), f"<u{size}")
    values = [int(value) & ((1 << width) - 1) for value in raw]
    decoded = np.array(values, f"<u{size}").tobytes()
    made = chain(dtype, count, first_bit=first, last_bit=last, padding_encoding=padding)
    body, unused = packed(values, first, last)
    expected = {
        "none": body,
        "first_byte": bytes([unused]) + body,
        "last_byte": body + bytes([unused]),
    }[padding]
    assert bytes(made.encode(memoryview(bytearray(decoded)))) == expected
    signed = dtype.startswith("int")
    back = [kept(value, first, last, width, signed=signed) for value in values]
    assert bytes(made.decode(expected)) == np.array(back, f"<u{size}").tobytes()


@pytest.mark.parametrize("count", [65536, 65537, 100001])
@pytest.mark.parametrize("dtype", ["bool", "int4", "uint16"])
def test_many_elements_are_packed_in_blocks(dtype, count):
    size = DataType(dtype).array_dtype.itemsize
    last = {"bool": 0, "int4": 3, "uint16": 10}[dtype]
    values = np.random.default_rng(1).integers(0, 2 << last, count).astype(f"<u{size}")
    made = chain(dtype, count, last_bit=last)
    encoded = bytes(made.encode(memoryview(bytearray(values.tobytes()))))
    assert encoded == packed(values.tolist(), 0, last)[0]
    assert bytes(made.decode(encoded)) == values.tobytes()


def test_an_array_is_written_and_read(tmp_path):
    metadata = {
        "shape": [30, 20],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 6]}},
        "data_type": "bool",
        "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, "packbits", "crc32c"],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    written = np.random.default_rng(1).integers(0, 2, (30, 20)).astype(bool)
    store[...] = written
    assert (tmp_path / "c/0/0").stat().st_size == 6 + 4
    assert np.array_equal(gpustore.open(f"file://{tmp_path}").result().read().result(), written)
    bits = np.unpackbits(
        np.frombuffer((tmp_path / "c/0/0").read_bytes()[:6], "u1"), bitorder="little"
    )
    assert np.array_equal(bits.reshape(6, 8).T, written[:8, :6])


def test_impossible_options_are_refused():
    for dtype, options, match in (
        ("uint8", {"first_bit": 3, "last_bit": 2}, '"first_bit" of 3 and "last_bit" of 2'),
        ("int4", {"last_bit": 4}, "which has 4"),
        ("uint8", {"padding_encoding": "both"}, '"padding_encoding"'),
        ("uint8", {"first_bit": -1}, '"first_bit"'),
        ("uint8", {"bits": 3}, '"bits"'),
    ):
        with pytest.raises(MetadataError, match=match):
            chain(dtype, 4, **options)
    assert bytes(chain("uint8", 1, first_bit=None, last_bit=None).encode(b"x")) == b"x"


def test_wrong_counts_of_padding_are_damage():
    made = chain("bool", 5, padding_encoding="first_byte")
    encoded = bytes(made.encode(bytes([1, 0, 1, 1, 0])))
    assert encoded == bytes([3, 0b1101])
    for damaged in (bytes([2, 0b1101]), bytes([255, 0b1101]), encoded[:1], encoded + b"x", b""):
        with pytest.raises(CorruptChunkError) as caught:
            made.decode(damaged)
        assert caught.value.codec == "packbits"


def test_that_of_numcodecs_is_another_format():
    component = Component.whole(DataType("bool"))
    made = resolve_v2(None, [{"id": "packbits"}], component, (4,), "C")
    assert bytes(made.encode(bytes([1, 7, 1, 0]))) == bytes([4, 0b11100000])
    assert bytes(made.decode(bytes([4, 0b11100000]))) == bytes([1, 1, 1, 0])
