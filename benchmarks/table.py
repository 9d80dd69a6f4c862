"""Print the results of a run as a table of ratios.

python -m pytest benchmarks --benchmark-json=result.json && python -m benchmarks.table result.json
"""

import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

OURS = "gpustore"
GOALS_ARE_FOR = "tensorstore"

_GOALS = (
    (r"retained_full_read .*-64KiB", 1.0),
    (r"full_read .*-(raw|blosc)-(4|16)KiB", 1.5),
    (r"full_read .*-raw-64KiB(-sharded)?", 2.0),
    (r"full_read .*-blosc-64KiB", 1.8),
    (r"full_read .*-blosc-64KiB-sharded", 1.5),
    (r"full_read .*-zstd-(4|16|64)KiB(-sharded)?", 1.2),
    (r"full_read .*-gzip-64KiB-sharded", 1.3),
    (r"full_read .*-(raw|blosc)-(1024|8192)KiB(-F)?", 1.3),
    (r"full_read .*-(zstd|gzip)-(1024|8192)KiB", 1.1),
    (r"(plane_reads|single_element_reads|1000_crops|200_\w+) .*", 1.5),
    (r"(crop_reads|full_write\w*|open_again) .*", 1.2),
    (r"(open_\w+|create\w*) .*", 0.9),
)
"""Ratios of TensorStore's time to ours that are wanted, for "operation format"."""


def goal(operation: str, rest: str) -> float | None:
    """Return the ratio that is wanted of a row; None if it has no goal."""
    return next((ratio for row, ratio in _GOALS if re.fullmatch(row, f"{operation} {rest}")), None)


def medians(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """Seconds of each peer, by operation and format."""
    rows: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in result["benchmarks"]:
        operation, _, parameters = one["name"].partition("[")
        if not parameters:
            continue  # Rows of ours alone.
        peer, _, rest = parameters.rstrip("]").partition("-")
        rows[operation.removeprefix("test_"), rest][peer] = one["stats"]["median"]
    return rows


def main(path: str) -> None:
    """Print one Markdown table: a peer's time divided by ours, above 1 we are faster."""
    result = json.loads(Path(path).read_bytes())
    rows = {key: row for key, row in medians(result).items() if OURS in row}
    peers = sorted({peer for row in rows.values() for peer in row} - {OURS})
    wanted = {key: goal(*key) for key in rows if GOALS_ARE_FOR in rows[key]}
    heads = ["operation", "format", *peers, "ours, ms"]
    heads += [f"goal for {GOALS_ARE_FOR}"] if any(wanted.values()) else []
    print("|", " | ".join(heads), "|")
    print("| --- | ---" + " | ---:" * (len(heads) - 2), "|")
    ratios = defaultdict(list)
    for (operation, rest), row in rows.items():
        cells = []
        for peer in peers:
            ratio = row[peer] / row[OURS] if peer in row else None
            cells.append("" if ratio is None else f"{ratio:.2f}")
            if ratio is not None:
                ratios[operation, peer].append(ratio)
        cells.append(f"{row[OURS] * 1e3:.2f}")
        if any(wanted.values()):
            ratio = wanted.get((operation, rest))
            is_met = ratio is None or row[GOALS_ARE_FOR] / row[OURS] >= ratio
            cells.append("" if ratio is None else f"{ratio:.1f}{'' if is_met else ' (below)'}")
        print("|", " | ".join([operation, rest, *cells]), "|")
    for operation in dict.fromkeys(operation for operation, _ in rows):
        means = []
        for peer in peers:
            found = ratios[operation, peer]
            means.append(f"{math.prod(found) ** (1 / len(found)):.2f}" if found else "")
        means += [""] * (len(heads) - 2 - len(means))
        print("|", " | ".join([operation, "geometric mean", *means]), "|")


if __name__ == "__main__":
    main(sys.argv[1])
