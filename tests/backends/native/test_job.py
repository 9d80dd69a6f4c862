"""Rows whose numbers, names or files are hostile are left alone; no memory of others is touched.

Rows are written down by hand, as :mod:`gpustore.backends.native.job` hands them to the core. What
the core does not leave alone must be what NumPy copies.
"""

import contextlib
import itertools
import os
import resource
import socket
import stat
import threading
from array import array as numbers

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native import library
from gpustore.backends.native.job import AGAIN, ENDED, Job
from gpustore.kvstores.base import KeyDirectory
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.planning.row_table import RowTable, TablePoints
from gpustore.runtime.cancel_token import CancelToken
from tests.matrix import each
from tests.open_files import open_files
from tests.pipelines.arrays import BYTES, GZIP, make_array

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))

NO_SYMLINKS, WALK = 0x04, 0
OPENINGS = {"openat2": NO_SYMLINKS, "walk": WALK}
GUARD = 128
WANTED = CancelToken()
VALUES = np.arange(1, 25, dtype="<u2").reshape(4, 6)
STRIDES = VALUES.strides
BLOSC = NamedConfiguration(
    "blosc",
    {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
)
CHAINS = {"raw": (BYTES,), "gzip": (BYTES, GZIP), "blosc": (BYTES, BLOSC)}
ROW = {"cell": (0, 0), "src": 0, "dst": 0, "count": VALUES.shape}

ANY = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-60, 60),
    st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 2**56, 2**32, 2**31]),
)
SMALL = st.integers(-50, 50)


@pytest.fixture(scope="module", params=CHAINS)
def stored(request, tmp_path_factory):
    """An array with a chunk at {0, 0}, in a folder."""
    folder = tmp_path_factory.mktemp("job")
    return folder, put(folder, CHAINS[request.param])


def put(folder, chain=(BYTES,), value=None):
    driver = KvStore.open(f"file://{folder}/").result().driver
    array = make_array((4000, 6000), VALUES.shape, codecs=chain, store=driver)
    (folder / "c" / "0").mkdir(parents=True)
    encoded = array.chain.encode(memoryview(VALUES.tobytes())) if value is None else value
    (folder / "c" / "0" / "0").write_bytes(encoded)
    assert array.native is not None
    return array


def read(
    stored,
    rows,
    *,
    edges=None,
    points=(),
    prefix=b"c/",
    src=STRIDES,
    dst=STRIDES,
    resolve=NO_SYMLINKS,
):
    """Read rows into memory of the size of a chunk; return that, and the rows left alone."""
    folder, array = stored
    columns = [[row["cell"][d] for row in rows] for d in range(2)]
    columns += [[row[name] for row in rows] for name in ("src", "dst")]
    columns += [[row["count"][d] for row in rows] for d in range(len(src))]
    edges = edges or range(len(rows) + 1)
    words = numbers("q", [*edges, *(n for column in columns for n in column)])
    table = (
        RowTable(
            words, len(edges) - 1, len(rows), len(rows), 2, len(src), points=[TablePoints(*points)]
        )
        if points
        else RowTable(words, len(edges) - 1, len(rows), len(rows), 2, len(src))
    )
    guarded = np.full(GUARD + VALUES.nbytes + GUARD, 0xA5, np.uint8)
    flat = guarded[GUARD:-GUARD]
    memory = HostMemory(flat.view("<u2"), flat, 0, dst)
    directory = KeyDirectory(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), resolve, prefix, bytes)
    job = Job.of(array.native, table, [src], [dst], [memory], directory, 1)
    while (progress := job.read(WANTED)) == AGAIN:
        pass  # The slice of time was over.
    assert progress == ENDED
    assert (guarded[:GUARD] == 0xA5).all()
    assert (guarded[-GUARD:] == 0xA5).all()
    left = job.left()
    assert job.counts().left == len(left)
    return flat, left


def model(row, src=STRIDES, dst=STRIDES, points=((0, 0),), value=VALUES):
    """What the row must make of memory; None if it does not fit."""
    first, last = [0, 0], [0, 0]
    if any(count < 1 for count in row["count"]):
        return None
    for which, steps in enumerate((src, dst)):
        for step, count in zip(steps, row["count"]):
            reach = step * (count - 1)
            first[which] += min(reach, 0)
            last[which] += max(reach, 0)
    for which, start in enumerate((row["src"], row["dst"])):
        moves = [point[which] for point in points]
        low, high = start + first[which] + min(moves), start + last[which] + max(moves) + 2
        if low < 0 or high > VALUES.nbytes:
            return None
    found = np.full(VALUES.nbytes, 0xA5, np.uint8)
    flat = value.tobytes()
    for move in points:
        for index in np.ndindex(*row["count"]):
            at = [row["src"] + move[0], row["dst"] + move[1]]
            for i, one, two in zip(index, src, dst):
                at[0] += i * one
                at[1] += i * two
            found[at[1] : at[1] + 2] = list(flat[at[0] : at[0] + 2])
    return found


