"""Tests of ``http_request_timeouts``, which TensorStore does not have."""

import pytest

from gpustore.errors import MetadataError
from gpustore.runtime.context import Context, resource_json

ID = "http_request_timeouts"


def test_json_keeps_what_is_not_the_default():
    json = {"connect": "10s", "idle": "500ms"}
    resource = Context({ID: json})[ID]
    assert resource.to_json() == {"idle": "500ms"}
    assert resource.to_json(True) == {
        "connect": "10s",
        "idle": "500ms",
        "reach": "10s",
        "total": "2m",
    }
    assert resource_json(ID, resource.to_json(True)) == {"idle": "500ms"}


def test_value_is_in_seconds():
    value = Context({ID: {"idle": "250ms", "total": "inf"}})[ID].value
    assert (value.connect_s, value.idle_s, value.total_s) == (10, 0.25, float("inf"))
    assert value.reach_s == 10


@pytest.mark.parametrize(
    "json", [{"idle": "0s"}, {"idle": "-1s"}, {"idle": 5}, {"x": "1s"}, 5], ids=str
)
def test_wrong_json_is_refused(json):
    with pytest.raises(MetadataError):
        Context({ID: json})
