"""Values that the native core fetches, against those that the file kvstore reads."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.backends.native.array import native_files
from gpustore.backends.native.fetched_files import ALIGNMENT, SharedMemory, fetch_files
from gpustore.backends.native.headers import Frames
from gpustore.backends.native.job import DONE, MISSING, NO_ROOM
from gpustore.backends.native.library import library
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.planning.row_table import RowTable
from tests.backends.native.test_headers import changes, damaged, plain, read_blosc
from tests.codecs.blosc.test_columns import frames as blosc_frames
from tests.matrix import each, share

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native core")

BOUND = 1000


@pytest.fixture
def store(tmp_path):
    return KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result().driver


def files_of(rank, nbytes=BOUND):
    """Constants of an array of raw chunks of so many bytes."""
    chain = CodecChain(ChunkBytes.contiguous(np.dtype("u1"), (nbytes,) + (1,) * (rank - 1)), (), [])
    options = {"shape": (1 << 30,) * rank, "key_separator": ".", "key_ratio": (1,) * rank}
    return native_files(chain, (), **options, key_rank=rank)


def fetched(store, prefix, cells, nbytes):
    files = files_of(len(cells))
    directory = store.key_directory(prefix)
    memory = np.zeros(nbytes, np.uint8)
    shared = SharedMemory(memory, ALIGNMENT)
    columns = fetch_files(files, RowTable.of_cells(cells), shared, nbytes, directory)
    values = [
        bytes(memory[at : at + size]) if status == DONE else status
        for status, at, size in zip(columns.status, columns.at, columns.nbytes)
    ]
    return values, [directory.generation(*four) for four in columns.generation.tolist()], columns


def test_values_and_generations_are_those_of_the_kvstore(store, tmp_path):
    chosen = random.Random(5)
    cells = [[chosen.randrange(40) for _ in range(200)] for _ in range(2)]
    for i, j in set(zip(*cells)):
        if chosen.random() < 0.8:
            (tmp_path / f"{i}.{j}").write_bytes(chosen.randbytes(chosen.choice([0, 1, 64, 900])))
    keys = [f"{tmp_path}/{i}.{j}" for i, j in zip(*cells)]
    expected = store.read_many(ReadRequest(keys=keys))
    values, generations, columns = fetched(store, f"{tmp_path}/", cells, 200 * 1024)
    assert values == [MISSING if value is None else value for value in expected.value]
    present = [row for row, value in enumerate(expected.value) if value is not None]
    assert [generations[row] for row in present] == [expected.generation[row] for row in present]
    assert (columns.at % ALIGNMENT == 0).all()
    nbytes = sum(len(expected.value[row]) for row in present)
    assert columns.counts == (200, nbytes, 0, 200 - len(present), 0)


def test_what_does_not_fit_or_is_no_file_is_left_alone(store, tmp_path):
    (tmp_path / "0").write_bytes(bytes(BOUND))
    (tmp_path / "1").write_bytes(bytes(BOUND + 1))
    (tmp_path / "2").mkdir()
    (tmp_path / "3").symlink_to(tmp_path / "0")
    os.mkfifo(tmp_path / "4")
    (tmp_path / "5").write_bytes(bytes(BOUND))
    values, _, columns = fetched(store, f"{tmp_path}/", [[0, 1, 2, 3, 4, 5, 6]], BOUND + 100)
    assert values[0] == bytes(BOUND)
    assert all(status not in (DONE, MISSING) for status in values[1:6])
    assert values[6] == MISSING
    assert columns.counts.left == 5


@each("behind", [0, 4])
def test_headers_of_frames_are_read_on_the_way(store, tmp_path, behind):
    whole = zstandard.compress(bytes(range(200)) * 3)
    values = [whole, whole[:-1], b"", whole[:9], whole + bytes(3), bytes(100)]
    for number, value in enumerate(values):
        (tmp_path / f"{number}").write_bytes(value + bytes(behind))
    files = files_of(1)
    directory = store.key_directory(f"{tmp_path}/")
    table = RowTable.of_cells([[0, 1, 2, 3, 4, 5, 6]])
    memory = SharedMemory(np.zeros(8 * BOUND, np.uint8), ALIGNMENT)
    found = fetch_files(files, table, memory, 8 * BOUND, directory, Frames("zstd", behind))
    assert found.known.columns[0].tolist() == [600, *[0] * 6]
    assert list(found.status) == [DONE] * 6 + [MISSING]
    assert fetch_files(files, table, memory, 8 * BOUND, directory).known is None


@pytest.mark.matrix
@settings(max_examples=share(60))
@given(
    st.lists(st.tuples(blosc_frames, changes, st.integers(-3, 30)), min_size=1, max_size=4),
    st.sampled_from([0, 4]),
    st.sampled_from([0, 1, 300]),
    st.booleans(),
)
def test_blosc_frames_are_read_on_the_way_as_afterwards(made, behind, streams, exact):
    values = [value for (value, _), _, _ in made]
    values += [damaged(value, changed, cut) for (value, _), changed, cut in made]
    decoded_max = max(len(data) for (_, data), _, _ in made)
    with TemporaryDirectory() as folder:
        for number, value in enumerate(values):
            Path(folder, f"{number}").write_bytes(value + bytes(behind))
        store = KvStore.open({"driver": "file", "path": f"{folder}/"}).result().driver
        # Files longer than the bound are left, and have no headers.
        most = max(map(len, values[:-1])) + behind
        memory = SharedMemory(np.zeros((most + 64) * len(values), np.uint8), ALIGNMENT)
        found = fetch_files(
            files_of(1, most),
            RowTable.of_cells([[*range(len(values) + 1)]]),
            memory,
            len(memory.data),
            store.key_directory(f"{folder}/"),
            Frames("blosc", behind, streams),
        )
    done = np.array(found.status) == DONE
    assert done[:-2].all()
    assert (found.known.head(0)[~done] == 0).all()
    kept = [value for value, is_done in zip(values, done) if is_done]
    columns = EncodedColumns(
        memory.data,
        found.at[done],
        found.nbytes[done] - behind,
        known=found.known.take(done),
    )
    assert plain(columns, decoded_max, exact) == read_blosc(kept, decoded_max, exact, None)
    again = columns.known.take(np.arange(1)).joined([columns.known.take(np.arange(1, len(kept)))])
    columns.known = again.joined([again.unknown(1)]).take(np.arange(len(kept)))
    assert plain(columns, decoded_max, exact) == read_blosc(kept, decoded_max, exact, None)


def test_memory_that_threads_share_is_taken_once():
    memory = SharedMemory(np.zeros(100_000, np.uint8), 16)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda nbytes: (memory.take(nbytes, 90_000), nbytes), [33] * 3000))
    found = sorted(start for start, _ in taken if start is not None)
    assert found == list(range(0, 90_000 - 32, 48))
    assert memory.take(33, 90_000) is None
    assert memory.take(16, 100_000) == memory.used - 16 == 90_000


def test_several_fetches_share_memory(store, tmp_path):
    for i in range(40):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * (10 + i))
    files = files_of(1)
    directory = store.key_directory(f"{tmp_path}/")
    memory = SharedMemory(np.zeros(64 * 35, np.uint8), 64)
    tables = [RowTable.of_cells([range(first, first + 20)]) for first in (0, 20)]
    columns = [fetch_files(files, one, memory, len(memory.data), directory) for one in tables]
    assert bytes(columns[0].status) == bytes([DONE]) * 20
    assert bytes(columns[1].status) == bytes([DONE]) * 15 + bytes([NO_ROOM]) * 5
    for first, fetched in zip((0, 20), columns):
        for i, (at, nbytes) in enumerate(zip(fetched.at, fetched.nbytes), first):
            assert bytes(memory.data[at : at + nbytes]) in (bytes([i]) * (10 + i), b"")


SHAPE = (30, 40)
COMPRESSORS = {
    "zstd": {"id": "zstd", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc zstd": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 256},
}


def chains():
    for name, compressor in COMPRESSORS.items():
        for type_ in ("<u2", "|b1"):
            component = Component.whole(dtype("bool" if type_ == "|b1" else "uint16"))
            yield f"{name}, {type_}", resolve_v2(compressor, None, component, SHAPE, "C")
    for codecs in ([], [("zstd", {"level": 1, "checksum": False})]):
        named = [("bytes", {"endian": "big"}), *codecs, ("crc32c", {})]
        named = [NamedConfiguration(*one) for one in named]
        yield f"{len(codecs)} and crc32c", resolve_v3(named, dtype("uint16"), SHAPE)


CHAINS = dict(chains())


@pytest.mark.parametrize("name", CHAINS)
def test_decoded_values_are_those_of_python_or_left_alone(store, tmp_path, name):
    chain, chosen = CHAINS[name], random.Random(name)
    most = 1 if chain.layout.dtype == np.bool_ else 255
    expected = []
    for row in range(60):
        decoded = bytes(chosen.randint(0, most) for _ in range(100)) * (chain.layout.nbytes // 100)
        value = bytearray(chain.encode(decoded))
        if row % 4:
            for _ in range(chosen.choice([0, 1, 1, 3])):
                value[chosen.randrange(len(value))] = chosen.randrange(256)
            value = value[: len(value) - chosen.choice([0, 0, 0, 1, 9])]
            value += chosen.randbytes(chosen.choice([0, 0, 0, 7]))
        (tmp_path / f"{row}.0").write_bytes(value)
        try:
            expected.append(bytes(chain.decode(bytes(value))))
        except GpustoreError:
            expected.append(None)
    expected.append(MISSING)
    options = {"shape": (1 << 30,) * 2, "key_separator": ".", "key_ratio": (1, 1), "key_rank": 2}
    files = native_files(chain, (), **options, decodes=True)
    nbytes = 61 * (chain.layout.nbytes + ALIGNMENT)
    memory = np.zeros(nbytes, np.uint8)
    table = RowTable.of_cells([[*range(61)], [0] * 61])
    directory = store.key_directory(f"{tmp_path}/")
    found = fetch_files(files, table, SharedMemory(memory, ALIGNMENT), nbytes, directory)
    for status, at, size, value in zip(found.status, found.at, found.nbytes, expected):
        if status == DONE:
            assert bytes(memory[at : at + size]) == value
        else:
            assert (status == MISSING) == (value == MISSING)
    done = found.status.tolist().count(DONE)
    assert done >= 15
    assert found.counts.decoded == done * chain.layout.nbytes
    assert found.counts.left == 60 - done


def test_decoded_values_without_room_are_left_for_the_next_memory(store, tmp_path):
    chain = CHAINS["zstd, <u2"]
    value = chain.encode(bytes(chain.layout.nbytes))
    for row in range(5):
        (tmp_path / f"{row}.0").write_bytes(value)
    options = {"shape": (1 << 30,) * 2, "key_separator": ".", "key_ratio": (1, 1), "key_rank": 2}
    files = native_files(chain, (), **options, decodes=True)
    memory = np.zeros(4 * chain.layout.nbytes, np.uint8)
    table = RowTable.of_cells([[*range(5)], [0] * 5])
    shared = SharedMemory(memory, ALIGNMENT)
    limit = 2 * chain.layout.nbytes + 2 * ALIGNMENT
    found = fetch_files(files, table, shared, limit, store.key_directory(f"{tmp_path}/"))
    assert found.status.tolist() == [DONE] * 2 + [NO_ROOM] * 3
    assert found.counts.reads == 2


def test_chains_that_the_core_does_not_decode_are_not_fetched_decoded():
    bz2 = resolve_v2({"id": "bz2", "level": 1}, None, Component.whole(dtype("uint16")), SHAPE, "C")
    options = {"shape": SHAPE, "key_separator": ".", "key_ratio": (1, 1), "key_rank": 2}
    assert native_files(bz2, (), **options, decodes=True) is None
    assert native_files(bz2, (), **options) is not None
