"""What nvcomp's Python bindings make of damaged streams: an exception, silence, or a hang."""

import functools

import numpy as np

from benchmarks.gpu.bindings import BoundBatch
from benchmarks.gpu.frame import damaged

_CASES = ("cut_off", "bit_flipped", "random_after_32_bytes", "random_bytes")


def decode(gpu, codec, streams, decoded, configured):
    batch = BoundBatch(gpu, codec, streams, [len(decoded)] * len(streams))
    batch.decode(batch.config_of_sizes() if configured else None)
    gpu.wait(6)
    found = gpu.download(batch.decoded.data.ptr, batch.decoded.nbytes)
    right = (found.reshape(len(streams), -1) == np.frombuffer(decoded, np.uint8)).all(axis=1)
    return {
        "raised": False,
        "whole_streams_right": bool(right[::2].all()),
        "damaged_streams_right": int(right[1::2].sum()),
        "sizes": batch.sizes()[:5],
    }


def run(findings, gpu, codec):
    cases, decoded = damaged(codec)
    for name in _CASES:
        for configured in (False, True):
            step = f"{name}_config_of_sizes" if configured else name
            if not findings.begin(step):
                continue
            call = functools.partial(decode, gpu, codec, cases[name][0], decoded, configured)
            findings.attempt(step, call)
            findings.leave_if_lost(gpu, step)
