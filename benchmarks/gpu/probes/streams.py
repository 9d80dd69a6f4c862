"""Are the streams that the CPU makes for the other probes valid? The CPU's decoders are asked."""

import time

from benchmarks.gpu.findings import MissingError
from benchmarks.gpu.frame import unusual
from benchmarks.gpu.plan import CODECS
from benchmarks.gpu.stream import KIB, MIB, decode, make_streams


def check(codec, sizes):
    """Encode and decode; ratios by kind of data."""
    begin = time.perf_counter()
    made = make_streams(codec, sizes)
    seconds = time.perf_counter() - begin
    ratios, wrong = {}, []
    for (kind, nbytes), (rows, streams) in made.items():
        if any(decode(codec, s, nbytes) != row.tobytes() for row, s in zip(rows, streams)):
            wrong.append(f"{kind}/{nbytes}")
        ratios[kind] = round(rows.size / sum(map(len, streams)), 2)
    for case in unusual(codec):
        if case.valid and case.name != "two_frames" and len(case.decoded) <= MIB:
            try:
                equal = decode(codec, case.encoded, len(case.decoded)) == case.decoded
            except Exception as error:
                equal, case = False, case._replace(name=f"{case.name}: {error}")
            if not equal:
                wrong.append(case.name)
    return {"ratios": ratios, "wrong": wrong, "encode_s": round(seconds, 2)}


def run(findings, gpu, variant):
    del gpu, variant
    sizes = [64 * KIB] if findings.quick else [64 * KIB, 256 * KIB, MIB]
    for codec in CODECS:
        try:
            findings.note(codec, check(codec, sizes))
        except MissingError as error:
            findings.note(codec, {"missing": str(error)})
