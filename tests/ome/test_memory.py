"""Memory that pyramids of large images take, each in a process of its own."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import gpustore
from gpustore import ome

SHAPE, CHUNK = (2048, 1024, 1024), (64, 64, 128)
BOUND = 512 << 20
"""Most resident memory of the process, with Python and all libraries."""

PROGRAM = """
import sys
from pathlib import Path
from gpustore import ome
call, method, path, other = sys.argv[1:]
image = ome.open(path)
if call == "build_pyramid":
    image.build_pyramid(levels=5, method=method)
else:
    ome.write(other, image.level(0).store, axes="zyx", levels=5, method=method)
status = Path("/proc/self/status").read_text(encoding="ascii")
print(int(status.partition("VmHWM:")[2].split()[0]) << 10)
"""


@pytest.fixture
def image(tmp_path):
    """An image of 4 GiB whose chunks are links to one file, each to be read and decoded."""
    path = tmp_path / "a.zarr"
    made = ome.create(path, shape=SHAPE, dtype="uint16", axes="zyx", chunks=CHUNK)
    values = np.random.default_rng(0).integers(0, 4, CHUNK).astype("uint16")
    made.level(0).store[tuple(slice(n) for n in CHUNK)].write(values).result()
    first = path / "0" / "c" / "0" / "0" / "0"
    for number in itertools.product(*(range(n // c) for n, c in zip(SHAPE, CHUNK, strict=True))):
        place = path.joinpath("0", "c", *map(str, number))
        place.parent.mkdir(parents=True, exist_ok=True)
        if place != first:
            os.link(first, place)
    return path, values


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "method"),
    [("build_pyramid", "mean"), ("build_pyramid", "gaussian"), ("write", "mean")],
)
def test_a_pyramid_of_4_gib_takes_less_than_512_mib(call, method, image, tmp_path):
    path, values = image
    other = tmp_path / "b.zarr"
    command = [sys.executable, "-c", PROGRAM, call, method, path, other]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(f"{int(done.stdout) >> 20} MiB")
    assert int(done.stdout) < BOUND
    found = ome.open(path if call == "build_pyramid" else other)
    assert [level.shape[0] for level in found.levels] == [2048, 1024, 512, 256, 128]
    if method == "mean":
        half = gpustore.downsample(gpustore.array(values), [2, 2, 2], "mean").read().result()
        assert np.array_equal(found.level(1).store.numpy[-32:, -32:, -64:], half)
