"""Small arrays in every format, read and written whole: right, and how much the host did of it."""

import functools
import shutil

import numpy as np

import gpustore
from benchmarks.gpu import stored
from benchmarks.gpu.access import TINY
from benchmarks.gpu.dataset import load
from benchmarks.gpu.format import ZARR2, ZARR3, Format

FORMATS = (
    *(Format(codec, 2, "1MiB") for codec in ZARR2),
    *(Format(codec, 3, "1MiB", sharded=True) for codec in ZARR3),
)

FEW = ("zarr2-zstd-1MiB", "zarr2-blosc-lz4-1MiB", "zarr3-gzip-1MiB-sharded")
"""Under a sanitizer, which slows everything down."""

_OF_READS = (
    "launches", "waits", "retries", "host_fallbacks", "few_stream_reads", "missing_decoder_reads",
    "chunks_decoded_device",
)  # fmt: skip
_OF_WRITES = ("chunks_encoded_device", "host_encodings")


def counted(names):
    found = gpustore.statistics.snapshot()
    return {name: found.get(name, 0) for name in names}


def read_and_write(target, path, array_format, volume):
    """Read an array, write what was read to another one, and read that on the host."""
    spec = array_format.spec(path)
    store = gpustore.open(spec, device=target.name).result()
    gpustore.statistics.reset()
    array = store.read().result()
    row = {"right": target.equal([array], volume.base), **counted(_OF_READS)}
    other = array_format.spec(path.with_name(f"{path.name}-written"))
    metadata = array_format.metadata(volume.shape, volume.base.dtype, TINY)
    there = gpustore.open({**other, "metadata": metadata}, create=True, device=target.name).result()
    gpustore.statistics.reset()
    there.write(array).result()
    row |= counted(_OF_WRITES)
    found = gpustore.open(other, device="cpu").result().read().result()
    return row | {"written": bool(np.array_equal(found, np.resize(volume.base, found.shape)))}


def run(findings, target, variant):
    folder = findings.path.parent
    volume = load("camera_u2", TINY, folder)
    for array_format in FORMATS:
        name = str(array_format)
        if (variant == "few" and name not in FEW) or findings.seconds_left() < 3:
            continue
        path = folder / f"array-{array_format}"
        for one in folder.glob(f"{path.name}*"):  # Of a process that did not live to the end.
            shutil.rmtree(one)
        stored.write(path, array_format, volume, TINY)
        if findings.begin(name, 40):
            call = functools.partial(read_and_write, target, path, array_format, volume)
            findings.attempt(name, call)
            findings.leave_if_lost(target, name)
        for one in folder.glob(f"{path.name}*"):
            shutil.rmtree(one)
