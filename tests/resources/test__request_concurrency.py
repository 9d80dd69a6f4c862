"""Tests of the resources that limit requests under way against TensorStore."""

import os

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare

IDS = ["http_request_concurrency", "s3_request_concurrency", "gcs_request_concurrency"]
LIMITS = ["shared", 1, 4, 2.0, 2**64 - 1, 0, -1, 1.5, "x", None]


@each("id", IDS)
@each("json", [{}, {"x": 1}, *({"limit": limit} for limit in LIMITS)])
def test_json_is_what_tensorstore_makes_of_it(id, json):
    compare(id, json)


def test_as_many_permits_as_the_limit_says():
    permits = Context({"http_request_concurrency": {"limit": 2}})["http_request_concurrency"].value
    assert [permits.take() for _ in range(3)] == [True, True, False]
    assert not permits.take(0.001)
    permits.give_back()
    assert permits.take(30)


def test_shared_permits_are_32_and_those_of_one_store_type():
    first, second = (Context()["s3_request_concurrency"].value for _ in range(2))
    assert first is second
    assert first.limit == 32
    assert first is not Context()["gcs_request_concurrency"].value


def test_forked_child_has_all_permits():
    permits = Context({"s3_request_concurrency": {"limit": 1}})["s3_request_concurrency"].value
    assert permits.take()
    child = os.fork()
    if not child:
        os._exit(0 if permits.take() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not permits.take()
