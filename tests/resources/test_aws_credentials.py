"""Tests of ``aws_credentials`` against TensorStore."""

from gpustore.runtime.context import Context
from tests.matrix import each
from tests.resources.oracle import compare


@each(
    "json",
    [
        {},
        *({"type": kind} for kind in ("default", "anonymous", "environment", "imds", "ecs")),
        *({"type": kind} for kind in ("profile", "static", "", 1, None)),
        {"profile": "x"},
        {"type": "default", "profile": "p"},
        {"type": "default", "config_file": "c"},
        {"type": "imds", "metadata_endpoint": "http://x"},
        {"type": "environment", "x": 1},
        {"type": "profile", "profile": "x", "config_file": "c", "credentials_file": "d"},
        {"type": "profile", "profile": ""},
        {"type": "ecs", "endpoint": "e", "auth_token_file": "f"},
        {"type": "ecs", "endpoint": "http://e", "auth_token": "SECRET"},
        {"type": "ecs", "endpoint": ""},
        {"type": "ecs", "auth_token_file": "f"},
        "x",
    ],
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("aws_credentials", json)


def test_default():
    resource = Context()["aws_credentials"]
    assert repr(resource) == "Context.Resource({'type': 'default'})"
    assert resource.value.type == "default"
