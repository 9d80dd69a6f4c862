"""Intervals: the corners that the comparisons with TensorStore do not reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space import interval
from gpustore.index_space.interval import INF, INF_STOP


@given(st.integers(-20, 20), st.integers(0, 20), st.integers(-20, 20), st.integers(-5, 5))
def test_affine_domain_is_the_inverse_image(lower, size, offset, divisor):
    if divisor == 0:
        return
    low, stop = interval.affine_domain(lower, lower + size, offset, divisor)
    inside = [x for x in range(-60, 60) if lower <= offset + divisor * x < lower + size]
    assert list(range(low, stop)) == inside


@given(
    st.integers(-9, 9),
    st.integers(0, 12),
    st.integers(-9, 21) | st.none(),
    st.integers(-9, 21) | st.none(),
    st.sampled_from([1, 2, 3, -1, -2, -5]),
)
def test_strided_slice_selects_what_a_range_selects(lower, size, start, stop, step):
    try:
        low, high, _, _, offset = interval.strided_slice(
            (lower, lower + size, False, False), start, stop, step
        )
    except (MetadataError, OutOfBoundsError):
        return
    first = start if start is not None else lower if step > 0 else lower + size - 1
    last = stop if stop is not None else lower + size if step > 0 else lower - 1
    assert [offset + step * x for x in range(low, high)] == list(range(first, last, step))
    assert low == int(first / step)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((INF, INF_STOP), "do not specify a valid half-open index interval"),
        ((-INF, -INF), "do not specify a valid half-open index interval"),
        ((-INF - 1, 0), "do not specify a valid half-open index interval"),
        ((0, INF_STOP + 1), "do not specify a valid half-open index interval"),
        ((1, 0), r"\(1, 0\) do not specify"),
    ],
)
def test_bounds_outside_the_index_range_are_refused(bounds, text):
    with pytest.raises(MetadataError, match=text):
        interval.half_open(*bounds)


def test_affine_domain_overflow_is_an_error():
    with pytest.raises(MetadataError, match="Integer overflow propagating range"):
        interval.affine_domain(0, 10, -(2**63), 1)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("it's", r'"it\'s"'), ("é1", r'"\xc3\xa9\x31"'), ('"\t\0', r'"\"\t\x00"')],
)
def test_quote_escapes_as_tensorstore_does(text, quoted):
    assert interval.quote(text) == quoted
