"""Grids of stored values: keys, positions, boxes."""

import itertools

import numpy as np

import gpustore
from gpustore.cli.value_grid import StoredValues, ValueGrid
from tests.matrix import each

RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [3, [[2, 2], 3]]},
}


def opened(path, driver="zarr3", **metadata):
    spec = {"driver": driver, "kvstore": f"file://{path}/"}
    if metadata:
        spec["metadata"] = metadata
    return gpustore.open(spec, create=True, open=True, dtype="uint8", shape=[5, 6]).result()


@each(
    ("driver", "metadata"),
    [
        ("zarr3", {}),
        ("zarr3", {"chunk_key_encoding": {"name": "v2"}}),
        (
            "zarr3",
            {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
        ),
        ("zarr2", {}),
        ("zarr2", {"dimension_separator": "/"}),
        ("zarr3", {"chunk_grid": RECTILINEAR}),
    ],
)
def test_keys_are_those_of_the_stored_chunks(tmp_path, driver, metadata):
    if "chunk_grid" not in metadata:
        regular = {"name": "regular", "configuration": {"chunk_shape": [3, 2]}}
        metadata |= {"chunk_grid": regular} if driver == "zarr3" else {"chunks": [3, 2]}
    store = opened(tmp_path, driver, **metadata)
    grid = ValueGrid.of(store)
    assert (grid.counts, grid.size, grid.noun) == ((2, 3), 6, "chunk")
    for cell in grid.cells():
        box = tuple(slice(along.start, along.stop) for along in grid.box(cell))
        store[box] = 1
        assert (tmp_path / grid.key(cell)).exists()
        assert grid.cell(grid.key(cell)) == cell
    assert np.array_equal(store.read().result(), np.ones((5, 6)))
    (tmp_path / "other").write_bytes(b"12")
    stored = StoredValues.listed(store, grid)
    assert list(stored.nbytes) == list(grid.cells())
    assert stored.others == ["other"]
    assert not stored.errors


def test_a_grid_of_very_many_values_is_not_held_in_memory():
    url = "memory://many/|zarr3:"
    store = gpustore.open(url, create=True, dtype="uint8", shape=[2, 10**13], chunks=1).result()
    assert next(itertools.islice(ValueGrid.of(store).cells(), 3, None)) == (0, 3)


def test_keys_outside_of_the_grid_are_none_of_it(tmp_path):
    grid = ValueGrid.of(opened(tmp_path))
    for key in ("c/0/1", "c/00/0", "c/0", "0/0", "c/-1/0", "c/0/0/0"):
        assert grid.cell(key) is None
    assert grid.cell("c/0/0") == (0, 0)


def test_touched_chunks(tmp_path):
    store = opened(tmp_path, chunk_grid=RECTILINEAR)
    grid = ValueGrid.of(store)
    assert grid.touched(1, range(6)) == range(3)
    assert grid.touched(1, range(3, 4)) == range(1, 2)
    assert grid.touched(1, range(4, 1, -1)) == range(1, 3)
    assert not grid.touched(0, range(0))


def test_a_single_value_has_one_key(tmp_path):
    store = gpustore.open(
        f"file://{tmp_path}/|zarr3:", create=True, dtype="int8", shape=[]
    ).result()
    store[...] = 3
    grid = ValueGrid.of(store)
    assert (grid.size, grid.key(()), grid.cell("c"), grid.cell("c/0")) == (1, "c", (), None)
    assert list(StoredValues.listed(store, grid).nbytes) == [()]


def test_a_large_grid_needs_no_memory(tmp_path):
    store = gpustore.open(
        f"file://{tmp_path}/|zarr3:", create=True, dtype="int8", shape=[2**60], chunks=(1,)
    ).result()
    grid = ValueGrid.of(store)
    assert grid.size == 2**60
    assert grid.box((2**59,)) == (range(2**59, 2**59 + 1),)
