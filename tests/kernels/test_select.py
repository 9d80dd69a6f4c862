"""kernels/select.cu against NumPy, run on the host in three orders of threads."""

import numpy as np
import pytest

from gpustore.device.chunk_tables import COLUMNS
from gpustore.device.kernels.descriptor import REGION, REGIONS
from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = execution.needs_compiler

IN_REGION = 1 << 62


def sums_of(words):
    """Sums of all before each, and of all."""
    return np.concatenate([[0], np.cumsum(words, dtype=np.uint64)]).astype(np.uint64)


def check(numbers, counts, blocks, form, order, *, less=0):
    """Select entries of two parts; `counts` and `blocks` are those of each chunk."""
    rng = np.random.default_rng(len(numbers))
    regions = np.zeros(REGIONS, REGION)
    regions["address"], regions["pitch"] = rng.integers(0, 2**40, REGIONS), 16 * (1 + np.arange(8))
    begins = np.stack([sums_of(counts), sums_of(counts + (blocks << np.uint64(32)))])
    first = np.zeros((2, len(numbers)), np.uint64)
    module, pointer = host_build.load("select"), lambda a: np.uint64(execution.address(a))
    written = numbers - less
    where = np.uint64(execution.address(begins) + 8 * less)
    known = [pointer(written), np.uint32(len(numbers))]
    arguments = [*known, where, np.uint64(begins.shape[1]), pointer(first)]
    module.launch("gs::first_entries", 2, arguments, order=order)
    for k, each_first in enumerate(first):
        steps = begins[k, numbers + 1] - begins[k, numbers]
        assert np.array_equal(each_first, sums_of(steps)[:-1])

    total = int(counts.sum())
    entries = rng.integers(0, 2**32, (total, 4), np.uint64)
    places = rng.integers(0, 3, (total, 2)) == 0
    offsets = rng.integers(0, 2**20, (total, 2), np.uint64)
    region = rng.integers(0, REGIONS, (total, 2), np.uint64)
    coded = np.uint64(IN_REGION) | region << np.uint64(56) | offsets
    entries[:, :2] = np.where(places, coded, entries[:, :2])
    # Each entry has the blocks of its chunk together before it, and at most one of its own.
    owner = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    tile = (begins[1, owner] >> np.uint64(32)).astype(np.uint32)
    if form != COLUMNS:
        entries.view(np.uint32)[:, 6 + form // 32] = tile
    chosen = [np.flatnonzero(owner == number) for number in numbers]
    row = np.repeat(np.arange(len(numbers)), [len(one) for one in chosen])
    chosen = np.concatenate(chosen)
    expected = entries[chosen]
    for column in range(2):
        found = regions[region[chosen, column].astype(np.int64)]
        moved = found["address"] + row.astype(np.uint64) * found["pitch"] + offsets[chosen, column]
        expected[:, column] = np.where(places[chosen, column], moved, expected[:, column])
    if form != COLUMNS:
        starts = (first[1] >> np.uint64(32)).astype(np.uint32)[row]
        expected.view(np.uint32)[:, 6 + form // 32] = starts
    else:
        expected = expected[:, [0, 2, 1, 3]].T
    out = np.zeros(4 * len(chosen), np.uint64)
    if len(chosen):
        part = np.uint64(int(where) + 8 * begins.shape[1])
        arguments = [*known, part, pointer(first[1]), pointer(entries), np.uint32(len(chosen))]
        arguments += [regions.view(np.uint8), np.uint32(form), pointer(out)]
        module.launch("gs::select_entries", -(-len(chosen) // 256), arguments, order=order)
    assert np.array_equal(out.reshape(expected.shape), expected)


@each("order", host_build.ORDERS)
@each("form", [0, 32, COLUMNS])
@each("rows", [1, 257, 700])
def test_entries_of_chunks_are_those_of_numpy(rows, form, order):
    rng = np.random.default_rng(rows)
    chunks = rows + 40
    counts = rng.integers(0, 3, chunks, np.uint64)
    blocks = rng.integers(0, 5, chunks, np.uint64)
    numbers = rng.permutation(chunks)[:rows]
    check(numbers, counts, blocks, form, order)
    check(np.sort(numbers), counts, blocks, form, order, less=int(numbers.min()))


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_rows_without_entries_are_passed_over(order):
    counts = np.array([0, 2, 0, 0, 1, 0], np.uint64)
    check(np.array([5, 0, 1, 2, 3, 4, 5]), counts, counts, 0, order)
    check(np.array([0, 2]), counts, counts, COLUMNS, order)
