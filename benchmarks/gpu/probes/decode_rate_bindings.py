"""How fast nvcomp's Python bindings decode the same streams, told the sizes beforehand."""

import numpy as np

from benchmarks.gpu.bindings import BoundBatch
from benchmarks.gpu.probes.decode_rate import Point
from benchmarks.gpu.stream import KIB, KINDS, MIB, make_streams

_POINTS = [
    Point(KINDS[0], nbytes, count)
    for nbytes, count in (
        (64 * KIB, 8192), (MIB, 1024), (64 * KIB, 1024), (MIB, 128), (64 * KIB, 1), (MIB, 1),
        (16 * KIB, 8192), (16 * MIB, 64),
    )
]  # fmt: skip


def measure(gpu, codec, point):
    rows, streams = make_streams(codec, [point.nbytes], (point.kind,))[point.kind, point.nbytes]
    count = len(streams)
    chosen = [streams[i % count] for i in range(point.count)]
    batch = BoundBatch(gpu, codec, chosen, [point.nbytes] * point.count)
    try:
        config, configured = batch.config_of_sizes(), True
    except Exception:
        config, configured = None, False
    taken = gpu.time_ms(lambda: batch.decode(config), budget_s=0.6)
    total = batch.decoded.nbytes
    expected = np.ascontiguousarray(rows[: min(point.count, count)])
    return {
        **point._asdict(),
        "GBs": round(total / taken / 1e6, 2),
        "ms": round(taken, 3),
        "equal": gpu.count_different(batch.decoded.data.ptr, expected, total) == 0,
        "config_of_sizes": configured,
    }


def run(findings, gpu, codec):
    for point in _POINTS:
        if findings.seconds_left() < 2:
            findings.note("left_out", True)
            return
        if point.count * point.nbytes <= gpu.room() and findings.begin(str(point), 10):
            findings.attempt(str(point), lambda: measure(gpu, codec, point))  # noqa: B023
            findings.leave_if_lost(gpu, str(point))
