"""Rows of elements for tests: views of arrays, as a plan window would describe them."""

import dataclasses
import math
import random

import hypothesis.strategies as st
import numpy as np

from gpustore.device.kernels.launch import Listed
from gpustore.device.kernels.run import Rows

# One number is drawn, of which all others of a case are made: to draw each would take longer.
seeds = st.integers(0, 2**32 - 1)

ITEMSIZES = (*range(1, 17), 24)


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


def _place(choose, full, item, shape, perm, step, negative):
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
        first = choose.randint(0, room)
        stride = strides[axis] * step[axis]
        if negative[axis]:
            first += (shape[axis] - 1) * step[axis]
            stride = -stride
        start += first * strides[axis]
        out.append(stride)
    return start, tuple(out), reach


def cases(**limits):
    """Cases; what may be given is that of `_case`."""
    return seeds.map(lambda seed: _case(random.Random(seed), **limits))


def _case(choose, max_items=2000, max_rank=5, units=True, sizes=None):
    """`sizes`: bytes of an element in src and in dst, where they differ."""
    rank = choose.randint(0, max_rank)
    itemsize = sizes[0] if sizes else choose.choice(ITEMSIZES)
    unit = choose.choice([u for u in (1, 2, 4, 8) if itemsize % u == 0]) if units else 1
    n = choose.randint(1, 4)
    longest = max(1, min(70, math.floor(max_items ** (1 / max(rank, 1)))))
    chunk = tuple(choose.randint(1, longest) for _ in range(rank))
    layouts = []
    per_row = choose.choice([False, True])
    for side in range(2):
        pad = choose.choice([0, 0, 1, 3, 4, 8])
        layouts.append([])
        for row in range(n):
            if row == 0 or per_row:
                extra = tuple(choose.randint(0, 2) for _ in range(rank))
                item = (sizes[side] if sizes else itemsize) + pad
                order = choose.sample(range(rank), rank)
                steps = choose.choices([1, 1, 1, 2, 3], k=rank)
                reversals = choose.choices([False, True], k=rank)
                layout = (item, order, steps, reversals, extra)
            layouts[side].append(layout)
    shapes = [
        tuple(choose.randint(1, size) if choose.choice([False, True]) else size for size in chunk)
        for _ in range(n)
    ]
    sides, ends = [], []
    for side in range(2):
        places = []
        end = choose.choice([0, 0, 0, 1, 2, 4, 8])
        for shape, (item, perm, step, negative, extra) in zip(shapes, layouts[side], strict=True):
            full = [(c - 1) * s + 1 + e for c, s, e in zip(chunk, step, extra, strict=True)]
            start, strides, reach = _place(choose, full, item, shape, perm, step, negative)
            places.append((end + start, shape, strides))
            end += reach
            if choose.choice([False, True]):
                end += -end % 16
        sides.append(places)
        ends.append(end)
    return Case(itemsize, unit, ends[0], ends[1], sides[0], sides[1], per_row)


@dataclasses.dataclass
class ListedCase:
    """Rectangles of which some dimensions are listed.

    Attributes
    ----------
    lists : list over the listed dimensions, of lists over the rows, of (src, dst) offsets
    patterns : list of bool, one a listed dimension
        Whether all its elements are the same one of src.
    """

    case: Case
    lists: list
    patterns: list

    itemsize = property(lambda self: self.case.itemsize)
    unit = property(lambda self: self.case.unit)
    src_nbytes = property(lambda self: self.case.src_nbytes)
    dst_nbytes = property(lambda self: self.case.dst_nbytes)

    def rows(self, src_address, dst_address):
        return self.case.rows(src_address, dst_address)

    def listed(self):
        return [
            Listed(
                [len(dst) for _, dst in rows],
                None if pattern else [src for src, _ in rows],
                [dst for _, dst in rows],
            )
            for rows, pattern in zip(self.lists, self.patterns, strict=True)
        ]

    def expected(self, src, dst):
        case = self.case
        for row in range(len(case.dst)):
            lists = [rows[row] for rows in self.lists]
            for index in np.ndindex(*(len(dst_offsets) for _, dst_offsets in lists)):
                picked = list(zip(lists, self.patterns, index, strict=True))
                more_src = sum(0 if p else int(a[0][i]) for a, p, i in picked)
                more_dst = sum(int(a[1][i]) for a, _, i in picked)
                (start, shape, strides), (first, _, steps) = case.dst[row], case.src[row]
                one = dataclasses.replace(
                    case,
                    src=[(first + more_src, shape, steps)],
                    dst=[(start + more_dst, shape, strides)],
                )
                dst = one.expected(src, dst)
        return dst


def listed_cases():
    """Cases whose elements are copied to several places, from several places."""
    return seeds.map(lambda seed: _listed_case(random.Random(seed)))


def _listed_case(choose):
    case = _case(choose, max_items=60, max_rank=3)
    dims = choose.randint(1, 2)
    lists, patterns = [], []
    src_room, dst_room = case.src_nbytes, case.dst_nbytes
    for _ in range(dims):
        # Copies of the whole of dst lie behind each other, so that no byte is written twice.
        count = choose.randint(1, 5)
        places = choose.sample(range(count), count)
        step = choose.choice([1, 2, 4, 8])
        dst_step = dst_room + -dst_room % step
        src_offsets = [step * choose.randint(0, 9) for _ in range(count)]
        rows = []
        for _ in case.dst:
            length = choose.randint(1, count)
            rows.append(
                (
                    np.array(src_offsets[:length], np.int64),
                    np.array(places[:length], np.int64) * dst_step,
                )
            )
        lists.append(rows)
        patterns.append(choose.choice([False, True]))
        src_room += max(src_offsets)
        dst_room += (count - 1) * dst_step
    case.src_nbytes, case.dst_nbytes = src_room, dst_room
    return ListedCase(case, lists, patterns)


def rows_of(src, dst):
    """Rows of NumPy views, one."""
    return Rows(
        [src.ctypes.data],
        [dst.ctypes.data],
        np.array(dst.shape)[:, None],
        src.strides,
        dst.strides,
    )
