"""Resizing through transforms; compared with TensorStore where arrays are resized."""

import pytest

from gpustore import IndexDomain, IndexTransform, MetadataError, MismatchError
from gpustore.index_space.resize import OutputResize, ResizeRequest

RESIZABLE = IndexTransform(IndexDomain(shape=[10, 7], implicit_upper_bounds=[True, True]))


def test_identity_moves_the_bounds_and_requires_the_others():
    found = ResizeRequest(exclusive_max=[5, None]).output(RESIZABLE)
    assert found == (OutputResize(None, 5, 0, None), OutputResize(None, None, 0, None))


def test_nothing_to_change_is_none():
    assert ResizeRequest().output(RESIZABLE) is None
    assert ResizeRequest([None, None], [None, None]).output(RESIZABLE) is None
    # A dimension the output does not depend on has no bounds to move.
    new = RESIZABLE[None]
    assert ResizeRequest(exclusive_max=[1, None, None]).output(new) is None


def test_reversal_swaps_the_bounds():
    reversed_ = RESIZABLE[::-1]
    assert repr(reversed_.domain) == "{ [-9*, 1), [0, 7*) }"
    found = ResizeRequest(inclusive_min=[-5, None]).output(reversed_)
    assert found[0] == OutputResize(None, 6, 0, None)


def test_tied_bounds():
    view = RESIZABLE[1:4]
    tied = ResizeRequest(exclusive_max=[None, 3]).output(view)
    assert tied[0] == OutputResize(required_min=1, required_max=4)
    free = ResizeRequest(exclusive_max=[None, 3], resize_tied_bounds=True).output(view)
    assert free == (OutputResize(), OutputResize(exclusive_max=3))


def test_check_tied_names_the_interval_outside_the_view():
    OutputResize(required_min=0, required_max=10).check_tied(0, 0, 10)
    with pytest.raises(MismatchError, match=r"dimension 1 over the interval \[4, 10\)"):
        OutputResize(required_min=0, required_max=4).check_tied(1, 0, 10)
    with pytest.raises(MismatchError, match=r"over the interval \[0, 1\)"):
        OutputResize(required_min=1, required_max=4).check_tied(0, 0, 10)


@pytest.mark.parametrize(
    ("transform", "bounds", "message"),
    [
        (RESIZABLE, [5], "must have rank 2"),
        (RESIZABLE[1:4], [3, None], "Cannot change explicit upper bound"),
        (RESIZABLE[::2], [3, None], "non-unit stride of 2"),
        (RESIZABLE[::2], [None, 3], "`resize_tied_bounds` was not specified"),
        (RESIZABLE, [-1, None], r"Invalid requested bounds \[0, -1\)"),
        (RESIZABLE, [2**62, None], "Invalid requested exclusive max value"),
        (RESIZABLE[[1, 2]], [None, 3], "has index array map"),
    ],
)
def test_what_cannot_be_resized(transform, bounds, message):
    with pytest.raises(MetadataError, match=message):
        ResizeRequest(exclusive_max=bounds).output(transform)


def test_bounds_are_integers():
    with pytest.raises(TypeError):
        ResizeRequest(exclusive_max=[5.5, None]).output(RESIZABLE)
