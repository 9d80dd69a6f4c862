"""Which valid but unusual streams nvcomp decodes, one by one beside a plain stream."""

import functools

from benchmarks.gpu.frame import unusual
from benchmarks.gpu.nvcomp import Batch, packed
from benchmarks.gpu.stream import encode

_NEIGHBOUR = b"neighbour" * 1024
_BETWEEN = 4096


def decode(gpu, codec, case):
    """Decode the case to the end of an arena whose beginning is a plain stream's."""
    arena, offsets, nbytes = packed([case.encoded, encode(codec, _NEIGHBOUR)], case.shift)
    src = gpu.upload(arena)
    at = len(_NEIGHBOUR)
    capacity = len(case.decoded)
    out = gpu.allocate(at + capacity + _BETWEEN)
    gpu.fill(out.ptr, 0xA5, at + capacity + _BETWEEN)
    addresses = [src.ptr + int(offset) for offset in offsets]
    batch = Batch(gpu, codec, addresses, nbytes, [out.ptr + at, out.ptr], [capacity, at])
    batch.decompress()
    gpu.wait(8)
    (status, _), (size, _) = batch.results()
    found = gpu.download(out.ptr, at + capacity + _BETWEEN)
    return {
        "status": int(status),
        "nbytes": int(size),
        "expected_nbytes": capacity,
        "equal": found[at : at + capacity].tobytes() == case.decoded,
        "neighbour_equal": found[:at].tobytes() == _NEIGHBOUR,
        "wrote_beyond": bool((found[at + capacity :] != 0xA5).any()),
        "claims_nbytes": int(batch.claimed_sizes()[0]),
    }


def run(findings, gpu, codec):
    for case in unusual(codec):
        if findings.begin(case.name):
            findings.attempt(case.name, functools.partial(decode, gpu, codec, case))
            findings.leave_if_lost(gpu, case.name)
