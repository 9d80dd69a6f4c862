"""Tests of ``memory_key_value_store`` against TensorStore."""

import pytest

from gpustore.runtime.context import Context
from tests.resources.oracle import compare


@pytest.mark.parametrize("json", [{}, {"x": 1}, 5, "x", True], ids=str)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("memory_key_value_store", json)


def test_one_state_per_resource():
    context = Context({"memory_key_value_store#a": {}})
    state = context["memory_key_value_store"].value
    with state.lock:
        state.entries["a"] = b"1"
    assert context["memory_key_value_store"].value.entries == {"a": b"1"}
    assert context["memory_key_value_store#a"].value.entries == {}
