"""The device as it describes itself, and one stream of each codec through its decoder."""

import functools
import time

from benchmarks.gpu.plan import CODECS
from benchmarks.gpu.stream import KIB, encode, make_data
from benchmarks.gpu.stream_batch import StreamBatch

_NBYTES = 64 * KIB
KERNELS = {"lz4": "gs::decode_lz4"}


def decoded_by(target, codec, expression=None):
    """Whether streams of the host come out right, by the device's library or by a kernel."""
    decoded = make_data("camera_u2", _NBYTES)
    batch = StreamBatch(target, codec, [encode(codec, decoded)], [_NBYTES], 3)
    try:
        if expression is None:
            batch.decompress()
        else:
            batch.decode_by(expression)
        return {"right": batch.is_right() and target.equal([batch.array], decoded)}
    finally:
        batch.close()


def run(findings, target, variant):
    del variant
    findings.attempt("description", target.description)
    state = target.device.decoders()
    findings.note("engine", state.engine)
    findings.note("shortcoming", state.shortcoming)
    findings.note("missing", dict(state.missing))
    for name in ("jpeg", "tiff"):
        found = target.device.image_decoder(name)
        findings.note(f"images, {name}", found.shortcoming or found.engine)
    for codec in CODECS:
        if target.device.codec(codec) is None:
            findings.note(codec, {"missing": state.missing.get(codec, "not known")})
        elif findings.begin(codec, 20):
            findings.attempt(codec, functools.partial(decoded_by, target, codec))
            findings.leave_if_lost(target, codec)
    for codec, expression in KERNELS.items():
        if findings.begin(expression, 20):
            begin = time.perf_counter()
            call = functools.partial(decoded_by, target, codec, expression)
            found = findings.attempt(f"own kernel, {codec}", call)
            if "right" in found and not target.is_emulated:
                taken = round(time.perf_counter() - begin, 3)
                findings.note("compile_and_run_s", taken)
            findings.leave_if_lost(target, expression)
