"""Copies of boxes, with the native core and without, compared with slices of NumPy."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.host import boxes
from gpustore.backends.native import library, rectangles
from gpustore.backends.native.rectangles import core_copy_boxes
from gpustore.runtime.executor import Executor

needs_core = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))
DTYPES = ["u1", "<i2", ">u2", "f4", "f8", "c16", "S3", "?", [("a", "u1"), ("b", "<f4")]]


@st.composite
def copies(draw):
    """Elements in any order of dimensions and directions, boxes of them, and an array for these."""
    rank = draw(st.integers(1, 4))
    shape = draw(st.tuples(*[st.integers(1, 9)] * rank))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    order = draw(st.permutations(range(rank)))
    stored = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), "u1")
    stored = (stored & 1 if dtype.kind == "b" else stored).view(dtype)
    source = stored.reshape([shape[d] for d in order]).transpose(np.argsort(order))
    source = source[tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape)]
    box = tuple(draw(st.integers(1, n)) for n in shape)
    count = draw(st.integers(1, 5))
    starts = rng.integers(0, np.subtract(shape, box) + 1, (count, rank))
    order = draw(st.permutations(range(rank)))
    out = np.zeros((count + 2, *(box[d] for d in order)), dtype)
    out = out.transpose(0, *(1 + i for i in np.argsort(order)))
    return source, starts, out, rng.permutation(count + 2)[:count]


def check(copy, source, starts, out, rows):
    expected = out.copy()
    for row, start in zip(rows, starts, strict=True):
        at = tuple(slice(i, i + n) for i, n in zip(start, out.shape[1:], strict=True))
        expected[row] = source[at]
    copy(source, starts, out, rows)
    assert out.dtype.hasobject or out.tobytes() == expected.tobytes()


@needs_core
@given(copies())
def test_the_core_copies_boxes_of_any_strides(copy):
    assert core_copy_boxes(*copy)
    check(core_copy_boxes, *copy)


@given(copies())
def test_without_the_core_boxes_are_the_same(copy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "core_copy_boxes", lambda *_: False)
        check(partial(boxes.copy_boxes, executor=Executor(2)), *copy)


def test_many_boxes_are_copied_by_several_threads():
    source = np.arange(200 * 300).reshape(200, 300)
    starts = np.random.default_rng(0).integers(0, 100, (32, 2))
    out = np.zeros((40, 100, 100), int)
    assert out[:32].nbytes > 2 * boxes.SMALLEST_NBYTES
    rows = np.random.default_rng(1).permutation(40)[:32]
    executor = Executor(3)
    check(partial(boxes.copy_boxes, executor=executor), source, starts, out, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "core_copy_boxes", lambda *_: False)
        check(partial(boxes.copy_boxes, executor=executor), source, starts, out, rows)


def test_references_are_left_to_numpy():
    source = np.array(["a", "bc", "d"], object)
    starts, out = np.array([[1], [0]]), np.empty((2, 2), object)
    assert not rectangles.core_copy_boxes(source, starts, out, np.arange(2))
    copy = partial(boxes.copy_boxes, executor=Executor(2))
    check(copy, source, starts, out, np.arange(2))
    assert out.tolist() == [["bc", "d"], ["a", "bc"]]
