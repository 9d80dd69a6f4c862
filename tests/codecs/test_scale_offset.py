"""The codec ``scale_offset``, against a reference in Python's numbers."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, LimitError, MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def codec(offset, scale):
    return {"name": "scale_offset", "configuration": {"offset": offset, "scale": scale}}


def chain(dtype, one, count):
    named = NamedConfiguration.list_from_json([one, LITTLE])
    return resolve_v3(named, DataType(dtype), (count,))


def limits(dtype):
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


@pytest.mark.matrix
@given(st.sampled_from(INTEGERS), st.data())
def test_integers_are_exact_or_refused(dtype, data):
    low, high = limits(dtype)
    number = st.one_of(st.integers(-20, 20), st.integers(low, high)).filter(
        lambda x: low <= x <= high
    )
    offset, scale = data.draw(number), data.draw(number.filter(bool))
    values = data.draw(st.lists(number, min_size=1, max_size=6))
    made = chain(dtype, codec(offset, scale), len(values))
    fits = all(low <= x - offset <= high and low <= (x - offset) * scale <= high for x in values)
    elements = np.array(values, dtype)
    if not fits:
        with pytest.raises(LimitError, match=f"Elements do not fit type {dtype}"):
            made.encode(elements.tobytes())
        return
    encoded = bytes(made.encode(elements.tobytes()))
    assert np.frombuffer(encoded, dtype).tolist() == [(x - offset) * scale for x in values]
    assert np.frombuffer(made.decode(encoded), dtype).tolist() == values


@pytest.mark.matrix
@given(st.sampled_from(INTEGERS), st.data())
def test_stored_integers_are_decoded_exactly_or_are_damage(dtype, data):
    low, high = limits(dtype)
    number = st.one_of(st.integers(-20, 20), st.integers(low, high)).filter(
        lambda x: low <= x <= high
    )
    offset, scale = (
        data.draw(number),
        data.draw(st.integers(-6, 6).filter(lambda x: x and x >= low)),
    )
    values = data.draw(st.lists(number, min_size=1, max_size=6))
    made = chain(dtype, codec(offset, scale), len(values))
    encoded = np.array(values, dtype).tobytes()
    whole = all(x % scale == 0 for x in values)
    if (
        whole
        and all(low <= x // scale <= high for x in values)
        and all(low <= x // scale + offset <= high for x in values)
    ):
        found = np.frombuffer(made.decode(encoded), dtype)
        assert found.tolist() == [x // scale + offset for x in values]
    else:
        with pytest.raises(CorruptChunkError):
            made.decode(encoded)


@given(
    st.sampled_from(["float16", "float32", "float64", "bfloat16"]),
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.integers(0, 1000),
)
def test_floats_are_computed_in_their_own_type(dtype, offset, scale, seed):
    numpy_type = DataType(dtype).array_dtype
    offset, scale = (float(np.array(x).astype(numpy_type)) for x in (offset, scale))
    elements = np.random.default_rng(seed).normal(0, 20, 9).astype(numpy_type)
    elements[0] = np.nan
    made = chain(dtype, codec(offset, scale), 9)
    one = numpy_type.type
    encoded = np.frombuffer(made.encode(elements.tobytes()), numpy_type)
    assert encoded[1:].tolist() == [(x - one(offset)) * one(scale) for x in elements[1:]]
    decoded = np.frombuffer(made.decode(encoded.tobytes()), numpy_type)
    assert decoded[1:].tolist() == [x / one(scale) + one(offset) for x in encoded[1:]]
    assert np.isnan(encoded[0])
    assert np.isnan(decoded[0])


def test_the_example_of_the_specification():
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/",
        "metadata": {"shape": [9], "data_type": "float32", "codecs": [codec(5, 0.1), LITTLE]},
    }
    store = gpustore.open(spec, create=True).result()
    store[...] = np.arange(9, dtype="f4")
    stored = np.frombuffer(bytes(store.kvstore["c/0"]), "<f4")
    assert np.array_equal(stored, (np.arange(9, dtype="f4") - np.float32(5)) * np.float32(0.1))
    assert np.allclose(store.read().result(), np.arange(9), atol=1e-6)


def test_with_a_cast_it_equals_fixedscaleoffset():
    cast = {"name": "cast_value", "configuration": {"data_type": "uint8"}}
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/",
        "metadata": {
            "shape": [10],
            "data_type": "float64",
            "fill_value": 1000,
            "codecs": [codec(1000, 10), cast, LITTLE],
        },
    }
    store = gpustore.open(spec, create=True).result()
    store[...] = np.linspace(1000, 1001, 10)
    # The example of numcodecs' documentation of FixedScaleOffset.
    assert list(bytes(store.kvstore["c/0"])) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert np.allclose(store.read().result(), np.round(np.linspace(1000, 1001, 10), 1))


def test_overflows_and_impossible_values_are_refused():
    made = chain("float32", codec(0, 1e30), 2)
    with pytest.raises(LimitError, match="do not fit type float32"):
        made.encode(np.array([1, 1e30], "f4").tobytes())
    assert np.isinf(np.frombuffer(made.encode(np.array([1, np.inf], "f4").tobytes()), "f4")[1])
    with pytest.raises(CorruptChunkError, match="do not fit type float32"):
        chain("float32", codec(0, 1e-30), 1).decode(np.array([1e30], "f4").tobytes())
    for dtype, one, match in (
        ("uint8", codec(0, 0), '"scale" is 0'),
        ("uint8", codec(-1, 1), '"offset"'),
        ("uint8", codec(0, 1.5), '"scale"'),
        ("float32", codec(0, "NaN"), "finite"),
        ("bool", codec(0, 1), "bool are not scaled"),
        ("complex64", codec([0, 0], [1, 0]), "complex64 are not scaled"),
        ("uint8", {"name": "scale_offset", "configuration": {"offset": 1}}, '"scale"'),
    ):
        with pytest.raises(MetadataError, match=match):
            chain(dtype, one, 2)
    assert ml_dtypes.finfo("bfloat16").bits == 16


def test_the_least_quotients_of_integers_are_decoded():
    made = chain("int64", codec(0, -1), 2)
    elements = np.array([2**63 - 1, -(2**63 - 2)], "i8")
    encoded = bytes(made.encode(elements.tobytes()))
    assert bytes(made.decode(encoded)) == elements.tobytes()
    with pytest.raises(CorruptChunkError, match="do not fit type int64"):
        made.decode(np.array([-(2**63), 0], "i8").tobytes())
