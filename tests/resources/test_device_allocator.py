"""Tests of ``device_allocator``, which TensorStore does not have."""

import pytest

from gpustore.runtime.context import Context


def test_json():
    assert Context()["device_allocator"].value == "default"
    context = Context({"device_allocator": "torch"})
    assert context["device_allocator"].value == "torch"
    assert context.spec.to_json() == {"device_allocator": "torch"}
    for json in ("cupy", 1):
        with pytest.raises(ValueError, match="device_allocator"):
            Context({"device_allocator": json})["device_allocator"]
