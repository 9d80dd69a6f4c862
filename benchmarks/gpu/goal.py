"""The goals of the device path on one GPU, each with what was measured."""

from benchmarks.gpu.stage import PLACE

OURS, HOST = "gpustore", "gpustore host + copy"
UNKNOWN = "not measured"

_FAST_CODECS = ("zstd", "gzip", "blosc-zstd")


def _goal(text, table, measured=None, met=None, why=UNKNOWN):
    where = f"{table['volume']} {table['format']}" if table else ""
    return {"goal": text, "where": where, "measured": measured or why, "met": met}


def _timed(table, access, reader):
    row = table["cells"].get(access, {}).get(reader, {})
    return row if row.get("equal") and row.get("seconds") else None


def _fetch(tables, limits):
    text = "fetch: at least 90 % of the pinned host-to-device rate"
    limit = limits["pinned_to_device_GBs"]
    for table in tables:
        row = _timed(table, "whole", OURS) if table["codec"] == "raw" else None
        if row and limit:
            rate = table["encoded_nbytes"] / row["seconds"] / 1e9
            share = rate / limit
            measured = f"{rate:.1f} of {limit:.1f} GB/s: {share:.0%}"
            yield _goal(text, table, measured, share >= 0.9)


def _decode(tables, limits):
    del limits
    text = "decode: at least 97 % of nvcomp's own rate on the same streams"
    for table in tables:
        mine, other = table["stages"].get("decompress"), _timed(table, "decode", "nvcomp")
        if mine and mine.get("ms") and other:
            rate, limit = mine["nbytes"] / mine["ms"] / 1e6, other["GBs"]
            measured = f"{rate:.1f} of {limit:.1f} GB/s: {rate / limit:.0%}"
            yield _goal(text, table, measured, rate / limit >= 0.97)


def _place(tables, limits):
    text = "unshuffle and scatter: at least 85 % of the copy rate within the device"
    limit = limits["within_device_GBs"]
    for table in tables:
        stages = table["stages"]
        if limit and stages.get("place", {}).get("ms"):
            passes = sum(name in stages for name in PLACE)
            rate = passes * table["nbytes"] / stages["place"]["ms"] / 1e6
            measured = f"{rate:.0f} of {limit:.0f} GB/s: {rate / limit:.0%}"
            yield _goal(text, table, measured, rate / limit >= 0.85)


def _whole(tables, limits):
    del limits
    text = "whole reads: 5 times the best CPU reader plus copy, at a tenth of its CPU seconds"
    for table in tables:
        mine = _timed(table, "whole", OURS) if table["codec"] in _FAST_CODECS else None
        others = {
            reader: row
            for reader in table["cells"].get("whole", {})
            if reader != OURS and (row := _timed(table, "whole", reader))
        }
        if mine and others:
            best = min(others, key=lambda reader: others[reader]["seconds"])
            times = others[best]["seconds"] / mine["seconds"]
            share = mine["cpu_s"] / max(others[best]["cpu_s"], 1e-9)
            measured = f"{times:.1f} times {best}, {share:.0%} of its CPU seconds"
            yield _goal(text, table, measured, times >= 5 and share <= 0.1)


def _few(tables, limits):
    del limits
    text = "few streams: never over a tenth slower than the host path"
    for table in tables:
        mine, host = _timed(table, "few", OURS), _timed(table, "few", HOST)
        if mine and host:
            times = mine["seconds"] / host["seconds"]
            yield _goal(text, table, f"{times:.2f} times its time", times <= 1.1)


def _crops(tables, limits):
    del limits
    text = "read_many of 1 000 crops: at least 10 times faster than one by one"
    for table in tables:
        many, singly = _timed(table, "crops", OURS), _timed(table, "one by one", OURS)
        if many and singly:
            times = singly["seconds"] / many["seconds"]
            rate = many["boxes"] / many["seconds"]
            yield _goal(text, table, f"{times:.1f} times, {rate:.0f} crops/s", times >= 10)


_GOALS = {
    "fetch": _fetch, "decode": _decode, "unshuffle and scatter": _place, "whole reads": _whole,
    "few streams": _few, "read_many": _crops,
}  # fmt: skip


def goals(tables, limits, *, emulated=False):
    """One row for each goal and format it was measured with, or one that says that it was not.

    Returns
    -------
    list of dict
        ``goal``, ``where``, ``measured`` as text, ``met``: True, False, or None if not measured.
    """
    rows = []
    for name, found in _GOALS.items():
        some = [] if emulated else list(found(tables, limits))
        why = f"emulated: {UNKNOWN}" if emulated else UNKNOWN
        rows += some or [_goal(name, None, why=why)]
    return rows
