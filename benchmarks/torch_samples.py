"""Time in which a DataLoader of PyTorch gets all samples of an array, without worker processes.

    python -m benchmarks.torch_samples [FOLDER]

Three data sets in turn: ``ArrayDataset``, one that reads each sample with gpustore, and one that
reads each with zarr-python. Medians of wall and CPU time, in milliseconds.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, Dataset

import gpustore
from gpustore.interop.torch import ArrayDataset

SAMPLES, ROUNDS = 2048, 5


class OneByOne(Dataset):
    """Samples that are read one after the other."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if isinstance(self.array, gpustore.TensorStore):
            return self.array[index].read(to="torch").result()
        return torch.from_numpy(np.asarray(self.array[index]))


def once(dataset, shuffle):
    generator = torch.Generator().manual_seed(1)
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in DataLoader(dataset, batch_size=64, shuffle=shuffle, generator=generator):
        assert batch.shape[1:] == (64, 64)
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main(folder):
    torch.set_num_threads(1)
    images = np.random.default_rng(0).poisson(100, (SAMPLES, 64, 64)).astype("int16")
    for chunk in (1, 16, 64):
        path = Path(folder) / f"{chunk}.zarr"
        store = gpustore.save(path, images, chunks=(chunk, 64, 64), codec="zstd:1", overwrite=True)
        datasets = {
            "ArrayDataset": ArrayDataset(store),
            "one by one": OneByOne(store),
            "zarr-python": OneByOne(zarr.open_array(path, mode="r")),
        }
        for shuffle in (False, True):
            times = {name: [] for name in datasets}
            for _ in range(ROUNDS):
                for name, dataset in datasets.items():
                    times[name].append(once(dataset, shuffle))
            for name, found in times.items():
                wall, cpu = np.median(found, axis=0)
                order = "shuffled" if shuffle else "in order"
                print(f"{chunk:3} a chunk, {order}  {name:14} {wall:7.0f} wall {cpu:7.0f} CPU")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
