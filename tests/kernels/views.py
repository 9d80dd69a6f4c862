"""Rows of elements for tests: views of arrays, as a plan window would describe them."""

import dataclasses
import math

import hypothesis.strategies as st
import numpy as np

from gpustore.backends._runs import Rows

ITEMSIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)


@dataclasses.dataclass
class Case:
    """Equal rectangles in two buffers.

    Attributes
    ----------
    src_nbytes, dst_nbytes : int
        Of the buffers.
    src, dst : list of (start, shape, strides)
        In bytes from the beginning of the buffer.
    """

    itemsize: int
    unit: int
    src_nbytes: int
    dst_nbytes: int
    src: list
    dst: list
    per_row: bool

    def rows(self, src_address, dst_address):
        shapes = np.array([shape for _, shape, _ in self.dst], np.int64)
        n = len(self.dst)
        src_stride = np.array([strides for _, _, strides in self.src], np.int64).reshape(n, -1).T
        dst_stride = np.array([strides for _, _, strides in self.dst], np.int64).reshape(n, -1).T
        return Rows(
            src=[src_address + start for start, _, _ in self.src],
            dst=[dst_address + start for start, _, _ in self.dst],
            count=shapes.reshape(n, -1).T,
            src_stride=src_stride if self.per_row else src_stride[:, 0],
            dst_stride=dst_stride if self.per_row else dst_stride[:, 0],
        )

    def expected(self, src, dst):
        """What `dst` holds afterwards, by NumPy."""
        dst = dst.copy()
        for (start, shape, strides), (first, _, steps) in zip(self.dst, self.src, strict=True):
            inner = (*shape, self.itemsize)
            to = np.ndarray(inner, np.uint8, dst, start, (*strides, 1))
            values = np.ndarray(inner, np.uint8, src, first, (*steps, 1))
            units = values.reshape(*shape, -1, self.unit)[..., ::-1]
            to[...] = units.reshape(inner)
        return dst


def _place(draw, full, item, shape, perm, step, negative):
    """Start and strides of a view of `shape` in an array of `full` with this order of axes."""
    strides = [0] * len(full)
    reach = item
    for axis in perm:
        strides[axis] = reach
        reach *= full[axis]
    start = 0
    out = []
    for axis, extent in enumerate(full):
        room = extent - ((shape[axis] - 1) * step[axis] + 1)
        first = draw(st.integers(0, room))
        stride = strides[axis] * step[axis]
        if negative[axis]:
            first += (shape[axis] - 1) * step[axis]
            stride = -stride
        start += first * strides[axis]
        out.append(stride)
    return start, tuple(out), reach


@st.composite
def cases(draw, max_items=2000, max_rank=5, units=True):
    rank = draw(st.integers(0, max_rank))
    itemsize = draw(st.sampled_from(ITEMSIZES))
    unit = draw(st.sampled_from([u for u in (1, 2, 4, 8) if itemsize % u == 0])) if units else 1
    n = draw(st.integers(1, 4))
    longest = max(1, min(70, math.floor(max_items ** (1 / max(rank, 1)))))
    chunk = tuple(draw(st.integers(1, longest)) for _ in range(rank))
    booleans = st.lists(st.booleans(), min_size=rank, max_size=rank)
    steps = st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=rank, max_size=rank)
    order = st.permutations(range(rank))
    layouts = []
    per_row = draw(st.booleans())
    for side in range(2):
        pad = draw(st.sampled_from([0, 0, 1, 3, 4, 8]))
        layouts.append([])
        for row in range(n):
            if row == 0 or per_row:
                extra = tuple(draw(st.integers(0, 2)) for _ in range(rank))
                layout = (itemsize + pad, draw(order), draw(steps), draw(booleans), extra)
            layouts[side].append(layout)
    shapes = [
        tuple(draw(st.integers(1, size)) if draw(st.booleans()) else size for size in chunk)
        for _ in range(n)
    ]
    sides, sizes = [], []
    for side in range(2):
        places = []
        end = draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8]))
        for shape, (item, perm, step, negative, extra) in zip(shapes, layouts[side], strict=True):
            full = [(c - 1) * s + 1 + e for c, s, e in zip(chunk, step, extra, strict=True)]
            start, strides, reach = _place(draw, full, item, shape, perm, step, negative)
            places.append((end + start, shape, strides))
            end += reach
            if draw(st.booleans()):
                end += -end % 16
        sides.append(places)
        sizes.append(end)
    return Case(itemsize, unit, sizes[0], sizes[1], sides[0], sides[1], per_row)
