"""Tests of ``device``."""

import pickle

import pytest

from gpustore.errors import MetadataError
from gpustore.runtime.context import Context
from tests.matrix import each


@pytest.mark.parametrize(
    ("text", "kind", "ordinal"),
    [
        ("auto", "auto", None),
        ("cpu", "cpu", None),
        ("cuda", "cuda", None),
        ("cuda:0", "cuda", 0),
        ("cuda:12", "cuda", 12),
    ],
)
def test_device_stays_as_written(text, kind, ordinal):
    context = Context({"device": text})
    for resource in (context["device"], pickle.loads(pickle.dumps(context))["device"]):
        device = resource.value
        assert (device.text, device.kind, device.ordinal) == (text, kind, ordinal)
        assert str(device) == resource.to_json() == text
        assert repr(resource) == f"Context.Resource({text!r})"


@each(
    "json",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda:x", "cpu:0", "auto:1", "cuda:1 "],
)
def test_other_strings_are_refused(json):
    with pytest.raises(MetadataError) as raised:
        Context({"device": json})
    assert str(raised.value) == (
        f'Invalid spec or reference to "device" resource: "{json}" (Expected one of "auto", "cpu", '
        f'"cuda", "cuda:N", but received: "{json}")'
    )


@pytest.mark.parametrize("json", [0, True, {}, []])
def test_other_json_is_refused(json):
    with pytest.raises(MetadataError, match=r'Expected one of .* \(in context resource "device"\)'):
        Context({"device": json})


def test_reference():
    context = Context({"device": "device#a", "device#a": "cuda:1"})
    assert context["device"].value.ordinal == 1
