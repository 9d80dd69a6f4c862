"""Ctrl-C and memory of ``gpustore copy``, in processes of its own."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.sources.array_like import of_object
from gpustore.sources.base import Source
from gpustore.transfer.plan import Plan
from gpustore.transfer.regions import first_interrupt, transfer
from tests.waiting import wait_until

# A shell may have told its background jobs to ignore Ctrl-C.
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gpustore.cli.main import main
raise SystemExit(main())
"""
PEAK = """
import resource, sys
import rich.progress
from gpustore.cli.main import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = main()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024)
raise SystemExit(code)
"""
SHAPE = (2048, 1024)
NCHUNKS = 2048


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def create(path, shape, chunk, codecs=(), dtype="uint16"):
    return gpustore.open(
        f"file://{path}/|zarr3:",
        create=True,
        dtype=dtype,
        shape=shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=chunk),
        codec=gpustore.CodecSpec({"driver": "zarr3", "codecs": list(codecs)}),
        context=gpustore.Context({"file_io_sync": False}),
    ).result()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """An array of ones: a chunk that is cut short or missing in part would show."""
    path = tmp_path_factory.mktemp("interrupt") / "a"
    create(path, SHAPE, (256, 256))[...] = 1
    return path


def stored(path):
    """Number of chunks, and names of files that are nobody's chunks."""
    names = [name for _, _, names in os.walk(path / "c") for name in names]
    others = [name for name in names if not name.isdecimal()]
    return len(names) - len(others), others


def wait_for(copy, target, nchunks):
    """Return once that much of the copy is there."""

    def is_there():
        return (target / "zarr.json").exists() and stored(target)[0] >= nchunks

    wait_until(lambda: copy.poll() is not None or is_there())


