"""How fast the device's decoder alone is, by codec, kind of data, stream size and count."""

from typing import NamedTuple

import numpy as np

from benchmarks.gpu.stream import KIB, KINDS, MIB, make_streams
from benchmarks.gpu.stream_batch import StreamBatch
from benchmarks.gpu.timing import milliseconds, rate

_ROOM = 1 << 30
_SIZES = (64 * KIB, MIB, 256 * KIB, 16 * KIB, 4 * MIB)
_COUNTS = (1, 64, 1024, 4096, 16384)


class Point(NamedTuple):
    kind: str
    nbytes: int
    count: int

    def __str__(self):
        return f"{self.kind}_{self.nbytes // KIB}KiB_x{self.count}"


def points(*, emulated):
    """The table's points, the most telling first, none with more output than :data:`_ROOM`."""
    if emulated:
        return [Point(kind, KIB, count) for kind in KINDS for count in (1, 7)]
    found = {
        Point(kind, nbytes, min(count, _ROOM // nbytes))
        for kind in KINDS
        for nbytes in _SIZES
        for count in _COUNTS
    }

    def importance(point):
        common = point.nbytes in (64 * KIB, MIB)
        full = point.count * point.nbytes >= 64 * MIB
        later = (point.kind != KINDS[0]) * (1 if common and full else 3)
        return later + (not full), _SIZES.index(point.nbytes), -point.count

    return sorted(found, key=importance)


def measure(target, codec, point, made):
    """One row: GB/s of decoded bytes, ratio, and whether all was right."""
    rows, streams = made
    batch = StreamBatch(target, codec, streams, [point.nbytes] * len(streams), point.count)
    try:
        taken = milliseconds(target, batch.stream, batch.decompress)
        expected = np.ascontiguousarray(rows[: min(point.count, len(rows))]).reshape(-1)
        whole = np.resize(expected, batch.nbytes) if batch.nbytes % expected.nbytes else expected
        return {
            **point._asdict(),
            "ratio": round(batch.nbytes / batch.encoded_nbytes, 2),
            "equal": batch.is_right() and target.equal([batch.array], whole),
            "temp_nbytes": batch.temp_nbytes,
        } | rate(batch.nbytes, taken)
    finally:
        batch.close()


def run(findings, target, codec):
    if target.device.codec(codec) is None:
        findings.note("cannot", f"the device has no library that decodes {codec}")
        return
    made, left_out = {}, 0
    for point in points(emulated=target.is_emulated):
        if findings.seconds_left() < 3:
            left_out += 1
            continue
        key = point.kind, point.nbytes
        if key not in made:
            made |= make_streams(codec, [point.nbytes], (point.kind,))
        if findings.begin(str(point), 20):
            findings.attempt(str(point), lambda: measure(target, codec, point, made[key]))  # noqa: B023
            findings.leave_if_lost(target, str(point))
    findings.note("left_out", left_out)
