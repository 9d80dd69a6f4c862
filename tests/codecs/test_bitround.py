"""The codec ``bitround`` of Zarr v3, against a reference of Python's integers."""

import hypothesis.strategies as st
import numcodecs
import numpy as np
import pytest
from hypothesis import given

from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.matrix import each

LITTLE = NamedConfiguration("bytes", {"endian": "little"})
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52, "complex64": 23}
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def chain(dtype, count, keepbits):
    named = NamedConfiguration("bitround", {"keepbits": keepbits})
    return resolve_v3([named, LITTLE], DataType(dtype), (count,))


def reference(bits, keepbits, width, mantissa):
    """Round half to even at the last bit that is kept."""
    drop = (mantissa or bits.bit_length()) - keepbits
    exponent = (1 << (width - 1)) - (1 << mantissa) if mantissa else 0
    if drop <= 0 or (mantissa and bits & ((1 << (width - 1)) - 1) > exponent):
        return bits
    quantum = 1 << drop
    below, rest = divmod(bits, quantum)
    below += rest > quantum // 2 or (rest == quantum // 2 and below % 2)
    if below * quantum >= 1 << width:  # An integer has nothing above.
        return ((1 << width) - 1) // quantum * quantum
    return below * quantum


@given(
    st.sampled_from([*MANTISSA, *INTEGERS]), st.integers(1, 30), st.integers(0, 9999), st.booleans()
)
def test_bits_are_those_of_the_reference(dtype, keepbits, seed, small):
    size = DataType(dtype).array_dtype.itemsize // (2 if dtype == "complex64" else 1)
    parts = 10 if dtype == "complex64" else 5
    bits = np.frombuffer(np.random.default_rng(seed).bytes(parts * size), f"<u{size}")
    if small:
        bits = bits >> np.uint8(size * 4)
    made = chain(dtype, 5, keepbits)
    encoded = made.encode(bits.tobytes())
    found = np.frombuffer(encoded, bits.dtype).tolist()
    mantissa = MANTISSA.get(dtype, 0)
    assert found == [reference(int(x), keepbits, 8 * size, mantissa) for x in bits]
    assert bytes(made.decode(encoded)) == bytes(encoded)


@each("dtype", ["float16", "float32", "float64"])
@each("keepbits", [1, 5, 9])
def test_numbers_are_those_of_numcodecs(dtype, keepbits):
    elements = np.random.default_rng(1).normal(0, 100, 500).astype(dtype)
    expected = numcodecs.BitRound(keepbits).encode(elements)
    assert bytes(chain(dtype, 500, keepbits).encode(elements.tobytes())) == expected.tobytes()


def test_no_nan_becomes_a_number():
    elements = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x7F800000], "<u4")
    assert bytes(chain("float32", 4, 1).encode(elements.tobytes())) == elements.tobytes()


def test_impossible_options_are_refused():
    for dtype, keepbits in (("bool", 1), ("float8_e5m2", 1), ("uint8", 0), ("float32", -1)):
        with pytest.raises(MetadataError):
            chain(dtype, 4, keepbits)
    assert bytes(chain("float32", 1, 64).encode(b"abcd")) == b"abcd"
