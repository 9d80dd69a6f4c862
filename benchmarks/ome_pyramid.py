"""Time in which a volume in memory becomes an OME-Zarr with five levels of means.

    python -m benchmarks.ome_pyramid [MIB] [FOLDER]

gpustore, ngff-zarr and ome-zarr in turn, the latter two with dask: uint16, halved along each axis,
no fsync. First in chunks of 64^3 of Zarr v3 with the same codec: none, zstd and Blosc; then with
the chunks, the codec and the version that each library takes by default. Each build is a process of
its own, whose imports are not counted. Medians of wall and CPU time in seconds, their ratios to
gpustore's, the most memory beyond that before the build, and what is stored, in MiB. Levels are
compared with gpustore's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LEVELS, CHUNK, ROUNDS = 5, (64, 64, 64), 3
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 2, "blocksize": 0}
CODECS = {
    "raw": [],
    "zstd:3": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}],
    "blosc": [{"name": "blosc", "configuration": BLOSC}],
    "default": None,
}
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
    import gpustore
    from gpustore import ome

    assert gpustore.native_core().in_use
    options = {"axes": "zyx", "scale": (1, 1, 1), "context": {"file_io_sync": False}}
    if codec is not None:
        options |= {"codec": codec, "chunks": CHUNK}
    return lambda: ome.write(path, array, levels=LEVELS, **options)


def with_ngff_zarr(path, array, codec):
    import dask.array
    import ngff_zarr

    method = ngff_zarr.Methods.DASK_BIN_SHRINK

    def build():
        if codec is None:
            image = ngff_zarr.to_ngff_image(array, dims=list("zyx"))
            ngff_zarr.to_ngff_zarr(path, ngff_zarr.to_multiscales(image, FACTORS, method))
            return
        image = ngff_zarr.to_ngff_image(dask.array.from_array(array, CHUNK), dims=list("zyx"))
        found = ngff_zarr.to_multiscales(image, FACTORS, method, chunks=CHUNK[0], cache=False)
        # It takes compressors=[] for its default.
        options = {"compressors": codec} if codec else {"compressor": None}
        ngff_zarr.to_ngff_zarr(path, found, version="0.5", **options)

    return build


def with_ome_zarr(path, array, codec):
    import dask.array
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image

    factors = [dict.fromkeys("zyx", factor) for factor in FACTORS]

    def build():
        options = {"method": Methods.LOCAL_MEAN, "axes": "zyx"}
        if codec is None:
            write_image(array, path, factors, **options)
            return
        options["storage_options"] = {"chunks": CHUNK, "compressors": codec or None}
        write_image(dask.array.from_array(array, CHUNK), path, factors, **options)

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
    # All run from bytecode, as installed packages do.
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    for word, codec in CODECS.items():
        found, nbytes = {name: [] for name in LIBRARIES}, {}
        for round_ in range(ROUNDS):
            for name, times in found.items():
                path = Path(folder) / f"{name}.zarr"
                shutil.rmtree(path, ignore_errors=True)
                command = [sys.executable, "-m", "benchmarks.ome_pyramid", "build", name]
                command += [source, path, json.dumps(codec)]
                done = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True, env=environment
                )
                times.append(json.loads(done.stdout.splitlines()[-1]))
                nbytes[name] = sum(file.stat().st_size for file in path.rglob("*"))
                if not round_:
                    compare(path, stored(Path(folder) / "gpustore.zarr"))
        ours = np.median(found["gpustore"], axis=0)
        for name, times in found.items():
            wall, cpu, memory = np.median(times, axis=0)
            title = f"{word:8}{name:10}"
            ratios = f"{wall / ours[0]:6.2f} {cpu / ours[1]:6.2f}"
            sizes = f"{memory:6.0f} MiB  {nbytes[name] / 2**20:6.0f} stored"
            print(f"{title} {wall:7.2f} wall {cpu:7.2f} CPU {ratios} {sizes}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(*sys.argv[2:])
    else:
        size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
        with tempfile.TemporaryDirectory() as temporary:
            main(size, sys.argv[2] if len(sys.argv) > 2 else temporary)
