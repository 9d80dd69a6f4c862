"""kernels/copy.cu against NumPy, run on the host in three orders of threads."""

import dataclasses
import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gpustore.device.kernels import instance
from gpustore.device.kernels.box import BoxDim, box_copy
from gpustore.device.kernels.descriptor import run_dtype
from gpustore.device.kernels.launch import Listed, copy_launches, indexed_launches
from gpustore.device.kernels.run import Rows
from gpustore.index_space import IndexDomain
from gpustore.planning.cell_numbers import CellNumbers
from gpustore.planning.chunk_box import chunk_box
from tests.emulator import host_build
from tests.kernels import execution, views
from tests.matrix import each

pytestmark = [execution.needs_compiler, pytest.mark.matrix]

GUARD = 64


def guarded(nbytes, offset=0):
    """Memory for a kernel to write, with bytes around it that it must not touch."""
    whole = execution.aligned(GUARD + nbytes + GUARD, offset=offset)
    whole[:] = 0xEE
    return whole, whole[GUARD : GUARD + nbytes]


@pytest.mark.parametrize("order", host_build.ORDERS)
@given(case=views.cases(), seed=st.integers(0, 2**32 - 1), offset=st.sampled_from([0, 1, 4, 8]))
def test_copies_equal_numpy(order, case, seed, offset):
    rng = np.random.default_rng(seed)
    src = execution.aligned(case.src_nbytes, offset=offset)
    src[:] = rng.integers(0, 256, case.src_nbytes, np.uint8)
    whole, dst = guarded(case.dst_nbytes)
    expected = case.expected(src, dst)
    rows = case.rows(execution.address(src), execution.address(dst))
    execution.run(copy_launches(rows, case.itemsize, unit=case.unit), order)
    assert dst.tobytes() == expected.tobytes()
    assert (whole[:GUARD] == 0xEE).all()
    assert (whole[-GUARD:] == 0xEE).all()


@pytest.mark.parametrize("order", host_build.ORDERS)
@given(
    case=views.listed_cases(),
    seed=st.integers(0, 2**32 - 1),
    offset=st.sampled_from([0, 1, 4, 8]),
)
def test_listed_elements_equal_numpy(order, case, seed, offset):
    rng = np.random.default_rng(seed)
    src = execution.aligned(case.src_nbytes, offset=offset)
    src[:] = rng.integers(0, 256, case.src_nbytes, np.uint8)
    whole, dst = guarded(case.dst_nbytes)
    expected = case.expected(src, dst)
    rows = case.rows(execution.address(src), execution.address(dst))
    execution.run(indexed_launches(rows, case.listed(), case.itemsize, unit=case.unit), order)
    assert dst.tobytes() == expected.tobytes()
    assert (whole[:GUARD] == 0xEE).all()
    assert (whole[-GUARD:] == 0xEE).all()


@each("itemsize", instance.WIDTHS)
@each("rank", [0, 1, 2, 3, 5])
def test_listed_elements_of_every_rank_are_gathered(itemsize, rank):
    rng = np.random.default_rng(rank)
    src = element(itemsize, rng, (1500, *[3] * rank))
    places = rng.permutation(1500)
    dst = np.zeros((1500, *[2] * rank), src.dtype)
    cut = (slice(None), *[slice(0, 2)] * rank)
    listed = Listed([1500], [places * src.strides[0]], [np.arange(1500) * dst.strides[0]])
    rows = Rows(
        [execution.address(src)],
        [execution.address(dst)],
        np.full((rank, 1), 2),
        src.strides[1:],
        dst.strides[1:],
    )
    (launch,) = indexed_launches(rows, [listed], itemsize)
    assert "copy_indexed" in launch.expression
    execution.run([launch], "shuffled")
    assert dst.tobytes() == src[places][cut].tobytes()


def element(itemsize, rng, shape):
    values = rng.integers(0, 256, (*shape, itemsize), np.uint8)
    return np.ascontiguousarray(values).view(f"V{itemsize}")[..., 0]


def copy_view(src, dst, order, unit=1, kernel=None):
    rows = Rows(
        [execution.address(src)],
        [execution.address(dst)],
        np.array(dst.shape, np.int64)[:, None],
        src.strides,
        dst.strides,
    )
    launches = copy_launches(rows, dst.dtype.itemsize, unit=unit)
    assert kernel is None or all(kernel in launch.expression for launch in launches)
    execution.run(launches, order)


