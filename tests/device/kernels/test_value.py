"""Descriptors of codecs of values: runs, steps, tables and maps, as kernels read them."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from gpustore.device.kernels.value import (
    Conversion,
    Side,
    as_words,
    number_format,
    steps_and_words,
    value_runs,
)

TYPES = ["u1", "i1", "<u2", ">i2", "<u4", ">i4", "<u8", ">i8", "<f2", ">f4", "<f8"]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(0, 2))
def test_each_element_is_of_one_block(elements, blocks_each):
    src, dst = 7 + np.arange(len(elements)), 9 * np.arange(len(elements))
    runs, each, blocks = value_runs(src, dst, elements, blocks_each=blocks_each)
    assert (runs["src"] == src).all()
    assert (runs["dst"] == dst).all()
    assert (runs["elements"] == elements).all()
    assert runs["result"].tolist() == list(range(len(elements)))
    owners = np.searchsorted(runs["first_tile"], np.arange(blocks), "right") - 1
    assert (np.bincount(owners, minlength=len(elements)) == each).all()
    if blocks_each:
        assert (each == blocks_each).all()
        return
    last = np.maximum(0, np.array(elements) - 1)
    assert (last // 1024 == each - 1).all()


@given(
    st.sampled_from(TYPES),
    st.sampled_from(TYPES),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_the_first_pair_of_a_number_is_found_first(source, target, pairs, nans):
    """Looked for as the kernel does, whatever the byte orders; zeros are equal, and so are NaNs."""
    source, target = np.dtype(source), np.dtype(target)
    is_float = source.kind == "f"
    keys = [abs(key) if source.kind == "u" else key for key, _ in pairs]
    values = [value for _, value in pairs]
    if is_float:
        keys[:nans] = [np.nan] * len(keys[:nans])
    given = tuple(
        (np.array(key, source)[()], np.array(value, target)[()])
        for key, value in zip(keys, values, strict=True)
    )
    before = Conversion(source, source, pairs=given[:1] if source == target else ())
    steps, words = steps_and_words([before, Conversion(source, target, pairs=given)], None)
    step = steps[1]
    found = words[int(step["word"]) :].tolist()
    for number in [*range(-3, 4), *([-0.0, np.nan] if is_float else [])]:
        if source.kind == "u" and number < 0:
            continue
        is_nan = number != number
        same = [v for k, v in zip(keys, values, strict=True) if k == number or (is_nan and k != k)]
        expected = same[0] if same else None
        (word,) = as_words(np.array([number], source)).tolist()
        got = None
        for i in range(int(step["map_length"]) - 1):
            if found[2 + 2 * i] == word:
                got = found[3 + 2 * i]
                break
        if number != number and found[0]:
            got = found[1]
        wanted = None if expected is None else as_words(np.array([expected], target))[0]
        assert got == wanted, number


@given(st.sampled_from(TYPES), st.binary(min_size=32, max_size=32))
def test_tables_have_a_word_and_a_bit_for_each_byte(dtype, legal):
    table = np.random.default_rng(legal[0]).integers(0, 120, 256).astype(dtype)
    bits = np.unpackbits(np.frombuffer(legal, np.uint8), bitorder="little").astype(bool)
    steps, words = steps_and_words((), (table, bits))
    assert len(steps) == 1
    assert (words[:256].astype(f"u{table.itemsize}").view(dtype[-2:]) == table).all()
    assert words[256:].tobytes() == legal


def test_formats_of_numbers():
    expected = {
        "?": (2, 8, 0, 0),
        ">i2": (1, 16, 0, 0),
        "u8": (0, 64, 0, 0),
        ">f8": (3, 64, 52, 1023),
        ml_dtypes.bfloat16: (4, 16, 7, 127),
        ml_dtypes.int4: (1, 4, 0, 0),
        ml_dtypes.float8_e4m3fn: None,
        "c8": None,
        "M8[s]": None,
    }
    for dtype, found in expected.items():
        assert number_format(np.dtype(dtype)) == found, dtype
    for dtype in ("f2", "f4", "f8", ml_dtypes.bfloat16):
        _, bits, mantissa, bias = number_format(np.dtype(dtype))
        info = ml_dtypes.finfo(dtype)
        assert (bits, mantissa, 1 - bias) == (info.bits, info.nmant, info.minexp)


@pytest.mark.parametrize(
    ("dtype", "side"),
    [("u1", (1, 1, False)), (">f4", (4, 4, True)), (">c16", (8, 16, True)), ("<c8", (4, 8, False))],
)
def test_sides_read_real_parts(dtype, side):
    assert Side.of(np.dtype(dtype)) == Side(*side)
