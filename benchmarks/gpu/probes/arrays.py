"""Small arrays in every format, read whole: right, by the device, and at the first attempt."""

import functools
import shutil

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

_COUNTED = ("launches", "waits", "retries", "host_fallbacks", "chunks_decoded_device")


def read(target, path, array_format, volume):
    store = gpustore.open(array_format.spec(path), device=target.name).result()
    future = store.read()
    array = future.result()
    counted = {name: future.statistics[name] for name in _COUNTED}
    return {"right": target.equal([array], volume.base), **counted}


def run(findings, target, variant):
    folder = findings.path.parent
    volume = load("camera_u2", TINY, folder)
    for array_format in FORMATS:
        name = str(array_format)
        if (variant == "few" and name not in FEW) or findings.seconds_left() < 3:
            continue
        path = folder / f"array-{array_format}"
        shutil.rmtree(path, ignore_errors=True)
        stored.write(path, array_format, volume, TINY)
        if findings.begin(name, 40):
            call = functools.partial(read, target, path, array_format, volume)
            findings.attempt(name, call)
            findings.leave_if_lost(target, name)
        shutil.rmtree(path)