@each("order", host_build.ORDERS)
@each("itemsize", instance.WIDTHS)
@each("extents", [(8, 8), (31, 33), (64, 65), (9, 130), (129, 32)])
def test_tiles_end_exactly_at_their_edges(itemsize, extents, order):
    rng = np.random.default_rng(itemsize)
    src = element(itemsize, rng, extents).T
    whole = element(itemsize, rng, (src.shape[0] + 2, src.shape[1] + 2))
    dst = whole[1:-1, 1:-1]
    expected = whole.copy()
    expected[1:-1, 1:-1] = src
    copy_view(src, dst, order, kernel="copy_tiled")
    assert whole.tobytes() == expected.tobytes()


@each("itemsize", instance.WIDTHS)
@each("rank", [2, 3, 4, 5, 8, 9])
def test_tiles_of_every_rank(itemsize, rank):
    rng = np.random.default_rng(rank)
    outer = (3, 2, 2, 2, 2, 2, 2)[: rank - 2]
    full = tuple(extent + 1 for extent in outer)
    src = element(itemsize, rng, (*full, 9, 10)).swapaxes(-1, -2)
    dst = element(itemsize, rng, (*full, 10, 9))
    cut = (*(slice(extent) for extent in outer), slice(None), slice(None))
    expected = dst.copy()
    expected[cut] = src[cut]
    copy_view(src[cut], dst[cut], "shuffled", kernel="copy_tiled")
    assert dst.tobytes() == expected.tobytes()


@each(
    ("itemsize", "unit"),
    [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8)],
)
@each("kernel", ["copy_strided", "copy_tiled"])
def test_units_are_swapped_in_items_of_every_width(itemsize, unit, kernel):
    rng = np.random.default_rng(unit)
    src = element(itemsize, rng, (40, 20))
    src = src.T if kernel == "copy_tiled" else src[:, ::2]
    dst = np.zeros(src.shape, src.dtype)
    copy_view(src, dst, "forward", unit, kernel)
    swapped = np.ascontiguousarray(src)[..., None].view(f"u{unit}").byteswap()
    assert dst.tobytes() == swapped.tobytes()


@each("itemsize", instance.WIDTHS)
@each("rank", [*range(1, 10), 12])
def test_strided_runs_of_every_rank(itemsize, rank):
    rng = np.random.default_rng(rank)
    extents = (3, *[2] * (rank - 1))
    src = element(itemsize, rng, tuple(extent + 1 for extent in extents[:6]) + extents[6:])
    src = src[tuple(slice(extent) for extent in extents[:6])]
    src = src.transpose(range(rank)[::-1]).copy().T
    dst = np.zeros(extents, src.dtype)
    copy_view(src, dst, "backward", kernel="copy_strided")
    assert dst.tobytes() == src.tobytes()


@pytest.mark.parametrize("kernel", ["copy_strided", "copy_tiled", "copy_indexed"])
def test_all_32_dimensions_of_a_run_count(kernel):
    """Twelve dimensions of two elements at random places among twenty of one."""
    rng = np.random.default_rng(len(kernel))
    tiled, indexed = kernel == "copy_tiled", kernel == "copy_indexed"
    src = element(2, rng, (3,) * 10 + ((9, 8) if tiled else (3, 3)))
    src = src.swapaxes(-1, -2) if tiled else src[..., ::-1]
    cut = (slice(0, 2),) * 10
    dst = np.zeros(src[cut].shape, src.dtype)
    rows = Rows(
        [execution.address(src[cut])],
        [execution.address(dst)],
        np.array(dst.shape[indexed:])[:, None],
        src.strides[indexed:],
        dst.strides[indexed:],
    )
    if indexed:
        offsets = ([np.arange(2) * strides[0]] for strides in (src.strides, dst.strides))
        (launch,) = indexed_launches(rows, [Listed([2], *offsets)], 2)
    else:
        (launch,) = copy_launches(rows, 2)
    assert launch.expression == f"gs::{kernel}<gs::u16, 32>"
    for _ in range(6):
        order = np.sort(rng.permutation(32 - 2 * tiled)[: 12 - 2 * tiled])
        order = np.concatenate((order, np.arange(30, 32)[: 2 * tiled])).astype(int)
        table = launch.table.copy()
        moved = np.zeros(32, table["dim"].dtype)
        moved["extent"] = 1
        moved[order] = launch.table["dim"][0, -12:]
        table["dim"][0] = moved
        dst[...] = np.zeros((), dst.dtype)
        execution.run([dataclasses.replace(launch, table=table)], "shuffled")
        assert dst.tobytes() == src[cut].tobytes()


