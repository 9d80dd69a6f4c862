"""Explanations as text and as JSON."""

import json
from dataclasses import fields, replace

import pytest

import gpustore
from tests.explain.test_estimate import STARTS, create


@pytest.fixture
def store(tmp_path):
    return gpustore.open(create(tmp_path, "zstd"), device="cpu").result()


def test_text(store):
    lines = str(store.explain()).split("\n")
    assert [line.split("; less if")[0] for line in lines[:5]] == [
        "read         37 x 41 of uint32, 6,068 bytes, into host memory",
        "chunks       25 of 8 x 9, in 25 stored values",
        "fetched      at most 109,700 bytes in 25 reads; the stored bytes decide",
        "decoded      at most 7,200 bytes, 1.19 for each byte returned",
        "by           zstd by the host",
    ]


def test_json(store):
    explanation = store.explain()
    members = explanation.to_json()
    assert json.loads(json.dumps(members)) == members
    assert {field.name for field in fields(explanation)} < members.keys()
    assert members["counts"]["key_reads"] == {"least": 25, "most": 25}
    with pytest.raises(AttributeError):
        explanation.chunks = 3
    assert replace(explanation, host_reason="why").to_json()["host_reason"] == "why"


def test_advice_on_reads_that_decode_much_more_than_they_return(store):
    assert store.explain().advice is None
    explanation = store[:, 3].explain()
    assert explanation.decoded_per_byte > 4
    assert "read_many" in explanation.advice
    assert "smaller chunks than 8 x 9" in explanation.advice
    assert explanation.advice in str(explanation)
    few = store.explain_many(STARTS, (1, 1))
    assert "read larger parts, or store smaller chunks" in few.advice
    assert "read_many" in store.explain_many(STARTS[:1], (1, 1)).advice
