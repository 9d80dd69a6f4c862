"""Tests of ``device_cache_pool``, which TensorStore does not have."""

import pytest

from gpustore.runtime.context import Context


def test_json():
    assert Context({"device_cache_pool": {}})["device_cache_pool"].value.total_bytes_limit == 0
    json = {"total_bytes_limit": 5, "content": "decoded", "memory": "device"}
    context = Context({"device_cache_pool": json})
    assert context["device_cache_pool"].value.total_bytes_limit == 5
    assert context.spec.to_json() == {"device_cache_pool": {"total_bytes_limit": 5}}
    assert context.spec.to_json(include_defaults=True) == {"device_cache_pool": json}


def test_two_pools_are_never_equal():
    spec = {"device_cache_pool": {"total_bytes_limit": 5}}
    assert Context(spec)["device_cache_pool"].value != Context(spec)["device_cache_pool"].value


@pytest.mark.parametrize(
    ("json", "message"),
    [
        ({"total_bytes_limit": -1}, "total_bytes_limit"),
        ({"content": "whole"}, r'"content": Expected one of "decoded", "encoded", .*"whole"'),
        ({"memory": 1}, r'"memory": Expected one of "device", "pinned"'),
        ({"x": 1}, "x"),
    ],
)
def test_other_json_is_an_error(json, message):
    with pytest.raises(ValueError, match=message):
        Context({"device_cache_pool": json})


def test_content_and_memory():
    json = {"total_bytes_limit": 5, "content": "encoded", "memory": "pinned"}
    context = Context({"device_cache_pool": json})
    pool = context["device_cache_pool"].value
    assert (pool.content, pool.memory) == ("encoded", "pinned")
    assert context.spec.to_json() == {"device_cache_pool": json}
