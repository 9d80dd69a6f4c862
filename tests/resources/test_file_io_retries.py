"""Tests of ``file_io_retries`` against TensorStore."""

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare


@each(
    "json",
    [
        {},
        {"max_retries": 0, "initial_delay": "1s", "max_delay": "32s"},
        {"max_retries": 3},
        {"max_retries": 1.0},
        {"max_retries": 2**63 - 1},
        {"max_retries": 2**63},
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"max_retries": "3"},
        {"max_retries": None},
        {"initial_delay": "90s", "max_delay": "2h"},
        {"initial_delay": "inf"},
        {"initial_delay": "-1s"},
        {"initial_delay": 5},
        {"max_delay": "x"},
        {"zz": 1, "aa": 2},
        5,
        "x",
    ],
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("file_io_retries", json)


def test_value():
    json = {"max_retries": 3, "initial_delay": "100ms", "max_delay": "-1s"}
    value = Context({"file_io_retries": json})["file_io_retries"].value
    assert (value.max_retries, value.initial_delay_s, value.max_delay_s) == (3, 0.1, 0.0)