@each("nitems", [1, 255, 256, 257, 1023, 1024, 1025, 4096])
@each("order", host_build.ORDERS)
def test_runs_end_exactly_at_tile_edges(nitems, order):
    src = np.arange(16 * nitems, dtype=np.uint8)
    whole, dst = guarded(len(src))
    copy_view(src, dst, order)
    assert dst.tobytes() == src.tobytes()
    assert (whole[:GUARD] == 0xEE).all()
    assert (whole[-GUARD:] == 0xEE).all()


@pytest.mark.parametrize("rank", [1, 5])
def test_offsets_are_64_bit(rank):
    # Two places 5 GiB apart in address space that is reserved but never touched in between.
    shape = (2, *[2] * (rank - 1))
    src, dst = (
        np.ndarray(
            shape,
            np.uint8,
            np.zeros(5 << 30, np.uint8),
            0,
            ((5 << 30) - 600, *[3**k for k in range(rank - 1, 0, -1)]),
        )
        for _ in range(2)
    )
    src[...] = np.arange(1, src.size + 1).reshape(shape)
    copy_view(src, dst, "forward")
    assert dst.tolist() == src.tolist()


def copied(copy, rows, parts, chunks, unit, order, decoded=None):
    """Run the launches of a copy, in `parts` one behind the other.

    Chunks that are `decoded`, by number, lie row by row in other memory.
    """
    module, decoded = host_build.load("copy"), decoded or {}
    edges = np.linspace(0, rows, parts + 1).astype(int).tolist()
    for lo, hi in itertools.pairwise(edges):
        n = np.uint32(hi - lo)
        if not n:
            continue
        runs = execution.aligned(int(n) * run_dtype(copy.rank).itemsize)
        here = np.uint64(execution.address(runs))
        places = np.uint64(execution.address(chunks) + 8 * copy.number)
        numbers = np.zeros(int(n), np.int64)
        wanted = copy.chunks(lo, hi)
        pitch = max([-(-len(one) // 16) * 16 for one in decoded.values()], default=0)
        region = execution.aligned(int(n) * pitch)
        for row, number in enumerate(wanted.tolist()):
            if number in decoded:
                region[row * pitch :][: len(decoded[number])] = decoded[number]
        others = np.uint64(execution.address(region)), np.uint64(pitch)
        others = *others, np.uint64(execution.address(numbers))
        arguments = [copy.box, np.uint64(lo), n, places, here, *others]
        module.launch(f"gs::write_runs<{copy.rank}>", -(-int(n) // 256), arguments, order=order)
        assert np.array_equal(numbers + copy.number, wanted)
        arguments = [here, n, np.uint32(unit)]
        module.launch(copy.expression, copy.blocks * int(n), arguments, order=order)


@st.composite
def reads(draw):
    """Shape of an array, of its chunks and shards, and first, step and extent of a read of it."""
    dims = []
    rank = draw(st.integers(0, 4))
    longest = (40, 40, 40, 20, 12)[rank]
    for _ in range(rank):
        size, chunk = draw(st.integers(1, longest)), draw(st.integers(1, 17))
        ratio = draw(st.sampled_from([1, 1, 2, 3]))
        first, last = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        step = draw(st.integers(1, min(3, chunk))) * (1 if last >= first else -1)
        extent = (last - first) // step + 1
        if draw(st.booleans()):
            first, step, extent = 0, 1, size
        dims.append((size, chunk, ratio, first, step, extent))
    return dims


@pytest.mark.parametrize("order", host_build.ORDERS)
@given(
    dims=reads(),
    seed=st.integers(0, 2**32 - 1),
    itemsize=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    parts=st.integers(1, 3),
)
def test_boxes_equal_numpy(order, dims, seed, itemsize, parts):
    rng = np.random.default_rng(seed)
    axes = [*range(len(dims))][:: rng.choice([1, -1])]
    check_box(dims, axes, rng.permutation(len(dims)).tolist(), itemsize, parts, order, rng)


@each("order", host_build.ORDERS)
@each("itemsize", [2, 4])
def test_tiles_of_boxes_end_at_the_edges_of_smaller_chunks(itemsize, order):
    dims = [(5, 2, 1, 0, 1, 5), (150, 96, 1, 1, 1, 148), (70, 40, 1, 0, 1, 70)]
    rng = np.random.default_rng(itemsize)
    copy = check_box(dims, [0, 1, 2], [0, 2, 1], itemsize, 1, order, rng)
    assert "copy_tiled" in copy.expression


def check_box(dims, axes, turned, itemsize, parts, order, rng):
    """Copy a box of chunks with these axes, outermost first, to an array with axes `turned`."""
    rank = len(dims)
    sizes, chunk, ratio, first, step, extent = (
        (list(one) for one in zip(*dims)) if dims else [[]] * 6
    )
    whole = rng.integers(0, 256, (*sizes, itemsize), np.uint8)
    numbering = CellNumbers(
        tuple(-(-n // (c * r)) for n, c, r in zip(sizes, chunk, ratio)), tuple(ratio)
    )
    counts = [-(-n // c) for n, c in zip(sizes, chunk)]
    behind = int(rng.choice([0, itemsize, 16]))
    nbytes = behind + math.prod(chunk) * itemsize
    kept, addresses = [], np.zeros(max(1, numbering.count), np.uint64)
    for cell in itertools.product(*map(range, counts)):
        memory = execution.aligned(nbytes)
        inside = memory[behind:].reshape(*(chunk[k] for k in axes), itemsize)
        inside = inside.transpose(*np.argsort(axes), rank)
        part = whole[tuple(slice(i * c, (i + 1) * c) for i, c in zip(cell, chunk))]
        inside[tuple(map(slice, part.shape))] = part
        (number,) = numbering.of_cells([[i] for i in cell], ratio)
        addresses[number] = execution.address(memory)
        kept.append(memory)
    strides = [0] * rank
    if rank:
        strides = [int(n) for n in inside.strides[:-1]]
    taken = tuple(
        slice(f, f + s * e if f + s * e >= 0 else None, s) for f, s, e in zip(first, step, extent)
    )
    out = np.full((*(extent[k] + 1 for k in turned), itemsize), 0xEE, np.uint8)
    out = out.transpose(*np.argsort(turned), rank)
    wanted = out.copy()
    cut = tuple(map(slice, extent))
    wanted[cut] = whole[taken]
    domain = IndexDomain(shape=extent)
    maps = [word for d in range(rank) for word in (d, first[d], step[d])]
    box = chunk_box(domain, maps, chunk, numbering, ratio, (strides, out.strides[:-1]))
    rows = math.prod([dim.cells for dim in box])
    copy = box_copy(box, behind, execution.address(out), itemsize, 1, rows)
    some = rng.permutation(np.flatnonzero(addresses))[: rng.integers(0, 3)].tolist()
    by_address = {execution.address(memory): memory for memory in kept}
    decoded = {number: by_address[int(addresses[number])] for number in some}
    addresses[list(decoded)] = 0
    copied(copy, rows, parts, addresses, 1, order, decoded)
    assert np.array_equal(out, wanted)
    return copy


def dims_of(shape, src, dst, chunk=None):
    strides = zip(shape, chunk or shape, src.strides, dst.strides)
    return [BoxDim(0, 1, n, c, 0, 0, 1, s, d) for n, c, s, d in strides]


@each("unit", [2, 4, 8])
@each("is_turned", [False, True])
def test_units_are_swapped(unit, is_turned):
    src = np.arange(90 * 40, dtype=f"u{unit}").reshape(90, 40)
    chunk = src.T if is_turned else src
    dst = np.zeros(chunk.shape, src.dtype)
    copy = box_copy(dims_of(chunk.shape, chunk, dst), 0, execution.address(dst), unit, unit, 1)
    assert ("copy_tiled" in copy.expression) == is_turned
    copied(copy, 1, 1, np.array([execution.address(src)], np.uint64), unit, "shuffled")
    assert np.array_equal(dst, chunk.byteswap())


def test_what_needs_several_kinds_of_runs_is_left_alone():
    src, dst = np.zeros((8, 4), np.uint16), np.zeros((8, 4), np.uint16)
    dims = dims_of(src.shape, src, dst)
    assert box_copy(dims, 0, 16, 2, 2, 1) is not None
    assert box_copy(dims, 1, 16, 2, 2, 1) is None  # Swapped, and not aligned.
    assert box_copy(dims, 0, 16, 2, 2, 2**31) is None  # Too many blocks.
    assert box_copy(dims_of(src.shape, src, dst[::-1]), 0, 16, 2, 2, 1) is None


def test_reads_that_leave_chunks_out_are_no_box():
    domain = IndexDomain(shape=[3])
    numbering = CellNumbers((4,), (1,))
    for step, dims in ((2, 1), (3, None)):
        found = chunk_box(domain, (0, 0, step), (2,), numbering, (1,), ((1,), (1,)))
        assert (found and len(found)) == dims
