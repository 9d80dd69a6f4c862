"""``categorize``: strings as numbers of labels, as numcodecs has them."""

import json

import hypothesis.strategies as st
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import assume, given

import gpustore
from gpustore.codec_chain.resolve import resolve_v2
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.metadata.component import Component
from tests.matrix import each

TEXT = st.text(st.sampled_from("abé𝄞 \0'\ud7ff"), max_size=4)
INTEGERS = ["|u1", "|i1", "<u2", ">i4", "<u8"]


def chain_of(config, count, *, dtype=None):
    stored = np.dtype(dtype or config["dtype"])
    component = Component.whole(gpustore.dtype(stored)).with_byteorder(stored.str[0])
    return resolve_v2(None, [config], component, (count,), "C")


def bytes_of(array):
    return memoryview(bytearray(np.ascontiguousarray(array).tobytes()))


@st.composite
def made(draw):
    """Labels, a type of strings, one of numbers, and strings that may be none of the labels."""
    labels = draw(st.lists(TEXT, max_size=6))
    dtype = f"{draw(st.sampled_from('<>'))}U{draw(st.integers(1, 5))}"
    astype = draw(st.sampled_from(INTEGERS))
    words = draw(st.lists(st.one_of(TEXT, st.sampled_from([*labels, ""])), min_size=1, max_size=30))
    config = {"id": "categorize", "labels": labels, "dtype": dtype, "astype": astype}
    return config, np.array(words, dtype)


@given(made())
def test_values_are_those_of_numcodecs(case):
    config, words = case
    theirs = numcodecs.get_codec(dict(config))
    chain = chain_of(config, len(words))
    encoded = chain.encode(bytes_of(words))
    assert bytes(encoded) == np.asarray(theirs.encode(words)).tobytes()
    decoded = np.asarray(theirs.decode(np.frombuffer(encoded, config["astype"])))
    assert bytes(chain.decode(encoded)) == decoded.tobytes()
    out = memoryview(bytearray(words.nbytes))
    assert bytes(chain.decode(encoded, out)) == bytes(out) == decoded.tobytes()


@given(made(), st.data())
def test_any_numbers_decode_as_in_numcodecs(case, data):
    """Numbers without a label decode to empty strings."""
    config, words = case
    numbers = np.dtype(config["astype"])
    size = numbers.itemsize * len(words)
    encoded = data.draw(st.binary(min_size=size, max_size=size))
    near = np.arange(len(words)).astype(numbers).tobytes()
    for value in (encoded, near):
        expected = numcodecs.get_codec(dict(config)).decode(np.frombuffer(value, numbers))
        assert bytes(chain_of(config, len(words)).decode(value)) == expected.tobytes()


@given(made(), st.data())
def test_parts_are_those_of_the_whole(case, data):
    config, words = case
    chain = chain_of(config, len(words))
    encoded = chain.encode(bytes_of(words))
    whole = bytes(chain.decode(encoded))
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first + 1, len(words)))
    size = words.itemsize
    scratch = memoryview(bytearray(words.nbytes))
    part, begin = chain.decode_part(encoded, first * size, last * size, scratch)
    start = first * size - begin
    assert bytes(part)[start : start + (last - first) * size] == whole[first * size : last * size]


@given(made(), st.integers(-4, 4).filter(bool))
def test_another_size_is_damage(case, more):
    config, words = case
    chain = chain_of(config, len(words))
    encoded = bytes(chain.encode(bytes_of(words)))
    assume(len(encoded) + more >= 0)
    damaged = encoded[:more] if more < 0 else encoded + bytes(more)
    with pytest.raises(CorruptChunkError) as caught:
        chain.decode(damaged)
    assert caught.value.codec == "categorize"


def test_the_last_of_equal_labels_is_stored():
    config = {"id": "categorize", "labels": ["a", "b", "a"], "dtype": "<U1"}
    encoded = chain_of(config, 2).encode(bytes_of(np.array(["a", "b"], "<U1")))
    assert bytes(encoded) == b"\x03\x02"
    assert numcodecs.get_codec(dict(config)).encode(np.array(["a", "b"])).tobytes() == b"\x03\x02"


