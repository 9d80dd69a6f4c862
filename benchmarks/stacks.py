"""Time of reading a stack of many small arrays, one plane a file, beside TensorStore.

    python -m benchmarks.stacks [PLANES] [SIDE] [FOLDER]

gpustore and TensorStore in turn, each round in processes of its own, whose imports and openings are
not counted: all planes of opened layers, one column through all of them, one plane, and all planes
of layers that the read opens. Planes are uint16 of one chunk each with zstd of level 1, on a local
disk, in the page cache. Medians of wall and CPU time in milliseconds, and their ratios to
gpustore's. What the libraries read is compared.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROUNDS = 5
REPEATS = 5


def make(folder, planes, side):
    """Write the planes."""
    import gpustore

    context = gpustore.Context({"file_io_sync": False})
    random = np.random.default_rng(0)
    steps = np.arange(side * side).reshape(side, side) // 7
    for number in range(planes):
        plane = (steps + random.integers(0, 4, (side, side))).astype("uint16")
        gpustore.open(
            f"{folder}/{number}.zarr|zarr3:",
            create=True,
            data=plane,
            codec="zstd:1",
            chunks=[side, side],
            device="cpu",
            context=context,
        ).result()


def measure(library, folder, planes):
    """Times of the reads with one library, and a sum of what was read."""
    if library == "gpustore":
        import gpustore as lib

        context = lib.Context({"device": "cpu"})
    else:
        import tensorstore as lib

        context = lib.Context({})
    paths = [f"{folder}/{number}.zarr/" for number in range(planes)]
    opening = [
        lib.open({"driver": "zarr3", "kvstore": f"file://{path}"}, context=context)
        for path in paths
    ]
    layers = [one.result() for one in opening]
    stack = lib.stack(layers, context=context)
    unopened = lib.stack([layer.spec() for layer in layers], context=context)
    reads = {
        "all planes": lambda: stack.read().result(),
        "a column": lambda: stack[:, 5, 7].read().result(),
        "one plane": lambda: stack[planes // 2].read().result(),
        "all planes, opened by the read": lambda: unopened.read().result(),
    }
    found = {}
    for name, read in reads.items():
        total = int(read().sum(dtype="uint64"))
        times = []
        for _ in range(REPEATS):
            wall, cpu = time.perf_counter(), time.process_time()
            read()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        found[name] = [total, *(statistics.median(column) for column in zip(*times, strict=True))]
    return found


def main():
    planes, side = (int(word) for word in [*sys.argv[1:3], "1000", "64"][:2])
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[3] if len(sys.argv) > 3 else temporary
        if not (Path(folder) / f"{planes - 1}.zarr").exists():
            make(folder, planes, side)
        rounds = {"gpustore": [], "tensorstore": []}
        for _ in range(ROUNDS):
            for library, results in rounds.items():
                command = [sys.executable, "-m", "benchmarks.stacks", "--measure", library]
                said = subprocess.check_output([*command, folder, str(planes)], text=True)
                results.append(json.loads(said))
    print(f"{planes} planes of {side} x {side}: wall and CPU time in ms")
    for name in rounds["gpustore"][0]:
        medians = {}
        for library, results in rounds.items():
            columns = list(zip(*[one[name] for one in results], strict=True))
            medians[library] = [1e3 * statistics.median(column) for column in columns[1:]]
        sums = {one[name][0] for results in rounds.values() for one in results}
        assert len(sums) == 1, f"{name}: the libraries read different elements"
        (wall, cpu), (their_wall, their_cpu) = medians["gpustore"], medians["tensorstore"]
        print(
            f"{name}: gpustore {wall:.2f} {cpu:.2f}, TensorStore {their_wall:.2f} {their_cpu:.2f}, "
            f"ratios {their_wall / wall:.2f} {their_cpu / cpu:.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
