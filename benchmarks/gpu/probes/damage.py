"""What nvcomp's C calls make of damaged streams: a status, wrong bytes, or a hang.

Every other stream is whole and must come out so. A case that loses the context or hangs ends the
process; the next process goes on with the next case.
"""

import functools

import numpy as np

from benchmarks.gpu.frame import damaged
from benchmarks.gpu.nvcomp import Batch, packed

_GUARD = 4096


def histogram(values):
    return {str(value): int(n) for value, n in zip(*np.unique(values, return_counts=True))}


def decode(gpu, codec, streams, capacities, decoded):
    slot = 2 * len(decoded) + _GUARD
    count = len(streams)
    arena, offsets, nbytes = packed(streams)
    src, out = gpu.upload(arena), gpu.allocate(slot * count)
    gpu.fill(out.ptr, 0xA5, slot * count)
    addresses = [src.ptr + int(offset) for offset in offsets]
    places = [out.ptr + slot * i for i in range(count)]
    batch = Batch(gpu, codec, addresses, nbytes, places, capacities)
    batch.decompress()
    gpu.wait(6)
    statuses, sizes = batch.results()
    found = gpu.download(out.ptr, slot * count).reshape(count, slot)
    expected = np.frombuffer(decoded, np.uint8)
    equal = []
    for row, capacity in zip(found, capacities):
        known = min(capacity, len(decoded))
        equal.append(bool(np.array_equal(row[:known], expected[:known])))
    bad = range(1, count, 2)
    return {
        "whole_streams_right": all(equal[::2]) and not statuses[::2].any(),
        "statuses": histogram(statuses[1::2]),
        "sizes": histogram(sizes[1::2]) if len(set(sizes[1::2].tolist())) < 5 else "many",
        "of": len(bad),
        "wrong_without_status": sum(not statuses[i] and not equal[i] for i in bad),
        "wrong_without_status_nor_size": sum(
            not statuses[i] and not equal[i] and int(sizes[i]) == len(decoded) for i in bad
        ),
        "wrote_beyond": sum(bool((row[c:] != 0xA5).any()) for row, c in zip(found, capacities)),
    }


def run(findings, gpu, codec):
    cases, decoded = damaged(codec)
    for name, (streams, capacities) in cases.items():
        if not findings.begin(name):
            continue
        findings.attempt(name, functools.partial(decode, gpu, codec, streams, capacities, decoded))
        findings.leave_if_lost(gpu, name)
