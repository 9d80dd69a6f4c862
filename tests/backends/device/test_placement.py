"""Rectangles of chunks on their way into arrays of a device, against loops over their elements."""

import itertools

import numpy as np
import pytest

from gpustore.backends.device.placement import (
    Part,
    Places,
    TablePlaces,
    joined,
    order_of,
    parts,
    place,
    place_fill,
)
from gpustore.device.command_list import CommandList
from gpustore.device.protocol import Spans
from gpustore.planning.row_table import RowTable
from tests.device_memory import bench_of
from tests.emulator.device import EmulatedDevice
from tests.kernels.execution import needs_compiler

CHUNK_NBYTES = 2000
ROOM_NBYTES = 8000
"""Where one rectangle goes, and bytes around it that must stay."""

TYPES = [np.dtype(name) for name in ("u1", "<u2", ">u2", "<f4", ">f8", ">c8", "V3", "<U2", ">U2")]


@pytest.fixture
def bench():
    device = EmulatedDevice()
    with bench_of(device) as bench:
        yield bench
    device.close()


def run(bench, record, *arguments):
    """Run what ``record(commands, *arguments)`` records: its launches."""
    none = Spans.contiguous(0, [])
    commands = CommandList(bench.device, bench.stream, np.zeros(0, np.int64), none)
    record(commands, *arguments)
    tables = bench.allocate(max(1, commands.table_nbytes))
    if commands.table_nbytes:
        pinned = bench.device.allocate_pinned(commands.table_nbytes)
        commands.write_tables(pinned.view)
        bench.device.upload(pinned, 0, tables, commands.table_nbytes, bench.stream)
        commands.run(tables, 0)
        bench.wait()
        bench.device.free_pinned(pinned)
    return commands.launches


