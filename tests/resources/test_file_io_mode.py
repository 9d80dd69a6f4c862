"""Tests of ``file_io_mode`` against TensorStore."""

import pytest

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare


@each(
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
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("file_io_mode", json)


@pytest.mark.parametrize("mode", ["default", "memmap", "direct"])
def test_value_is_the_mode(mode):
    assert Context({"file_io_mode": {"mode": mode}})["file_io_mode"].value == mode
