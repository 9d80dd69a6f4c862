"""Data types that TensorStore lacks, on the emulated device: only their layout matters there."""

import pytest

from tests.interop.test_types import (
    CELLS,
    assert_same,
    check_to_peer,
    data_of,
    fields_of,
    opened,
    shown,
)
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.long

POINTS = ([4, 0, 3, 0], [0, 6, 3, 6])
_NAMES = (
    *("datetime64[25s]", "datetime64", "timedelta64[1us]", "U3", "S3", "V3", "uint4"),
    *("float6_e2m3fn", "complex_float16", "nested", "subarrays", "pairs in records"),
)
_TO_FILES = [
    cell
    for cell in CELLS
    if (cell.peer, cell.direction) == ("numpy", "to peer") and cell.name in _NAMES
]


def _id(cell):
    return f"{cell.name}-{cell.format}-{cell.endian}"


@pytest.mark.parametrize("cell", _TO_FILES, ids=_id)
def test_elements_are_those_of_the_host(cell, tmp_path):
    path = tmp_path / "array"
    check_to_peer(cell, path)
    with emulated() as device:
        for field in fields_of(cell):
            store = opened(cell, path, field, device=device.name)
            expected = shown(data_of(cell), field)
            assert_same(on_host(device, store.read().result()), expected)
            assert_same(on_host(device, store[1:4, ::-2].read().result()), expected[1:4, ::-2])
            points = store.vindex[POINTS]
            assert_same(on_host(device, points.read().result()), expected[POINTS])


def test_every_type_is_there():
    assert {cell.name for cell in _TO_FILES} == set(_NAMES)
    assert {cell.endian for cell in _TO_FILES} == {"little", "big"}
