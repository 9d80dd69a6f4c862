"""Headers of encoded values are taken and joined by value."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustore.device.headers import HeaderColumns, take_parts


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_parts_of_values_are_found(sizes, data):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    values = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1))), np.int64)
    number, part = take_parts(owner, len(sizes), values)
    assert owner[part].tolist() == values[number].tolist()
    assert number.tolist() == np.repeat(np.arange(len(values)), np.array(sizes)[values]).tolist()
    for i in range(len(values)):
        assert part[number == i].tolist() == np.flatnonzero(owner == values[i]).tolist()


def test_columns():
    headers = HeaderColumns((np.array([1, 2, 3]), np.array([4, 5, 6], np.uint32)))
    taken = headers.take(np.array([2, 0])).joined([headers.take(np.array([False, True, False]))])
    assert [column.tolist() for column in taken.columns] == [[3, 1, 2], [6, 4, 5]]
    assert headers.nbytes == 36
