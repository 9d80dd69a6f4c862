"""Whole reads by size of submissions, number of staging buffers and of threads that fill them."""

import statistics
import time

import gpustore
from benchmarks.gpu import stored
from benchmarks.gpu.access import FULL, TINY
from benchmarks.gpu.dataset import load
from benchmarks.gpu.format import Format
from benchmarks.gpu.recording_device import opened
from benchmarks.gpu.setting import settings

FORMATS = (Format("blosc-lz4", 2, "1MiB"), Format("zstd", 3, "64KiB", sharded=True))

_ROUNDS = 3


def read(target, path, array_format, setting, expected):
    """One point for one format: seconds (median), launches and waits of a read; is it right?"""
    setting.apply()
    target.forget()
    # A backend of its own, which has seen no other setting.
    with opened(target.device) as name:
        spec = array_format.spec(path)
        store = gpustore.open(spec, context=setting.context(), device=name).result()
        taken, array = [], None
        for _ in range(1 if target.is_emulated else 1 + _ROUNDS):
            array = None
            begin = time.perf_counter()
            future = store.read()
            array = future.result()
            target.wait()
            taken.append(time.perf_counter() - begin)
        counted = {key: future.statistics[key] for key in ("launches", "waits", "retries")}
        row = {"right": target.equal([array], expected), **counted}
        del array, future
    if not target.is_emulated:
        row |= {"seconds": statistics.median(taken[1:])}
    return row


def best(rows):
    """The setting whose reads were the fastest over all formats: the product of their times."""
    found = {}
    for setting, _, row in rows:
        if row.get("right") and "seconds" in row:
            found.setdefault(setting, []).append(row["seconds"])
    every = {
        setting: statistics.geometric_mean(seconds)
        for setting, seconds in found.items()
        if len(seconds) == len(FORMATS)
    }
    return min(every, key=every.get, default=None)


def run(findings, target, variant):
    del variant
    scale, folder = TINY if target.is_emulated else FULL, findings.path.parent
    volume = load("camera_u2", scale, folder)
    paths = {array_format: folder / f"sweep-{array_format}" for array_format in FORMATS}
    for array_format, path in paths.items():
        if not path.exists():
            stored.write(path, array_format, volume, scale)
    rows = []
    for setting in settings(tiny=target.is_emulated):
        for array_format, path in paths.items():
            name = f"{setting} / {array_format}"
            if findings.seconds_left() > 3 and findings.begin(name, 30):

                def call(setting=setting, array_format=array_format, path=path):
                    return read(target, path, array_format, setting, volume.base)

                findings.attempt(name, call)
                findings.leave_if_lost(target, name)
            row = findings.known.get(name, {})
            if "seconds" in row and "GBs" not in row:
                row |= {"GBs": round(volume.nbytes / row["seconds"] / 1e9, 2)}
                findings.note(name, row)
            rows.append((setting, array_format, row))
    chosen = best(rows)
    if chosen is not None:
        findings.note("best", {name: getattr(chosen, name) for name in chosen.__slots__})
