"""The gcs kvstore, against a double of the XML API on loopback."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import base64
import itertools
import json
import pickle
import re
import socket
import time
from dataclasses import replace
from urllib.parse import parse_qs

import numpy as np
import pytest
import tensorstore
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

import gpustore
from gpustore.errors import (
    InvalidKeyError,
    MetadataError,
    NotFoundError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores import gcs
from gpustore.kvstores.buckets import machine
from gpustore.kvstores.buckets.authorization import Anonymous
from gpustore.kvstores.columns import ABSENT, ReadState
from gpustore.kvstores.http.message import Origin
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.buckets.bucket_contract import *
from tests.kvstores.contract import *
from tests.kvstores.gcs.gcs_server import GcsServer, open_gcs
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.s3.s3_server import refuse
from tests.on_device import emulated, on_host


@pytest.fixture(scope="module")
def shared_server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "TOKEN")
    monkeypatch.setattr(gcs, "GOOGLE", Origin("http", "127.0.0.1", shared_server.port))
    yield shared_server
    shared_server.values.clear()
    shared_server.faults.clear()
    shared_server.requests.clear()


@pytest.fixture
def make_store(server):
    numbers = itertools.count()
    return lambda: open_gcs(f"{next(numbers)} é/")


@pytest.fixture
def open_bucket(server):
    return open_gcs


@pytest.fixture
def other_server():
    return GcsServer


@pytest.fixture
def model_examples():
    return 10


@pytest.mark.parametrize(
    "spec",
    [
        *("gs://bucket/p/q", "gs://bucket", "gs://bucket/", "gs://bucket/a%20b", "gs://my-_buck/x"),
        {"driver": "gcs", "bucket": "bucket"},
        {"driver": "gcs", "bucket": "b.b.c", "path": "a/"},
        {"driver": "gcs", "bucket": "bucket", "gcs_user_project": {"project_id": "x"}},
        {"driver": "gcs", "bucket": "bucket", "gcs_request_concurrency": {"limit": 2}},
    ],
    ids=str,
)
def test_spec_is_what_tensorstore_makes_of_it(spec):
    ours, theirs = KvStore.Spec(spec), tensorstore.KvStore.Spec(spec)
    assert ours.to_json() == theirs.to_json()
    assert ours.url == theirs.url
    everything = ours.to_json(include_defaults=True)
    assert everything.pop("http_request_timeouts") == "http_request_timeouts"
    assert everything == theirs.to_json(include_defaults=True)
    assert KvStore.Spec(ours.to_json()) == ours == pickle.loads(pickle.dumps(ours))


@pytest.mark.parametrize(
    "spec",
    [
        *("gs://b/x", "gs://", "gs://bucket/p?x", "gs:bucket/p", "gs://B_u/x"),
        {"driver": "gcs"},
        {"driver": "gcs", "bucket": "bu"},
        {"driver": "gcs", "bucket": "Bucket"},
        {"driver": "gcs", "bucket": "bucket-"},
        {"driver": "gcs", "bucket": "bucket", "endpoint": "x"},
        {"driver": "gcs", "bucket": "bucket", "path": "a\rb"},
        {"driver": "gcs", "bucket": "bucket", "path": "."},
    ],
    ids=str,
)
def test_wrong_spec_is_refused_in_tensorstores_words(spec):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011  the text is what is compared
        tensorstore.KvStore.Spec(spec)
    with pytest.raises((MetadataError, InvalidKeyError)) as ours:
        KvStore.Spec(spec)
    assert str(ours.value).startswith(str(theirs.value))


def test_project_that_pays_is_named(server):
    store = open_gcs(gcs_user_project={"project_id": "my-project"})
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert [r.headers["x-goog-user-project"] for r in server.requests] == ["my-project"] * 2


def test_token_is_that_of_the_time_of_opening_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "TOKEN\n")
    store = open_gcs()
    assert store.driver.identity == open_gcs().driver.identity
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "OTHER")
    assert store.driver.identity != open_gcs().driver.identity
    store["a"] = b"1"
    assert server.requests[-1].headers["authorization"] == "Bearer TOKEN"
    authorization = store.driver._bucket.authorization
    [request] = authorization.requests([("GET", "a")])
    assert request.headers == {"Authorization": "Bearer TOKEN"}
    assert "TOKEN" not in f"{request!r} {authorization!r}"


def test_condition_is_the_generation(server):
    store = open_gcs()
    first = put(store, "a", b"1", ABSENT)
    assert first == str(server.generations["bucket/a"]).encode()
    assert server.requests[-1].headers["x-goog-if-generation-match"] == "0"
    put(store, "a", b"2", first)
    assert server.requests[-1].headers["x-goog-if-generation-match"] == first.decode()


def test_condition_that_is_no_generation_cannot_hold(server):
    store = open_gcs()
    store["a"] = b"1"
    for strange in (b"\0other", b'"x"', b"-1", b"0", b"9" * 20):
        assert put(store, "a", b"2", strange) == b""
        assert put(store, "a", None, strange) == b""
        assert store.read("a", if_not_equal=strange).result().value == b"1"


def test_what_passes_is_repeated_and_counted(server):
    store = open_gcs()
    slow = Fault(lambda s, c, r: refuse(c, 429, "TooManyRequests"), times=2)
    server.faults = [slow]
    store["a"] = b"1"
    slow.done = 0
    assert store["a"] == b"1"
    slow.times = 1 << 30
    for what, call in (("reading", store.read), ("listing", lambda key: store.list())):
        with pytest.raises(StoreIOError) as caught:
            call("a").result()
        assert re.search(
            rf'^ABORTED: Error {what} "gs://bucket/a?": All 3 retry attempts failed, within '
            r"[\d.]+ s: Too Many Requests \[HTTP code 429\]: TooManyRequests$",
            str(caught.value),
        )


def test_array_is_written_and_read_by_url(server):
    volume = np.arange(100, dtype="uint16").reshape(10, 10)
    url = "gs://bucket/x.zarr|zarr3:"
    layout = gpustore.ChunkLayout(read_chunk_shape=[2, 2], write_chunk_shape=[4, 4])
    made = gpustore.open(url, create=True, dtype="uint16", shape=[10, 10], chunk_layout=layout)
    made.result().write(volume).result()
    store = gpustore.open(url).result()
    store[2:3].write(7).result()
    volume[2:3] = 7
    assert np.array_equal(store.read().result(), volume)
    with emulated() as device:
        found = gpustore.open(url, device=device.name).result().read().result()
        assert np.array_equal(on_host(device, found), volume)
        del found


def test_token_is_shown_to_google_only(server):
    store = open_gcs()
    store["a/b"] = b"1"
    assert store["a/b"] == b"1"
    assert store.list().result() == [b"a/b"]
    del store["a/b"]
    assert [sent.headers["authorization"] for sent in server.requests] == ["Bearer TOKEN"] * 4
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"))]
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match=r"403\]: AccessDenied$") as caught:
            action(store)
        assert "TOKEN" not in str(caught.value)


def test_lost_answer_to_a_conditional_write_is_found_out(server):
    def obey_and_hang_up(server, connection, request):
        first, second = socket.socketpair()
        with first, second:
            server.serve(first, request)
        return False

    def repeated(*args):
        server.faults = [Fault(obey_and_hang_up, times=1)]
        return put(*args)

    store = open_gcs()
    first = repeated(store, "a", b"1", ABSENT)
    assert get(store, "a") == (ReadState.VALUE, b"1", first)
    second = repeated(store, "a", b"2", first)
    assert second not in (b"", first)
    assert repeated(store, "a", b"3", first) == b""
    assert get(store, "a") == (ReadState.VALUE, b"2", second)
    assert repeated(store, "a", None, second) == ABSENT
    assert get(store, "a")[0] == ReadState.MISSING


def test_condition_of_a_deletion_is_compared_by_the_server(server):
    store = open_gcs()
    first = put(store, "a", b"1")

    def write_between(server, connection, request):
        if request.method != "DELETE":
            return server.serve(connection, request)
        other = replace(request, method="PUT", headers={}, body=b"2")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server.serve(ours, other)
        return server.serve(connection, request)

    server.faults = [Fault(write_between, times=2)]
    assert put(store, "a", None, first) == b""
    assert store["a"] == b"2"
    deletions = [sent for sent in server.requests if sent.method == "DELETE"]
    assert [sent.headers["x-goog-if-generation-match"] for sent in deletions] == [first.decode()]


def test_deletion_whose_answer_is_lost_has_not_deleted_what_was_never_there(server):
    store = open_gcs()
    for answer in (lambda s, c, r: False, lambda s, c, r: refuse(c, 500, "InternalError")):
        server.faults = [Fault(answer, times=2)]
        assert put(store, "a", None, b"77") == b""
    first = put(store, "a", b"1")

    def obey_and_hang_up(server, connection, request):
        if request.method != "DELETE":
            return server.serve(connection, request)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server.serve(ours, request)
        return False

    server.faults = [Fault(obey_and_hang_up, times=2)]
    assert put(store, "a", None, first) == ABSENT


def test_long_value_is_written_in_parts(server, short_parts):
    value = np.random.default_rng(0).bytes(17 << 20)
    assert put(open_gcs(), "a/b c", value) == b"77"
    assert server.values == {"bucket/a/b c": value}


# ------------------------------------------------------------------------- credentials


@pytest.fixture
def no_credentials(server, monkeypatch, tmp_path):
    """Nothing is known of any; what the machine says can be written into the folder."""
    for name in gcs._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(machine, "FIRMWARE", tmp_path)
    return tmp_path


def test_account_signs_its_tokens_itself(server, no_credentials, monkeypatch):
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "private_key": pem.decode(), "private_key_id": "1"}
    account |= {"client_email": "me@project", "client_id": "2"}
    path = no_credentials / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    [header] = {sent.headers["authorization"] for sent in server.requests}
    signed, _, signature = header.removeprefix("Bearer ").rpartition(".")

    def decoded(text):
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    padding_ = padding.PKCS1v15()
    key.public_key().verify(decoded(signature), signed.encode(), padding_, hashes.SHA256())
    claims = json.loads(decoded(signed.partition(".")[2]))
    assert claims["iss"] == "me@project"
    assert claims["exp"] > time.time() + 300


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("GOOGLE_BEARER_TOKEN", " ", "there are no credentials"),
        ("GOOGLE_BEARER_TOKEN", "SECRET\nSECRET", "obstore does not accept it: panic"),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", "SECRET", "obstore does not accept it: Generic "),
    ],
)
def test_credentials_that_cannot_be_used_are_an_error(
    server, no_credentials, monkeypatch, variable, value, text
):
    monkeypatch.setenv(variable, value)
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match=text) as caught:
            action(open_gcs())
        assert "SECRET" not in str(caught.value)
    assert server.requests == []


@pytest.fixture
def signed_in(server, no_credentials, monkeypatch):
    """Somebody has; the server that knows that."""
    account = {"type": "authorized_user", "client_id": "c", "client_secret": "S1"}
    account["refresh_token"] = "S2"
    path = no_credentials / ".config/gcloud/application_default_credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(account))
    answer = {"access_token": "TOKEN", "expires_in": 3600, "token_type": "Bearer"}
    with HttpServer({"token": json.dumps(answer).encode()}) as tokens:
        origin = Origin("http", "127.0.0.1", tokens.port)
        monkeypatch.setattr("gpustore.kvstores.buckets.google_account.TOKENS", origin)
        yield tokens


def test_somebody_who_has_signed_in_gets_tokens(server, signed_in):
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    assert [sent.headers["authorization"] for sent in server.requests] == ["Bearer TOKEN"] * 3
    [asked] = signed_in.requests
    assert (asked.method, asked.target) == ("POST", "/token")
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["refresh_token"],
        "client_id": ["c"],
        "client_secret": ["S1"],
        "refresh_token": ["S2"],
    }


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((200, b"garbage"), "the answer is not a token"),
        ((200, b'{"access_token": "a b", "expires_in": 1}'), "the answer is not a token"),
        ((200, b'{"access_token": "a", "expires_in": 1e300}'), "the answer is not a token"),
        ((400, b'{"error": "invalid_grant"}'), r"Bad Request \[HTTP code 400\]: invalid_grant"),
        ((503, b""), r"All 3 retry attempts failed, .*HTTP code 503\]"),
        ((302, b""), r"Found \[HTTP code 302\]"),
    ],
    ids=str,
)
def test_token_that_is_not_given_is_an_error(server, signed_in, answer, text):
    status, body = answer
    fields = [("Content-Length", len(body)), ("Location", f"{server.url}/bucket/a")]
    signed_in.faults = [Fault(lambda s, c, r: c.sendall(head(status, fields) + body))]
    store = open_gcs()
    for action in ACTIONS.values():
        with pytest.raises(
            StoreIOError, match=rf"there are no credentials, or .*: {text}"
        ) as error:
            action(store)
        assert not re.search("S1|S2", str(error.value))
    assert server.requests == []


def test_file_of_somebody_who_has_signed_in_is_complete(server, signed_in, no_credentials):
    store = open_gcs()
    path = no_credentials / ".config/gcloud/application_default_credentials.json"
    path.write_text('{"type": "authorized_user", "client_id": 1}')
    with pytest.raises(StoreIOError, match=r'credentials\.json" is not a file with client_id, cli'):
        store.read("a").result()
    assert server.requests == signed_in.requests == []


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes"])
def test_signing_can_be_skipped(server, monkeypatch, value):
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", value)
    store = open_gcs()
    store["a"] = b"1"
    assert store.list().result() == [b"a"]
    assert not any(sent.headers.get("authorization") for sent in server.requests)


def test_machine_is_asked_for_a_token_once_for_a_while(server, no_credentials, monkeypatch):
    answer = {"access_token": "FIRST", "expires_in": 3600, "token_type": "Bearer"}
    at = "computeMetadata/v1/instance/service-accounts/default/token"
    with HttpServer({at: json.dumps(answer).encode()}) as machine:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{machine.port}")
        store = open_gcs()
        store["a"] = b"1"
        assert store["a"] == b"1"
        assert store.list().result() == [b"a"]
        assert [sent.headers["authorization"] for sent in server.requests] == ["Bearer FIRST"] * 3
        [asked] = machine.requests
        assert asked.headers["metadata-flavor"] == "Google"
        monkeypatch.setattr("gpustore.kvstores.buckets.authorization._USED_S", -1.0)
        assert store["a"] == b"1"
        server.requests.clear()
        machine.requests.clear()
        with HttpServer() as other:
            fields = [("Location", f"{other.url}/{at}"), ("Content-Length", 0)]
            machine.faults = [Fault(lambda s, c, r: c.sendall(head(302, fields)))]
            monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{machine.port}")
            store = open_gcs()
            for action in ACTIONS.values():
                with pytest.raises(StoreIOError, match="there are no credentials, or") as caught:
                    action(store)
                assert str(caught.value).endswith("for a public bucket: GOOGLE_SKIP_SIGNATURE=true")
            assert machine.requests
            assert server.requests == other.requests == []


@pytest.mark.parametrize(
    ("text", "error", "about"),
    [
        (None, NotFoundError, "No such file or directory"),
        ("", NotFoundError, "it is not JSON with a type"),
        ("[SECRET", NotFoundError, "it is not JSON with a type"),
        ("[1]", NotFoundError, "it is not JSON with a type"),
        ('{"client_secret": "SECRET"}', NotFoundError, "it is not JSON with a type"),
        ('{"type": "external_account", "x": "SECRET"}', UnsupportedError, '"external_account"'),
        ('{"type": ["SECRET"]}', UnsupportedError, "expected one of service_account, "),
    ],
)
def test_file_that_names_nobody_is_named(no_credentials, monkeypatch, text, error, about):
    path = no_credentials / "file.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(error, match=r"file\.json") as caught:
        open_gcs()
    assert about in str(caught.value)


def test_key_that_is_none_is_not_shown(server, no_credentials, monkeypatch):
    account = {"type": "service_account", "private_key": "SECRET", "private_key_id": "1"}
    path = no_credentials / "account.json"
    path.write_text(json.dumps({**account, "client_email": "me@project"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match="obstore does not accept it: Generic ") as caught:
            action(open_gcs())
        assert "SECRET" not in str(caught.value)
    assert server.requests == []


def test_emulator_gets_no_credentials(no_credentials, short_parts, monkeypatch):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "TOKEN")
    with GcsServer() as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{emulator.port}")
        store = open_gcs()
        store["a"] = b"1"
        store["b"] = bytes(100)
        assert (store["a"], store["b"]) == (b"1", bytes(100))
        assert store.list().result() == [b"a", b"b"]
        found = {sent.headers.get("authorization") for sent in emulator.requests}
        assert found <= {None, "Bearer emulator"}


@pytest.mark.parametrize("there", [None, "variable", "file", "machine"])
def test_requests_are_anonymous_where_there_are_no_credentials(monkeypatch, no_credentials, there):
    account = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
    account["refresh_token"] = "SECRET"
    path = no_credentials / ".config/gcloud/application_default_credentials.json"
    path.parent.mkdir(parents=True)
    if there in ("variable", "file"):
        path.write_text(json.dumps(account))
    if there == "variable":
        monkeypatch.setenv(
            "GOOGLE_APPLICATION_CREDENTIALS", str(path.rename(no_credentials / "a.json"))
        )
    if there == "machine":
        (no_credentials / "product_name").write_text("Google Compute Engine\n")
    authorization = open_gcs().driver._bucket.authorization
    assert isinstance(authorization, Anonymous) == (there is None)
