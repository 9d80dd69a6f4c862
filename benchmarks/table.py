"""Print the results of a run as a table of ratios.

python -m pytest benchmarks --benchmark-json=result.json && python -m benchmarks.table result.json
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

OURS = "gpustore"


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
    rows = medians(result)
    peers = sorted({peer for row in rows.values() for peer in row} - {OURS})
    print(f"| operation | format | {' | '.join(peers)} | ours, ms |")
    print(f"| --- | --- | {' | '.join('---:' for _ in peers)} | ---: |")
    ratios = defaultdict(list)
    for (operation, rest), row in rows.items():
        if OURS not in row:
            continue
        cells = []
        for peer in peers:
            ratio = row[peer] / row[OURS] if peer in row else None
            cells.append("" if ratio is None else f"{ratio:.2f}")
            if ratio is not None:
                ratios[operation, peer].append(ratio)
        print(f"| {operation} | {rest} | {' | '.join(cells)} | {row[OURS] * 1e3:.2f} |")
    for operation in dict.fromkeys(operation for operation, _ in rows):
        means = []
        for peer in peers:
            found = ratios[operation, peer]
            means.append(f"{math.prod(found) ** (1 / len(found)):.2f}" if found else "")
        print(f"| {operation} | geometric mean | {' | '.join(means)} | |")


if __name__ == "__main__":
    main(sys.argv[1])
