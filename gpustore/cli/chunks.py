"""``gpustore chunks``: which chunks of an array are stored, and how large they are.

Chunks are known from a list of the keys; none is read. Stored values of a sharded array are shards.

1. List the keys below the array, with the sizes of their values.
2. Draw the grid of the last two dimensions; a character stands for all chunks along the others, and
   for several chunks where the grid is larger than the screen. ``--index`` draws a part.
3. Print totals and a histogram of the sizes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.options import add_json_option, add_place_options, index_expression
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.cli.selection import element_ranges
from gpustore.cli.value_grid import StoredValues, ValueGrid
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_nbytes, format_shape

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


_BINS = 8
_BAR = 30
_MAP_ROWS = 24
_SHADES = "░▒▓█"
_NONE, _SOME = "·", "+"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Draws which chunks of an array are stored and how large they are, from a "
        "list of the keys: no chunk is read. Chunks that are not stored hold the fill value. Of a "
        "sharded array, shards are drawn."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of the array")
    command.add_argument(
        "-i",
        "--index",
        type=index_expression,
        metavar="INDEX",
        help="draw the chunks of this part only, e.g. 3,:,100:200",
    )
    add_json_option(command)
    add_place_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    store = open_node(arguments.url, arguments, reading_context(arguments))
    if isinstance(store, gpustore.Group):
        raise CommandError(f"{arguments.url} is a group: `gpustore tree` lists its arrays")
    store = store.base or store
    grid = ValueGrid.of(store)
    stored = StoredValues.listed(store, grid)
    if stored is None:
        raise CommandError(
            f"{arguments.url} cannot be listed: {_kvstore(store)} servers do not tell "
            "what they have; `gpustore verify` reads the chunks"
        )
    for key, error in list(stored.errors.items())[:1]:
        raise CommandError(f"the size of {key} is not known: {error}")
    if arguments.json:
        print(json.dumps(describe(store, grid, stored), indent=2))
        return 0
    shape = store.shape[: len(grid.counts)]
    ranges = element_ranges(arguments.index or (), shape)
    touched = [grid.touched(axis, indices) for axis, indices in enumerate(ranges)]
    screen = Screen()
    screen.facts(arguments.url, _facts(store, grid, stored))
    if math.prod(map(len, touched)):
        screen.line()
        _draw(screen, store, grid, stored, touched)
    if len(set(stored.nbytes.values())) > 1:
        screen.line()
        _histogram(screen, grid, list(stored.nbytes.values()))
    return 0


def _kvstore(store: gpustore.TensorStore) -> str:
    """Return the name of the kvstore of an array."""
    return "" if store.kvstore is None else str(store.kvstore.driver.id)


def describe(store: gpustore.TensorStore, grid: ValueGrid, stored: StoredValues) -> dict[str, Any]:
    """Return everything the command knows, as JSON; sizes in bytes, keys below the array."""
    sizes = list(stored.nbytes.values())
    return {
        "grid": list(grid.counts),
        "chunk": chunk_extents(store, "write_chunk")[: len(grid.counts)],
        "is_shard": grid.is_sharded,
        "values_possible": grid.size,
        "values_stored": len(sizes),
        "stored_nbytes": sum(sizes),
        "smallest_nbytes": min(sizes, default=None),
        "largest_nbytes": max(sizes, default=None),
        "histogram": [
            {"from_nbytes": one.low, "to_nbytes": one.high, "values": one.count}
            for one in bins_of(sizes)
        ],
        "stored": {grid.key(cell): nbytes for cell, nbytes in sorted(stored.nbytes.items())},
        "others": stored.others,
    }


@dataclass(frozen=True, slots=True)
class Bin:
    """Number of sizes from `low` to `high`, both included."""

    low: int
    high: int
    count: int


def bins_of(sizes: Sequence[int]) -> list[Bin]:
    """Divide sizes into bins of equal width.

    >>> bins_of([10, 11, 40])
    [Bin(low=10, high=13, count=2), Bin(low=38, high=41, count=1)]
    """
    if not sizes:
        return []
    smallest, largest = min(sizes), max(sizes)
    width = -(-(largest - smallest + 1) // _BINS)
    counts: dict[int, int] = {}
    for size in sizes:
        counts[(size - smallest) // width] = counts.get((size - smallest) // width, 0) + 1
    return [
        Bin(smallest + n * width, smallest + (n + 1) * width - 1, count)
        for n, count in sorted(counts.items())
    ]


def _facts(
    store: gpustore.TensorStore, grid: ValueGrid, stored: StoredValues
) -> list[tuple[str, str]]:
    """Return the totals as pairs of short texts."""
    sizes = list(stored.nbytes.values())
    extents = chunk_extents(store, "write_chunk")[: len(grid.counts)]
    counts = format_shape(grid.counts or [1])
    missing = grid.size - len(sizes)
    decoded = math.prod(chunk_extents(store, "write_chunk")) * store.dtype.array_dtype.itemsize
    facts = [
        ("array", f"{format_shape(store.shape[: len(grid.counts)])} {store.dtype.name}"),
        ("grid", f"{counts} {grid.noun}s of {format_shape(extents)}"),
        ("decoded", f"{format_nbytes(decoded)} each"),
        ("stored", f"{len(sizes):,} of {grid.size:,}, {format_nbytes(sum(sizes))}"),
        ("missing", f"{missing:,}, read as the fill value" if missing else "none"),
    ]
    if sizes:
        mean = format_nbytes(round(sum(sizes) / len(sizes)))
        span = f"{format_nbytes(min(sizes))} to {format_nbytes(max(sizes))}, {mean} on average"
        facts.append(("sizes", span if min(sizes) < max(sizes) else f"{mean} each"))
    if stored.others:
        some = ", ".join(stored.others[:3]) + (", ..." if len(stored.others) > 3 else "")
        facts.append(("other keys", f"{len(stored.others):,} outside of the grid: {some}"))
    return facts


def _draw(
    screen: Screen,
    store: gpustore.TensorStore,
    grid: ValueGrid,
    stored: StoredValues,
    touched: Sequence[range],
) -> None:
    """Draw the positions `touched` of the last two dimensions."""
    rows, columns = [range(1), range(1), *touched][-2:]
    gutter = len(str(max(rows.stop, columns.stop if len(touched) == 1 else 0) - 1)) + 2
    width = max(1, screen.width - gutter)
    if len(touched) == 1:  # One line after the other.
        step = 1, -(-len(columns) // (width * _MAP_ROWS))
        whole = "".join(map_lines(stored.nbytes, touched, step))
        lines = [whole[start : start + width] for start in range(0, len(whole), width)]
        firsts = columns[:: width * step[1]]
    else:
        step = -(-len(rows) // _MAP_ROWS), -(-len(columns) // width)
        lines = map_lines(stored.nbytes, touched, step)
        firsts = rows[:: step[0]]
    labels = [
        label or f"dimension {axis}"
        for axis, label in enumerate(store.domain.labels[: len(touched)])
    ]
    for line in _legend(grid, labels, touched, step):
        screen.line(line, style="dim")
    for first, line in zip(firsts, lines, strict=True):
        screen.line(f"{first:>{gutter - 2}}  {line}" if touched else line)


def map_lines(
    nbytes: Mapping[tuple[int, ...], int], touched: Sequence[range], step: tuple[int, int]
) -> list[str]:
    """Draw the grid of the last two dimensions, a character for each block of ``step`` chunks.

    Parameters
    ----------
    nbytes : mapping of tuple to int
        Sizes of stored values by position.
    touched : sequence of range
        Positions to draw along each dimension; a character stands for all of the leading ones.
    step : tuple of int
        Rows and columns of the grid for each character.

    Returns
    -------
    list of str
        One line for each `step` rows.
    """
    # Only stored values are gone through: a grid may have more cells than memory.
    *leading, rows, columns = [range(1)] * (2 - len(touched)) + list(touched)
    found: dict[tuple[int, int], list[int]] = {}
    for cell, size in nbytes.items():
        if all(i in along for i, along in zip(cell, touched, strict=True)):
            row, column = (0, 0, *cell)[-2:]
            place = (row - rows.start) // step[0], (column - columns.start) // step[1]
            found.setdefault(place, []).append(size)
    depth = math.prod(map(len, leading))
    largest = max(nbytes.values(), default=0)
    lines = []
    for top in range(0, len(rows), step[0]):
        tall = len(rows[top : top + step[0]])
        text = ""
        for left in range(0, len(columns), step[1]):
            sizes: list[int | None] = list(found.get((top // step[0], left // step[1]), ()))
            cells = depth * tall * len(columns[left : left + step[1]])
            text += _symbol(sizes + [None] * bool(len(sizes) < cells), largest)
        lines.append(text)
    return lines


def _symbol(sizes: Sequence[int | None], largest: int) -> str:
    """Return the character for chunks with these sizes, None for one that is not stored."""
    stored = [size for size in sizes if size is not None]
    if not stored:
        return _NONE
    if len(stored) < len(sizes):
        return _SOME
    mean = sum(stored) / len(stored)
    return _SHADES[min(len(_SHADES) - 1, int(len(_SHADES) * mean / max(1, largest)))]


def _legend(
    grid: ValueGrid, labels: Sequence[str], touched: Sequence[range], step: tuple[int, int]
) -> list[str]:
    """Return the meaning of the axes and the characters."""
    together = math.prod(map(len, touched[:-2])) * step[0] * step[1]
    per = f"a character is {together:,} {grid.noun}s" if together > 1 else f"one {grid.noun} each"
    axes = f"{labels[-2]} down, {labels[-1]} across; " if len(labels) > 1 else ""
    some = f"   {_SOME} some stored" if together > 1 else ""
    return [axes + per, f"{_NONE} not stored{some}   {_SHADES} stored, by size"]


def _histogram(screen: Screen, grid: ValueGrid, sizes: Sequence[int]) -> None:
    """Print the histogram of sizes."""
    bins = bins_of(sizes)
    most = max(one.count for one in bins)
    spans = [f"{format_nbytes(one.low)} - {format_nbytes(one.high)}" for one in bins]
    wide, wide_count = max(map(len, spans)), len(f"{most:,}")
    screen.line(f"stored size of a {grid.noun}", style="dim")
    for span, one in zip(spans, bins, strict=True):
        bar = "█" * max(1, round(_BAR * one.count / most))
        screen.line(f"{span:>{wide}}  {one.count:>{wide_count},}  {bar}")


COMMANDS = {"chunks": add_options}