@pytest.mark.matrix
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressor", [None, {"id": "zstd", "level": 1}])
@pytest.mark.parametrize("dtype", ["<U5", ">U5"])
@pytest.mark.parametrize("astype", ["|u1", "<i2", ">i2"])
def test_exchange_with_zarr_python(tmp_path, dtype, astype, compressor, order):
    labels = ["north", "süd", "", "east"]
    words = np.array(["north", "süd", "west", "east", ""] * 7, dtype).reshape(5, 7)
    held = np.where(words == "west", "", words)
    theirs = zarr.create_array(
        tmp_path / "theirs",
        shape=words.shape,
        chunks=(2, 3),
        dtype=words.dtype,
        zarr_format=2,
        order=order,
        fill_value="süd",
        filters=[numcodecs.Categorize(labels, dtype, astype)],
        compressors=None if compressor is None else numcodecs.get_codec(dict(compressor)),
    )
    theirs[...] = words
    ours = gpustore.open(tmp_path / "theirs").result()
    assert np.array_equal(ours.read().result(), held)
    assert np.array_equal(ours[::-2, 1:5].read().result(), held[::-2, 1:5])
    ours[1:4, 2:6] = words[0:3, 0:4]
    held[1:4, 2:6] = np.where(words[0:3, 0:4] == "west", "", words[0:3, 0:4])
    assert np.array_equal(np.asarray(theirs[...]), held)
    metadata = json.loads((tmp_path / "theirs" / ".zarray").read_text())
    made = gpustore.open(
        {"driver": "zarr", "kvstore": f"file://{tmp_path}/ours/", "metadata": metadata},
        create=True,
    ).result()
    made[...] = words
    found = np.asarray(zarr.open_array(tmp_path / "ours", mode="r")[...])
    assert np.array_equal(found, np.where(words == "west", "", words))


@each(
    ("options", "error", "message"),
    [
        ({"labels": ["a"], "dtype": "|O"}, UnsupportedError, "Python objects"),
        ({"labels": ["a"], "dtype": "object"}, UnsupportedError, "Python objects"),
        ({"labels": ["a"], "dtype": "<i4"}, MetadataError, "data type of strings"),
        ({"labels": ["a"], "dtype": "<U0"}, MetadataError, "data type of strings"),
        ({"labels": ["a"]}, MetadataError, '"dtype"'),
        ({"dtype": "<U1"}, MetadataError, '"labels"'),
        ({"labels": "ab", "dtype": "<U1"}, MetadataError, "Expected array"),
        ({"labels": ["a", 1], "dtype": "<U1"}, MetadataError, "position 1"),
        ({"labels": ["a"], "dtype": "<U1", "astype": "<f4"}, MetadataError, "kind i or u"),
        ({"labels": ["a"], "dtype": "<U1", "astype": "|O"}, gpustore.GpustoreError, "dtype|type"),
        ({"labels": ["a"], "dtype": "<U1", "more": 1}, MetadataError, "more"),
        ({"labels": ["x"] * 128, "dtype": "<U1", "astype": "|i1"}, MetadataError, "128 labels"),
    ],
)
def test_options_that_are_refused(options, error, message):
    with pytest.raises(error, match=message) as caught:
        chain_of({"id": "categorize", **options}, 4, dtype="<U1")
    assert isinstance(caught.value, gpustore.GpustoreError)


def test_labels_that_numbers_suffice_for():
    config = {"id": "categorize", "labels": [f"{i}" for i in range(127)], "dtype": "<U3"}
    words = np.array([f"{i}" for i in range(127)], "<U3")
    chain = chain_of({**config, "astype": "|i1"}, 127)
    encoded = chain.encode(bytes_of(words))
    assert bytes(encoded) == bytes(range(1, 128))
    assert bytes(chain.decode(encoded)) == words.tobytes()
