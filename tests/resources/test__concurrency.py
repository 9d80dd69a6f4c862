"""Tests of ``data_copy_concurrency`` and ``file_io_concurrency`` against TensorStore."""

import pytest

from gpustore.runtime.context import Context
from gpustore.runtime.executor import shared
from tests.matrix import each
from tests.resources.oracle import compare

LIMITS = ["shared", 1, 4, 2.0, 2**64 - 1, 0, -1, 1.5, "x", "4", None, True, [], {}]


@each("id", ["data_copy_concurrency", "file_io_concurrency"])
@each("json", [{}, {"x": 1}, *({"limit": limit} for limit in LIMITS)])
def test_json_is_what_tensorstore_makes_of_it(id, json):
    compare(id, json)


def test_limit_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="Expected integer in the range"):
        Context({"data_copy_concurrency": {"limit": 2**64}})


@pytest.mark.parametrize("id", ["data_copy_concurrency", "file_io_concurrency"])
def test_value_is_an_executor(id):
    assert Context({id: {"limit": "shared"}})[id].value is shared()
    own = Context({id: {"limit": 3}})[id].value
    assert own is not shared()
    assert own.limit == 3
    assert own.submit(lambda: 5).result() == 5


def test_the_two_share_only_the_shared_pool():
    limits = {"data_copy_concurrency": {"limit": 2}, "file_io_concurrency": {"limit": 2}}
    context = Context(limits)
    assert context["data_copy_concurrency"].value is not context["file_io_concurrency"].value
