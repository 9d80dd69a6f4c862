"""Numbers of chunks are those of a C-order enumeration, and keys have consecutive ones."""

import itertools

from gpustore.planning.cell_numbers import CellNumbers
from tests.matrix import each

GRIDS = [((3,), (1,)), ((2, 3), (1, 1)), ((2, 3), (2, 4)), ((2, 1, 3), (1, 3, 2)), ((), ())]


@each("grid", GRIDS)
def test_each_chunk_has_a_number_of_its_own(grid):
    keys, inner = grid
    numbering = CellNumbers(keys, inner)
    cells = list(itertools.product(*(range(k * i) for k, i in zip(keys, inner, strict=True))))
    numbers = numbering.of_cells(list(zip(*cells, strict=True)), inner).tolist()
    assert sorted(numbers) == list(range(numbering.count))
    for cell, number in zip(cells, numbers, strict=True):
        key = [at // ratio for at, ratio in zip(cell, inner, strict=True)]
        assert numbering.of_key(key) <= number < numbering.of_key(key) + numbering.per_key


def test_chunks_of_smaller_shards_are_numbered_among_those_of_the_largest():
    numbering = CellNumbers((2,), (4,))
    assert numbering.of_cells(([0, 1, 2, 3],), (2,)).tolist() == [0, 1, 4, 5]


def test_keys_outside_the_grid_have_no_number():
    numbering = CellNumbers((2, 3), (1, 1))
    assert [numbering.of_key(key) for key in ((1, 2), (2, 0), (-1, 0), (1,))] == [5] + 3 * [None]
