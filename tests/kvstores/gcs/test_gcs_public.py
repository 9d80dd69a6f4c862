"""The gcs kvstore without credentials, whose requests are our own."""

# ruff: noqa: F403  the shared suite is taken over by name

import itertools

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.columns import ABSENT, ReadState
from tests.kvstores.contract import get, put
from tests.kvstores.gcs.gcs_server import GcsServer, open_gcs
from tests.kvstores.http.http_server import Fault, head
from tests.kvstores.read_contract import *
from tests.kvstores.s3.s3_server import refuse


@pytest.fixture(autouse=True)
def _nobody(server, monkeypatch):
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")


@pytest.fixture
def make_filled(server):
    numbers = itertools.count()

    def make(values):
        prefix = f"{next(numbers)} é/"
        server.values.update({f"bucket/{prefix}{key}": value for key, value in values.items()})
        return open_gcs(prefix)

    return make


def test_nothing_is_signed_and_generations_are_numbers(server):
    store = open_gcs()
    first = put(store, "a", b"1", ABSENT)
    assert first == str(server.generations["bucket/a"]).encode()
    second = put(store, "a", b"1", first)
    assert second not in (b"", first)
    assert put(store, "a", b"2", first) == b""
    assert put(store, "a", b"2", ABSENT) == b""
    assert get(store, "a") == (ReadState.VALUE, b"1", second)
    assert put(store, "a", None, first) == b""
    assert put(store, "a", None, second) == ABSENT
    assert put(store, "a", None) == ABSENT
    assert "a" not in store
    assert [sent.headers.get("x-goog-if-generation-match", "") for sent in server.requests[:2]] == [
        "0",
        first.decode(),
    ]
    assert not any("authorization" in sent.headers for sent in server.requests)


def test_what_is_not_public_says_that_the_request_was_anonymous(server):
    server.faults = [Fault(lambda s, c, r: refuse(c, 401, "AuthenticationRequired"))]
    store = open_gcs()
    text = (
        r'"gs://bucket/a": Unauthorized \[HTTP code 401\]: AuthenticationRequired; the request was'
    )
    for call in (lambda: store.read("a").result(), lambda: store.write("a", b"").result()):
        with pytest.raises(StoreIOError, match=text):
            call()


def test_missing_bucket_is_an_error_and_not_missing_data(server):
    store = open_gcs(bucket="other")
    for call in (lambda: store.read("a").result(), lambda: "a" in store):
        with pytest.raises(StoreIOError, match="NoSuchBucket"):
            call()


def test_redirect_is_not_followed(server):
    with GcsServer() as other:
        fields = [("Location", f"{other.url}/bucket/a"), ("Content-Length", 0)]
        server.faults = [Fault(lambda s, c, r: c.sendall(head(302, fields)))]
        with pytest.raises(StoreIOError, match=r"Found \[HTTP code 302\]"):
            open_gcs().read("a").result()
        assert other.requests == []
