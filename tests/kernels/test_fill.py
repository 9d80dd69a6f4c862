"""kernels/fill.cu against NumPy, run on the host."""

import ctypes
import math
import shutil
import subprocess

import numpy as np
import pytest

from gpustore.backends import _kernels
from tests.emulator import host_build

WIDTHS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}
RANKS = (1, 2, 4, 8, 32)


@pytest.fixture(scope="module")
def fill(tmp_path_factory):
    if host_build.COMPILER is None:
        pytest.skip("no g++ on this machine: kernels cannot be compiled for the host")
    return host_build.HostModule("fill", tmp_path_factory.mktemp("kernels"))


def describe(views, rank):
    """Run descriptors of NumPy views, and the number of tiles of the whole batch."""
    runs = np.zeros(len(views), _kernels.run_dtype(rank))
    tiles = 0
    for run, view in zip(runs, views, strict=True):
        run["dst"] = view.__array_interface__["data"][0]
        run["items"] = view.size
        run["first_tile"] = tiles
        run["dim"]["extent"] = 1
        unused = rank - view.ndim
        for k, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            magic, shift = _kernels.division(extent)
            run["dim"][unused + k] = (extent, magic, shift, 0, 0, stride)
        tiles += math.ceil(view.size / _kernels.ITEMS_PER_TILE)
    return runs, tiles


def launch_fill(fill, views, itemsize, rank, pattern, *, backwards):
    runs, tiles = describe(views, rank)
    fill.launch(
        f"gs::fill_strided<gs::{WIDTHS[itemsize]}, {rank}>",
        tiles,
        [
            ctypes.c_void_p(runs.ctypes.data),
            ctypes.c_uint(len(runs)),
            (ctypes.c_ubyte * itemsize)(*pattern),
        ],
        backwards=backwards,
    )


def random_view(rng, base, rank):
    """A view of `base` with random steps, signs and axis order."""
    index = []
    for extent in base.shape:
        start = int(rng.integers(0, extent))
        stop = int(rng.integers(start + 1, extent + 1))
        step = int(rng.integers(1, 4)) * int(rng.choice([-1, 1]))
        index.append((slice(start, stop), slice(None, None, step)))
    view = base[tuple(cut for cut, _ in index)][tuple(step for _, step in index)]
    return view.transpose(rng.permutation(rank))


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("itemsize", WIDTHS)
def test_fill_equals_numpy_for_random_strided_batches(fill, itemsize, backwards):
    rng = np.random.default_rng(itemsize)
    for _ in range(40):
        rank = int(rng.integers(1, 5))
        shape = tuple(rng.integers(1, 12, rank)) if rank > 1 else (int(rng.integers(1, 5000)),)
        pattern = rng.integers(0, 256, itemsize, dtype=np.uint8)
        bases = [rng.bytes(math.prod(shape) * itemsize) for _ in range(3)]
        got = [np.frombuffer(bytearray(b), f"V{itemsize}").reshape(shape) for b in bases]
        expected = [a.copy() for a in got]
        seed = int(rng.integers(1 << 30))
        views = [random_view(np.random.default_rng(seed), a, rank) for a in got]
        for array in expected:
            random_view(np.random.default_rng(seed), array, rank)[...] = pattern.view(array.dtype)
        device_rank = min(r for r in RANKS if r >= rank)
        launch_fill(fill, views, itemsize, device_rank, pattern, backwards=backwards)
        for a, b in zip(got, expected, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("rank", RANKS)
def test_fill_pads_unused_dimensions(fill, rank):
    memory = np.zeros(3000, np.uint16)
    launch_fill(fill, [memory[10:2990]], 2, rank, [0x34, 0x12], backwards=False)
    assert (memory[10:2990] == 0x1234).all()
    assert not memory[:10].any()
    assert not memory[2990:].any()


@pytest.mark.parametrize("nitems", [1, 255, 256, 257, 1023, 1024, 1025, 4096])
def test_fill_ends_exactly_at_tile_edges(fill, nitems):
    memory = np.full(nitems + 2, 7, np.uint32)
    launch_fill(fill, [memory[1:-1]], 4, 1, [1, 0, 0, 0], backwards=False)
    assert memory[0] == memory[-1] == 7
    assert (memory[1:-1] == 1).all()


def test_fill_offsets_are_64_bit(fill):
    # Two items 5 GiB apart in address space that is reserved but never touched in between.
    memory = np.zeros(5 << 30, np.uint8)
    launch_fill(fill, [memory[:: (5 << 30) - 1]], 1, 1, [9], backwards=False)
    assert memory[0] == 9
    assert memory[-1] == 9


def test_fill_compiles_with_nvcc(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine: only g++ has read the kernels")
    asked = ("gs::fill_strided<gs::u8, 1>", "gs::fill_strided<gs::u128, 32>")
    assert set(asked) <= set(_kernels.INSTANCES["fill"])
    lines = [f"template __global__ void {e}(const gs::Run<{e[-3:-1]}>*, gs::u32, " for e in asked]
    text = _kernels.source("fill")
    text += f"{lines[0].replace(', 1>', ',1>')}gs::u8);\n{lines[1]}gs::u128);\n"
    file = tmp_path / "fill.cu"
    file.write_text(text, encoding="utf-8")
    command = [nvcc, "-std=c++17", "-cubin", "-arch=sm_90", "-o", str(tmp_path / "x"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
