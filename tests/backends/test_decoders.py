"""What is known of GPUs without one is what devices say."""

import numpy as np
import pytest

import gpustore
from gpustore.backends import selection
from gpustore.backends.decoders import GpuDecoders
from tests.emulator import codecs
from tests.on_device import emulated, on_host

OWN = {"id": "blosc", "cname": "blosclz", "clevel": 5, "shuffle": 1, "blocksize": 0}
COMPRESSORS = {
    "raw": None,
    "lz4": {"id": "lz4", "acceleration": 1},
    "blosc-blosclz": OWN,
    "blosc-lz4": {**OWN, "cname": "lz4"},
    "blosc-zstd": {**OWN, "cname": "zstd"},
    "zstd": {"id": "zstd", "level": 1},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "bz2": {"id": "bz2", "level": 1},
}


def test_nvcomp_has_the_codecs_of_the_emulated_device():
    decoders = GpuDecoders(has_nvcomp=True)
    with emulated() as device:
        for name in (*codecs.CODECS, "bz2"):
            there, known = device.codec(name), decoders.codec(name)
            assert (there is None) == (known is None)
            if known is not None:
                assert known.detects_damage == there.detects_damage
                assert known.decoded_max_nbytes == there.decoded_max_nbytes


@pytest.mark.parametrize("has_nvcomp", [False, True], ids=["cupy-alone", "nvcomp"])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_said_of_a_gpu_is_what_a_device_with_these_codecs_does(tmp_path, name, has_nvcomp):
    """Also: without any library chunks of own kernels are decoded on the device."""
    metadata = {
        "shape": [40, 30],
        "chunks": [8, 9],
        "dtype": "<u4",
        "compressor": COMPRESSORS[name],
    }
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    host = gpustore.open(spec, create=True).result()
    elements = np.random.default_rng(0).integers(0, 50, host.shape).astype("u4")
    host[...] = elements
    decodes = {"decodes": tuple(codecs.CODECS)} if has_nvcomp else {"decodes": ()}
    with emulated(**decodes) as device:
        there = gpustore.open(spec, device=device.name).result()
        chain = there._driver.array.chain
        read = there.read()
        assert np.array_equal(on_host(device, read.result()), elements)
        counts = read.statistics
        expected = (
            "device"
            if chain.unsupported_reason(GpuDecoders(has_nvcomp=has_nvcomp)) is None
            else "host"
        )
        if name == "raw":
            assert expected == "device"
            assert not counts["chunks_decoded_device"]
        else:
            assert counts["chunks_decoded_device"] == (20 if expected == "device" else 0)
        assert counts["host_fallbacks"] == (0 if expected == "device" else 20)
        del there, read


def test_a_gpu_needs_a_driver_and_cupy_alone(monkeypatch):
    installed = {"cupy"}
    monkeypatch.setattr(selection, "_has_driver", lambda: True)
    monkeypatch.setattr(selection.registry, "is_installed", installed.__contains__)
    assert selection.missing_for_cuda() == []
    installed.clear()
    (missing,) = selection.missing_for_cuda()
    assert missing.startswith("not installed: cupy (")
