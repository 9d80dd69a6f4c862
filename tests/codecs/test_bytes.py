"""The layouts of the bytes codec, and which bytes are elements."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.legal_elements import checker, normalizer
from gpustore.codecs.bytes import CODEC
from gpustore.data_types.dtype import DTYPES, float4_e2m1fn, int2, int4
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.metadata.component import Component
from tests.matrix import each

SUB_BYTE = [int2, int4, float4_e2m1fn]


@given(
    shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    order=st.sampled_from("CF"),
    name=st.sampled_from(["u1", ">u2", "<f8", "V7"]),
)
def test_contiguous_layouts_have_numpys_strides(shape, order, name):
    layout = ChunkBytes.contiguous(np.dtype(name), shape, order=order)
    array = np.zeros(tuple(max(size, 1) for size in shape), name, order=order)
    assert layout.nbytes == array.itemsize * int(np.prod(shape, dtype=int))
    if all(size > 1 for size in shape):
        assert layout.strides == array.strides


def test_sizes_are_computed_without_overflow():
    assert ChunkBytes.contiguous(np.dtype("u8"), (2**62, 2**62)).nbytes == 2**127


@each("name", ["uint16", "float32", "complex128", "bfloat16"])
@each("endian", ["little", "big"])
def test_endian_is_the_stored_byte_order(name, endian):
    native = DTYPES[name].numpy_dtype
    layout = CODEC.layout({"endian": endian}, Component.whole(DTYPES[name]), (3,))
    values = np.array([1, 2, 3]).astype(native)
    stored = values.tobytes() if endian == sys.byteorder else _swapped(values)
    assert (np.ndarray((3,), layout.dtype, stored).astype(native) == values).all()


def _swapped(values):
    components = 2 if values.dtype.kind == "c" else 1
    size = values.dtype.itemsize // components
    return values.view(np.uint8).reshape(-1, size)[:, ::-1].tobytes()


def test_endian_is_needed_only_for_elements_of_several_bytes():
    assert CODEC.layout({}, Component.whole(DTYPES["uint8"]), (3,)).dtype == np.uint8
    with pytest.raises(MetadataError) as caught:
        CODEC.layout({}, Component.whole(DTYPES["uint16"]), (3,))
    assert str(caught.value) == (
        '"bytes" codec requires that "endian" option is specified for data type uint16'
    )


def test_completing_omits_a_meaningless_endian():
    assert CODEC.complete({"endian": "big"}, 1) == {}
    assert CODEC.complete({"endian": "big"}, 2) == {"endian": "big"}
    assert CODEC.complete({}, 2) == {"endian": sys.byteorder}


def test_bools_other_than_0_and_1_are_corrupt():
    check = checker(np.dtype("bool"))
    assert check(b"\0\1\1") == b"\0\1\1"
    assert check(b"") == b""
    with pytest.raises(CorruptChunkError, match=r"Invalid bool value: 2; at byte 2") as caught:
        check(b"\0\1\2\xff")
    assert caught.value.codec == "bytes"
    assert normalizer(np.dtype("bool")) is None


@pytest.mark.parametrize("name", ["uint8", "int8", "float32", "float8_e5m2", "bfloat16"])
def test_all_bytes_are_elements_of_other_types(name):
    assert checker(DTYPES[name].numpy_dtype) is None


@pytest.mark.parametrize("data_type", SUB_BYTE, ids=repr)
def test_unused_bits_are_cleared(data_type):
    native = data_type.numpy_dtype
    everything = bytes(range(256))
    check = checker(native)
    cleared = check(everything)
    assert bytes(check(memoryview(everything))) == cleared
    # What ml_dtypes itself makes of the values that the junk stands for.
    clean = np.frombuffer(everything, native).astype(np.float32).astype(native)
    if data_type is not float4_e2m1fn:  # ml_dtypes does not ignore junk there
        assert cleared == clean.tobytes()
    assert max(cleared) == (3 if data_type is int2 else 15)
    writable = bytearray(everything)
    assert check(writable) is writable
    assert bytes(writable) == cleared
    assert check(cleared) is cleared


def test_negative_values_have_zeros_above():
    native = int4.numpy_dtype
    assert np.array([-1], native).tobytes() == normalizer(native)(b"\xff")