def made(seed, itemsize, address, *, points=False):
    """Random places of four chunks: up to three rectangles each, of one rank."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(0, 4))
    first = np.concatenate(([0], np.cumsum([1, *random.integers(0, 4, 3)])))
    n = int(first[-1])
    count = random.integers(1, 5, (rank, n))
    shared = bool(random.integers(0, 2))
    src_stride = random.integers(-40, 41, (rank, 1 if shared else n)) * int(random.choice([1, 4]))
    src_stride = np.broadcast_to(src_stride, (rank, n))
    # Rows of at most 4 elements, that many of them and so on, forwards or backwards.
    order = random.permutation(rank)
    pitch = itemsize * 5 ** order[:, None].astype(np.int64)
    dst_stride = np.broadcast_to(pitch * random.choice([-1, 1], (rank, 1)), (rank, n))

    def start(stride, room):
        """A first byte from which all elements lie within the room."""
        reach = stride * (count - 1)
        low, high = np.minimum(reach, 0).sum(0), np.maximum(reach, 0).sum(0)
        assert (high - low + itemsize <= room).all()
        return (room - itemsize - (high - low)) // 2 - low

    src = start(src_stride, CHUNK_NBYTES - 2 * itemsize)
    dst = start(dst_stride, ROOM_NBYTES // 2) + address + np.arange(n) * ROOM_NBYTES
    pairs = None
    if points:
        offsets = np.array([0, 1, 2]) * itemsize
        pairs = [((random.permutation(offsets), offsets * 5**rank),)] * n
    stored = [stride[:, 0] if shared else stride for stride in (src_stride, dst_stride)]
    return Places(first, src, dst, count, *stored, np.dtype(f"V{itemsize}"), pairs)


def elements(places, chunk):
    """Byte offsets in the chunk, and addresses, of all elements of one chunk."""
    for r in range(places.first[chunk], places.first[chunk + 1]):
        src_stride, dst_stride = (
            np.broadcast_to(np.asarray(stride).reshape(len(places.count), -1), places.count.shape)
            for stride in (places.src_stride, places.dst_stride)
        )
        pairs = [(0, 0)]
        if places.points is not None:
            ((a, b),) = places.points[r]
            pairs = list(zip(a.tolist(), b.tolist(), strict=True))
        for index in itertools.product(*map(range, places.count[:, r].tolist())):
            at = np.array(index, np.int64)
            for more_src, more_dst in pairs:
                yield (
                    int(places.src[r] + at @ src_stride[:, r]) + more_src,
                    int(places.dst[r] + at @ dst_stride[:, r]) + more_dst,
                )


def expected_of(places, some, dtype, chunks, address, nbytes, fill=None):
    found = bytearray(b"\x5a" * nbytes)
    (part,) = parts(dtype)
    for i, chunk in enumerate(some):
        for src, dst in elements(places, chunk):
            element = chunks[i][src : src + dtype.itemsize] if fill is None else fill
            units = np.frombuffer(element, np.uint8).reshape(-1, part.unit)
            found[dst - address : dst - address + dtype.itemsize] = units[:, ::-1].tobytes()
    return bytes(found)


@needs_compiler
@pytest.mark.parametrize("points", [False, True], ids=["rectangles", "points"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_elements_go_where_they_belong(bench, dtype, points):
    for seed in range(5):
        nbytes = 12 * ROOM_NBYTES
        address = bench.put(b"\x5a" * nbytes)
        places = made(seed, dtype.itemsize, address, points=points)
        some = np.array([3, 0, 2]) if seed % 2 else np.arange(4)
        chunks = [np.random.default_rng(9 + i).bytes(CHUNK_NBYTES) for i in range(len(some))]
        where = np.array([bench.put(chunk) for chunk in chunks], np.uint64)
        run(bench, place, places, some, where, dtype)
        assert bench.get(address, nbytes) == expected_of(
            places, some, dtype, chunks, address, nbytes
        )


@needs_compiler
@pytest.mark.parametrize("points", [False, True], ids=["rectangles", "points"])
@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 8, 16])
def test_all_elements_become_the_fill_value(bench, itemsize, points):
    fill = bytes(range(1, itemsize + 1))
    dtype = np.dtype(f"V{itemsize}")
    for seed in range(3):
        nbytes = 12 * ROOM_NBYTES
        address, at = bench.put(b"\x5a" * nbytes), bench.put(fill)
        places = made(seed, itemsize, address, points=points)
        some = np.array([1, 3])
        run(bench, place_fill, places, some, fill, at)
        assert bench.get(address, nbytes) == expected_of(
            places, some, dtype, None, address, nbytes, fill
        )


def test_no_chunks_need_no_launch(bench):
    places = made(1, 4, 0)
    none = np.zeros(0, np.int64)
    assert run(bench, place, places, none, none.astype("u8"), np.dtype("u4")) == 0
    assert run(bench, place_fill, places, none, bytes(4), 0) == 0


def test_launches_do_not_grow_with_the_chunks(bench):
    address = bench.allocate(100 * ROOM_NBYTES)
    chunk = bench.put(bytes(CHUNK_NBYTES))
    launches = []
    for n in (2, 100):
        places = Places(
            np.arange(n + 1),
            np.zeros(n, np.int64),
            address + np.arange(n) * ROOM_NBYTES,
            np.full((2, n), 5),
            (40, 8),
            (80, 8),
            np.dtype("u8"),
        )
        where = np.full(n, chunk, np.uint64)
        launches.append(run(bench, place, places, np.arange(n), where, np.dtype("u8")))
    assert launches[0] == launches[1] > 0


@pytest.mark.parametrize("seed", range(6))
def test_taken_places_are_those_of_the_chunks(seed):
    places = made(seed, 4, 0, points=seed % 2 == 1)
    for some in ([], [2], [3, 1], [0, 1, 2, 3], [1, 1]):
        taken = places.take(np.array(some, np.int64))
        assert [list(elements(taken, i)) for i in range(len(some))] == [
            list(elements(places, chunk)) for chunk in some
        ]


def test_types_of_several_units_are_copied_in_parts():
    for name, unit in zip((">u2", ">U3", ">c8", "|V7", "|u1", "<M8[s]"), (2, 4, 4, 1, 1, 1)):
        dtype = np.dtype(name)
        assert parts(dtype) == (Part(0, dtype.itemsize, unit),)
    record = np.dtype([("a", ">u2"), ("b", ">u4", (3,))])
    assert parts(record) == (Part(0, 2, 2), Part(2, 4, 4, (3,), (4,)))


def test_places_of_rows_that_follow_one_another_are_made_once():
    """Pieces of threads that took rows of one table, joined in any order."""
    columns = np.arange(24).reshape(6, 4)
    words = np.concatenate(([*range(7)], np.arange(6), columns.T.ravel()))
    table = RowTable(words, units=6, rows=6, regions=6, rank=1, input_rank=2)
    strides = [(8, 1)], [(80, 10)]

    def part(lo, hi):
        return TablePlaces(table, lo, hi, strides, 3, [1000], np.dtype("u1"), by_element=False)

    whole = part(0, 6).made()
    assert whole.src.tolist() == (columns[:, 0] + 3).tolist()
    assert whole.dst.tolist() == (columns[:, 1] + 1000).tolist()
    assert whole.count.tolist() == columns[:, 2:].T.tolist()
    pieces = [part(4, 6), part(0, 3), part(3, 4)]
    for some in (sorted(pieces, key=order_of), [part(0, 3), whole.take(np.array([3, 4, 5]))]):
        found = joined(some).made()
        for name in ("first", "src", "dst", "count"):
            assert getattr(found, name).tolist() == getattr(whole, name).tolist(), name
    apart = joined([part(0, 2), part(4, 6)])
    assert apart.src.tolist() == whole.src[[0, 1, 4, 5]].tolist()
    assert part(2, 5).take(np.array([2, 0])).dst.tolist() == whole.dst[[4, 2]].tolist()
