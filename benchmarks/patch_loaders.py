"""Random patches a second: the loader, and what people write without one.

    python -m benchmarks.patch_loaders [FOLDER]

Two threads each; files in the page cache; patches copied into batches of 8 and touched. The readers
take turns; medians of the rounds. A loader is used for all rounds, which are its epochs, as a
program that trains does: in the first one it takes new memory from the kernel, and a row of its own
has loaders that are new each round. With its memory by default the loader keeps the array for the
epoch; another row has too little for that. With PyTorch installed, zarr-python is also read by a
DataLoader with two worker processes, which run and have the array open before they are timed; their
CPU time is not in the figures. The first batch of the loader is timed from the call that opens the
array. The load of the machine is printed: under load only ratios mean something.
"""

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import tensorstore
import zarr

import gpustore
from gpustore.cli.volume import make_volume
from gpustore.loader import PatchLoader, RandomPatches

try:
    from torch.utils.data import DataLoader, Dataset
except ModuleNotFoundError:
    DataLoader, Dataset = None, object

THREADS, BATCH, FUTURES, CROPS, ROUNDS = 2, 8, 60, 32, 5

ZSTD = {"name": "zstd", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "zstd", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0,
    },
}  # fmt: skip

ROWS = {
    "64^3 from 64^3 chunks, zstd": ((384,) * 3, (64,) * 3, None, ZSTD, (64,) * 3, 864),
    "64^3 from 64^3 chunks, Blosc-zstd": ((384,) * 3, (64,) * 3, None, BLOSC, (64,) * 3, 864),
    "224^2 from 1024^2 chunks, zstd": ((8192,) * 2, (1024,) * 2, None, ZSTD, (224,) * 2, 2048),
    "32^3 from 32^3 chunks in shards of 128^3, zstd": (
        (384,) * 3, (32,) * 3, (128,) * 3, ZSTD, (32,) * 3, 3456,
    ),
}  # fmt: skip
"""Shape, chunks, shards, codec, shape and number of patches."""


def spec_of(path, shape, chunks, shards, codec):
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, codec]
    if shards:
        inner = {"chunk_shape": chunks, "codecs": codecs}
        codecs, chunks = [{"name": "sharding_indexed", "configuration": inner}], shards
    metadata = {
        "shape": shape,
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "codecs": codecs,
        "fill_value": 0,
    }
    kvstore = {"driver": "file", "path": str(path)}
    return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


def in_batches(patches):
    """Stack patches that come one by one, and return a sum over one element of each."""
    total, batch = 0, []
    for patch in patches:
        batch.append(patch)
        if len(batch) == BATCH:
            total += int(np.stack(batch).reshape(BATCH, -1)[:, 0].sum())
            batch = []
    return total + sum(int(patch.flat[0]) for patch in batch)


def boxes(origins, patch):
    return [
        tuple(slice(o, o + n) for o, n in zip(origin, patch, strict=True)) for origin in origins
    ]


def loader(store, count, patch, memory):
    sampler = RandomPatches(patch, per_epoch=count, window=int(store.nbytes) // 8)
    return PatchLoader(store, sampler=sampler, batch_size=BATCH, prefetch=2, memory=memory)


def epoch(batches, number, origins=()):
    del origins  # A loader draws its own.
    batches.set_epoch(number)
    for batch in batches:
        batch["image"].reshape(len(batch["image"]), -1)[:, 0].sum()


def first_epoch(store, patch, origins):
    epoch(loader(store, len(origins), patch, "1 GiB"), 0)


def futures(store, origins, patch):
    def patches():
        some = boxes(origins, patch)
        for at in range(0, len(some), FUTURES):
            begun = [store[box].read() for box in some[at : at + FUTURES]]
            for future in begun:
                yield future.result()

    in_batches(patches())


def many(store, origins, patch):
    for at in range(0, len(origins), CROPS):
        found = store.read_many(origins[at : at + CROPS], patch).result()
        found.reshape(len(found), -1)[:, 0].sum()


class Patches(Dataset):
    """Patches of zarr-python for a DataLoader, which its workers open."""

    def __init__(self, path, origins, patch):
        self.path, self.boxes, self.array = path, boxes(origins, patch), None

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, index):
        if self.array is None:
            self.array = zarr.open_array(self.path, mode="r")
        return self.array[self.boxes[index]]


