"""Tests of ``http_authorization``, which TensorStore does not have."""

import pytest

from gpustore.errors import MetadataError, NotFoundError
from gpustore.runtime.context import Context
from tests.matrix import each

ID = "http_authorization"


def test_nothing_is_sent_by_default():
    assert Context()[ID].value.read() == ""
    assert Context()[ID].to_json(True) == {}


def test_it_is_read_anew_each_time(tmp_path, monkeypatch):
    path = tmp_path / "token"
    source = Context({ID: {"file": str(path)}})[ID].value
    for text in ("Bearer a", "Bearer b"):
        path.write_text(text + "\n")
        assert source.read() == text
    source = Context({ID: {"environment": "TOKEN"}})[ID].value
    monkeypatch.setenv("TOKEN", " Basic c ")
    assert source.read() == "Basic c"


def test_path_that_no_file_can_have_is_a_missing_file():
    with pytest.raises(NotFoundError, match="holds no authorization"):
        Context({ID: {"file": "a\0b"}})[ID].value.read()


@pytest.mark.parametrize("data", [b"", b"\n", b"two\nlines", b"\xff", b"nul\0"])
def test_what_is_no_header_field_is_refused_without_showing_it(data, tmp_path):
    path = tmp_path / "token"
    path.write_bytes(data)
    with pytest.raises(NotFoundError, match="holds no authorization") as caught:
        Context({ID: {"file": str(path)}})[ID].value.read()
    assert "lines" not in str(caught.value)
    with pytest.raises(NotFoundError, match="holds no authorization"):
        Context({ID: {"file": str(tmp_path / "none")}})[ID].value.read()


WRONG = [
    {"environment": "A", "file": "b"},
    {"token": "SECRET"},
    {"as": "a b"},
    {"as": ""},
    {"as": 5},
    5,
]
SECRETS = ["Bearer SECRET", ["SECRET"], {"environment": "Bearer SECRET"}, {"as": "X: SECRET"}]


@each("json", WRONG + SECRETS)
def test_wrong_json_is_refused_and_not_shown(json):
    with pytest.raises(MetadataError) as caught:
        Context({ID: json})
    assert "SECRET" not in str(caught.value)
