"""Do nvcomp's C calls wait for the device, and can a CUDA graph hold them? Streams of the CPU."""

import functools
import os
import time

from benchmarks.gpu.findings import LOST
from benchmarks.gpu.nvcomp import CODECS, repeated
from benchmarks.gpu.stream import KIB, encode, make_data

_OCCUPIED_MS = 50
_COUNT, _NBYTES = 1024, 64 * KIB


def behind_work(gpu, call):
    """Host's milliseconds for `call` while the device is occupied, and how long that was."""
    begin = time.perf_counter()
    gpu.occupy(_OCCUPIED_MS)
    call()
    host = (time.perf_counter() - begin) * 1e3
    gpu.wait()
    return host, (time.perf_counter() - begin) * 1e3


def question(gpu, codec):
    decoded = make_data("camera_u2", _NBYTES)
    out = gpu.allocate(_COUNT * _NBYTES)
    stream = encode(codec.partition("_")[0], decoded)
    batch = repeated(gpu, codec, [stream], _NBYTES, _COUNT, out)
    alone = gpu.time_ms(batch.decompress)
    host, all_of_it = behind_work(gpu, batch.decompress)
    begin = time.perf_counter()
    for _ in range(20):
        batch.decompress()
    each = (time.perf_counter() - begin) / 20
    gpu.wait()
    found = {
        "waits": host > all_of_it / 2,
        "host_ms_behind_work": round(host, 3),
        "host_us_a_call": round(each * 1e6, 1),
        "ms": round(alone, 3),
    }
    gpu.fill(out.ptr, 0xA5, _COUNT * _NBYTES)
    try:
        graph = gpu.capture(batch.decompress)
    except Exception as error:
        return found | {"graph": f"{type(error).__name__}: {error}"[:200]}
    taken = gpu.time_ms(lambda: graph.launch(gpu.stream))
    equal = gpu.count_different(out.ptr, decoded, _COUNT * _NBYTES) == 0
    return found | {"graph": "ok", "graph_ms": round(taken, 3), "graph_equal": equal}


def run(findings, gpu, variant):
    del variant
    for codec in ("zstd", "lz4", "deflate") if findings.quick else CODECS:
        if not findings.begin(codec, 15):
            continue
        found = findings.attempt(codec, functools.partial(question, gpu, codec))
        if found.get("graph", "ok") != "ok" or "error" in found:
            os._exit(LOST)  # After a failed capture the stream is of no use.
