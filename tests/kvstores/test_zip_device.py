"""Arrays in zip archives, read into an emulated device."""

import zipfile

import numpy as np
import pytest

import gpustore
from gpustore.backends import _files
from gpustore.errors import CorruptChunkError
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

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
    monkeypatch.setattr(_files, "LEAST_NBYTES", {"read": 16, "file": 16})


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
