"""Time in which a volume in memory becomes an OME-Zarr with five levels of means.

    python -m benchmarks.ome_pyramid [MIB] [FOLDER]

gpustore, ngff-zarr and ome-zarr in turn, the latter two with dask: uint16, halved along each axis,
chunks of 64^3, Zarr v3, uncompressed and with zstd, no fsync. Each build is a process of its own,
whose imports are not counted. Medians of wall and CPU time in seconds, their ratios to gpustore's,
and the most memory beyond that before the build, in MiB. Levels are compared with gpustore's.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LEVELS, CHUNK, ROUNDS = 5, (64, 64, 64), 3
CODECS = None, [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}]
FACTORS = [2**level for level in range(1, LEVELS)]


def volume(mib):
    """Smooth values with noise, in slabs of constant memory."""
    shape = (mib // 2, 1024, 1024)
    found, noise = np.empty(shape, np.uint16), np.random.default_rng(0)
    plane = np.add.outer(np.arange(shape[1]) * 5, np.arange(shape[2]) * 2).astype(np.uint16)
    for z in range(shape[0]):
        found[z] = plane + np.uint16(3 * z) + noise.integers(0, 64, shape[1:], np.uint16)
    return found


def with_gpustore(path, array, codec):
    from gpustore import ome

    options = {"axes": "zyx", "scale": (1, 1, 1), "chunks": CHUNK}
    options |= {"codec": "zstd:3" if codec else None, "context": {"file_io_sync": False}}
    return lambda: ome.write(path, array, levels=LEVELS, **options)


def with_ngff_zarr(path, array, codec):
    import dask.array
    import ngff_zarr

    def build():
        image = ngff_zarr.to_ngff_image(dask.array.from_array(array, CHUNK), dims=list("zyx"))
        found = ngff_zarr.to_multiscales(
            *(image, FACTORS, ngff_zarr.Methods.DASK_BIN_SHRINK), chunks=CHUNK[0], cache=False
        )
        # It takes compressors=None for its default.
        options = {"compressors": codec} if codec else {"compressor": None}
        ngff_zarr.to_ngff_zarr(path, found, version="0.5", **options)

    return build


def with_ome_zarr(path, array, codec):
    import dask.array
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image

    def build():
        factors = [dict.fromkeys("zyx", factor) for factor in FACTORS]
        write_image(
            *(dask.array.from_array(array, CHUNK), path, factors),
            **{"method": Methods.LOCAL_MEAN, "axes": "zyx"},
            storage_options={"chunks": CHUNK, "compressors": codec},
        )

    return build


def peak():
    """Most memory of the process so far, in bytes; files that are mapped count in full."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def build(name, source, path, codec):
    building = LIBRARIES[name](path, np.load(source), json.loads(codec))
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    building()
    times = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps([*times, (peak() - before) / 2**20]))


def stored(path):
    import gpustore

    found = [level.store for level in gpustore.ome.open(path).levels]
    assert len(found) == LEVELS, path
    return [np.asarray(store.numpy[:64]).astype(int) for store in found]


LIBRARIES = {"gpustore": with_gpustore, "ngff-zarr": with_ngff_zarr, "ome-zarr": with_ome_zarr}


def compare(path, expected):
    for number, (a, b) in enumerate(zip(stored(path), expected, strict=True)):
        assert a.shape == b.shape, (path, number)
        # A library that cuts off in place of rounding is one less a level.
        assert abs(a - b).max() <= number, (path, number)


def main(mib, folder):
    source = Path(folder) / "volume.npy"
    np.save(source, volume(mib))
    for codec in CODECS:
        found = {name: [] for name in LIBRARIES}
        for round_ in range(ROUNDS):
            for name, times in found.items():
                path = Path(folder) / f"{name}.zarr"
                shutil.rmtree(path, ignore_errors=True)
                command = [sys.executable, "-m", "benchmarks.ome_pyramid", "build", name]
                command += [source, path, json.dumps(codec)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                times.append(json.loads(done.stdout.splitlines()[-1]))
                if not round_:
                    compare(path, stored(Path(folder) / "gpustore.zarr"))
        ours = np.median(found["gpustore"], axis=0)
        for name, times in found.items():
            wall, cpu, memory = np.median(times, axis=0)
            title = f"{'zstd' if codec else 'raw':5}{name:10}"
            ratios = f"{wall / ours[0]:6.2f} {cpu / ours[1]:6.2f}"
            print(f"{title} {wall:7.2f} wall {cpu:7.2f} CPU {ratios} {memory:7.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(*sys.argv[2:])
    else:
        size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
        with tempfile.TemporaryDirectory() as temporary:
            main(size, sys.argv[2] if len(sys.argv) > 2 else temporary)