def check(stored, row, **more):
    found, left = read(stored, [row], **more)
    more.pop("prefix", None)
    if "points" in more:
        begin, end, src, dst = (list(map(int, column)) for column in more["points"])
        more["points"] = [*zip(src, dst)][begin[0] : end[0]]
    value = VALUES if row["cell"] == (0, 0) else np.zeros_like(VALUES)
    negative = min(row["cell"]) < 0
    expected = None if negative else model(row, value=value, **more)
    if expected is None:
        assert left == [0]
        assert (found == 0xA5).all()
    else:
        assert left == []
        assert np.array_equal(found, expected)


def test_a_plain_row(stored):
    check(stored, ROW)
    check(stored, ROW | {"cell": (5, 0)})


@given(st.sampled_from(["src", "dst"]), ANY)
def test_starts(stored, name, number):
    check(stored, ROW | {"count": (1, 1), name: number})


@given(st.tuples(ANY, ANY), st.tuples(SMALL, SMALL))
def test_counts_and_starts(stored, count, start):
    check(stored, ROW | {"count": count, "src": start[0], "dst": start[1]})


@given(st.tuples(ANY, ANY))
def test_cells(stored, cell):
    check(stored, ROW | {"cell": cell})


@given(
    st.tuples(ANY, ANY),
    st.tuples(ANY, ANY),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(SMALL, SMALL),
)
def test_strides(stored, src, dst, count, start):
    check(stored, ROW | {"count": count, "src": start[0], "dst": start[1]}, src=src, dst=dst)


@given(
    st.lists(st.tuples(ANY, ANY), min_size=1, max_size=4),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
)
def test_points(stored, points, count):
    moves = np.array(points, np.int64).T
    columns = np.array([0]), np.array([len(points)]), moves[0].copy(), moves[1].copy()
    check(stored, ROW | {"count": count}, points=columns)


@each(("begin", "end"), [(0, 0), (2, 1), (1, 1)])
def test_points_of_no_element(stored, begin, end):
    none = np.zeros(3, np.int64)
    found, left = read(stored, [ROW], points=(np.array([begin]), np.array([end]), none, none))
    assert left == [0]
    assert (found == 0xA5).all()


@given(st.lists(ANY, min_size=2, max_size=5))
def test_units_that_are_not_in_the_table(stored, edges):
    """Rows of such units are left alone, and no row that is not there is read."""
    rows = [ROW | {"count": (1, 1), "dst": 2 * i} for i in range(3)]
    found, left = read(stored, rows, edges=edges)
    legal = [0 <= b < e <= 3 for b, e in itertools.pairwise(edges)]
    read_rows = {
        r for ok, (b, e) in zip(legal, itertools.pairwise(edges)) if ok for r in range(b, e)
    }
    for row in range(3):
        assert bytes(found[2 * row : 2 * row + 2]) == (b"\1\0" if row in read_rows else b"\xa5\xa5")
    assert left == []


def test_more_dimensions_than_there_can_be(stored):
    strides = (2,) * 33
    found, left = read(stored, [ROW | {"count": (2,) * 33}], src=strides, dst=strides)
    assert left == [0]
    assert (found == 0xA5).all()


# --------------------------------------------------------------------------- names and files


@each("opening", OPENINGS)
def test_keys_that_are_too_long(stored, opening):
    for prefix in (b"x" * 300 + b"/", b"c/" + b"x" * 256 + b"/", b"x/" * 2040, b"x/" * 3000):
        found, left = read(stored, [ROW], prefix=prefix, resolve=OPENINGS[opening])
        assert left == [0]
        assert (found == 0xA5).all()


def as_directory(path):
    path.mkdir()


def as_link(path):
    path.symlink_to(path.with_name("there"))
    path.with_name("there").write_bytes(VALUES.tobytes())


def as_link_to_nothing(path):
    path.symlink_to(path.with_name("nothing"))


def as_link_to_itself(path):
    path.symlink_to(path)


def as_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


def as_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        as_directory(path)


def as_sparse_file(path):
    path.touch()
    os.truncate(path, 1 << 40)


def as_parent(path):
    path.parent.rmdir()
    path.parent.symlink_to("../there")
    there = path.parent.parent.parent / "there"
    there.mkdir()
    (there / path.name).write_bytes(VALUES.tobytes())


