"""The rows of the second part: what the rounds of each cell come to."""

import statistics

PROBE = "reads:"


def _median(rounds, key):
    values = [row[key] for row in rounds if key in row]
    return statistics.median(values) if values else None


def _row(rounds):
    """One reader's row of one cell, from its rounds by number."""
    first = rounds.get(0, {})
    for why in ("cannot", "error", "hang"):
        if why in first:
            return {why: first[why]}
    row = {key: first[key] for key in first if key not in ("seconds", "cpu_s", "equal")}
    if not all(found.get("equal", False) for found in rounds.values()):
        errors = [found["error"] for found in rounds.values() if "error" in found]
        return row | {"equal": False, **({"error": errors[0]} if errors else {})}
    row["equal"] = True
    # The first read makes what is kept for later; it counts only where there is no other.
    timed = [found for number, found in rounds.items() if number] or [first]
    if "seconds" in first:
        row["rounds"] = len(timed)
        row["seconds"] = _median(timed, "seconds")
        row["best_s"] = min(found["seconds"] for found in timed)
        row["GBs"] = row["nbytes"] / row["seconds"] / 1e9
        row["cpu_s"] = _median(timed, "cpu_s")
    for key, value in timed[-1].items():
        row.setdefault(key, value)
    return row


def tables(report):
    """What was read of each format.

    Returns
    -------
    list of dict
        ``volume``, ``format``, its ``ratio`` and sizes; ``cells``: by access and reader a row;
        ``stages``: of gpustore.
    """
    found = []
    for probe, record in report["probes"].items():
        if not probe.startswith(PROBE):
            continue
        by_format = {}
        for name, value in record.get("facts", {}).items():
            array_format, *rest = name.split(" / ")
            if not array_format.startswith("zarr"):
                continue
            table = by_format.setdefault(array_format, {"cells": {}, "stages": {}})
            if not rest:
                table.update(value)
            elif rest[0] == "stages":
                table["stages"] = value
            elif len(rest) == 3:
                access, reader, number = rest
                cell = table["cells"].setdefault(access, {})
                cell.setdefault(reader, {})[int(number)] = value
        volume, _, codec = probe.removeprefix(PROBE).partition("-")
        for array_format, table in by_format.items():
            table |= {"volume": volume, "codec": codec, "format": array_format}
            table["cells"] = {
                access: {reader: _row(rounds) for reader, rounds in cell.items()}
                for access, cell in sorted(
                    table["cells"].items(), key=lambda found: found[0] == "decode"
                )
            }
            found.append(table)
    return found


def limits(report):
    """Measured rates that nothing can exceed, GB/s: pinned memory to the device, and within it."""
    facts = report["probes"].get("copies", {}).get("facts", {})

    def rates(kind, key):
        return [row[key] for name, row in facts.items() if name.startswith(kind) and key in row]

    pinned = rates("to_device_pinned_", "queued_GBs")
    within = rates("within_device_", "GBs")
    return {
        "pinned_to_device_GBs": max(pinned, default=None),
        # The smallest is in the cache; the largest counts.
        "within_device_GBs": within[-1] if within else None,
    }


def wrong(report):
    """Cells whose result was not what was written, or that failed."""
    return [
        f"{table['volume']} {table['format']} / {access} / {reader}"
        for table in tables(report)
        for access, cell in table["cells"].items()
        for reader, row in cell.items()
        if "cannot" not in row and not row.get("equal")
    ]
