"""The device as the CUDA runtime describes it, and one stream of each codec through each engine."""

import functools
import importlib
import time

import cupy
import numpy as np

from benchmarks.gpu.nvcomp import abi, repeated
from benchmarks.gpu.plan import CODECS
from benchmarks.gpu.stream import KIB, encode, make_data


def description():
    runtime = cupy.cuda.runtime
    begin = time.perf_counter()
    runtime.free(0)
    context = time.perf_counter() - begin
    found = runtime.getDeviceProperties(0)
    free, total = runtime.memGetInfo()
    return {
        "name": found["name"].decode(),
        "compute_capability": cupy.cuda.Device(0).compute_capability,
        "multiprocessors": found.get("multiProcessorCount"),
        "l2_MiB": found.get("l2CacheSize", 0) / 2**20,
        "copy_engines": found.get("asyncEngineCount"),
        "free_GiB": round(free / 2**30, 1),
        "total_GiB": round(total / 2**30, 1),
        "cuda_of_driver": runtime.driverGetVersion(),
        "cuda_of_cupy": runtime.runtimeGetVersion(),
        "nvrtc": list(cupy.cuda.nvrtc.getVersion()),
        "context_s": round(context, 3),
    }


def by_library(gpu, codec):
    """One stream by ctypes: this is also whether nvcomp's CUDA runtime suits the driver."""
    decoded = make_data("camera_u2", 64 * KIB)
    out = gpu.allocate(decoded.nbytes)
    gpu.fill(out.ptr, 0xA5, decoded.nbytes)
    batch = repeated(gpu, codec, [encode(codec, decoded)], decoded.nbytes, 1, out)
    batch.decompress()
    gpu.wait(10)
    statuses, sizes = batch.results()
    equal = bool(np.array_equal(gpu.download(out.ptr, decoded.nbytes), decoded))
    return {"status": int(statuses[0]), "nbytes": int(sizes[0]), "equal": equal}


def by_bindings(codec):
    nvcomp = importlib.import_module("nvidia.nvcomp")
    decoded = make_data("camera_u2", 64 * KIB)
    stream = cupy.asarray(np.frombuffer(encode(codec, decoded), np.uint8))
    engine = nvcomp.Codec(algorithm=abi.FORMATS[codec], bitstream_kind=nvcomp.BitstreamKind.RAW)
    found = cupy.asnumpy(cupy.asarray(engine.decode(nvcomp.as_array(stream)))).view(np.uint8)
    return {"equal": bool(np.array_equal(found, decoded))}


def run(findings, gpu, variant):
    del variant
    if findings.begin("description"):
        findings.attempt("description", description)
    for codec in CODECS:
        if findings.begin(f"library {codec}"):
            findings.attempt(f"library_{codec}", functools.partial(by_library, gpu, codec))
            findings.leave_if_lost(gpu, f"library_{codec}")
    for codec in CODECS:
        if findings.begin(f"bindings {codec}"):
            findings.attempt(f"bindings_{codec}", functools.partial(by_bindings, codec))
