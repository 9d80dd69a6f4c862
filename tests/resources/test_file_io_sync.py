"""Tests of ``file_io_sync`` against TensorStore, and of what gpustore adds."""

import pickle

import pytest

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare


@each("json", [True, False, 0, 1, 5, {}, [], "x", "true"])
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("file_io_sync", json)


@pytest.mark.parametrize(
    ("json", "value"),
    [
        (None, "full"),
        (True, "full"),
        (False, "none"),
        ("full", "full"),
        ("file", "file"),
        ("none", "none"),
    ],
)
def test_value(json, value):
    context = pickle.loads(pickle.dumps(Context({"file_io_sync": json})))
    assert context["file_io_sync"].value == value
    if json is not None:
        assert context["file_io_sync"].to_json() == json