def check_usable(target, side=32):
    """Chunks are whole, for gpustore and for TensorStore; returns how many hold ones."""
    found = gpustore.open(str(target)).result().read().result()
    chunks = found.reshape(SHAPE[0] // side, side, SHAPE[1] // side, side)
    assert (chunks == chunks[:, :1, :, :1]).all()
    kvstore = {"driver": "file", "path": f"{target}/"}
    peer = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result().read().result()
    np.testing.assert_array_equal(peer, found)
    return int(chunks[:, 0, :, 0].sum())


# Regions of 64 KiB, eight of which are on their way at a time.
MOMENTS = [
    pytest.param(0, ""),
    pytest.param(150, ""),
    pytest.param(70, "--quiet", marks=pytest.mark.slow),
    pytest.param(700, "", marks=pytest.mark.slow),
    pytest.param(64, "--shards 256,256", marks=pytest.mark.slow),
    pytest.param(256, "--shards 256,256", marks=pytest.mark.slow),
]


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(("nchunks", "options"), MOMENTS)
def test_ctrl_c_leaves_a_usable_store(source, tmp_path, nchunks, options):
    target = tmp_path / "b"
    arguments = ["copy", source, target, "--chunks", "32,32", "--memory", "1", *options.split()]
    if options.startswith("--shards"):
        nchunks //= 64
    with start(COMMAND, *arguments) as copy:
        wait_for(copy, target, nchunks)
        os.kill(copy.pid, signal.SIGINT)
        out, err = copy.communicate(timeout=30)
    assert (copy.returncode, err.count("\n")) == (130, 1), err
    assert err.startswith(f"gpustore: interrupted: {target} opens and its chunks are whole, but")
    assert err.endswith(
        "of 4.19 MB were copied: the same command goes on from there, with --overwrite it begins "
        "anew\n"
    )
    assert "Copied" not in out
    count, others = stored(target)
    assert others == []
    assert check_usable(target) == count * (64 if options.startswith("--shards") else 1) < NCHUNKS
    assert (target / ".gpustore-copy.json").exists()
    with start(COMMAND, *arguments, "--quiet") as copy:
        assert copy.communicate(timeout=200) == ("", "")
    assert check_usable(target) == NCHUNKS
    assert not (target / ".gpustore-copy.json").exists()


@pytest.mark.matrix("costly")
def test_ctrl_c_does_not_wait_for_a_large_region(source, tmp_path):
    """All chunks are one region; those not begun are not written any more."""
    target = tmp_path / "b"
    with start(COMMAND, "copy", source, target, "--chunks", "8,8") as copy:
        wait_for(copy, target, 20)
        os.kill(copy.pid, signal.SIGINT)
        _, err = copy.communicate(timeout=60)
    assert copy.returncode == 130, err
    assert "only 0 B of 4.19 MB were copied" in err
    count, others = stored(target)
    assert others == []
    assert 20 <= check_usable(target, side=8) == count < 16 * NCHUNKS


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("shards", [None, "512,512"], ids=["chunks", "shards"])
def test_memory_is_bounded(tmp_path, shards):
    """The array has 134 MB; beside the regions each thread has a few chunks."""
    create(tmp_path / "a", (8192, 8192), (8192, 32))[:, ::512] = 1
    arguments = ["copy", tmp_path / "a", tmp_path / "b", "--chunks", "64,512", "--quiet"]
    if shards:
        arguments += ["--shards", shards]
    with start(PEAK, *arguments, "--memory", 8) as copy:
        out, err = copy.communicate(timeout=200)
    assert (copy.returncode, err) == (0, "")
    assert int(out) < (8 + 32) << 20


# --------------------------------------------------------------------------- in this process


def test_the_first_interrupt_is_a_wish_and_the_second_is_not():
    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        with first_interrupt() as stopped:
            assert not stopped()
            signal.raise_signal(signal.SIGINT)
            assert stopped()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is stop
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with first_interrupt() as stopped:
            signal.raise_signal(signal.SIGINT)
            assert not stopped()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    found = []

    def work():
        with first_interrupt() as stopped:
            found.append(stopped())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def rows(store, nrows, in_flight=3):
    return Plan(
        store.shape, (nrows, store.shape[1]), store.dtype.numpy_dtype.itemsize, in_flight, 1
    )


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_domains_may_begin_anywhere(in_flight):
    data = np.arange(60).reshape(10, 6)
    source = gpustore.array(data).translate_to[-3, 100]
    target = gpustore.array(np.zeros_like(data)).translate_to[7, 0]
    advanced = []
    plan = rows(source, 3, in_flight)
    transfer(of_object(source), target, plan, advance=advanced.append, stopped=lambda: False)
    np.testing.assert_array_equal(target.read().result(), data)
    assert advanced == [144, 144, 144, 48]


@pytest.mark.parametrize("after", range(4))
def test_regions_stored_before_the_interrupt_are_counted(tmp_path, after):
    """Regions are stored in order, and none is begun once it is stopped."""
    source = gpustore.array(np.ones((40, 8), "u2"))
    target = create(tmp_path / "b", (40, 8), (2, 8))
    advanced = []
    transfer(
        of_object(source),
        target,
        rows(source, 2),
        advance=advanced.append,
        stopped=lambda: len(advanced) >= after,
    )
    found = target.read().result()
    assert len(advanced) == after
    assert (found[: 2 * after] == 1).all()
    assert (found[2 * (after + 3) :] == 0).all()


def test_a_failed_region_lets_the_others_be_finished(tmp_path):
    source = create(tmp_path / "a", (8, 8), (2, 8), [{"name": "crc32c"}])
    source[...] = 1
    chunk = tmp_path / "a" / "c" / "2" / "0"
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    target = create(tmp_path / "b", (8, 8), (2, 8))
    with pytest.raises(gpustore.CorruptChunkError, match="c/2/0"):
        transfer(
            of_object(source),
            target,
            rows(source, 2),
            advance=lambda nbytes: None,
            stopped=lambda: False,
        )
    found = target.read().result()
    assert (found[:4] == 1).all()
    assert stored(tmp_path / "b")[1] == []


@pytest.mark.matrix("costly")
def test_writes_beside_a_region_belong_to_it():
    source = np.arange(60).reshape(6, 10)
    target, other = gpustore.array(np.zeros((6, 10), int)), gpustore.array(np.zeros((6, 10), int))
    plan = Plan((6, 10), (2, 10), itemsize=8, in_flight=2, reads_per_chunk=1.0)
    advanced = []

    def beside(place, elements):
        if place[0].start == 2:
            return None
        return other[place].write(-elements)

    options = {"advance": advanced.append, "stopped": lambda: False}
    transfer(of_object(source), target, plan, beside=beside, **options)
    assert advanced == [160] * 3
    assert np.array_equal(target.read().result(), source)
    expected = -source
    expected[2:4] = 0
    assert np.array_equal(other.read().result(), expected)
    with pytest.raises(gpustore.OutOfBoundsError):
        transfer(of_object(source), target, plan, beside=lambda *_: other[9:].write(0), **options)


@pytest.mark.matrix("costly")
def test_a_full_disk_is_an_error_that_names_the_chunk(source, tmp_path):
    """The limit of a file's size stands for it."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000,) * 2)\n{COMMAND}"
    target = tmp_path / "b"
    with start(limit, "copy", source, target, "--chunks", "256,32", "--quiet") as copy:
        out, err = copy.communicate(timeout=60)
    assert (copy.returncode, out, err.count("\n")) == (1, "", 1)
    assert str(target / "c") in err
    assert "only 0 B of 4.19 MB were copied" in err
    assert stored(target) == (0, [])


class Slow:
    """A source that decodes in the thread of the copy, in parts; records them."""

    def __init__(self, values, chunks):
        self.values, self.asked = values, []
        self.source = Source(values.shape, values.dtype, self.read, chunks=chunks, is_slow=True)

    def read(self, region):
        self.asked.append(region)
        return self.values[region]


@pytest.mark.parametrize("is_slow", [False, True])
def test_elements_of_another_shape_are_refused(monkeypatch, is_slow):
    monkeypatch.setattr("gpustore.transfer.regions._SLAB_NBYTES", 8)
    source = Source(
        (3, 4), np.dtype("u2"), lambda _: np.ones((1, 4), "u2"), (3, 1), is_slow=is_slow
    )
    target = gpustore.array(np.zeros((3, 4), "u2"))
    with pytest.raises(gpustore.CopyError, match=r"shape \(1, 4\) for a region of shape \(3, "):
        transfer(
            source, target, rows(target, 3), advance=lambda nbytes: None, stopped=lambda: False
        )
    assert not target.read().result().any()


@pytest.mark.parametrize("chunks", [(4, 16), (64, 3), (64, 32)])
def test_large_regions_of_slow_sources_are_read_in_parts(monkeypatch, chunks):
    monkeypatch.setattr("gpustore.transfer.regions._SLAB_NBYTES", 1 << 10)
    values = np.arange(64 * 32, dtype=">u2").reshape(64, 32)
    slow, stored, moved = Slow(values, chunks), [], []
    target = gpustore.array(np.zeros((64, 32), "u2"))
    transfer(
        slow.source,
        target,
        rows(target, 64),
        advance=stored.append,
        moving=lambda nbytes: moved.append(sum(stored) + nbytes),
        stopped=lambda: False,
    )
    np.testing.assert_array_equal(target.read().result(), values)
    assert len(slow.asked) == {(4, 16): 4, (64, 3): 4, (64, 32): 1}[chunks]
    assert moved == sorted(moved)
    assert moved[-1] == values.nbytes


def test_a_long_read_is_stopped_between_its_parts(monkeypatch):
    monkeypatch.setattr("gpustore.transfer.regions._SLAB_NBYTES", 1 << 10)
    slow = Slow(np.ones((64, 32), "u2"), (4, 32))
    target = gpustore.array(np.zeros((64, 32), "u2"))
    transfer(
        slow.source,
        target,
        rows(target, 64),
        advance=lambda nbytes: None,
        stopped=lambda: len(slow.asked) > 1,
    )
    assert len(slow.asked) == 2
    assert not target.read().result().any()
