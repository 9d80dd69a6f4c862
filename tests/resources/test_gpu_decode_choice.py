"""Tests of ``gpu_decode_choice`` as JSON; tests/codec_chain/test_decoder_choice.py reads by it."""

import pickle

import pytest

import gpustore
from gpustore.errors import MetadataError
from gpustore.resources.gpu_decode_choice import DecodeRule

RULES = {
    "auto": DecodeRule(),
    "device": DecodeRule("device"),
    "host": DecodeRule("host"),
}
THRESHOLDS = [
    ({"min_streams": 200}, DecodeRule(min_streams=200)),
    ({"long_stream_nbytes": 0}, DecodeRule(long_stream_nbytes=0)),
    ({"min_streams": 0, "long_stream_nbytes": 7}, DecodeRule("auto", 0, 7)),
]


@pytest.mark.parametrize(("json", "rule"), [*RULES.items(), *THRESHOLDS])
def test_it_stays_as_written(json, rule):
    context = gpustore.Context({"gpu_decode_choice": json})
    for resource in (
        context["gpu_decode_choice"],
        pickle.loads(pickle.dumps(context))["gpu_decode_choice"],
    ):
        assert resource.value == rule
        assert resource.to_json() == json


def test_an_object_without_thresholds_is_the_default():
    context = gpustore.Context({"gpu_decode_choice": {}})
    assert context["gpu_decode_choice"].to_json() == "auto"


@pytest.mark.parametrize(
    ("json", "text"),
    [
        ("gpu", r'Expected one of "auto", "device", "host"'),
        (3, r'Expected one of "auto", "device", "host"'),
        ({"min_streams": -1}, r"min_streams"),
        ({"min_streams": "1"}, r"min_streams"),
        ({"streams": 1}, r"streams"),
    ],
)
def test_other_values_are_refused(json, text):
    with pytest.raises(MetadataError, match=text):
        gpustore.Context({"gpu_decode_choice": json})


def test_a_store_shows_it_where_it_says_something(tmp_path):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
    gpustore.open(spec, create=True, dtype="uint8", shape=[3]).result()
    for json, shown in (("auto", False), ("host", True), ({"min_streams": 3}, True)):
        context = gpustore.Context({"gpu_decode_choice": json})
        store = gpustore.open(f"file://{tmp_path}", context=context).result()
        assert ("gpu_decode_choice" in str(store.spec(unbind_context=True))) == shown
        again = pickle.loads(pickle.dumps(store))
        assert again._driver.resources["gpu_decode_choice"].to_json() == json
