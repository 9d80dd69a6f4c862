"""Tests of ``file_io_locking`` against TensorStore."""

import math

import pytest

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare


@each(
    "json",
    [
        {},
        {"mode": "os"},
        {"mode": "lockfile"},
        {"mode": "none"},
        {"mode": "non_atomic"},
        {"mode": "os", "acquire_timeout": "5s"},
        {"mode": "none", "acquire_timeout": "60s"},
        {"mode": "flock"},
        {"mode": None},
        {"x": 1, "a": 2},
        5,
        "os",
        [],
    ],
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("file_io_locking", json)


@pytest.mark.parametrize(
    ("json", "mode", "timeout"),
    [
        ({"mode": "lockfile", "acquire_timeout": "1.5s"}, "lockfile", 1.5),
        ({"acquire_timeout": "inf"}, "os", math.inf),
        ({"mode": "none", "acquire_timeout": "-5s"}, "none", 0.0),
        ({"mode": "non_atomic"}, "non_atomic", 60.0),
    ],
)
def test_value(json, mode, timeout):
    value = Context({"file_io_locking": json})["file_io_locking"].value
    assert (value.mode, value.acquire_timeout_s) == (mode, timeout)
