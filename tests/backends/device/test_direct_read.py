"""Values read from files straight into device memory are those that the host reads."""

import os
import re
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore.backends.device import direct_read, extent, open_files, staging_buffer
from gpustore.backends.device.direct_read import DirectReads, direct_unsupported_reason
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.backends.selection import select_backend
from gpustore.errors import UnsupportedError
from gpustore.resources.device import parse_device
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS, Breach
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.matrix

SHAPE = (75, 90)
COUNTERS = ("direct_reads", "bytes_direct", "direct_fallbacks", "direct_unavailable")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Short reads go straight to the device too."""
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})


@pytest.fixture(params=ORDERS)
def device(request):
    with emulated(request.param, seed=4) as device:
        yield device


@pytest.fixture
def lazy():
    with emulated() as device:
        yield device


@pytest.fixture
def tight(monkeypatch):
    """Staging buffers have room for values, hardly for tables, and none for pages."""
    monkeypatch.setattr(staging_buffer, "_SMALLEST_NBYTES", 1)
    monkeypatch.setattr(extent, "_ROW_NBYTES", 0)
    monkeypatch.setattr(direct_read, "_PAGES_NBYTES", 512)


CRC32C = {"name": "crc32c"}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}


def v2(**metadata):
    return {"shape": list(SHAPE), "chunks": [20, 31], "compressor": None, **metadata}


def v3(*codecs, dtype="uint32", endian="little", inner=None, index=()):
    chain = [*codecs[:-1], {"name": "bytes", "configuration": {"endian": endian}}, *codecs[-1:]]
    chain = [codec for codec in chain if codec is not None]
    if inner is not None:
        sharding = {"chunk_shape": inner, "codecs": chain, "index_codecs": [LITTLE, *index]}
        chain = [{"name": "sharding_indexed", "configuration": sharding}]
    return {
        "shape": list(SHAPE),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [20, 30]}},
        "data_type": dtype,
        "codecs": chain,
    }


RECORD = [["a", "|u1"], ["b", ">f4"], ["c", "<i8", [3]]]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def nested():
    """Shards in shards, their indices at the start."""
    metadata = v3(TURNED, None, inner=[5, 6], index=[CRC32C])
    (inner,) = metadata["codecs"]
    inner["configuration"] |= {"index_location": "start", "chunk_shape": [5, 3]}
    outer = {"chunk_shape": [10, 15], "codecs": [inner], "index_codecs": [LITTLE]}
    metadata["codecs"] = [{"name": "sharding_indexed", "configuration": outer}]
    return metadata


ARRAYS = {
    "raw": v2(dtype="<u4"),
    "shuffle": v2(dtype="<u4", filters=[{"id": "shuffle", "elementsize": 4}]),
    "complex": v2(dtype=">c16", order="F"),
    "field": {**v2(dtype=RECORD, fill_value=None), "field": "b"},
    "inner-field": {**v2(dtype=RECORD, fill_value=None, order="F"), "field": "c"},
    "one-byte": v2(dtype="|u1"),
    "big-endian": v2(dtype=">f8"),
    "F-order": v2(dtype="<i2", order="F"),
    "bool": v2(dtype="|b1"),
    "bool-field": {**v2(dtype=[["a", "<i2"], ["b", "|b1"]], fill_value=None), "field": "b"},
    "int4": v3(None, dtype="int4"),
    "transpose": v3(TURNED, None),
    "transpose-big-endian": v3(TURNED, None, dtype="float64", endian="big"),
    "crc32c": v3(CRC32C),
    "sharded": v3(None, inner=[5, 6]),
    "sharded-crc32c-index": v3(TURNED, None, inner=[10, 3], index=[CRC32C]),
    "sharded-crc32c": v3(CRC32C, inner=[5, 10], index=[CRC32C]),
    "nested": nested(),
}

SELECTIONS = {
    "whole": lambda store: store,
    "crop": lambda store: store[3:31, 17:44],
    "rows": lambda store: store[21:24],
    "steps": lambda store: store[70:2:-3, ::5],
    "indices": lambda store: store[[74, 2, 2, 17], :],
    "points": lambda store: store.vindex[[36, 2, 74], [40, 0, 89]],
    "outer": lambda store: store.oindex[[5, 36], [7, 0, 39]],
    "turned": lambda store: store.T,
    "missing": lambda store: store[38:62, 50:],
}


def spec_of(path, metadata):
    driver = "zarr3" if "codecs" in metadata else "zarr"
    metadata = dict(metadata)
    field = {"field": metadata.pop("field")} if "field" in metadata else {}
    return {"driver": driver, "kvstore": f"file://{path}", "metadata": metadata, **field}


def create(path, metadata, seed=0):
    """An array on disk whose rows 40 to 60 are missing chunks."""
    store = gpustore.open(spec_of(path, metadata), create=True, open=True).result()
    random = np.random.default_rng(seed)
    elements = random.integers(1, 100, store.shape).astype(store.dtype.numpy_dtype)
    store[:40] = elements[:40]
    store[60:] = elements[60:]
    return store


def opened(path, device, **options):
    return gpustore.open(f"file://{path}", device=device.name, **options).result()


def counted(read):
    """The result of a read, and how it counted reads of files."""
    before = gpustore.statistics.snapshot()
    result = read()
    after = gpustore.statistics.snapshot()
    return result, [after.get(name, 0) - before.get(name, 0) for name in COUNTERS]


def same(device, there, host):
    """Whether a read into a device gives what the host reads."""
    found, expected = there.read().result(), host.read().result()
    assert found.dtype == expected.dtype
    return on_host(device, found).tobytes() == expected.tobytes()


# --------------------------------------------------------------------------- values


@pytest.mark.long
@pytest.mark.parametrize("name", ARRAYS)
def test_reads_equal_those_of_the_host(tmp_path, name):
    host = create(tmp_path, ARRAYS[name])
    settings = [
        (order, alignment, is_direct)
        for order, alignment in zip(ORDERS, (1, 512, 4096), strict=True)
        for is_direct in (True, False)
    ]
    for order, alignment, is_direct in settings:
        with emulated(order, seed=1, file_alignment=alignment, direct_files=is_direct) as device:
            there = gpustore.open(spec_of(tmp_path, ARRAYS[name]), device=device.name).result()
            for selection, select in SELECTIONS.items():
                for layout in ("C", "F") if selection == "crop" else ("C",):
                    before = device.counts["read_file"]
                    read = partial(select(there).read, order=layout)
                    found, counts = counted(lambda read=read: read().result())
                    expected = select(host).read(order=layout).result()
                    assert on_host(device, found).tobytes() == expected.tobytes(), selection
                    reads = device.counts["read_file"] - before
                    assert counts[2] == 0
                    if is_direct:
                        assert counts[0] == reads
                        assert reads > 0
                        assert counts[1] >= 16 * reads
                    else:
                        assert (reads, counts[3] > 0) == (0, True)
                    del found, read
            del there


@pytest.mark.parametrize("name", ["raw", "transpose", "crc32c", "sharded", "bool"])
def test_crops_equal_those_of_the_host(tmp_path, lazy, name):
    host = create(tmp_path, ARRAYS[name])
    there = opened(tmp_path, lazy)
    starts = np.random.default_rng(0).integers(0, [65, 80], (20, 2))
    for shape in ((9, 10), (2, 3)):
        found, counts = counted(lambda shape=shape: there.read_many(starts, shape).result())
        expected = host.read_many(starts, shape).result()
        assert on_host(lazy, found).tobytes() == expected.tobytes()
        assert counts[0] > 0


@pytest.mark.parametrize("name", ["raw", "crc32c", "sharded-crc32c"])
def test_reads_with_little_room_equal_those_of_the_host(tmp_path, tight, name):
    host = create(tmp_path, ARRAYS[name])
    for order, alignment in zip(ORDERS, (512, 4096, 1), strict=True):
        with emulated(order, seed=2, file_alignment=alignment) as device:
            there = opened(tmp_path, device)
            before = gpustore.statistics.snapshot().get("direct_reads", 0)
            for select in SELECTIONS.values():
                assert same(device, select(there), select(host))
            assert gpustore.statistics.snapshot()["direct_reads"] > before
            del there


@pytest.mark.parametrize("name", ["raw", "sharded-crc32c"])
def test_batches_equal_those_of_the_host(tmp_path, device, name):
    host, there = create(tmp_path, ARRAYS[name]), opened(tmp_path, device)
    starts = np.random.default_rng(1).integers(0, 60, (6, 2))
    batch = gpustore.Batch()
    parts = [(slice(i, i + 9), slice(j, None, 2)) for i, j in starts.tolist()]
    futures = [there[part].read(batch=batch) for part in parts]
    batch.submit()
    for part, future in zip(parts, futures, strict=True):
        assert np.array_equal(on_host(device, future.result()), host[part].read().result())


def test_records_whole_and_missing(tmp_path, device):
    """A missing chunk of records takes room for a whole chunk, so others have to move."""
    spec = {**spec_of(tmp_path, v2(dtype=RECORD, fill_value=None)), "open_as_void": True}
    host = gpustore.open(spec, create=True).result()
    random = np.random.default_rng(3).integers(0, 256, host.shape, np.uint8)
    host[:40] = random[:40]
    there = gpustore.open(spec, device=device.name).result()
    for part in (np.s_[:], np.s_[15:60, 20:35], np.s_[50:70]):
        assert same(device, there[part], host[part])


def test_nothing_is_uploaded_but_tables(tmp_path, lazy):
    host = create(tmp_path, ARRAYS["raw"])
    there = opened(tmp_path, lazy)
    found, counts = counted(lambda: there.read().result())
    assert counts == [9, 9 * 20 * 31 * 4, 0, 0]
    assert lazy.counts["upload_nbytes"] < counts[1] / 10
    assert np.array_equal(on_host(lazy, found), host.read().result())


def test_illegal_bytes_are_seen_by_the_device_alone(tmp_path, lazy):
    create(tmp_path, ARRAYS["bool"])
    path = tmp_path / "0.1"
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    there = opened(tmp_path, lazy)
    with pytest.raises(gpustore.CorruptChunkError, match=r"0\.1.*Invalid bool value: 2"):
        there.read().result()
    assert lazy.counts["read_file"] == 9


def test_compressed_streams_pass_the_host(tmp_path, lazy):
    for metadata in (
        v2(dtype="<u4", compressor={"id": "zlib", "level": 1}),
        v3(None, {"name": "gzip", "configuration": {"level": 1}}),
    ):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        check = partial(same, lazy, host=create(path, metadata), there=opened(path, lazy))
        assert counted(check) == (True, [0, 0, 0, 0])
    assert lazy.counts["open_file"] == 0


def test_what_goes_straight_to_the_device(monkeypatch):
    monkeypatch.undo()
    good = {"needs_bytes": False, "nbytes": 1 << 20, "file_nbytes": 1 << 20, "is_direct": True}
    assert direct_unsupported_reason(**good) is None
    for change, reason in (
        ({"needs_bytes": True}, "the host looks at the encoded bytes"),
        ({"nbytes": 65535}, "a read of less than 65536 bytes"),
        ({"file_nbytes": 262143}, "a file of less than 262144 bytes"),
        ({"is_direct": False}, "files cannot be read straight into device memory here"),
    ):
        assert (
            direct_unsupported_reason(**{**good, **change})
            == direct_unsupported_reason(**change)
            == reason
        )
    assert min(direct_read.LEAST_NBYTES.values()) >= 16 << 10


def test_short_values_pass_the_host(tmp_path, monkeypatch, lazy):
    monkeypatch.undo()
    host = create(tmp_path, ARRAYS["raw"])
    assert counted(lambda: same(lazy, opened(tmp_path, lazy), host)) == (True, [0, 0, 0, 0])
    big = {"shape": [600, 300], "chunks": [256, 256], "dtype": "<u4", "compressor": None}
    host = gpustore.open(spec_of(tmp_path / "big", big), create=True).result()
    host[:] = np.arange(600 * 300, dtype="u4").reshape(600, 300)
    _, counts = counted(lambda: same(lazy, opened(tmp_path / "big", lazy), host))
    assert counts == [6, 6 << 18, 0, 0]
    _, counts = counted(
        lambda: same(lazy, opened(tmp_path / "big", lazy)[:20, :20], host[:20, :20])
    )
    assert counts == [0, 0, 0, 0]


# --------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    "faults",
    [
        {"short_reads": {0: 4000, 4: 1 << 12}},
        {"failed_reads": {0, 3, 5}},
        {"failed_opens": {0, 2, 3}},
    ],
    ids=lambda faults: next(iter(faults)),
)
@pytest.mark.parametrize("name", ["raw", "sharded-crc32c"])
def test_what_fails_goes_through_the_host_once(tmp_path, device, name, faults):
    host = create(tmp_path, ARRAYS[name])
    for fault, calls in faults.items():
        setattr(device.faults, fault, calls)
    found, counts = counted(lambda: same(device, opened(tmp_path, device), host))
    assert found
    assert counts[2] == len(next(iter(faults.values())))
    assert counts[0] > 0
    assert counts[3] == 0


def test_what_no_file_can_be_read_for_goes_through_the_host(tmp_path, lazy):
    host = create(tmp_path, ARRAYS["raw"])
    lazy.faults.failed_reads = set(range(100))
    found, counts = counted(lambda: same(lazy, opened(tmp_path, lazy), host))
    assert (found, counts) == (True, [0, 0, 9, 0])
    # It is not tried for ever.
    found, counts = counted(lambda: same(lazy, opened(tmp_path, lazy), host))
    assert (found, counts) == (True, [0, 0, 0, 9])


def test_files_that_cannot_be_opened_are_not_tried_for_ever(tmp_path, lazy):
    host = create(tmp_path, ARRAYS["raw"])
    lazy.faults.failed_opens = set(range(100))
    found, counts = counted(lambda: same(lazy, opened(tmp_path, lazy), host))
    assert (found, counts) == (True, [0, 0, 8, 1])
    assert lazy.counts["open_file"] == 8


def test_a_device_that_reads_no_files_is_asked_once(tmp_path, lazy):
    def refused(path):
        asked.append(path)
        raise UnsupportedError("reading files into device memory needs kvikio: install it")

    asked = []
    lazy.open_file = refused
    host = create(tmp_path, ARRAYS["raw"])
    found, counts = counted(lambda: same(lazy, opened(tmp_path, lazy), host))
    assert (found, counts, len(asked)) == (True, [0, 0, 0, 9], 1)
    backend = select_backend(parse_device(lazy.name))
    assert (
        backend.files.unsupported_reason
        == "reading files into device memory needs kvikio: install it"
    )


def test_files_that_are_not_direct_are_opened_once_and_closed(tmp_path):
    host = create(tmp_path, ARRAYS["raw"])
    with emulated(direct_files=False) as device:
        found, counts = counted(lambda: same(device, opened(tmp_path, device), host))
        assert (found, counts) == (True, [0, 0, 0, 9])
        assert device.counts["open_file"] == device.counts["close_file"] == 1


def test_one_file_system_without_direct_reads_leaves_the_others_theirs(tmp_path):
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    with tempfile.TemporaryDirectory(dir=shared) as name, emulated(direct_files=False) as device:
        here, there = create(tmp_path, ARRAYS["raw"]), create(Path(name), ARRAYS["raw"])
        for _ in range(2):
            found, counts = counted(lambda: same(device, opened(tmp_path, device), here))
            assert (found, counts) == (True, [0, 0, 0, 9])
        device.direct_files = True
        found, counts = counted(lambda: same(device, opened(name, device), there))
        assert (found, counts) == (True, [9, 9 * 20 * 31 * 4, 0, 0])
        found, counts = counted(lambda: same(device, opened(tmp_path, device), here))
        assert (found, counts) == (True, [0, 0, 0, 9])


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path, device):
    create(tmp_path, ARRAYS["raw"])
    path = tmp_path / "1.0"
    there = opened(tmp_path, device)[20:40, :31]
    device.faults.meanwhile = lambda number: os.truncate(path, 100)
    with pytest.raises(
        gpustore.CorruptChunkError, match=rf'"{path}".*at byte 100|100 bytes'
    ) as caught:
        there.read().result()
    assert caught.value.key == str(path)


def test_a_file_that_goes_meanwhile_was_there(tmp_path, device):
    host = create(tmp_path, ARRAYS["raw"])
    expected = host.read().result()
    there = opened(tmp_path, device)
    device.faults.meanwhile = lambda number: (tmp_path / "0.0").unlink(missing_ok=True)
    assert np.array_equal(on_host(device, there.read().result()), expected)
    device.faults.meanwhile = None
    assert same(device, there, host)  # The chunk is missing now.
    assert not np.array_equal(host.read().result(), expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_values_replaced_meanwhile_are_the_old_or_the_new_ones(tmp_path, device, in_place):
    """Of one shard all inner chunks are from one version of it."""
    host = create(tmp_path / "array", ARRAYS["sharded"])
    create(tmp_path / "other", ARRAYS["sharded"], seed=1)
    part = np.s_[:20, :30]
    old = host[part].read().result()
    stored = next((tmp_path / "other").glob("**/c/0/0"))
    path = tmp_path / "array" / stored.relative_to(tmp_path / "other")

    def replace(number):
        if number == 0 and in_place:
            path.write_bytes(stored.read_bytes())
            os.utime(path, ns=(1, 1))
        elif number == 0:
            os.replace(stored, path)

    device.faults.meanwhile = replace
    there = opened(tmp_path / "array", device)[part]
    # Not merged: each row of an inner chunk is a read of its own.
    found, counts = counted(lambda: on_host(device, there.read().result()))
    new = host[part].read().result()
    assert not np.array_equal(old, new)
    assert np.array_equal(found, new if in_place else old)
    assert (counts[2] > 0) == in_place
    assert np.array_equal(on_host(device, there.read().result()), new)


@pytest.mark.long
@pytest.mark.parametrize("name", ["crc32c", "sharded-crc32c"])
def test_chunks_are_whole_while_a_writer_replaces_them(tmp_path, device, name, monkeypatch):
    """Each chunk, or shard, always is of one value; few handles, so that they come and go."""
    monkeypatch.setattr(open_files, "HANDLES", 3)
    host = create(tmp_path, ARRAYS[name])
    host[:60] = 1
    there = opened(tmp_path, device)
    versions, found = [], []

    def write():
        while any(thread.is_alive() for thread in readers):
            versions.append(2 + len(versions))
            host[20:60, 30:60] = versions[-1]

    def read():
        for _ in range(15):
            try:
                values = on_host(device, there[:60].read().result()).reshape(3, 20, 3, 30)
            except gpustore.ConflictError:
                continue  # Replaced all the time; says so.
            found.append(values.min((1, 3)).tolist() == values.max((1, 3)).tolist())

    def run():
        for thread in readers:
            thread.start()
        write()

    readers = [threading.Thread(target=read) for _ in range(2)]
    _, counts = counted(run)
    assert len(found) > 10
    assert all(found)
    assert counts[0] > 50
    assert len(versions) > 1


def test_a_replaced_file_is_never_read_through_the_old_handle(tmp_path, lazy):
    host = create(tmp_path, ARRAYS["raw"])
    there = opened(tmp_path, lazy)
    assert same(lazy, there, host)
    assert same(lazy, there, host)
    assert lazy.counts["open_file"] == len(lazy.files) == 9
    before = host.read().result()
    create(tmp_path, ARRAYS["raw"], seed=2)
    assert same(lazy, there, host)
    assert not np.array_equal(before, host.read().result())
    assert lazy.counts["open_file"] == 18
    # Nobody can ask for the old ones again: their place on the disk is given back.
    assert len(lazy.files) == 9


def test_links_that_lead_out_of_the_store_are_refused(tmp_path, lazy):
    host = create(tmp_path / "array", ARRAYS["raw"])
    there = opened(tmp_path / "array", lazy)
    inside, outside = tmp_path / "array" / "0.0", tmp_path / "outside"
    inside.rename(tmp_path / "array" / "kept")
    inside.symlink_to("kept")
    assert same(lazy, there, host)
    outside.write_bytes((tmp_path / "array" / "kept").read_bytes())
    inside.unlink()
    inside.symlink_to(outside)
    asked = lazy.counts["open_file"]
    messages = []
    for store in (host, there):
        with pytest.raises(gpustore.StoreIOError, match="leads out of the store") as caught:
            store[:20, :31].read().result()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert lazy.counts["open_file"] == asked


def test_devices_get_the_file_that_the_kvstore_has_opened(tmp_path, lazy):
    host = create(tmp_path, ARRAYS["raw"])
    paths = []
    open_file = lazy.open_file
    lazy.open_file = lambda path: paths.append(str(path)) or open_file(path)
    assert same(lazy, opened(tmp_path, lazy), host)
    assert len(paths) == 9
    assert all(re.fullmatch(r"/proc/self/fd/\d+", path) for path in paths)


@pytest.mark.parametrize("name", ["crc32c", "sharded-crc32c"])
def test_checksums_are_compared_on_the_device(tmp_path, device, name):
    host = create(tmp_path, ARRAYS[name])
    path = tmp_path / "c/0/1"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    there = opened(tmp_path, device)
    messages = []
    for store in (host, there):
        with pytest.raises(gpustore.CorruptChunkError, match="Digest mismatch") as caught:
            store.read().result()
        assert caught.value.key == str(path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]  # The digests are of the bytes that the device has.
    _, counts = counted(lambda: there[20:40].read().result())
    assert counts[0] > 0


@pytest.mark.parametrize(("trust", "reads"), [("verified", 9), ("never", 0)])
def test_distrust_is_heeded(tmp_path, lazy, trust, reads):
    """What is not to be decoded on the device at all goes through the host."""
    host = create(tmp_path, ARRAYS["crc32c"])
    there = opened(tmp_path, lazy, context=gpustore.Context({"gpu_decode_trust": trust}))
    before = gpustore.statistics.snapshot().get("host_fallbacks", 0)
    found, counts = counted(lambda: same(lazy, there, host))
    assert (found, counts[0]) == (True, reads)
    assert gpustore.statistics.snapshot().get("host_fallbacks", 0) - before == 9 - reads


@pytest.mark.parametrize("fails", [{1}, {2}, {2, 3}])
def test_little_memory_brings_values_back_to_the_host(tmp_path, lazy, tight, fails):
    """Index arrays have tables that are larger than the values: these get memory of their own."""
    host = create(tmp_path, ARRAYS["crc32c"])
    lines = np.random.default_rng(3).integers(0, 75, 2000)
    there = opened(tmp_path, lazy)
    # The array is the first allocation, then memory of a staging buffer, then that for tables.
    lazy.faults.allocations = fails
    assert same(lazy, there[lines, :], host[lines, :])


def test_buffers_are_used_again_while_others_run(tmp_path, device):
    host = create(tmp_path, ARRAYS["raw"])
    limits = {"limits": {"device_in_flight_nbytes": 24 * 2 * 20 * 31 * 4}}
    there = opened(tmp_path, device, context=gpustore.Context(limits))
    futures = [there.read() for _ in range(4)]
    expected = host.read().result()
    for future in futures:
        assert np.array_equal(on_host(device, future.result()), expected)


def test_cancelled_reads_leave_nothing_behind(tmp_path, device):
    host = create(tmp_path, ARRAYS["raw"])
    there = opened(tmp_path, device)
    futures = [there.read() for _ in range(6)]
    for future in futures[::2]:
        future.cancel()
    kept = futures[1]
    del futures, future
    assert np.array_equal(on_host(device, kept.result()), host.read().result())


def test_reads_that_cannot_all_begin_are_waited_for(tmp_path, device):
    """Else their handles stayed in use, and the memory they are read into was given to others."""

    def interrupted(*args):
        if device.counts["read_file"] == 3:
            raise RuntimeError("interrupted")
        return read_file(*args)

    host = create(tmp_path, ARRAYS["raw"])
    there = opened(tmp_path, device)
    read_file, device.read_file = device.read_file, interrupted
    with pytest.raises(RuntimeError, match="interrupted"):
        there.read().result()
    assert not any(file.reads for file in device.files)
    device.read_file = read_file
    assert same(device, there, host)


def test_a_device_that_is_lost_says_so(tmp_path, lazy):
    create(tmp_path, ARRAYS["crc32c"])
    there = opened(tmp_path, lazy)
    lazy.faults.lost_at = 0
    for _ in range(2):
        with pytest.raises(gpustore.DeviceError, match="illegal memory access"):
            there.read().result()


# --------------------------------------------------------------------------- handles


def test_few_handles_are_open_at_once(tmp_path, device, monkeypatch):
    monkeypatch.setattr(open_files, "HANDLES", 3)
    host = create(tmp_path, ARRAYS["raw"])
    most = []
    open_file = device.open_file

    def watched(path):
        file = open_file(path)
        most.append(len(device.files))
        return file

    device.open_file = watched
    there = opened(tmp_path, device)
    found, counts = counted(lambda: same(device, there, host))
    assert (found, counts[0]) == (True, 9)
    assert max(most) == 3
    futures = [there.read() for _ in range(6)]
    expected = host.read().result()
    for future in futures:
        assert np.array_equal(on_host(device, future.result()), expected)
    select_backend(parse_device(device.name)).release()
    assert device.files == []


def write(path, nbytes=8192):
    path.write_bytes(bytes(range(256)) * (nbytes // 256))
    return path


# --------------------------------------------------------------------------- planted bugs


class Direct:
    """A staging buffer, and reads of files into its end."""

    def __init__(self, device):
        self.device = device
        self.files = OpenFiles(device)
        self.buffer = StagingBuffer(device)
        self.buffer.resize(1 << 20)
        self.reads = DirectReads(device, self.files, self.buffer)

    def begin(self, path, row=0):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return self.reads.begin(row, file.fileno(), status, 100, 5000)


@pytest.fixture
def direct():
    direct = Direct(EmulatedDevice())
    yield direct
    direct.files.close_idle()
    direct.buffer.free()


def test_a_read_before_the_memory_is_there_is_a_breach(direct, tmp_path, monkeypatch):
    monkeypatch.setattr(StagingBuffer, "settle", lambda self: None)
    with pytest.raises(Breach, match="used before their allocation had run"):
        direct.begin(write(tmp_path / "a"))


def test_a_read_before_the_event_of_the_buffer_is_a_breach(direct, tmp_path):
    path = write(tmp_path / "a")
    buffer, device = direct.buffer, direct.device
    buffer.settle()
    device.upload(buffer.pinned, 0, buffer.address(0), buffer.nbytes, buffer.stream)
    with pytest.raises(Breach, match="upload on stream 1 still uses its destination"):
        direct.begin(path)
    device.synchronize(device.record(buffer.stream))
    assert len(direct.begin(path)) == 5000
    assert direct.reads.end() == []


def test_launching_before_reads_have_ended_is_a_breach(direct, tmp_path):
    value = direct.begin(write(tmp_path / "a"))
    buffer = direct.buffer
    start = buffer.start_of(value)
    with pytest.raises(Breach, match="nobody has waited for the read of bytes"):
        direct.device.download(buffer.address(start), buffer.pinned, start, 5000, buffer.stream)
    assert direct.reads.end() == []
    buffer.download_end()
    assert bytes(value) == (bytes(range(256)) * 32)[100:5100]


def test_what_is_read_and_what_is_uploaded_share_the_buffer(direct, tmp_path):
    path = write(tmp_path / "a")
    buffer = direct.buffer
    room = buffer.nbytes // 8192
    found = [direct.begin(path, row) for row in range(room - 2)]
    assert None not in found
    assert direct.reads.end() == []
    left = buffer.left
    assert left >= 8192
    assert buffer.reserve(left + 1) is None
    assert buffer.reserve(left - 8191) == 0
    value, counts = counted(lambda: direct.begin(path))
    assert value is None
    assert counts == [0, 0, 1, 0]
    buffer.clear()
    assert direct.begin(path) is not None
    assert direct.reads.end() == []


def test_reads_leave_the_room_for_tables_alone(direct, tmp_path):
    direct.buffer.room = direct.buffer.nbytes - 3 * 4096
    assert direct.begin(write(tmp_path / "a")) is not None
    assert direct.begin(write(tmp_path / "b")) is None
    assert direct.reads.end() == []


def test_closing_a_file_that_is_read_is_a_breach(direct, tmp_path):
    direct.begin(write(tmp_path / "a"))
    (handle,) = direct.files._handles.values()
    handle.uses -= 1
    with pytest.raises(Breach, match="closed before 1 reads of it were waited for"):
        direct.files.close_idle()
    direct.reads.end()
