"""The second part as text: a table for each format and access, then the goals."""

from benchmarks.gpu.access import ACCESSES, MIB
from benchmarks.gpu.format import describe

OURS = "gpustore"
EMULATED = "emulated: not measured"

_COUNTERS = ("launches", "copies", "waits", "host_fallbacks")


def _counts(row):
    if "launches" not in row:
        return ""
    return ", ".join(f"{row[name]} {name.replace('_', ' ')}" for name in _COUNTERS)


def _why(row):
    for word in ("cannot", "hang", "error"):
        if word in row:
            return f"{word}: {row[word]}"
    return "" if row.get("equal") else "WRONG: not what was written"


def _times(cell, row):
    mine = cell.get(OURS, {}).get("seconds")
    return f"{row['seconds'] / mine:.2f}" if mine else ""


def _cell(access, cell):
    """Lines of one access, gpustore's first."""
    nbytes = next((row["nbytes"] for row in cell.values() if "nbytes" in row), 0)
    yield f"  {access}: {ACCESSES.get(access, 'nvcomp alone, streams on the device')}"
    if any("seconds" in row for row in cell.values()):
        yield (
            f"    {f'{nbytes / MIB:.1f} MiB':<24}{'GB/s':>8}{'best':>8}{'ms':>10}{'CPU s':>8}"
            f"{'x ours':>8}{'device MiB':>12}  calls"
        )
    for reader in sorted(cell, key=lambda reader: reader != OURS):
        row = cell[reader]
        why = _why(row)
        if why:
            yield f"    {reader:<24}{why}"
        elif "seconds" not in row:
            yield f"    {reader:<24}equal  {_counts(row)}".rstrip()
        else:
            best = row["nbytes"] / row["best_s"] / 1e9
            cpu = f"{row['cpu_s']:.2f}" if row["cpu_s"] is not None else ""
            device = f"{row['device_nbytes'] / MIB:.0f}" if "device_nbytes" in row else ""
            yield (
                f"    {reader:<24}{row['GBs']:>8.2f}{best:>8.2f}{row['seconds'] * 1e3:>10.2f}"
                f"{cpu:>8}{_times(cell, row):>8}{device:>12}  {_counts(row)}"
            ).rstrip()


def _stages(table):
    """What the device did for gpustore, by stage."""
    rows = table["stages"]
    if "error" in rows or "hang" in rows:
        yield f"  stages of gpustore: {_why(rows)}"
        return
    for name, row in rows.items():
        text = f"    {name:<24}{row['calls']:>6} calls"
        if row.get("ms"):
            nbytes = row["nbytes"] or table["nbytes"]
            text += f"{row['ms']:>10.3f} ms  {nbytes / row['ms'] / 1e6:.1f} GB/s"
        yield text


def lines(report, tables):
    """The whole report."""
    if report["emulated"]:
        yield f"{EMULATED}. Results were compared, calls counted."
        yield "Tiny volumes stand for the sizes that are named."
    absent = {}
    for name, record in report["probes"].items():
        for failure in record.get("failures", ()):
            yield f"{name}: FAILED at {failure['step']}: {failure['how']}"
        if record["status"] in ("left out", "missing") and record.get("reason"):
            absent.setdefault(f"{record['status']}: {record['reason']}", []).append(name)
    for reason, names in absent.items():
        yield f"{' '.join(names)}: {reason}"
    missing = {
        fact.removeprefix("missing / "): why
        for record in report["probes"].values()
        for fact, why in record.get("facts", {}).items()
        if fact.startswith("missing / ")
    }
    for reader, why in missing.items():
        yield f"{reader}: not compared: {why}"
    for table in tables:
        text = f"== {table['volume']} {table['format']}: {describe(table['format'])}"
        if "ratio" in table:
            text += f"; {table['nbytes'] / MIB:.2f} MiB, ratio {table['ratio']:.2f}"
        yield text
        for access, cell in table["cells"].items():
            yield from _cell(access, cell)
        if table["stages"]:
            yield "  stages of gpustore, while at least one call of them ran"
            yield from _stages(table)
    for name, rate in report["limits"].items():
        yield f"limit: {name}: {EMULATED if report['emulated'] else rate or 'not measured'}"
    yield "== goals"
    for row in report["goals"]:
        met = {True: "met", False: "NOT MET", None: ""}[row["met"]]
        yield "  " + "  ".join(
            text for text in (row["goal"], row["where"], row["measured"], met) if text
        )
