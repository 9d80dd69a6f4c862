"""Time of 200 crops that are asked for one by one, beside the same crops by ``read_many``.

    python -m benchmarks.futures [THREADS] [FOLDER]

Both in turns in one process, and their results compared. A row shows ratios of processor and wall
time (lower quartiles of the rounds), the processor time of the futures in milliseconds, and in how
many crops a chunk lies on average. The volumes are those of the other benchmarks, in `FOLDER`, by
default in memory (/dev/shm). ``chrt -r 10`` gives it the cores of a machine that others use too.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.conftest import random_boxes
from benchmarks.formats import FORMATS, SHAPE
from benchmarks.peers import GpustorePeer, TensorStorePeer
from benchmarks.test_batch import EXTENTS
from gpustore.cli.volume import make_volume

CROPS = 200

LEAST_ROUNDS, LEAST_S = 9, 1.0
"""Rounds behind one for warming up: as many as take a second, at least nine."""


def timed(function):
    """Processor and wall time of a call in seconds, and its result."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = function()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def overlap(array_format, boxes):
    """In how many crops each chunk lies that any of them needs."""
    wanted = [
        np.prod([-(-part.stop // n) - part.start // n for part, n in zip(box, array_format.chunk)])
        for box in boxes
    ]
    cells = {
        cell
        for box in boxes
        for cell in np.ndindex(*[-(-part.stop // n) for part, n in zip(box, array_format.chunk)])
        if all(part.start // n <= at for at, part, n in zip(cell, box, array_format.chunk))
    }
    return sum(wanted) / len(cells)


def compare(store, boxes):
    """Ratios of processor and wall time, and the processor time of the futures in seconds."""
    starts = [[part.start for part in box] for box in boxes]
    extent = [part.stop - part.start for part in boxes[0]]

    def as_futures():
        futures = [store[box].read() for box in boxes]
        return [future.result() for future in futures]

    reads = {as_futures: [], lambda: store.read_many(starts, extent).result(): []}
    results = [read() for read in reads]
    end = time.perf_counter() + LEAST_S
    while len(reads[as_futures]) < LEAST_ROUNDS or time.perf_counter() < end:
        results = []
        for read, times in reads.items():
            *both, result = timed(read)
            results.append(result)
            times.append(both)
    assert np.array_equal(np.stack(results[0]), results[1])
    quartiles = [
        [statistics.quantiles(column, n=4)[0] for column in zip(*times, strict=True)]
        for times in reads.values()
    ]
    (cpu, wall), (many_cpu, many_wall) = quartiles
    return cpu / many_cpu, wall / many_wall, cpu


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    memory = Path("/dev/shm")
    parent = sys.argv[2] if len(sys.argv) > 2 else memory if memory.is_dir() else None
    volume = make_volume(SHAPE, 0, advance=lambda nbytes: None)
    peer, writer = GpustorePeer(threads), TensorStorePeer(threads)
    rows = []
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        for array_format in FORMATS:
            path = Path(folder) / str(array_format)
            writer.write(writer.create(path, array_format, volume.shape), volume)
            store = peer.open(path, array_format)
            for extent in EXTENTS:
                boxes = random_boxes(volume.shape, extent, CROPS)
                cpu, wall, seconds = compare(store, boxes)
                rows.append((cpu, wall))
                print(
                    f"{array_format} {extent}: CPU {cpu:.2f}, wall {wall:.2f}, "
                    f"{1e3 * seconds:.1f} ms, {overlap(array_format, boxes):.1f} crops a chunk",
                    flush=True,
                )
    means = [statistics.geometric_mean(column) for column in zip(*rows, strict=True)]
    print(f"geometric means: CPU {means[0]:.2f}, wall {means[1]:.2f}")


if __name__ == "__main__":
    main()
