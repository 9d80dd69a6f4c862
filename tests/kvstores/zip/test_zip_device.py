"""Arrays in zip archives, read into an emulated device."""

import json
import os
import re
import zipfile
import zlib

import google_crc32c
import numpy as np
import pytest

import gpustore
from gpustore.backends.device import direct_read
from gpustore.errors import CorruptChunkError
from gpustore.kvstores.zip import archive
from tests.emulator.queue import ORDERS
from tests.kvstores.zip.archive import central, made, patched
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.matrix

SHAPE = (75, 90)
CRC32C = {"name": "crc32c"}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CODECS = {
    "raw": [BYTES],
    "crc32c": [BYTES, CRC32C],
    "zstd": [BYTES, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    "sharded": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [5, 10],
                "codecs": [BYTES, CRC32C],
                "index_codecs": [BYTES, CRC32C],
            },
        }
    ],
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Short reads go straight to the device too."""
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})


@pytest.fixture(params=ORDERS)
def device(request):
    with emulated(request.param, seed=1) as device:
        yield device


@pytest.fixture
def lazy():
    with emulated() as device:
        yield device


def written(path, codecs, compression):
    """A spec of an array in an archive, whose chunks are written already."""
    kvstore = {"driver": "zip", "base": f"file://{path}", "path": "a/", "compression": compression}
    grid = {"name": "regular", "configuration": {"chunk_shape": [20, 30]}}
    metadata = {"shape": list(SHAPE), "data_type": "uint32", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    array = gpustore.open({**spec, "metadata": metadata}, create=True).result()
    array[...] = np.arange(SHAPE[0] * SHAPE[1], dtype=np.uint32).reshape(SHAPE)
    return spec


@pytest.mark.long
@pytest.mark.parametrize("compression", ["store", "deflate"])
@pytest.mark.parametrize("name", CODECS)
def test_reads_equal_those_of_the_host(tmp_path, device, compression, name):
    spec = written(tmp_path / "a.zip", CODECS[name], compression)
    host = gpustore.open(spec).result()
    parts = [np.s_[:, :], np.s_[7:50, 3:80:2], np.s_[21:22, 31:33]]
    there = gpustore.open(spec, device=device.name).result()
    for _ in range(2):  # The second time it is known where members lie.
        for part in parts:
            found = there[part].read().result()
            assert np.array_equal(on_host(device, found), host[part].read().result())


@pytest.mark.parametrize("name", ["raw", "sharded", "crc32c"])
def test_stored_members_go_straight_to_the_device(tmp_path, lazy, name):
    spec = written(tmp_path / "a.zip", CODECS[name], "store")
    direct = []
    there = gpustore.open(spec, device=lazy.name).result()
    for _ in range(2):
        before = gpustore.statistics.snapshot().get("direct_reads", 0)
        there.read().result()
        direct.append(gpustore.statistics.snapshot().get("direct_reads", 0) - before)
    # Small members come along with their headers the first time, unless parts of them are read.
    assert direct == [12 if name == "sharded" else 0, 12]


def test_large_members_go_straight_to_the_device_the_first_time(tmp_path, lazy):
    spec = {"driver": "zip", "base": f"file://{tmp_path}/a.zip", "compression": "store"}
    data = np.random.default_rng(0).integers(0, 255, (300, 1000), np.uint8)
    metadata = {"shape": [300, 1000], "chunks": [100, 1000], "dtype": "|u1", "compressor": None}
    array = {"driver": "zarr", "kvstore": spec}
    gpustore.open({**array, "metadata": metadata}, create=True).result()[...] = data
    there = gpustore.open(array, device=lazy.name).result()
    before = gpustore.statistics.snapshot().get("direct_reads", 0)
    assert np.array_equal(on_host(lazy, there.read().result()), data)
    assert gpustore.statistics.snapshot()["direct_reads"] - before == 3


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_checksums_of_members_are_compared_where_the_host_has_the_bytes(
    tmp_path, lazy, compression
):
    spec = written(tmp_path / "a.zip", CODECS["zstd"], "store")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        values = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "a.zip", "w", compression) as archive:
        for name, value in values.items():
            archive.writestr(name, value)
        damaged = archive.getinfo("a/c/1/1").header_offset + 30 + len("a/c/1/1") + 40
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[damaged] ^= 1
    (tmp_path / "a.zip").write_bytes(data)
    there = gpustore.open(spec, device=lazy.name).result()
    with pytest.raises(CorruptChunkError, match=r'Error reading "a/c/1/1" in local file '):
        there.read().result()


# --------------------------------------------------------------------------- checksums there


RAW = np.arange(6 * 500, dtype="<u4").reshape(6, 500)
POINTS = np.random.default_rng(0).integers(0, RAW.size, 90_000)


def raw_archive(path, *, codecs=(BYTES,), damaged=(), what="data", inside=""):
    """An array of six raw chunks, one a row; some of the members are damaged.

    With `inside` the archive is a stored member of that name of another one.
    """
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(RAW.shape),
        "data_type": "uint32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 500]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": list(codecs),
    }
    chunks = [row.tobytes() for row in RAW]
    if CRC32C in codecs:
        chunks = [one + google_crc32c.value(one).to_bytes(4, "little") for one in chunks]
    members = [(f"c/{row}/0", chunk) for row, chunk in enumerate(chunks)]
    data = made([("zarr.json", json.dumps(metadata).encode()), *members])
    for row in damaged:
        if what == "data":
            at = data.index(chunks[row]) + 400
            data = patched(data, at, "B", data[at] ^ 16)
        else:
            data = patched(data, central(data, row + 1) + 16, "I", 12345)
    if inside:
        data = made([("first", b"1"), (inside, data)])
    path.write_bytes(data)
    return f"file://{path}|zip:{f'{inside}|zip:' if inside else ''}|zarr3:"


def crops(store):
    return store.read_many([[0, 0], [3, 0]], (2, 500))


def batched(store):
    with gpustore.Batch() as batch:
        reads = [store[:3].read(batch=batch), store[2:].read(batch=batch)]
    reads[0].result()
    return reads[1]


READS = {"read": lambda store: store.read(), "crops": crops, "batch": batched}


def direct_bytes():
    return gpustore.statistics.snapshot().get("bytes_direct", 0)


@pytest.mark.parametrize("what", ["data", "checksum"])
@pytest.mark.parametrize("how", READS)
def test_damaged_members_that_only_the_device_sees_are_errors(tmp_path, device, how, what):
    url = raw_archive(tmp_path / "a.zip", damaged=[4], what=what)
    store = gpustore.open(url, device=device.name).result()
    found = zlib.crc32(RAW[4].tobytes())
    text = f"CRC-32 of the data is {found:08x}, expected 00003039"
    if what == "data":
        text = rf"CRC-32 of the data is [0-9a-f]{{8}}, expected {found:08x}$"
    path = tmp_path / "a.zip"
    for _ in range(2):
        before = direct_bytes()
        with pytest.raises(CorruptChunkError, match=text) as caught:
            READS[how](store).result()
        assert str(caught.value).startswith(
            f'FAILED_PRECONDITION: Error reading "c/4/0" in local file "{path}": CRC-32'
        )
        assert caught.value.key == "c/4/0"
        assert caught.value.codec == "zip"
    assert direct_bytes() > before
    assert np.array_equal(on_host(device, store[:4].read().result()), RAW[:4])
    del caught


def test_all_damaged_members_of_a_submission_are_named(tmp_path, lazy):
    url = raw_archive(tmp_path / "a.zip", damaged=[1, 3])
    store = gpustore.open(url, device=lazy.name).result()
    store[:, 0].read().result()  # Small members come along the first time, unless they are known.
    with pytest.raises(CorruptChunkError, match=r'; 2 chunks are wrong: "c/1/0", "c/3/0"$'):
        store[1:4].read().result()


def test_checksums_cost_a_launch_and_no_wait(tmp_path, lazy):
    url = raw_archive(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "a")
    counts = []
    for one in (url, f"file://{tmp_path}/a/|zarr3:"):
        store = gpustore.open(one, device=lazy.name).result()
        for _ in range(2):
            read = store[:, :100].read()  # Parts have no checksum.
            read.result()
            parts = read.statistics
            read = store.read()
            assert np.array_equal(on_host(lazy, read.result()), RAW)
        assert read.statistics["bytes_direct"] == RAW.nbytes
        counts.append((read.statistics["waits"], parts["waits"]))
    assert counts[0] == counts[1] == (1, 1)


def test_the_bytes_on_the_device_are_compared_not_those_of_the_file(tmp_path, lazy):
    """A read that brings other bytes: nobody has written to the file."""
    url = raw_archive(tmp_path / "a.zip")
    store = gpustore.open(url, device=lazy.name).result()
    for _ in range(2):
        assert np.array_equal(on_host(lazy, store.read().result()), RAW)
    status = (tmp_path / "a.zip").stat()
    good = (tmp_path / "a.zip").read_bytes()

    def damage(number):
        at = good.index(RAW[2].tobytes()) + 100
        with (tmp_path / "a.zip").open("r+b") as file:
            file.seek(at)
            file.write(b"?")
        os.utime(tmp_path / "a.zip", ns=(status.st_atime_ns, status.st_mtime_ns))

    lazy.faults.meanwhile = damage
    with pytest.raises(CorruptChunkError, match=r'"c/2/0" in local file .*: CRC-32'):
        store.read().result()


def test_parts_of_members_are_not_compared(tmp_path, lazy):
    """Parts are not compared on the host either: a checksum is of the whole member."""
    url = raw_archive(tmp_path / "a.zip", damaged=[4])
    there = gpustore.open(url, device=lazy.name).result()
    host = gpustore.open(url).result()
    for part in (np.s_[:, :100], np.s_[:, 90:150], np.s_[4, 450:]):
        for _ in range(2):
            found = on_host(lazy, there[part].read().result())
            assert np.array_equal(found, host[part].read().result())
    assert np.array_equal(host[4, :100].read().result(), RAW[4, :100])
    assert not np.array_equal(host[4, :101].read().result(), RAW[4, :101])
    for store in (host, there):
        with pytest.raises(CorruptChunkError, match=r'"c/4/0" in local file .*: CRC-32'):
            store.read().result()


def test_the_innermost_archive_is_named(tmp_path, lazy):
    url = raw_archive(tmp_path / "a.zip", damaged=[0], inside="in/x.zip")
    store = gpustore.open(url, device=lazy.name).result()
    store[:, 0].read().result()
    before = direct_bytes()
    with pytest.raises(CorruptChunkError, match=r'"c/0/0" in "in/x\.zip" in local .*: CRC-32'):
        store.read().result()
    assert direct_bytes() > before


@pytest.mark.long
@pytest.mark.parametrize("damaged", [(), (2,)], ids=["sound", "damaged"])
@pytest.mark.parametrize("codecs", [[BYTES], [BYTES, CRC32C]], ids=["raw", "crc32c"])
@pytest.mark.parametrize("kind", ["allocations", "pinned"])
def test_checksums_are_compared_when_memory_runs_out(tmp_path, monkeypatch, kind, codecs, damaged):
    """Bytes that come back to the host are compared there."""
    monkeypatch.setattr(archive, "_SMALL_NBYTES", 0)  # None comes along with its header.
    url = raw_archive(tmp_path / "a.zip", codecs=codecs, damaged=damaged)
    name = "allocations" if kind == "allocations" else "allocate_pinned"
    number, calls, outcomes = 0, 1, []
    while number <= calls:  # The last time nothing goes wrong.
        with emulated(seed=number) as device:
            store = gpustore.open(url, device=device.name).result()
            begun = device.counts[name]
            setattr(device.faults, kind, {begun + number})
            read = store.vindex[POINTS % 6, POINTS % 500].read()
            found = None
            try:
                found = read.result()
                outcomes.append("sound")
            except CorruptChunkError as error:
                outcomes.append(re.sub("local .*CRC-32 .*", "...", str(error)))
            calls = device.counts[name] - begun
            setattr(device.faults, kind, set())
            assert read.statistics["bytes_direct"] or number < calls
            if outcomes[-1] == "sound":
                assert np.array_equal(on_host(device, found), RAW[POINTS % 6, POINTS % 500])
            del store, read, found
        number += 1
    text = 'FAILED_PRECONDITION: Error reading "c/2/0" in ...'
    assert set(outcomes) == {text if damaged else "sound"}
    assert len(outcomes) > 1
