"""Chunks that windows touch, compared with those of every single element."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.loader.fetched_window import FetchedWindow
from gpustore.loader.order import Window
from gpustore.loader.residents import Residents
from gpustore.loader.touched_chunks import TouchedChunks
from gpustore.loader.volume import Volume

EDGES = {"regular": [0, 4, 8, 12, 16, 20], "rectilinear": [0, 3, 10, 11, 20]}


def stored(kind):
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 4, 5]}}
    if kind == "rectilinear":
        grid = {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [2, [3, 7, 1, 9], 5]},
        }
    metadata = {"shape": [4, 20, 10], "data_type": "uint8", "chunk_grid": grid}
    return gpustore.open(
        {"driver": "zarr3", "kvstore": "memory://touched/", "metadata": metadata},
        create=True,
        delete_existing=True,
        context=gpustore.Context(),
    ).result()


@given(
    kind=st.sampled_from(sorted(EDGES)),
    begin=st.integers(0, 3),
    patch=st.tuples(st.integers(1, 17), st.integers(1, 6)),
    places=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_chunks_are_those_of_the_elements(kind, begin, patch, places):
    store = stored(kind)
    if kind == "regular":
        store = store[:, begin:]  # A view, whose first chunk is smaller.
    volume = Volume({"a": store}, patch, watches=True)
    room = np.array(volume.shape) - patch
    origins = np.array([np.multiply(place, room).astype(int) for place in places])
    numbers = np.arange(len(origins))
    window = FetchedWindow(Window(0, 0, origins), volume, numbers, numbers, "shift", Residents(()))
    fetched = window.arrays[0]
    touched = TouchedChunks(fetched.array)
    expected = set()
    boxes = [(o, o + patch) for o in origins]
    for low, high in [(fetched.low, fetched.high)] if fetched.is_box else boxes:
        first = int(store.domain.origin[1])
        rows = {np.searchsorted(EDGES[kind], i + first, "right") for i in range(low[0], high[0])}
        columns = {j // 5 for j in range(low[1], high[1])}
        expected |= set(itertools.product(range(2), rows, columns))
    touched.add(fetched)
    assert touched.different == len(expected) == fetched.explain()[0].chunks
    touched.add(fetched)
    assert touched.different == len(expected)
