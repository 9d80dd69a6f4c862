"""How fast nvcomp's C calls decode, by codec, kind of data, stream size and number of streams."""

from typing import NamedTuple

import numpy as np

from benchmarks.gpu.nvcomp import repeated
from benchmarks.gpu.stream import KIB, KINDS, MIB, make_streams

_SIZES = (64 * KIB, MIB, 256 * KIB, 16 * KIB, 128 * KIB, 4 * MIB, 16 * MIB)
_COUNTS = (1, 16, 128, 1024, 8192)


class Point(NamedTuple):
    kind: str
    nbytes: int
    count: int

    def __str__(self):
        return f"{self.kind}_{self.nbytes // KIB}KiB_x{self.count}"


def points(room, *, quick, only_large=False):
    """The table's points, the most telling first, none with more output than `room` bytes."""
    if quick:
        sizes, kinds, counts = (64 * KIB, MIB), KINDS[:1], (1, 128, 4096)
    else:
        sizes, kinds, counts = _SIZES, KINDS, _COUNTS
    if only_large:
        sizes = [size for size in sizes if size >= 256 * KIB]
    found = {
        Point(kind, nbytes, min(count, room // nbytes))
        for kind in kinds
        for nbytes in sizes
        for count in counts
        if nbytes <= room
    }

    def importance(point):
        common = point.nbytes in (64 * KIB, MIB)
        full = point.count * point.nbytes >= 64 * MIB
        later = (point.kind != KINDS[0]) * (1 if common and full else 3)
        return later + (not full) + (point.count in (16,)), sizes.index(point.nbytes), -point.count

    return sorted(found, key=importance)


def measure(gpu, codec, point, made, out):
    """One row: GB/s of decoded bytes, ratio, and whether all was right."""
    rows, streams = made
    gpu.trim()
    batch = repeated(gpu, codec, streams, point.nbytes, point.count, out)
    total = point.count * point.nbytes
    gpu.fill(out.ptr, 0xA5, total)
    taken = gpu.time_ms(batch.decompress, budget_s=0.8)
    statuses, sizes = batch.results()
    expected = np.ascontiguousarray(rows[: min(point.count, len(rows))])
    right = not statuses.any() and bool((sizes == point.nbytes).all())
    row = {
        **point._asdict(),
        "GBs": round(total / taken / 1e6, 2),
        "ms": round(taken, 3),
        "ratio": round(total / batch.src_nbytes, 2),
        "equal": right and gpu.count_different(out.ptr, expected, total) == 0,
        "temp_nbytes": batch.temp_nbytes,
    }
    if total >= 64 * MIB or point.count == 1:
        try:
            row["temp_nbytes_of_these_streams"] = gpu.nvcomp.temp_nbytes_of(batch)
        except RuntimeError as error:
            row["temp_nbytes_of_these_streams"] = str(error)
    return row


def run(findings, gpu, codec):
    wanted = points(gpu.room(), quick=findings.quick, only_large=codec == "gzip_lookahead")
    kinds = tuple(dict.fromkeys(point.kind for point in wanted))
    sizes = sorted({point.nbytes for point in wanted})
    made = {}
    out = gpu.allocate(max(point.count * point.nbytes for point in wanted))
    left_out = 0
    for point in wanted:
        if findings.seconds_left() < 3:
            left_out += 1
            continue
        if (point.kind, point.nbytes) not in made:
            made |= make_streams(codec.partition("_")[0], [point.nbytes], (point.kind,))
        if findings.begin(str(point), 20):
            key = point.kind, point.nbytes
            findings.attempt(str(point), lambda: measure(gpu, codec, point, made[key], out))  # noqa: B023
            findings.leave_if_lost(gpu, str(point))
    findings.note("left_out", left_out)
    findings.note("asked", {"kinds": kinds, "nbytes": sizes})
