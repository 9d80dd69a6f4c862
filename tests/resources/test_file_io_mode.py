"""Tests of ``file_io_mode`` against TensorStore."""

import pytest

from gpustore.context import Context
from gpustore.errors import UnsupportedError
from tests.resources.oracle import compare


@pytest.mark.parametrize(
    "json",
    [
        {},
        {"mode": "default"},
        {"mode": "memmap"},
        {"mode": "direct"},
        {"mode": "x"},
        {"mode": 1},
        {"x": 1},
        5,
        "default",
    ],
    ids=str,
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("file_io_mode", json)


@pytest.mark.parametrize("mode", ["memmap", "direct"])
def test_other_modes_are_legal_but_not_supported(mode):
    resource = Context({"file_io_mode": {"mode": mode}})["file_io_mode"]
    with pytest.raises(UnsupportedError, match=mode):
        _ = resource.value
