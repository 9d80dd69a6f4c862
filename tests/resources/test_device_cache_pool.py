"""Tests of ``device_cache_pool``, which TensorStore does not have."""

import pytest

import gpustore
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
        ({"content": "whole"}, 'content: Expected one of "decoded", "encoded"'),
        ({"memory": 1}, 'memory: Expected one of "device", "pinned"'),
        ({"x": 1}, "x"),
    ],
)
def test_other_json_is_an_error(json, message):
    with pytest.raises(ValueError, match=message):
        Context({"device_cache_pool": json})


@pytest.mark.parametrize(("member", "value"), [("content", "encoded"), ("memory", "pinned")])
def test_planned_values_are_not_supported(member, value):
    with pytest.raises(gpustore.UnsupportedError, match=f'{member} "{value}" is not supported'):
        Context({"device_cache_pool": {member: value}})
