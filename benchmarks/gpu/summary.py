"""The findings as text: what failed, the facts, and the decode rates as a table."""

import json


def _brief(value):
    if not isinstance(value, dict):
        return json.dumps(value, default=str)
    return "  ".join(f"{k}={json.dumps(v, default=str)}" for k, v in value.items())[:400]


def _rates(name, facts):
    """Lines of GB/s: a row for each kind and size, a column for each count."""
    points = [row for row in facts.values() if isinstance(row, dict) and "equal" in row]
    rows = [row for row in points if "GBs" in row]
    yield f"  {sum(row['equal'] for row in points)} of {len(points)} points right"
    by_place = {}
    for row in rows:
        text = f"{row['GBs']:.2f}{'' if row['equal'] else ' WRONG'}"
        by_place.setdefault((row["kind"], row["nbytes"]), {})[row["count"]] = text
    counts = sorted({row["count"] for row in rows})
    if counts:
        yield f"{name}: GB/s of decoded bytes, by number of streams"
        yield f"  {'':>22}" + "".join(f"{count:>14}" for count in counts)
    for (kind, nbytes), found in sorted(by_place.items()):
        row = "".join(f"{found.get(count, ''):>14}" for count in counts)
        yield f"  {kind:>12} {nbytes >> 10:>5} KiB" + row
    for point, row in facts.items():
        if isinstance(row, dict) and "GBs" not in row and ("error" in row or "hang" in row):
            yield f"  {point}: {_brief(row)}"


def lines(report):
    """The whole report."""
    left_out = {}
    for name, record in report["probes"].items():
        if record["status"] == "left out":
            left_out.setdefault(record["reason"], []).append(name)
            continue
        taken = f", {record['seconds']} s" if "seconds" in record else ""
        yield f"== {name}: {record['status']}{taken}"
        if record.get("reason"):
            yield f"  {record['reason']}"
        for failure in record.get("failures", ()):
            last = failure["said"].splitlines()[-1:] or [""]
            yield f"  FAILED at {failure['step']}: {failure['how']}: {last[0]}"
        facts = record.get("facts", {})
        if name.startswith("decode_rate"):
            yield from _rates(name, facts)
            continue
        for fact, value in facts.items():
            yield f"  {fact}: {_brief(value)}"
    for reason, names in left_out.items():
        yield f"== left out, {reason}:"
        yield "  " + " ".join(names)