FILES = {
    "FIFO": os.mkfifo,
    "directory": as_directory,
    "link": as_link,
    "link to nothing": as_link_to_nothing,
    "link to itself": as_link_to_itself,
    "socket": as_socket,
    "device": as_device,
    "sparse file": as_sparse_file,
    "link to a directory": as_parent,
    "empty file": lambda path: path.touch(),
}


@each("opening", OPENINGS)
@each("name", FILES)
def test_files_that_are_no_plain_files_are_left_alone(name, opening, tmp_path):
    array = put(tmp_path)
    path = tmp_path / "c" / "0" / "0"
    path.unlink()
    FILES[name](path)
    before = open_files(tmp_path)
    found, left = read((tmp_path, array), [ROW], resolve=OPENINGS[opening])
    assert left == [0]
    assert (found == 0xA5).all()
    assert open_files(tmp_path) == before


@each("opening", OPENINGS)
def test_a_file_where_a_directory_should_be_is_a_missing_chunk(tmp_path, opening):
    array = put(tmp_path)
    (tmp_path / "c" / "1").write_bytes(b"")
    rows = [ROW | {"cell": (1, 0)}, ROW | {"cell": (2, 0)}, ROW | {"cell": (0, 1)}]
    found, left = read((tmp_path, array), rows, resolve=OPENINGS[opening])
    assert left == []
    assert not found.any()


def test_a_walk_reads_the_same_and_leaves_no_descriptor(stored):
    before = open_files(stored[0])
    found, left = read(stored, [ROW], resolve=WALK)
    assert left == []
    assert found.tobytes() == VALUES.tobytes()
    assert open_files(stored[0]) == before


@each("prefix", [b"../", b"c/../c/", b"./c/", b"/c/", b"c//", b"/"])
def test_a_walk_goes_down_only(stored, prefix):
    found, left = read(stored, [ROW], prefix=prefix, resolve=WALK)
    assert left == [0]
    assert (found == 0xA5).all()


def test_a_walk_through_a_directory_that_may_not_be_listed(tmp_path):
    array = put(tmp_path)
    (tmp_path / "c").chmod(0o100)
    try:
        found, left = read((tmp_path, array), [ROW], resolve=WALK)
    finally:
        (tmp_path / "c").chmod(0o700)
    assert left == []
    assert found.tobytes() == VALUES.tobytes()


def test_no_descriptors_are_left_for_the_process(stored):
    _, array = stored
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder, _ = stored
    table = RowTable(numbers("q", [0, 1, 0, 0, 0, 0, 4, 6]), 1, 1, 1, 2, 2)
    flat = np.full(VALUES.nbytes, 0xA5, np.uint8)
    memory = HostMemory(flat.view("<u2"), flat, 0, STRIDES)
    directory = KeyDirectory(os.open(folder, os.O_RDONLY), NO_SYMLINKS, b"c/", bytes)
    job = Job.of(array.native, table, [STRIDES], [STRIDES], [memory], directory, 1)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (directory.descriptor + 40, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(directory.descriptor))
        assert job.read(WANTED) == ENDED
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert job.left() == [0]
    assert (flat == 0xA5).all()


def test_a_cancelled_read_stops(stored):
    folder, array = stored
    word = numbers("b", b"\1")
    token = CancelToken(lambda: True, word)
    flat = np.full(VALUES.nbytes, 0xA5, np.uint8)
    memory = HostMemory(flat.view("<u2"), flat, 0, STRIDES)
    table = RowTable(numbers("q", [0, 1, 0, 0, 0, 0, 4, 6]), 1, 1, 1, 2, 2)
    directory = KeyDirectory(os.open(folder, os.O_RDONLY), NO_SYMLINKS, b"c/", bytes)
    job = Job.of(array.native, table, [STRIDES], [STRIDES], [memory], directory, 1)
    assert job.read(token) == AGAIN
    assert (flat == 0xA5).all()
    word[0] = 0
    assert job.read(token) == ENDED
    assert (flat == VALUES.view(np.uint8).reshape(-1)).all()


def test_a_file_that_shrinks_and_grows_while_it_is_read(tmp_path):
    """The row is whole or left alone; a change in place may mix what was there at two times."""
    array = put(tmp_path)
    path = tmp_path / "c" / "0" / "0"
    over = threading.Event()

    def change():
        while not over.is_set():
            os.truncate(path, 0)
            os.truncate(path, VALUES.nbytes)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            found, left = read((tmp_path, array), [ROW])
            assert left == [0] or not found[48:].any()
    finally:
        over.set()
        thread.join()
