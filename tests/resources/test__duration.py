"""Tests of durations against TensorStore."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpustore.errors import MetadataError
from gpustore.resources._duration import format_duration, parse_duration, seconds
from tests.matrix import each
from tests.resources.oracle import compare

TEXTS = [
    "0", "-0", "+0", "0s", "-0s", "60s", "90m", "1.5m", "3600s", "100ms", "1h2m3.5s", "-5s", "+5s",
    "inf", "-inf", "+inf", "Inf", "infs", "1h30s", "5s5s", "s5", ".5s", "5.s", ".s", "s", "-", "+",
    "", "x", " ", "1s ", " 1s", "1 s", "1e3s", "5", "1.5", "0x1s", "1d", "1.5us", "1.55ns", "0.1ns",
    "0.25ns", "0.2ns", "1.0000001s", "1234567us", "999.9999us", "1000us", "59.999999999s",
    "60000ms", "-1.5h", "--1s", "1h-1m", "9999999999h", "99999999999999999999h",
    "1.9999999999999999999999s", "1µs", "1S", "1,5s", "1_0s", "\u0661s",
]  # fmt: skip


@each("text", TEXTS)
def test_text_is_what_tensorstore_makes_of_it(text):
    compare("file_io_locking", {"acquire_timeout": text})


@pytest.mark.parametrize("json", [None, 5, 1.5, True, [], {}], ids=str)
def test_other_json_is_refused(json):
    compare("file_io_locking", {"acquire_timeout": json})


NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.tuples(st.integers(0, 10**4), st.integers(0, 10**12)).map(lambda n: f"{n[0]}.{n[1]:012d}"),
    st.sampled_from(["0", "1.", ".5", "59.9999999999", "0.00000000025"]),
)
UNITS = st.sampled_from(["ns", "us", "ms", "s", "m", "h"])
PARTS = st.lists(st.tuples(NUMBERS, UNITS).map("".join), min_size=1, max_size=4).map("".join)


@given(st.tuples(st.sampled_from(["", "-", "+"]), PARTS).map("".join))
@example("0.999999999s")
def test_any_duration_is_what_tensorstore_makes_of_it(text):
    written = compare("file_io_locking", {"acquire_timeout": text}).get("acquire_timeout", "1m")
    assert parse_duration(written) == parse_duration(text)


def test_longest_text_is_refused():
    with pytest.raises(MetadataError, match="Expected Duration"):
        parse_duration("1" * 100 + "s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1m30s", 90.0), ("-1h", -3600.0), ("250ms", 0.25), ("0", 0.0), ("inf", math.inf)],
)
def test_seconds(text, expected):
    assert seconds(parse_duration(text)) == expected
    assert format_duration(parse_duration(text)) == text
