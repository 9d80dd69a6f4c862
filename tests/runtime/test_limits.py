"""Tests of limits: JSON, messages, the environment variable."""

import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from gpustore.errors import LimitError, MetadataError
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from tests.matrix import each

NAMES = [field.name for field in fields(Limits)]


@each("name", NAMES)
def test_each_limit_round_trips_through_json(name):
    limits = Limits.from_json({name: 7})
    assert getattr(limits, name) == 7
    assert Limits.from_json(limits.to_json()) == limits
    assert limits == replace(Limits(), **{name: 7})


def test_json_keeps_the_rest_of_the_base():
    base = Limits(codecs=5, rank=3)
    assert Limits.from_json({"rank": 4}, base=base) == Limits(codecs=5, rank=4)
    assert Limits.from_json({}) == Limits()


@each(
    ("json", "text"),
    [
        ([], "Expected object, but received: []"),
        ({"foo": 1}, 'Object includes extra members: "foo"'),
        ({"rank": 33}, "Expected integer in the range [1, 32], but received: 33"),
        ({"codecs": 0}, "but received: 0"),
        ({"codecs": True}, "but received: true"),
        ({"codecs": 1.5}, "but received: 1.5"),
        ({"codecs": "1"}, 'but received: "1"'),
        ({"codecs": None}, "but received: null"),
        ({"codecs": 2**63}, "but received: 9223372036854775808"),
    ],
)
def test_bad_json(json, text):
    with pytest.raises(MetadataError) as raised:
        Limits.from_json(json, where="a test")
    assert text in str(raised.value)
    assert str(raised.value).endswith("(in a test)")


def test_check_accepts_up_to_the_limit():
    Limits(codecs=5).check("codecs", 5, "zarr.json")


def test_check_says_how_to_raise_the_limit():
    with pytest.raises(LimitError) as raised:
        Limits(chunk_nbytes=100).check("chunk_nbytes", 101, "zarr.json: chunk_shape", key="a/b")
    assert raised.value.key == "a/b"
    assert str(raised.value) == (
        "zarr.json: chunk_shape: chunk_nbytes is 101, which exceeds the limit of 100; if the data "
        'can be trusted, open with context={"limits": {"chunk_nbytes": 101}} or set '
        "GPUSTORE_LIMITS='{\"chunk_nbytes\": 101}'"
    )


@pytest.mark.parametrize(("name", "value"), [("rank", 33), ("chunk_nbytes", 10**400)])
def test_check_does_not_advise_what_cannot_be(name, value):
    with pytest.raises(LimitError) as raised:
        Limits().check(name, value, "zarr.json")
    assert str(raised.value).endswith(f"limit of {getattr(Limits(), name)}")


@pytest.mark.matrix("costly")
def test_default_limits_come_from_the_environment():
    code = "from gpustore.runtime.limits import DEFAULT_LIMITS as d; print(d.rank, d.codecs)"
    assert _run(code, '{"rank": 5}').stdout == "5 32\n"
    if "GPUSTORE_LIMITS" not in os.environ:
        assert Limits() == DEFAULT_LIMITS


@pytest.mark.matrix("costly")
def test_bad_environment_is_an_error():
    done = _run("import gpustore.runtime.limits", '{"rank": 0}')
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        'gpustore.errors.MetadataError: Error parsing object member "rank": Expected integer in '
        "the range [1, 32], but received: 0 (in environment variable GPUSTORE_LIMITS)"
    )


def _run(code, limits):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"GPUSTORE_LIMITS": limits},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
