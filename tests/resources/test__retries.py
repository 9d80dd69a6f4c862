"""Tests of the resources for repeating requests against TensorStore."""

import pytest

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare

IDS = ["http_request_retries", "s3_request_retries", "gcs_request_retries"]


@each("id", IDS)
@each(
    "json",
    [
        {},
        {"max_retries": 32, "initial_delay": "1s", "max_delay": "32s"},
        {"max_retries": 0},
        {"max_retries": -1},
        {"initial_delay": "90ms", "max_delay": "2h"},
        {"initial_delay": 5},
        {"zz": 1},
        "x",
    ],
)
def test_json_is_what_tensorstore_makes_of_it(id, json):
    compare(id, json)


@pytest.mark.parametrize("id", IDS)
def test_value(id):
    value = Context({id: {"initial_delay": "100ms"}})[id].value
    assert (value.max_retries, value.initial_delay_s, value.max_delay_s) == (32, 0.1, 32.0)
