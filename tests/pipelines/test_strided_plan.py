"""Plans whose rows the native core writes down, against those in Python."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.native.library import library
from gpustore.pipelines.strided_plan import StridedPlan, plans_of
from tests.on_device import emulated
from tests.pipelines.test_native_fill import FORMATS, SHAPE, created, opened
from tests.planning.test_row_table import check_units, rows_of_table, rows_of_window

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native core")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores on a device, by the name of their format."""
    folder = tmp_path_factory.mktemp("stores")
    for name in FORMATS:
        created(folder / name, name, stored=0)
    with emulated() as device:
        yield {name: opened(folder / name, device) for name in FORMATS}


@st.composite
def boxes(draw):
    """Indices of a part: integers and slices with any step."""
    found = []
    for size in SHAPE:
        first, last = sorted(draw(st.tuples(*[st.integers(0, size - 1)] * 2)))
        step = draw(st.sampled_from([1, 1, 2, 5, 11, -1, -3]))
        part = slice(first, last + 1, step)
        if step < 0:
            part = slice(last, first - 1 if first else None, step)
        found.append(draw(st.sampled_from([part, part, part, first])))
    return tuple(found)


@given(name=st.sampled_from([*FORMATS]), box=boxes(), is_turned=st.booleans())
def test_rows_are_those_of_a_plan_in_python(stores, name, box, is_turned):
    view = stores[name][box]
    view = view.T if is_turned else view
    array, transform = view._driver.reader, view._transform
    strides = tuple(range(1000, 1000 + 7 * view.rank, 7))
    ((_, expected),) = array.plans(transform, strides)
    ((found, plan),) = plans_of(array, transform, strides)
    assert found is array
    assert type(plan) is StridedPlan
    assert len(plan) == plan.rows == len(expected)
    assert (plan.src_stride, plan.dst_stride) == (expected.src_stride, strides)
    assert plan.input_shape == expected.input_shape
    (table,) = plan.tables(1, len(plan))
    rows = list(rows_of_table(expected, table))
    assert Counter(rows) == Counter(rows_of_window(expected.window(0, len(expected))))
    check_units(table, rows, len(rows))
    assert list(rows_of_window(plan.rows_of(table, range(len(rows))))) == rows
    assert list(rows_of_window(plan.rows_of(table, [len(rows) - 1]))) == rows[-1:]
    assert list(rows_of_window(plan.window(0, len(plan)))) == list(
        rows_of_window(expected.window(0, len(expected)))
    )


@pytest.mark.parametrize(
    "box", [np.s_[[3, 1], :], np.s_[:0], (np.s_[:3], np.array([1, 0]))], ids=["list", "empty", "v"]
)
def test_other_reads_are_planned_in_python(stores, box):
    view = stores["files"][box]
    plans = plans_of(view._driver.reader, view._transform, (8,) * view.rank)
    assert all(type(plan) is not StridedPlan for _, plan in plans)
