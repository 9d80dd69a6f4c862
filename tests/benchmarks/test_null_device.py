"""The null device has every operation of a device, and reads on it succeed."""

import inspect

import numpy as np
import pytest

import gpustore
from benchmarks.gpu.recording_device import opened
from benchmarks.null_device import NullDevice
from gpustore.device.protocol import Device

SHAPE, CHUNK = (40, 64), (16, 32)

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC32C = {"name": "crc32c"}


def blosc(cname):
    options = {"cname": cname, "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
    return {"name": "blosc", "configuration": options}


CHAINS = {
    "raw": [LITTLE],
    "zstd": [LITTLE, ZSTD],
    "blosc lz4": [LITTLE, blosc("lz4")],
    "blosc zstd": [LITTLE, blosc("zstd")],
    "blosclz": [LITTLE, blosc("blosclz")],
    "crc32c": [LITTLE, ZSTD, CRC32C],
    "shards": [
        {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": (8, 16), "codecs": [LITTLE, ZSTD]},
        }
    ],
}


def metadata_of(chain):
    return {
        "shape": SHAPE,
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNK}},
        "codecs": CHAINS[chain],
        "fill_value": 0,
    }


def operations(kind):
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: call for name, call in found if not name.startswith("_")}


def test_every_operation_of_a_device_is_there():
    mine = operations(NullDevice)
    for name, wanted in operations(Device).items():
        assert name in mine, f"the null device lacks the operation {name}"
        found = inspect.signature(mine[name]).parameters
        assert [*found] == [*inspect.signature(wanted).parameters], name
    assert {*mine} == {*operations(Device)}
    assert {name for name in Device.__annotations__ if not hasattr(NullDevice(), name)} == set()


@pytest.mark.parametrize("chain", CHAINS)
def test_reads_succeed_without_the_host(tmp_path, chain):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": metadata_of(chain)}
    elements = np.arange(2560, dtype=np.uint16).reshape(SHAPE) // 7
    gpustore.open(spec, create=True, device="cpu").result()[...] = elements
    device = NullDevice()
    with opened(device) as name:
        store = gpustore.open(spec, device=name).result()
        for part in (np.s_[...], np.s_[3:20, 5:50]):
            future = store[part].read()
            array = future.result()
            counted = future.statistics
            assert (array.shape, array.dtype) == (elements[part].shape, elements.dtype)
            assert counted["retries"] == counted["host_fallbacks"] == 0
            assert counted["launches"] == device.counts["launch"] + device.counts["decompress"]
            assert counted["copies"] == device.counts["upload"] + device.counts["download"]
            device.operations.clear()
    assert device.unread == 0


@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc lz4", "shards"])
def test_writes_succeed_without_the_host(tmp_path, chain):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": metadata_of(chain)}
    device = NullDevice()
    with opened(device) as name:
        store = gpustore.open(spec, create=True, device=name).result()
        array = device.empty(SHAPE, np.dtype(np.uint16), "C", device.stream()).array
        gpustore.statistics.reset()
        store.write(array).result()
        counted = gpustore.statistics.snapshot()
        assert counted.get("host_encodings", 0) == counted.get("retries", 0) == 0
        assert (device.counts["compress"] > 0) == (chain != "raw")
    assert device.unread == 0


def test_a_kernel_whose_results_are_unknown_is_refused():
    device = NullDevice()
    kernel = device.kernel("adler32", "gs::adler32")
    with pytest.raises(NotImplementedError, match="gs::adler32"):
        device.launch(kernel, 1, [], device.stream())
