"""The native core stores the bytes that Python stores, under the same locks, and leaves nothing."""

import contextlib
import errno
import fcntl
import os
import threading
from asyncio import CancelledError

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.host import HostBackend
from gpustore.backends.native.library import library
from gpustore.backends.native.write_job import WriteJob
from gpustore.errors import StoreIOError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.file import FileKvStore
from gpustore.kvstores.file.linked_lock import WHOLE_FILE
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.pipelines import writes_under_way
from gpustore.pipelines.write import write
from gpustore.runtime.executor import Executor
from gpustore.runtime.statistics import CURRENT, STATISTICS
from tests.backends.native.stored_arrays import (
    counted_threads,
    encoded_in_python,
    open_at,
    selections,
    specs,
)
from tests.backends.native.stored_arrays import stored as stored_array
from tests.backends.native.stored_arrays import values as elements
from tests.pipelines.arrays import make_array, memory, stored, whole

pytestmark = pytest.mark.skipif(library() is None, reason="no native core")

CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
TYPES = (
    *("bool", "int8", "uint16", "float16", "int32", "float64", "complex64", "complex128"),
    "bfloat16",
)


class Observed(FileKvStore):
    """A file kvstore that notes the keys whose values Python writes."""

    written: tuple[str, ...] = ()

    def write_many(self, request):
        keys = [key for key, value in zip(request.keys, request.values) if value is not None]
        self.written += tuple(keys)
        return super().write_many(request)


def at(folder, **options):
    """A file kvstore in a folder, that notes what is written past the core."""
    opened = KvStore.open({"driver": "file", "path": f"{folder}/", **options}).result().driver
    return Observed(
        f"{folder}/", spec=opened.spec, options=opened._options, resources=opened.resources
    )


def on_disk(folder, shape, chunks, **changes):
    """An array whose chunks the core can write into a folder."""
    return make_array(shape, chunks, store=at(folder), key_prefix=f"{folder}/c/", **changes)


