"""Blosc frames that an emulated device encodes: c-blosc's headers, readable by all."""

import numcodecs.blosc
import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from tests.backends.device.test_encoding import put
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated

pytestmark = needs_compiler

CNAMES = ("lz4", "zlib", "zstd")


def contents(kind, nbytes, seed=0):
    """Bytes that compress well, partly or not at all."""
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.integers(1, 256, nbytes, np.uint8)
    if kind == "smooth":
        return np.cumsum(rng.integers(0, 3, nbytes), dtype=np.uint8) | 1
    return np.where(np.arange(nbytes) % 8 < 4, 1, rng.integers(0, 256, nbytes)).astype(np.uint8)


@pytest.mark.matrix
@each("cname", CNAMES)
@each("shuffle", [0, 1, 2])
@each("typesize", [1, 2, 3, 4, 8, 16, 20])
def test_readers_find_the_elements(tmp_path, cname, shuffle, typesize):
    for number, (clevel, elements, blocksize, kind) in enumerate(
        [
            (1, 40, 0, "smooth"),
            (5, 5000, 0, "mixed"),
            (5, 9000, 1000, "smooth"),
            (3, 9000, 0, "random"),
            (0, 300, 0, "mixed"),
            (1, 70_001, 0, "mixed"),
        ]
    ):
        compressor = {
            "id": "blosc",
            "cname": cname,
            "clevel": clevel,
            "shuffle": shuffle,
            "blocksize": blocksize,
        }
        dtype = f"|V{typesize}" if typesize in (3, 16, 20) else f"<u{typesize}"
        path = tmp_path / str(number)
        metadata = {
            "shape": [2 * elements - 7],
            "chunks": [elements],
            "dtype": dtype if typesize > 1 else "|u1",
            "compressor": compressor,
            "fill_value": None,
        }
        spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
        plain = contents(kind, (2 * elements - 7) * typesize, seed=number).view(metadata["dtype"])
        with emulated(seed=number) as device:
            there = gpustore.open(spec, create=True, device=device.name).result()
            array = plain.view("V1") if plain.dtype.kind == "V" else plain
            array = array.reshape(there.shape)
            future = there.write(put(device, array))
            future.result()
            assert future.commit.statistics["chunks_encoded_device"] == 2
            del there, future
        first = (path / "0").read_bytes()
        options = cname.encode(), clevel, shuffle, blocksize, typesize
        known = numcodecs.blosc.compress(plain[:elements].tobytes(), *options)
        assert bytes(numcodecs.blosc.decompress(first)) == plain[:elements].tobytes()
        assert first[:2] + first[3:12] == known[:2] + known[3:12]
        assert first[2] & ~2 == known[2] & ~2
        assert len(first) <= len(known) * 1.5 + 100
        assert gpustore.open(spec).result().read().result().tobytes() == plain.tobytes()
        assert zarr.open(path, mode="r")[...].tobytes() == plain.tobytes()
        if typesize in (1, 2, 4, 8):
            other = tensorstore.open(spec).result()
            assert other.read().result().tobytes() == plain.tobytes()


@pytest.mark.parametrize("cname", ["blosclz", "lz4hc"])
def test_the_host_encodes_other_compressors(tmp_path, cname):
    compressor = {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": 1, "blocksize": 0}
    metadata = {"shape": [100], "chunks": [50], "dtype": "<u4", "compressor": compressor}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    with emulated() as device:
        there = gpustore.open(spec, create=True, device=device.name).result()
        future = there.write(put(device, np.arange(1, 101, dtype="u4")))
        future.result()
        assert future.commit.statistics["host_encodings"] == 2
        del there, future
    assert (gpustore.open(spec).result().read().result() == np.arange(1, 101)).all()
