"""Archives exchanged with TensorStore, zarr-python and zipfile; several writers; killed ones."""

import os
import random
import signal
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from gpustore.kvstores.kvstore import KvStore
from tests.killed_process import deaths, needs_compiler, start
from tests.kvstores.processes import run_together

WORKER = Path(__file__).with_name("zip_worker.py")
MODULE = "tests.kvstores.zip.zip_worker"
KEYS = ["zarr.json", "a/b", "a/c", "a.b", "日本/x", "c/0/0", "c/0/1"]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))]


def drawn_value(draw):
    """A value that shrinks or not, short or long."""
    nbytes = draw.choice([0, 1, 50, 3000, 100_000])
    return draw.choice([draw.randbytes(nbytes), bytes(nbytes), b"ab" * (nbytes // 2)])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories_are_shared_with_tensorstore(tmp_path, seed):
    draw = random.Random(seed)
    base = {"driver": "file", "path": f"{tmp_path}/a.zip", "file_io_sync": False}
    spec = {"driver": "zip", "base": base}
    spec["compression"] = draw.choice(["store", "deflate", "zstd", "xz"])
    stores = [KvStore.open(spec).result(), tensorstore.KvStore.open(spec).result()]
    model = {}
    for _ in range(40):
        writer = draw.choice(stores)
        key, value = draw.choice(KEYS), drawn_value(draw)
        match draw.randrange(5):
            case 0:
                writer.write(key, None).result()
                model.pop(key, None)
            case 1:
                read = writer.read(key).result()
                written = writer.write(key, value, if_equal=read.stamp.generation).result()
                assert written.generation or key not in model
                if written.generation:
                    model[key] = value
                    assert not writer.write(key, b"no", if_equal=b"\2").result().generation
            case 2:
                low, high = sorted(draw.sample([*KEYS, "", "z"], 2))
                ranges = gpustore.KvStore if writer is stores[0] else tensorstore.KvStore
                writer.delete_range(ranges.KeyRange(low, high)).result()
                model = {k: v for k, v in model.items() if not low <= k < high}
            case _:
                writer.write(key, value).result()
                model[key] = value
        for store in stores:
            found = store.list().result()
            assert sorted(found) == sorted(k.encode() for k in model)
            assert {k.decode(): store[k] for k in found} == model


@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories_are_shared_with_zarr_python(tmp_path, seed):
    """zarr-python's store adds members; ours takes the last ones."""
    draw = random.Random(seed)
    path = tmp_path / "a.zip"
    base = {"driver": "file", "path": str(path), "file_io_sync": False}
    spec = {"driver": "zip", "base": base, "duplicates": "last"}
    ours = KvStore.open(spec).result()
    model = {}
    for _ in range(25):
        some = {draw.choice(KEYS): drawn_value(draw) for _ in range(draw.randrange(1, 4))}
        if draw.random() < 0.5:
            method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
            mode = "a" if path.exists() else "w"
            store = zarr.storage.ZipStore(path, mode=mode, compression=method)
            store._sync_open()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                for key, value in some.items():
                    store._set(key, zarr.core.buffer.cpu.Buffer.from_bytes(value))
            store.close()
            model.update(some)
        elif draw.random() < 0.7:
            for key, value in some.items():
                ours[key] = value
            model.update(some)
        else:
            key = next(iter(some))
            del ours[key]
            model.pop(key, None)
        if not path.exists():
            assert not model
            continue
        found = ours.list().result()
        assert sorted(found) == sorted(k.encode() for k in model)
        assert {k.decode(): ours[k] for k in found} == model
        with zipfile.ZipFile(path) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == model
            assert archive.testzip() is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_hierarchies_are_exchanged_with_zarr_python(tmp_path, zarr_format):
    path = tmp_path / "theirs.zip"
    data = np.arange(1000, dtype="<u2").reshape(20, 50)
    with zarr.storage.ZipStore(path, mode="w") as store:
        root = zarr.create_group(store, zarr_format=zarr_format, attributes={"n": 1})
        root.create_array("x/y", data=data, chunks=(7, 20))
    driver = f"zarr{zarr_format}"
    group = gpustore.open_group(f"file://{path}|zip:|{driver}:").result()
    assert dict(group.attrs) == {"n": 1}
    assert np.array_equal(group["x/y"].read().result(), data)
    array = gpustore.open(f"file://{path}|zip:x/y|{driver}:").result()
    array[3:9, 1:30] = 7
    data[3:9, 1:30] = 7
    again = tensorstore.open(f"file://{path}|zip:x/y|{driver}:").result()
    assert np.array_equal(again.read().result(), data)
    with zarr.storage.ZipStore(path, mode="r") as store:
        assert np.array_equal(zarr.open_group(store, mode="r")["x/y"][:], data)


def test_zip_example_of_the_specification(tmp_path):
    """Zarr v2, "Storing groups": the same hierarchy in a Zip file, and its names."""
    path = tmp_path / "group.zip"
    url = f"file://{path}|zip:"
    root = gpustore.open_group(f"{url}|zarr2:", create=True).result()
    root.create_group("foo").result()
    array = gpustore.open(
        f"{url}foo/bar|zarr2:",
        create=True,
        dtype="float64",
        shape=[20, 20],
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[10, 10]),
    ).result()
    array[...] = 42
    array.attrs["comment"] = "answer to life, the universe and everything"
    assert sorted(zipfile.ZipFile(path).namelist()) == [
        ".zgroup",
        "foo/.zgroup",
        "foo/bar/.zarray",
        "foo/bar/.zattrs",
        "foo/bar/0.0",
        "foo/bar/0.1",
        "foo/bar/1.0",
        "foo/bar/1.1",
    ]
    with zarr.storage.ZipStore(path, mode="r") as store:
        bar = zarr.open_group(store, mode="r")["foo/bar"]
        assert bar.attrs["comment"] == "answer to life, the universe and everything"
        assert (bar[:] == 42).all()


def test_random_writes_of_an_array_equal_numpy(tmp_path):
    generator = np.random.default_rng(0)
    expected = np.zeros((40, 50), "<i4")
    url = f"file://{tmp_path}/a.zip|zip:in/|zarr3:"
    layout = gpustore.ChunkLayout(read_chunk_shape=[8, 9])
    array = gpustore.open(
        url, create=True, dtype="int32", shape=expected.shape, chunk_layout=layout
    ).result()
    for step in range(30):
        low = generator.integers(0, [40, 50])
        high = np.minimum(low + generator.integers(1, 30, 2), expected.shape)
        region = tuple(map(slice, low.tolist(), high.tolist()))
        array[region] = expected[region] = step
        assert np.array_equal(array.read().result(), expected)
    theirs = tensorstore.open(url).result()
    assert np.array_equal(theirs.read().result(), expected)


def test_partial_writes_of_one_chunk_lose_nothing(tmp_path):
    """Two drivers of one archive, so that they meet in the file and not before."""
    url = f"file://{tmp_path}/a.zip|zip:|zarr3:"
    layout = gpustore.ChunkLayout(read_chunk_shape=[10, 10])
    gpustore.open(url, create=True, dtype="uint8", shape=[20, 20], chunk_layout=layout).result()
    halves = []
    for part in (np.s_[:, 0::2], np.s_[:, 1::2]):
        context = gpustore.Context({"data_copy_concurrency": {"limit": 2}})
        halves.append(gpustore.open(url, context=context).result()[part])
    for value in range(1, 8):
        futures = [half.write(np.uint8(value)) for half in halves]
        for future in futures:
            future.result()
        for half in halves:
            assert (half.read().result() == value).all()


@pytest.mark.long
@pytest.mark.parametrize("libraries", ["gpustore gpustore", "gpustore tensorstore"])
def test_writers_in_two_processes_lose_nothing(tmp_path, libraries):
    path = tmp_path / "a.zip"
    store = KvStore.open(f"file://{path}|zip:").result()
    store["n"] = b"0"
    count = 40
    run_together(
        *(
            (WORKER, "increment", library, path, f"w{i}", count)
            for i, library in enumerate(libraries.split())
        )
    )
    assert store["n"] == b"%d" % (2 * count)
    expected = [f"w{i}/{j}".encode() for i in range(2) for j in range(count)]
    assert sorted(store.list().result()) == sorted([b"n", *expected])


@needs_compiler
@pytest.mark.long
def test_killed_writers_leave_the_old_archive_or_the_new_one(tmp_path):
    path = tmp_path / "a.zip"
    store = KvStore.open(f"file://{path}|zip:").result()
    store["v"] = b"%09d," % 0
    store["kept"] = os.urandom(300_000)
    kept = store["kept"]
    for _ in deaths(MODULE, "overwrite", path, kills=30, most=20, seed=3):
        # A lock, and one new archive that was not finished: the next writer removes it.
        names = {file.name for file in tmp_path.iterdir()} - {"a.zip", "a.zip.__lock"}
        assert len(names) <= 1
        value = store["v"]
        assert value == value[:10] * (len(value) // 10)
        assert store["kept"] == kept
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    store["v"] = b"end"
    assert sorted(store.list().result()) == [b"kept", b"v"]
    again = KvStore.open(f"file://{path}|zip:", context=gpustore.Context()).result()
    assert again["v"] == b"end"


@needs_compiler
@pytest.mark.long
def test_killed_writers_of_both_libraries_lose_nothing_of_others(tmp_path):
    path = tmp_path / "a.zip"
    store = KvStore.open(f"file://{path}|zip:").result()
    model = {"kept": os.urandom(100_000)}
    store["kept"] = model["kept"]
    draw = random.Random(7)
    libraries = ["gpustore", "tensorstore"]
    for step in range(4):
        workers = [
            start(MODULE, "write", library, path, draw.randrange(1, 30)) for library in libraries
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for i in range(3):
            store[f"{step}/{i}"] = model[f"{step}/{i}"] = draw.randbytes(100)
        for worker in workers:
            worker.communicate(timeout=60)
            assert worker.returncode == -signal.SIGKILL
        # The next TensorStore would write into the lock file that a killed one has left, and does
        # not cut it off. Our writers remove it.
        store["kept"] = model["kept"]
        theirs = tensorstore.KvStore.open(f"file://{path}|zip:").result()
        for one in (store, theirs):
            found = {key.decode(): one[key] for key in one.list().result()}
            for library in libraries:
                value = found.pop(library)
                assert value
                assert value == value[:10] * (len(value) // 10)
            assert found == model