def data_loader(path, origins, patch):
    """Return a function that reads patches by worker processes, which it has started."""
    workers = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    patches = Patches(path, origins, patch)
    batches = DataLoader(patches, batch_size=BATCH, persistent_workers=True, **workers)

    def read(_):
        for batch in batches:
            batch.reshape(len(batch), -1)[:, 0].float().sum()

    read(origins)
    return read


def first_batch(path, patch, limits):
    """Return the seconds until a loader has its first batch, from the opening of the array on."""
    begin = time.perf_counter()
    store = gpustore.open(path, context=gpustore.Context(limits), device="cpu").result()
    sampler = RandomPatches(patch, per_epoch=864, window=int(store.nbytes) // 8)
    with PatchLoader(store, sampler=sampler, batch_size=BATCH) as batches:
        next(iter(batches))
        return time.perf_counter() - begin


def main(folder):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    limits = {
        "data_copy_concurrency": {"limit": THREADS},
        "file_io_concurrency": {"limit": THREADS},
    }
    zarr.config.set({"threading.max_workers": THREADS, "async.concurrency": THREADS})
    for number, (row, (shape, chunks, shards, codec, patch, count)) in enumerate(ROWS.items()):
        path = Path(folder) / str(number)
        spec = spec_of(path, shape, chunks, shards, codec)
        three = shape if len(shape) == 3 else (1, *shape)
        values = make_volume(three, 0, advance=lambda nbytes: None).reshape(shape)
        tensorstore.open(spec, create=True).result().write(values).result()
        ours = gpustore.open(path, context=gpustore.Context(limits), device="cpu").result()
        theirs = tensorstore.open(spec, context=tensorstore.Context(limits)).result()
        chunk_count = np.prod([-(-n // c) for n, c in zip(shape, chunks, strict=True)])
        times, firsts, workers = {}, [], None
        # The second has too little memory for the array to stay.
        loaders = [loader(ours, count, patch, memory) for memory in ("1 GiB", int(ours.nbytes))]
        for batches in loaders:
            epoch(batches, 0)
        decoded = loaders[0].stats()["chunks_decoded"]
        for round_ in range(1, ROUNDS + 1):
            random = np.random.default_rng(round_)
            origins = random.integers(0, np.subtract(shape, patch) + 1, (count, len(shape)))
            few = origins[: max(BATCH, count // 6)]
            firsts.append(first_batch(path, patch, limits))
            readers = {
                "loader": partial(epoch, loaders[0], round_),
                "loader, memory of its size": partial(epoch, loaders[1], round_),
                "loader, its first epoch": partial(first_epoch, ours, patch),
                "read_many of 32": partial(many, ours, patch=patch),
                "TensorStore, 60 futures": partial(futures, theirs, patch=patch),
            }
            if DataLoader is not None:
                workers = workers or data_loader(path, few, patch)
                readers["zarr-python, 2 workers"] = workers
            for name, read in readers.items():
                some = origins if name.startswith(("loader", "read_many")) else few
                begin = time.perf_counter(), time.process_time()
                read(some)
                end = time.perf_counter(), time.process_time()
                spent = [(b - a) / len(some) for a, b in zip(begin, end, strict=True)]
                times.setdefault(name, []).append(spent)
        print(
            f"\n{row}: {decoded / chunk_count:.2f} decodes a chunk and epoch, "
            f"first batch after {statistics.median(firsts):.3f} s, load {os.getloadavg()[0]:.1f}"
        )
        first = statistics.median(wall for wall, _ in times["loader"])
        for name, found in times.items():
            wall, cpu = map(statistics.median, zip(*found, strict=True))
            print(
                f"{name:26} {1 / wall:8.0f} patches/s {1e3 * cpu:8.2f} ms CPU {wall / first:6.2f}"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
