"""Do nvcomp's Python bindings decode the CPU's streams right, and without waiting, and how told?

With a config from sizes alone no stream is looked at: documented for what nvcomp has encoded.
"""

import time

from benchmarks.gpu.bindings import POLICIES, BoundBatch
from benchmarks.gpu.plan import CODECS
from benchmarks.gpu.probes.asynchrony import behind_work
from benchmarks.gpu.stream import KIB, encode, make_data

_COUNT, _NBYTES = 1024, 64 * KIB


def timed(gpu, prepare, decoded):
    """Right? How long, and does the host wait?"""
    batch, call = prepare()
    gpu.fill(batch.decoded.data.ptr, 0xA5, batch.decoded.nbytes)
    call()
    gpu.wait()
    equal = gpu.count_different(batch.decoded.data.ptr, decoded, batch.decoded.nbytes) == 0
    alone = gpu.time_ms(call)
    host, all_of_it = behind_work(gpu, call)
    return {
        "equal": equal,
        "waits": host > all_of_it / 2,
        "host_ms_behind_work": round(host, 3),
        "ms": round(alone, 3),
        "GBs": round(batch.decoded.nbytes / alone / 1e6, 2),
    }


def ways(gpu, codec, streams):
    """Ways to decode, by name: each gives the batch and the call; made when it is their turn."""

    def unconfigured():
        batch = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT)
        return batch, batch.decode

    def of_sizes():
        batch = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT)
        config = batch.config_of_sizes()
        return batch, lambda: batch.decode(config)

    def of_streams():
        batch = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT)
        config = batch.config_of_streams()
        return batch, lambda: batch.decode(config)

    def latency():
        policy = POLICIES.LATENCY
        batch = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT, execution_policy=policy)
        return batch, batch.decode

    found = {
        "no_config": unconfigured,
        "config_of_sizes": of_sizes,
        "config_of_streams": of_streams,
    }
    return found | ({"latency_policy": latency} if POLICIES else {})


def too_small(gpu, codec, streams, configured):
    """Room for half: an exception, or what?"""
    batch = BoundBatch(gpu, codec, streams, [_NBYTES // 2] * _COUNT)
    full = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT)
    batch.decode(full.config_of_sizes() if configured else None)
    gpu.wait()
    return {"raised": False, "sizes": batch.sizes()[:4]}


def run(findings, gpu, variant):
    del variant
    decoded = make_data("camera_u2", _NBYTES)
    for codec in ("zstd", "lz4") if findings.quick else CODECS:
        streams = [encode(codec, decoded)] * _COUNT
        for name, prepare in ways(gpu, codec, streams).items():
            if findings.begin(f"{codec} {name}", 10):
                findings.attempt(
                    f"{codec}_{name}",
                    lambda prepare=prepare: timed(gpu, prepare, decoded),
                )
                findings.leave_if_lost(gpu, f"{codec}_{name}")
        if findings.begin(f"{codec} config", 10):
            batch = BoundBatch(gpu, codec, streams, [_NBYTES] * _COUNT)
            begin = time.perf_counter()
            findings.attempt(f"{codec}_config", lambda batch=batch: str(batch.config_of_sizes()))
            milliseconds = (time.perf_counter() - begin) * 1e3
            findings.note(f"{codec}_config_ms_of_{_COUNT}", round(milliseconds, 3))
        for configured in (False, True):
            name = f"{codec}_room_half{'_config_of_sizes' if configured else ''}"
            if not findings.quick and findings.begin(name, 10):
                findings.attempt(
                    name,
                    lambda codec=codec, streams=streams, configured=configured: too_small(
                        gpu, codec, streams, configured
                    ),
                )
                findings.leave_if_lost(gpu, name)
