"""Tests of ``cache_pool`` against TensorStore."""

import weakref

import pytest

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare

LIMITS = [0, 1, 10**9, 1.0, 2**64 - 1, -1, 1.5, 1e300, "5", None, True, [], {}]


@each("json", [{}, {"x": 1}, *({"total_bytes_limit": limit} for limit in LIMITS)])
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("cache_pool", json)


def test_limit_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="Expected 64-bit unsigned integer"):
        Context({"cache_pool": {"total_bytes_limit": 2**64}})


def test_value_is_one_pool_per_resource():
    context = Context({"cache_pool#a": {"total_bytes_limit": 5}, "cache_pool": "cache_pool#a"})
    pool = context["cache_pool"].value
    assert pool.total_bytes_limit == 5
    assert pool is context["cache_pool#a"].value
    assert pool != Context({"cache_pool": {"total_bytes_limit": 5}})["cache_pool"].value
    # Caches can be kept beside the pool they belong to.
    assert weakref.WeakKeyDictionary({pool: 1})[pool] == 1