def files(folder):
    """Bytes of all files in a folder, whatever they are called."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def named(name, **configuration):
    return NamedConfiguration(name, configuration)


@st.composite
def chains(draw, rank):
    """Codecs that the core has, of Zarr v3."""
    order = draw(st.permutations(range(rank)))
    found = [named("transpose", order=order)] if rank else []
    found.append(named("bytes", endian=draw(st.sampled_from(["little", "big"]))))
    level = draw(st.integers(0, 9))
    shuffle = draw(st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]))
    cname = draw(st.sampled_from(CNAMES))
    typesize = draw(st.sampled_from([1, 2, 4, 8, 3]))
    blocksize = draw(st.sampled_from([0, 0, 256, 4096]))
    blosc = named(
        "blosc", cname=cname, clevel=level, shuffle=shuffle, typesize=typesize, blocksize=blocksize
    )
    zstd = named("zstd", level=draw(st.integers(-7, 12)), checksum=draw(st.booleans()))
    gzip = named("gzip", level=draw(st.sampled_from([0, *range(3, 10)])))
    found += draw(st.sampled_from([[], [blosc], [blosc], [zstd], [zstd], [gzip]]))
    return (*found, *draw(st.sampled_from([[], [named("crc32c")]])))


@st.composite
def sources(draw, shape, dtype):
    """Arrays of a shape in any order of memory; some elements differ from a value."""
    step = draw(st.sampled_from([1, 1, 2, -1]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    large = tuple(size * abs(step) for size in shape)
    kind = draw(st.sampled_from(["noise", "steps", "one", "mostly"]))
    count = int(np.prod(large))
    steps = np.arange(count) // 7 % 100
    values = {
        "noise": rng.integers(0, 100, count),
        "steps": steps,
        "one": np.full(count, draw(st.integers(0, 2))),
        "mostly": np.where(rng.random(count) < 2 / max(count, 2), 1, 0),
    }[kind]
    array = np.asarray(values.reshape(large, order=draw(st.sampled_from("CF"))))
    array = array.astype(dtype)[tuple(slice(None, None, step) for _ in shape)]
    if shape and draw(st.booleans()):  # Broadcast along the first dimension.
        array = np.broadcast_to(array[:1], shape)
    return array


@st.composite
def writes(draw):
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 24)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 24)) for _ in range(rank))
    dtype = draw(st.sampled_from(TYPES))
    native = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return {
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype,
        "codecs": draw(chains(rank)),
        "fill_value": np.array(draw(st.sampled_from([0, 1])), native),
        "keep_fill": draw(st.booleans()),
    }, draw(sources(shape, native))


@given(one=writes())
def test_native_and_python_store_the_same_bytes(tmp_path_factory, one):
    format_, values = one
    folder = tmp_path_factory.mktemp("array")
    native = on_disk(folder, **format_)
    python = make_array(store=memory(), **format_)
    counts = []
    for array, way in ((native, contextlib.nullcontext()), (python, encoded_in_python())):
        before = STATISTICS["bytes_stored"]
        with way:
            write(array, whole(array), values).result()
        counts.append(STATISTICS["bytes_stored"] - before)
    assert native.native_encoding is not None or format_["dtype"] == "bfloat16"
    assert native.native_encoding is None or native.store.written == ()
    assert files(folder) == stored(python)
    assert counts[0] == counts[1]


@settings(deadline=None)
@given(st.data(), specs(), st.integers(0, 999), st.sampled_from([0.0, 0.4]), st.booleans())
def test_changes_of_chunks_and_shards_store_the_same_bytes(data, spec, seed, missing, staged):
    """Also where something stored stays, or elements are those of the fill value; and twice in a
    transaction."""
    found = []
    chosen = None
    for way in (contextlib.nullcontext, encoded_in_python):
        with stored_array(spec, seed, missing=missing) as folder, way():
            opened = {name: spec[name] for name in ("driver", "field") if name in spec}
            store = open_at(folder, opened, file_io_sync=False)
            if chosen is None:
                chosen = data.draw(selections(store.shape))
            view = chosen(store)
            new = elements(view.dtype.numpy_dtype, view.shape, seed + 1)
            new = np.zeros_like(new) if seed % 5 == 0 else new
            try:
                if staged:
                    with gpustore.Transaction() as transaction:
                        for _ in range(2):
                            view.with_transaction(transaction).write(new).result()
                            new = np.roll(new, 1)
                else:
                    view.write(new).result()
            except gpustore.GpustoreError as error:
                found.append((type(error), str(error).replace(str(folder), "")))
                continue
            found.append(files(folder))
    assert found[0] == found[1]


def test_shards_are_encoded_by_the_core(tmp_path, monkeypatch):
    """Also those that are changed in part."""
    gathered = []
    gather = HostBackend.gather

    def counted(self, overlays, *arguments, **options):
        gathered.extend(len(one.stored) for one in overlays)
        return gather(self, overlays, *arguments, **options)

    monkeypatch.setattr(HostBackend, "gather", counted)
    sharding = {
        "chunk_shape": [4, 4],
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    store = gpustore.open(
        f"file://{tmp_path}/|zarr3:",
        create=True,
        dtype="uint16",
        shape=[32, 32],
        chunk_layout=gpustore.ChunkLayout(write_chunk_shape=[16, 16]),
        codec=gpustore.CodecSpec(
            {
                "driver": "zarr3",
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            }
        ),
    ).result()
    values = np.arange(1, 1025, dtype="u2").reshape(32, 32)
    before = STATISTICS["bytes_stored"]
    store.write(values).result()
    shards = (path for path in (tmp_path / "c").rglob("*") if path.is_file())
    assert STATISTICS["bytes_stored"] - before == sum(path.stat().st_size for path in shards)
    store[4:12].write(values[4:12]).result()
    store[3:12].write(values[3:12]).result()
    assert gathered == []
    assert np.array_equal(store.read().result(), values)


COMPRESSORS = (
    *({"id": "lz4", "acceleration": acceleration} for acceleration in (1, 7, 65537)),
    *({"id": "zlib", "level": level} for level in (0, 1, 3, 9)),
)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_compressors_of_zarr_v2(tmp_path, compressor):
    values = np.arange(9000, dtype="u2").reshape(90, 100) // 3
    found = []
    for way in (contextlib.nullcontext, encoded_in_python):
        metadata = {"compressor": compressor, "dtype": ">u2", "chunks": [40, 30]}
        kvstore = f"file://{tmp_path / way.__name__}/"
        spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
        with way():
            store = gpustore.open(spec, create=True, shape=values.shape).result()
            store.write(values).result()
        found.append({key: store.kvstore[key] for key in store.kvstore.list().result()})
    assert found[0] == found[1]
    assert len(found[0]) == 13


def test_chunks_that_a_write_covers_in_part_are_changed_by_the_core(tmp_path):
    array = on_disk(tmp_path, (8, 8), (4, 4))
    write(array, whole(array), 1).result()
    box = IndexTransform(IndexDomain(inclusive_min=[0, 0], exclusive_max=[4, 6]))
    write(array, box, np.full((4, 6), 2, "u2")).result()
    assert array.store.written == ()
    found = {
        key: np.frombuffer(value, "u2").reshape(4, 4) for key, value in files(tmp_path).items()
    }
    assert (found["c/0/0"] == 2).all()
    assert found["c/0/1"].tolist() == [[2, 2, 1, 1]] * 4
    assert (found["c/1/1"] == 1).all()


def test_an_array_without_dimensions(tmp_path):
    array = make_array((), (), store=at(tmp_path), key_prefix=f"{tmp_path}/0")
    write(array, whole(array), 7).result()
    assert files(tmp_path) == {"0": b"\7\0"}
    assert array.store.written == ()


def test_what_equals_the_fill_value_is_deleted_and_makes_no_directory(tmp_path):
    array = on_disk(tmp_path, (8, 4), (4, 4))
    write(array, whole(array), 0).result()
    assert list(tmp_path.iterdir()) == []
    write(array, whole(array), 1).result()
    assert list(files(tmp_path)) == ["c/0/0", "c/1/0"]
    write(
        array, IndexTransform(IndexDomain(inclusive_min=[0, 0], exclusive_max=[4, 4])), 0
    ).result()
    assert list(files(tmp_path)) == ["c/1/0"]
    assert array.store.written == ()


@pytest.mark.parametrize("dtype", ["|S3", "|V3", [["a", "<u2"], ["b", "|u1"]]], ids=str)
def test_bytes_and_records_that_equal_the_fill_value_are_deleted(tmp_path, dtype):
    """A field alone is changed in stored records; the other one stays."""
    fill = "AQAC"  # 1, 0, 2 in base64
    metadata = {"dtype": dtype, "shape": [4, 4], "chunks": [2, 2], "fill_value": fill}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    fields = ["a", "b"] if isinstance(dtype, list) else [None]
    options = [{} if field is None else {"field": field} for field in fields]
    stores = [gpustore.open({**spec, **some}, open=True, create=True).result() for some in options]
    filled = [store.read().result() for store in stores]
    for store in stores:
        store[...] = np.zeros(store.shape, store.dtype.numpy_dtype)
    assert sorted(set(files(tmp_path)) - {".zarray"}) == ["0.0", "0.1", "1.0", "1.1"]
    for store, blank in zip(stores, filled, strict=True):
        store[:2] = blank[:2]
    assert sorted(set(files(tmp_path)) - {".zarray"}) == ["1.0", "1.1"]
    for store, blank in zip(stores, filled, strict=True):
        assert (store[:2].read().result() == blank[:2]).all()
        assert not np.any(store[2:].read().result() != np.zeros_like(blank[2:]))


def test_more_directories_than_are_open_at_a_time(tmp_path):
    array = on_disk(tmp_path, (150, 2), (1, 1), key_separator="/")
    values = np.arange(1, 301, dtype="u2").reshape(150, 2)
    write(array, whole(array), values).result()
    assert array.store.written == ()
    expected = {f"c/{i}/{k}": values[i, k].tobytes() for i in range(150) for k in range(2)}
    assert files(tmp_path) == expected


def test_a_chunk_that_another_writer_has_locked_is_waited_for(tmp_path):
    array = on_disk(tmp_path, (8,), (4,))
    (tmp_path / "c").mkdir()
    lock = tmp_path / "c" / "0.__lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, WHOLE_FILE)
    future = write(array, whole(array), 5)
    written = threading.Event()
    future.commit.add_done_callback(lambda _: written.set())
    while not (tmp_path / "c" / "1").exists():
        assert not written.wait(0.01)
    assert not (tmp_path / "c" / "0").exists()
    assert lock.exists()
    lock.unlink()
    os.close(descriptor)
    future.result()
    assert array.store.written == (f"{tmp_path}/c/0",)
    assert list(files(tmp_path)) == ["c/0", "c/1"]


def test_a_lock_file_that_a_killed_writer_left_does_not_matter(tmp_path):
    array = on_disk(tmp_path, (8,), (4,))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.__lock").write_bytes(b"a part of a value")
    write(array, whole(array), 5).result()
    assert files(tmp_path) == {f"c/{i}": b"\5\0" * 4 for i in range(2)}


def test_a_key_that_is_a_directory_is_an_error_with_its_name(tmp_path):
    array = on_disk(tmp_path, (8,), (4,))
    (tmp_path / "c" / "1" / "x").mkdir(parents=True)
    with pytest.raises(StoreIOError) as caught:
        write(array, whole(array), 5).result()
    assert caught.value.key == f"{tmp_path}/c/1"
    assert os.strerror(errno.EISDIR) in str(caught.value)
    assert files(tmp_path) == {"c/0": b"\5\0" * 4}


def test_links_in_place_of_directories_are_refused(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "c").symlink_to(outside)
    array = on_disk(inside, (8,), (4,))
    with pytest.raises(StoreIOError, match="link that leads out"):
        write(array, whole(array), 5).result()
    assert files(outside) == {}


def test_a_link_in_place_of_a_chunk_is_replaced(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.write_bytes(b"kept")
    (inside / "c").mkdir(parents=True)
    (inside / "c" / "0").symlink_to(outside)
    array = on_disk(inside, (4,), (4,))
    write(array, whole(array), 5).result()
    assert outside.read_bytes() == b"kept"
    assert not (inside / "c" / "0").is_symlink()


@pytest.mark.parametrize("limit", [1, 3])
def test_as_many_threads_as_allowed_are_in_the_core(tmp_path, monkeypatch, limit):
    threads = counted_threads(monkeypatch, WriteJob, "write", limit)
    monkeypatch.setattr(writes_under_way, "NATIVE_PART_S", 1e-9)
    array = on_disk(tmp_path, (400, 8), (1, 8), executor=Executor(limit))
    write(array, whole(array), 5).result()
    assert threads() == limit
    assert array.store.written == ()


def test_only_what_reached_the_disk_counts_as_stored(tmp_path, monkeypatch):
    array = make_array(
        (4, 2), (1, 1), store=at(tmp_path, file_io_sync=True), key_prefix=f"{tmp_path}/c/"
    )
    write(array, whole(array), 1).result()
    fsync = os.fsync

    def fail(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/c/2"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    before = STATISTICS["bytes_stored"]
    with pytest.raises(StoreIOError, match="sync directory"):
        write(array, whole(array), 2).result()
    assert array.store.written == ()
    assert STATISTICS["bytes_stored"] - before == 6 * 2


def test_a_cancelled_write_leaves_no_file_behind(tmp_path):
    """Chunks are written whole or not at all."""
    # So many that they are not all written before this thread gets its turn.
    array = on_disk(tmp_path, (40_000, 8), (1, 8))
    future = write(array, whole(array), np.broadcast_to(np.uint16(1), (40_000, 8)))
    while not (tmp_path / "c").exists():
        assert not future.commit.done()
    future.commit.cancel()
    with pytest.raises(CancelledError):
        future.result()
    # A write of the same chunk begins when no thread works for the cancelled one any more.
    first = IndexTransform(IndexDomain(inclusive_min=[0, 0], exclusive_max=[1, 8]))
    write(array, first, 1).result()
    written = files(tmp_path)
    assert set(written.values()) == {b"\1\0" * 8}
    assert len(written) < 40_000


@pytest.mark.parametrize("mode", ["lockfile", "none", "non_atomic"])
def test_other_modes_of_locking_are_those_of_python(tmp_path, mode):
    store = at(tmp_path, file_io_locking={"mode": mode})
    array = make_array((8,), (4,), store=store, key_prefix=f"{tmp_path}/")
    write(array, whole(array), 5).result()
    assert len(store.written) == 2


@pytest.mark.parametrize("sync", [True, False])
def test_directories_and_files_reach_the_disk_if_asked_for(tmp_path, sync, monkeypatch):
    store = at(tmp_path, file_io_sync=sync)
    synced = []
    real = os.fsync

    def fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(tmp_path)):  # and not what a cancelled write had begun
            synced.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    array = make_array((8,), (4,), store=store, key_prefix=f"{tmp_path}/c/")
    write(array, whole(array), 5).result()
    assert store.written == ()
    assert sorted(set(synced)) == ([str(tmp_path), f"{tmp_path}/c"] if sync else [])


@pytest.mark.parametrize("levels", [False, True], ids=["chunks", "shards"])
def test_bytes_are_counted_while_the_core_encodes(tmp_path, monkeypatch, levels):
    """A slice of time ends after each chunk."""
    monkeypatch.setattr("gpustore.backends.native.write_job._SLICE_NS", 1)
    chunks = {"chunks": 4, "shards": 16} if levels else {"chunks": 4}
    store = gpustore.create_array(
        f"file://{tmp_path}/",
        shape=[16],
        dtype="uint8",
        **chunks,
        context={"file_io_sync": False, "data_copy_concurrency": {"limit": 1}},
    ).result()
    seen, step = [], "encode" if levels else "write"
    one = getattr(WriteJob, step)

    def slice_written(job, wanted):
        seen.append(CURRENT.operation["bytes_encoded"])
        return one(job, wanted)

    monkeypatch.setattr(WriteJob, step, slice_written)
    written = store.write(np.ones(16, "u1"))
    written.result()
    assert seen == [0, 4, 8, 12]
    assert written.statistics["bytes_encoded"] == 16
    assert written.statistics["values_stored"] == (1 if levels else 4)
