"""Measure the time per chunk of whole reads of 10 to 10^6 chunks, and draw it.

python -m benchmarks.scaling --plot benchmarks/scaling.svg

Chunks are raw and of 64 bytes, so that what a library does for each chunk is nearly all of the
time. They are files of their own or lie in shards of up to 1 000. Of more than 10^4 files the
others are links to these, which take no space on the disk. Libraries are measured in turns, with
two threads each and files in the page cache.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import PEERS

LIBRARIES = ("gpustore", "tensorstore")
CHUNK = (4, 16)
SHARD = (10, 100)
"""Chunks along each dimension of the largest shards."""

MOST_FILES = 10_000
"""Most chunks that are files; of more, each file has as many names as are needed."""

ROUNDS_S = 1.0

Row = tuple[str, int, dict[str, float]]
"""Storage, number of chunks, and microseconds per chunk of each library."""


def spec(path: Path, grid: Sequence[int], storage: str) -> dict[str, Any]:
    """Spec of an array of `grid` chunks."""
    codecs: list[Any] = [{"name": "bytes"}]
    chunk = list(CHUNK)
    if storage == "shards":
        inner = {"chunk_shape": chunk, "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        chunk = [size * min(most, n) for size, most, n in zip(CHUNK, SHARD, grid, strict=True)]
    metadata = {
        "shape": [size * n for size, n in zip(CHUNK, grid, strict=True)],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": codecs,
        "fill_value": 0,
    }
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": metadata,
    }


def measured(folder: Path, storage: str, chunks: int, threads: int) -> dict[str, float]:
    """Write an array of `chunks` chunks, a power of ten, and return microseconds per chunk."""
    power = round(math.log10(chunks))
    grid = 10 ** (power // 2), 10 ** (power - power // 2)
    peers = [PEERS[name](threads) for name in LIBRARIES]
    path = folder / f"{storage}-{chunks}"
    writer = peers[1]
    handle = writer.module.open(
        spec(path, grid, storage), create=True, context=writer.context
    ).result()
    written = grid[0]
    if storage == "files":
        written = min(grid[0], MOST_FILES // grid[1])
    values = np.random.default_rng(0).integers(
        1, 255, (written * CHUNK[0], handle.shape[1]), np.uint8
    )
    handle[: len(values)].write(values).result()
    link_rows(path / "c", written, grid)
    values = np.tile(values, (grid[0] // written, 1))
    handles = [
        peer.module.open(spec(path, grid, storage), context=peer.context).result() for peer in peers
    ]
    times: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    end = time.perf_counter() + ROUNDS_S * len(peers)
    while len(times[LIBRARIES[0]]) < 4 or time.perf_counter() < end:
        for peer, one in zip(peers, handles, strict=True):
            begin = time.perf_counter()
            result = peer.read(one, ...)
            times[peer.name].append(time.perf_counter() - begin)
            assert np.array_equal(result, values)
    # The first round warms up.
    return {name: statistics.median(some[1:]) / chunks * 1e6 for name, some in times.items()}


def link_rows(folder: Path, written: int, grid: Sequence[int]) -> None:
    """Give the chunks of the rows behind the `written` ones the values of those, by links."""
    for row in range(written, grid[0]):
        (folder / str(row)).mkdir()
        for column in range(grid[1]):
            name = str(column)
            os.link(folder / str(row % written) / name, folder / str(row) / name)


def rows(most: int, threads: int) -> Iterator[Row]:
    """Measure up to `most` chunks."""
    with tempfile.TemporaryDirectory() as folder:
        for storage in ("files", "shards"):
            chunks = 10
            while chunks <= most:
                yield storage, chunks, measured(Path(folder), storage, chunks, threads)
                chunks *= 10


def plot(found: Sequence[Row]) -> str:
    """Draw the rows as SVG: microseconds per chunk over the number of chunks, both logarithmic."""
    width, height, left, top = 520, 300, 60, 20
    values = [value for _, _, times in found for value in times.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = math.log10(max(chunks for _, chunks, _ in found))

    def place(chunks: float, value: float) -> tuple[float, float]:
        x = left + (math.log10(chunks) - 1) / max(1, last - 1) * (width - left - 130)
        y = top + (high - math.log10(value)) / max(1, high - low) * (height - top - 50)
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        x, y = place(10, 10.0**power)
        right = place(10**last, 1)[0]
        parts.append(f'<path d="M{x} {y}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{10.0**power:g} us</text>')
    for power in range(1, round(last) + 1):
        x, y = place(10**power, 10.0**low)
        parts.append(f'<text x="{x}" y="{y + 16}" text-anchor="middle">{10**power:,}</text>')
    parts.append(f'<text x="{left}" y="{height - 10}">chunks of 64 bytes in one read</text>')
    for name, colour in zip(LIBRARIES, ("#0a58ca", "#c2410c"), strict=True):
        for storage, dash in (("files", "none"), ("shards", "5 3")):
            points = [place(n, times[name]) for one, n, times in found if one == storage]
            line = " ".join(f"{x},{y}" for x, y in points)
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" '
                f'stroke-dasharray="{dash}"/>'
            )
            x, y = points[-1]
            parts.append(f'<text x="{x + 6}" y="{y + 4}" fill="{colour}">{name}, {storage}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table, and write the plot if it is wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--plot", type=Path, help="SVG file to write")
    parser.add_argument("--most", type=int, default=1_000_000, help="chunks of the largest read")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    print("| chunks in | chunks | gpustore, us a chunk | TensorStore, us a chunk | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    found = []
    for row in rows(options.most, options.threads):
        found.append(row)
        storage, chunks, times = row
        ours, theirs = (times[name] for name in LIBRARIES)
        print(
            f"| {storage} | {chunks} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |",
            flush=True,
        )
    if options.plot:
        options.plot.write_text(plot(found))


if __name__ == "__main__":
    main()
