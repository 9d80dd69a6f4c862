"""Plans against brute force: every element by itself. Index arrays in stores: test_index_arrays."""

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.errors import LimitError
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.planning import connected_set
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.chunk_plan import plan_chunks
from tests.matrix import share

ITEMSIZE = 2

KINDS = ("regular", "rectilinear", "shards")


@dataclass
class Case:
    """A transform into a chunked array."""

    transform: IndexTransform
    shape: list[int]
    sizes: list[list[int]]
    """Of the chunks with keys, along each dimension."""
    edges: list[int | ChunkEdges]
    inner: list[int] | None
    order: str = "C"
    shared: tuple[int, ...] | None = None
    """Chunks along each dimension that share a key, of chunks that are not in shards."""

    def plans(self, *, max_chunks=10**6):
        grid = ChunkGrid(self.shape, self.edges, self.inner)
        dst = strides(self.transform.domain.shape)
        return plan_chunks(self.transform, grid, self.format, dst, max_chunks)

    def format(self, chunk_shape):
        inner = self.inner or chunk_shape
        ratio = tuple(size // one for size, one in zip(chunk_shape, inner, strict=True))
        if self.inner is None and self.shared is not None:
            ratio = self.shared
        return ChunkFormat(tuple(strides(inner, self.order)), "c/", "/", ratio, len(chunk_shape))


@st.composite
def transforms(draw, index_arrays=True):
    """Maps with diagonals, constants, unused inputs and index arrays, and a shape they fit in."""
    input_rank = draw(st.integers(0, 3))
    output_rank = draw(st.integers(0, 4))
    low = [draw(st.integers(-5, 5)) for _ in range(input_rank)]
    size = [draw(st.integers(0 if draw(st.booleans()) else 1, 9)) for _ in range(input_rank)]
    arrays = index_arrays and 0 not in size and draw(st.integers(0, 3)) == 0
    maps, shape = [], []
    for _ in range(output_rank):
        d = draw(st.integers(0, input_rank)) - 1
        extra = draw(st.integers(0, 3))
        stride = draw(st.sampled_from([1, 1, 1, -1, 2, -2, 3, 5, -7]))
        if d < 0:
            offset = draw(st.integers(0, 12))
            maps.append(OutputIndexMap(offset))
            shape.append(offset + 1 + extra)
            continue
        listed = arrays and draw(st.booleans())
        if listed:
            extent = [n if i == d or draw(st.booleans()) else 1 for i, n in enumerate(size)]
            count = int(np.prod(extent))
            index = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
            ends = [stride * min(index), stride * max(index)]
        else:
            ends = [stride * low[d], stride * (low[d] + max(size[d], 1) - 1)]
        offset = draw(st.integers(0, 4)) - min(ends)
        shape.append(offset + max(ends) + 1 + extra)
        if listed:
            array = np.array(index).reshape(extent)
            maps.append(OutputIndexMap(offset=offset, stride=stride, index_array=array))
        else:
            maps.append(OutputIndexMap(input_dimension=d, offset=offset, stride=stride))
    return IndexTransform(IndexDomain(inclusive_min=low, shape=size), maps), shape


@st.composite
def cases(draw, kinds=KINDS, index_arrays=True):
    """Regular and rectilinear grids, and shards of either."""
    transform, shape = draw(transforms(index_arrays))
    kind = draw(st.sampled_from(kinds))
    inner = [draw(st.integers(1, 4)) for _ in shape] if kind == "shards" else None
    sizes, edges = [], []
    for d, n in enumerate(shape):
        unit = 1 if inner is None else inner[d]
        if kind == "regular" or draw(st.integers(0, 3)) == 0:
            size = unit * draw(st.integers(1, max(1, (n + 2) // unit)))
            sizes.append([size] * -(-n // size))
            edges.append(size)
            continue
        some = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 8]), min_size=1, max_size=8))
        some = [unit * size for size in some]
        some.append(max(unit, -(-(n - sum(some)) // unit) * unit))
        sizes.append(some)
        edges.append(ChunkEdges.from_json(some))
    return Case(transform, shape, sizes, edges, inner, draw(st.sampled_from("CF")))


def case_of(transform, shape, chunks):
    sizes = [[size] for size in chunks]
    return Case(transform, shape, sizes, chunks, None)


def plan_of(transform, shape, chunks, *, max_chunks=10**6):
    """The only plan of a regular grid."""
    ((chunk_shape, plan),) = case_of(transform, shape, chunks).plans(max_chunks=max_chunks)
    assert chunk_shape == tuple(chunks)
    return plan


def strides(shape, order="C"):
    result, step = [0] * len(shape), ITEMSIZE
    dims = range(len(shape)) if order == "F" else reversed(range(len(shape)))
    for d in dims:
        result[d] = step
        step *= shape[d]
    return result


def elements(case, step=1000):
    """Every element: (shape of its chunk with a key, cell, source byte, destination byte).

    And for each chunk whether all of it is covered.
    """
    found, whole = [], {}
    for chunk_shape, plan in case.plans():
        ratio = case.format(chunk_shape).key_ratio
        assert len(plan) > 0
        for lo in range(0, len(plan), step):
            window = plan.window(lo, min(lo + step, len(plan)))
            src, dst, counts = window.rows()
            for i in range(len(window)):
                cell = tuple(int(column[i]) for column in window.cells)
                assert (chunk_shape, cell) not in whole, "a chunk appears in two rows"
                whole[chunk_shape, cell] = bool(window.whole[i])
                key = (str(c // r) for c, r in zip(cell, ratio, strict=True))
                assert window.keys[i] == "c/" + "/".join(key)
                points = [
                    list(zip(*(offsets.tolist() for offsets in one), strict=True))
                    for one in (window.points[i] if window.points else ())
                ]
                for index in itertools.product(*map(range, counts[i]), *points):
                    strided, listed = index[: len(counts[i])], index[len(counts[i]) :]
                    places = []
                    for start, stride, which in (
                        (src[i], window.src_stride, 0),
                        (dst[i], window.dst_stride, 1),
                    ):
                        at = start + sum(a * b for a, b in zip(strided, stride, strict=True))
                        places.append(at + sum(point[which] for point in listed))
                    found.append((chunk_shape, cell, *places))
    return sorted(found), whole


def brute_force(case):
    domain = case.transform.domain
    dst_stride = strides(domain.shape)
    maps = case.transform.output
    pointed = any(m.index_array is not None and m.index_array.size > 1 for m in maps)
    found, touched = [], {}
    axes = [range(a, b) for a, b in zip(domain.inclusive_min, domain.exclusive_max, strict=True)]
    for index in itertools.product(*axes):
        at = case.transform(index)
        chunk_shape, cell, inside, extent = [], [], [], []
        for o, position in enumerate(at):
            starts = [0, *itertools.accumulate(case.sizes[o])]
            number = next(i for i, end in enumerate(starts[1:]) if position < end)
            size = case.sizes[o][number]
            chunk = size if case.inner is None else case.inner[o]
            along, within = divmod(position - starts[number], chunk)
            chunk_shape.append(size)
            cell.append(number * (size // chunk) + along)
            inside.append(within)
            extent.append(min(chunk, case.shape[o] - (position - within)))
        src_stride = strides(case.inner or chunk_shape, case.order)
        src = sum(i * s for i, s in zip(inside, src_stride, strict=True))
        dst = sum(
            (i - o) * s for i, o, s in zip(index, domain.inclusive_min, dst_stride, strict=True)
        )
        key = tuple(chunk_shape), tuple(cell)
        found.append((*key, src, dst))
        points, _ = touched.setdefault(key, (set(), int(np.prod(extent, dtype=int))))
        points.add(at)
    whole = {key: len(points) == size for key, (points, size) in touched.items()}
    return sorted(found), whole, pointed


@settings(max_examples=share(250))
@given(st.tuples(*(cases(kinds=[kind]) for kind in KINDS)), st.integers(1, 7))
def test_scalar_and_numpy_plans_place_every_element_as_brute_force_does(each, step):
    for case in each:
        check_places(case, step)


def check_places(case, step):
    expected, whole, pointed = brute_force(case)

    def check(found):
        elements_, whole_ = found
        assert elements_ == expected
        if pointed:
            # Of elements listed one by one nobody knows whether they are all of a chunk.
            assert whole_.keys() == whole.keys()
            assert all(whole[key] for key, covered in whole_.items() if covered)
        else:
            assert whole_ == whole

    check(elements(case, step))
    for rows, runs in ((500, 0), (0, 64), (0, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connected_set, "SCALAR_ROWS", rows)
            patch.setattr(connected_set, "SCALAR_RUNS", runs)
            check(elements(case, step))
            if rows:
                continue
            for _, plan in case.plans():
                assert len(plan) < 2 or isinstance(plan.window(0, 1).src_start, np.ndarray)


def test_a_plan_of_ten_million_chunks_is_a_few_small_sets():
    transform = IndexTransform(IndexDomain(shape=[1000, 1000, 10]))
    plan = plan_of(transform, [1000, 1000, 10], [1, 1, 1], max_chunks=10**7)
    assert len(plan) == 10**7
    assert plan.sizes == (1000, 1000, 10)
    window = plan.window(10**7 - 2, 10**7)
    assert window.keys == ["c/999/999/8", "c/999/999/9"]


def test_keys_of_a_dimension_with_very_many_chunks_are_made_window_by_window():
    plan = plan_of(IndexTransform(IndexDomain(shape=[200_000])), [200_000], [2])
    assert plan.window(99_998, 100_000).keys == ["c/99998", "c/99999"]
    assert plan.window(0, 2).keys == ["c/0", "c/1"]


def test_rank_32_is_planned():
    transform = IndexTransform(IndexDomain(shape=[1] * 31 + [4]))
    plan = plan_of(transform, [1] * 31 + [4], [1] * 31 + [3])
    assert len(plan) == 2
    assert plan.window(0, 2).keys[1] == "c/" + "0/" * 31 + "1"


@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20]])
@pytest.mark.parametrize("edges", [1, ChunkEdges.from_json([2, [1, 2**40]])])
def test_too_many_chunks_are_refused_before_anything_is_built(shape, edges):
    transform = IndexTransform(IndexDomain(shape=shape))
    with pytest.raises(LimitError, match="chunks_per_request"):
        case_of(transform, shape, [edges] * len(shape)).plans()


def test_one_chunk_too_many_is_refused():
    # 11 elements from the middle of a chunk touch 3 chunks of 5.
    transform = IndexTransform(IndexDomain(inclusive_min=[4], shape=[7]))
    assert len(plan_of(transform, [20], [5], max_chunks=3)) == 3
    with pytest.raises(LimitError, match="of 3 chunks exceeds the limit"):
        plan_of(transform, [20], [5], max_chunks=2)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (2, 1), (0, 4)])
def test_windows_outside_the_plan_are_refused(lo, hi):
    plan = plan_of(IndexTransform(IndexDomain(shape=[6])), [6], [2])
    with pytest.raises(ValueError, match="window"):
        plan.window(lo, hi)


@given(cases(index_arrays=False))
def test_span_bounds_the_bytes_between_the_ends_of_every_row(case):
    found, whole = elements(case)
    by_cell = {}
    for chunk_shape, cell, src, _ in found:
        by_cell.setdefault((chunk_shape, cell), []).append(src)
    spans = {key: max(at) - min(at) + ITEMSIZE for key, at in by_cell.items()}
    plans = dict(case.plans())
    assert plans.keys() == {chunk_shape for chunk_shape, _ in spans}
    for shape, plan in plans.items():
        keys = [key for key in spans if key[0] == shape]
        assert max(spans[key] for key in keys) <= plan.span(ITEMSIZE)
        assert plan.spans(ITEMSIZE) == Counter((spans[key], whole[key]) for key in keys)


@given(cases(), st.data())
def test_windows_of_keys_have_the_rows_of_each_key_once(case, data):
    case.shared = tuple(data.draw(st.integers(1, 3)) for _ in case.shape)
    most_keys = data.draw(st.integers(1, 5))
    parts = data.draw(st.integers(1, 3))
    for _, plan in case.plans():
        check_windows_of_keys(plan, parts, most_keys)


def check_windows_of_keys(plan, parts, most_keys):
    expected, found, order = {}, {}, []
    for lo in range(0, len(plan), 100):
        note(plan.window(lo, min(lo + 100, len(plan))), expected)
    for part in range(parts):
        for window in plan.windows(part, parts, 10, most_keys=most_keys):
            keys = [key for key, _ in itertools.groupby(window.keys)]
            assert 1 <= len(keys) <= most_keys
            assert len(keys) == 1 or len(window) <= 10
            if plan.objects >= parts:
                assert not found.keys() & set(keys)
            note(window, found)
            order += zip(*map(list, window.cells), strict=True)
    whole = [list(map(list, window.cells)) for window in plan.windows(0, 1, 10)]
    assert order == [cell for columns in whole for cell in zip(*columns, strict=True)]
    assert {key: sorted(rows) for key, rows in expected.items()} == {
        key: sorted(rows) for key, rows in found.items()
    }
    for key, rows in found.items():
        for cell, *_ in rows:
            index = (str(i // r) for i, r in zip(cell, plan.format.key_ratio, strict=True))
            assert key == "c/" + "/".join(index)


def note(window, rows):
    src, dst, counts = window.rows()
    for i, key in enumerate(window.keys):
        cell = tuple(int(column[i]) for column in window.cells)
        rows.setdefault(key, []).append((cell, src[i], dst[i], counts[i], bool(window.whole[i])))


@settings(max_examples=share(300))
@given(cases(index_arrays=False))
def test_the_window_of_a_single_row_is_the_general_one(case):
    domain = case.transform.domain
    first = tuple(slice(low, low + min(n, 1)) for low, n in zip(domain.origin, domain.shape))
    case.transform = case.transform[first]
    for _, plan in case.plans():
        assert list(plan.windows(0, 1, 1000)) == [plan.window(i, i + 1) for i in range(len(plan))]
