"""Where tokens of Google come from, and what services that hand them out may do."""

import base64
import datetime
import json
import re
import threading
import time
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from gpustore.errors import NotFoundError, StoreIOError, UnsupportedError
from gpustore.kvstores.buckets import machine
from gpustore.kvstores.gcs import credentials
from tests.kvstores.buckets.bucket_contract import ACTIONS
from tests.kvstores.buckets.credential_contract import (
    check_fork_while_another_thread_asks,
    check_forked_child_finds_credentials,
    hide_home,
)
from tests.kvstores.gcs.gcs_server import GcsServer, open_gcs
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.s3.s3_server import refuse

USER = {"type": "authorized_user", "client_id": "c", "client_secret": "S1", "refresh_token": "S2"}

IMPERSONATED = "v1/projects/-/serviceAccounts/me@project:generateAccessToken"


def tokens_of(server):
    return [sent.headers.get("authorization") for sent in server.requests]


@pytest.fixture
def no_credentials(server, monkeypatch, tmp_path):
    """Nothing is known of any; what the machine says can be written into the folder."""
    for name in credentials.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(machine, "FIRMWARE", tmp_path)
    sent = []
    monkeypatch.setattr("requests.Session.send", lambda *args: sent.append(args))
    yield tmp_path
    assert sent == []  # google-auth has to ask us to send.


@pytest.fixture
def adc(no_credentials):
    """The file that ``gcloud auth application-default login`` writes."""
    path = no_credentials / ".config/gcloud/application_default_credentials.json"
    path.parent.mkdir(parents=True)
    return path


def answer_with(token, **members):
    return json.dumps({"access_token": token, "expires_in": 3600, **members}).encode()


@pytest.fixture
def google(no_credentials, monkeypatch):
    """The service that changes one token for another."""
    values = {"token": answer_with("TOKEN", token_type="Bearer")}
    with HttpServer(values) as tokens:
        url = f"{tokens.url}/token"
        monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", url)
        yield tokens


@pytest.fixture
def signed_in(google, adc):
    adc.write_text(json.dumps(USER))
    return google


# ------------------------------------------------------------------------- tokens as they are


def test_token_is_that_of_the_time_of_opening_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "TOKEN\n")
    store = open_gcs()
    assert store.driver.identity == open_gcs().driver.identity
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "OTHER")
    assert store.driver.identity != open_gcs().driver.identity
    store["a"] = b"1"
    assert tokens_of(server) == ["Bearer TOKEN"]
    bucket = store.driver._bucket
    [request] = bucket.requests([("GET", "a")])
    assert request.headers == {"Authorization": "Bearer TOKEN"}
    assert "TOKEN" not in f"{request!r} {bucket!r} {bucket.authorization!r}"


def test_token_is_shown_to_google_only(server):
    store = open_gcs()
    store["a/b"] = b"1"
    assert store["a/b"] == b"1"
    assert store.list().result() == [b"a/b"]
    del store["a/b"]
    assert tokens_of(server) == ["Bearer TOKEN"] * 4
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"))]
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match=r"403\]: AccessDenied$") as caught:
            action(store)
        assert "TOKEN" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" ", "there are no credentials"),
        ("SECRET\r\nEvil: 1", "not visible ASCII"),
        ("SECRET\u00e9", "not visible ASCII"),
    ],
)
def test_token_that_cannot_be_used_is_an_error(server, no_credentials, monkeypatch, value, text):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", value)
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match=text) as caught:
            action(open_gcs())
        assert "SECRET" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes"])
def test_signing_can_be_skipped(server, monkeypatch, value):
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", value)
    store = open_gcs()
    store["a"] = b"1"
    assert store.list().result() == [b"a"]
    assert not any(tokens_of(server))


# ------------------------------------------------------------------------- files


def test_account_signs_its_tokens_itself(server, no_credentials, monkeypatch):
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "private_key": pem.decode(), "private_key_id": "1"}
    account |= {"client_email": "me@project", "token_uri": "http://127.0.0.1:9/token"}
    path = no_credentials / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    [header] = set(tokens_of(server))
    signed, _, signature = header.removeprefix("Bearer ").rpartition(".")

    def decoded(text):
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    padding_ = padding.PKCS1v15()
    key.public_key().verify(decoded(signature), signed.encode(), padding_, hashes.SHA256())
    claims = json.loads(decoded(signed.partition(".")[2]))
    assert claims["iss"] == "me@project"
    assert claims["exp"] > time.time() + 300
    assert claims["scope"].endswith("/devstorage.full_control")


def test_key_that_is_none_is_not_shown(server, no_credentials, monkeypatch):
    account = {"type": "service_account", "private_key": "SECRET", "private_key_id": "1"}
    account |= {"client_email": "me@project", "token_uri": "http://127.0.0.1:9/token"}
    path = no_credentials / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for action in ACTIONS.values():
        with pytest.raises(StoreIOError, match=r"there are no credentials, or .*Error") as caught:
            action(open_gcs())
        assert "SECRET" not in str(caught.value)
    assert server.requests == []


def test_somebody_who_has_signed_in_gets_tokens(server, signed_in):
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    assert tokens_of(server) == ["Bearer TOKEN"] * 3
    [asked] = signed_in.requests
    assert (asked.method, asked.target) == ("POST", "/token")
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["refresh_token"],
        "client_id": ["c"],
        "client_secret": ["S1"],
        "refresh_token": ["S2"],
    }


def read_in_threads(store):
    gate = threading.Barrier(8)

    def read():
        gate.wait(30)
        assert store["a"] == b"1"

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("expires_in", [0, 100])
def test_tokens_are_renewed_in_time_and_once_for_all_threads(server, signed_in, expires_in):
    signed_in.values["token"] = answer_with("FIRST", expires_in=expires_in)
    store = open_gcs()
    store["a"] = b"1"
    signed_in.values["token"] = answer_with("SECOND")
    read_in_threads(store)
    if not expires_in:  # Otherwise the first one may be used while it is renewed.
        assert tokens_of(server)[1:] == ["Bearer SECOND"] * 8
    assert store["a"] == b"1"
    assert tokens_of(server)[-1] == "Bearer SECOND"
    assert len(signed_in.requests) == 2


def test_token_that_cannot_be_renewed_is_used_to_its_end(server, signed_in):
    signed_in.values["token"] = answer_with("FIRST", expires_in=100)
    store = open_gcs()
    store["a"] = b"1"
    signed_in.faults = [Fault(lambda s, c, r: refuse(c, 403, "Denied"))]
    read_in_threads(store)
    assert set(tokens_of(server)) == {"Bearer FIRST"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((200, b"garbage"), "google.auth reports TypeError"),
        (
            (200, b'{"access_token": "a b", "expires_in": 1}'),
            "the token is empty or not visible ASCII",
        ),
        ((200, b'{"access_token": "a", "expires_in": 1e300}'), "google.auth reports OverflowError"),
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


def test_answer_without_end_takes_no_memory(server, signed_in):
    def endless(server, connection, request):
        connection.sendall(head(200, [("Content-Length", 1 << 40)]) + bytes(1 << 20))
        return False

    signed_in.faults = [Fault(endless)]
    with pytest.raises(StoreIOError, match="there are no credentials, or"):
        open_gcs().read("a").result()


def test_file_of_somebody_who_has_signed_in_is_complete(server, google, adc):
    adc.write_text('{"type": "authorized_user", "client_id": 1}')
    store = open_gcs()
    with pytest.raises(StoreIOError, match=r"there are no credentials, or .* reports \w+Error"):
        store.read("a").result()
    assert server.requests == google.requests == []


def test_external_account_changes_its_token(server, google, adc):
    (adc.parent / "subject").write_text("SUBJECT")
    account = {"type": "external_account", "audience": "//iam.googleapis.com/x"}
    account |= {"subject_token_type": "urn:ietf:params:oauth:token-type:jwt"}
    account |= {"token_url": f"{google.url}/token"}
    account |= {"credential_source": {"file": str(adc.parent / "subject")}}
    adc.write_text(json.dumps(account))
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert tokens_of(server) == ["Bearer TOKEN"] * 2
    [asked] = google.requests
    form = parse_qs(asked.body.decode())
    assert form["subject_token"] == ["SUBJECT"]
    assert form["audience"] == ["//iam.googleapis.com/x"]
    # And takes on a role with it.
    url = f"{google.url}/{IMPERSONATED}"
    adc.write_text(json.dumps({**account, "service_account_impersonation_url": url}))
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    found = {"accessToken": "OTHER", "expireTime": later.strftime("%Y-%m-%dT%H:%M:%SZ")}
    google.values[IMPERSONATED] = json.dumps(found).encode()
    open_gcs().read("a").result()
    assert tokens_of(server)[-1] == "Bearer OTHER"
    google.faults = [Fault(lambda s, c, r: refuse(c, 403, "Denied"), path="generateAccessToken")]
    with pytest.raises(StoreIOError, match=r"HTTP code 403\]: Denied") as caught:
        open_gcs().read("a").result()
    assert "SUBJECT" not in str(caught.value)


def test_account_is_impersonated(server, google, adc, monkeypatch):
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    found = {"accessToken": "OTHER", "expireTime": later.strftime("%Y-%m-%dT%H:%M:%SZ")}
    google.values[IMPERSONATED] = json.dumps(found).encode()
    account = {"type": "impersonated_service_account", "source_credentials": USER}
    account |= {
        "service_account_impersonation_url": f"{google.url}/{IMPERSONATED}",
        "delegates": [],
    }
    endpoint = f"{google.url}/{IMPERSONATED.replace('me@project', '{}')}"
    monkeypatch.setattr("google.auth.iam._IAM_ENDPOINT", endpoint)
    adc.write_text(json.dumps(account))
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert tokens_of(server) == ["Bearer OTHER"] * 2


@pytest.mark.parametrize(
    ("text", "error", "about"),
    [
        (None, NotFoundError, "No such file or directory"),
        ("", NotFoundError, "it is not JSON with a type"),
        ("[SECRET", NotFoundError, "it is not JSON with a type"),
        ("[1]", NotFoundError, "it is not JSON with a type"),
        ('{"client_secret": "SECRET"}', NotFoundError, "it is not JSON with a type"),
        ('{"type": "gdch_service_account", "x": "SECRET"}', UnsupportedError, '"gdch_service_acc'),
        ('{"type": ["SECRET"]}', UnsupportedError, "expected one of authorized_user, "),
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


# ------------------------------------------------------------------------- machines

ACCOUNT = "computeMetadata/v1/instance/service-accounts"


@pytest.fixture
def metadata(no_credentials, monkeypatch):
    """The service of a machine."""

    def answer(server, connection, request):
        assert request.headers["metadata-flavor"] == "Google"
        return server.serve(connection, request, fields={"Content-Type": "application/json"})

    values = {f"{ACCOUNT}/default/": json.dumps({"email": "me@x", "scopes": []}).encode()}
    values[f"{ACCOUNT}/default/token"] = answer_with("FIRST", token_type="Bearer")
    with HttpServer(values) as service:
        service.faults = [Fault(answer)]
        # It reads the variable when it is imported.
        host = f"127.0.0.1:{service.port}"
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", host)
        yield service


def test_machine_is_asked_for_a_token_once(server, no_credentials, metadata):
    (no_credentials / "product_name").write_text("Google Compute Engine\n")
    store = open_gcs()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    assert tokens_of(server) == ["Bearer FIRST"] * 3
    asked = [sent.path for sent in metadata.requests]
    assert asked == [f"/{ACCOUNT}/default/", f"/{ACCOUNT}/default/token"]
    server.requests.clear()
    with HttpServer() as other:
        fields = [("Location", f"{other.url}/{ACCOUNT}"), ("Content-Length", 0)]
        metadata.faults = [Fault(lambda s, c, r: c.sendall(head(302, fields)))]
        store = open_gcs()
        for action in ACTIONS.values():
            with pytest.raises(StoreIOError, match="there are no credentials, or") as caught:
                action(store)
            assert str(caught.value).endswith("for a public bucket: GOOGLE_SKIP_SIGNATURE=true")
        assert server.requests == other.requests == []


def test_machine_without_an_account_is_an_error(server, no_credentials, metadata, monkeypatch):
    monkeypatch.setenv("K_SERVICE", "run")
    metadata.values.clear()
    with pytest.raises(StoreIOError, match=r"there are no credentials, or .*code 404\]"):
        open_gcs().read("a").result()
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
        assert not any(tokens_of(emulator))


@pytest.mark.parametrize("there", [None, "variable", "folder", "file", "machine"])
def test_requests_are_anonymous_where_there_are_no_credentials(
    server, google, adc, metadata, monkeypatch, there
):
    if there in ("variable", "folder", "file"):
        adc.write_text(json.dumps(USER))
    if there == "variable":
        path = adc.rename(adc.parent / "a.json")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    if there == "folder":
        (adc.parent / "other").mkdir()
        adc.rename(adc.parent / "other" / adc.name)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(adc.parent / "other"))
    if there == "machine":
        (metadata and adc.parents[2] / "product_name").write_text("Google Compute Engine\n")
    open_gcs().read("a").result()
    assert bool(tokens_of(server)[0]) == (there is not None)
    if there is None:
        assert google.requests == metadata.requests == []


# ------------------------------------------------------------------------- processes


def test_quota_project_that_would_break_a_header_is_an_error(server, signed_in, monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "a\r\nEvil: 1")
    with pytest.raises(StoreIOError, match="not visible ASCII"):
        open_gcs().read("a").result()
    assert server.requests == []


@pytest.mark.parametrize("home", ["/" + "x" * 300, None])
def test_home_that_cannot_be_looked_into_has_no_file(server, no_credentials, monkeypatch, home):
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN", raising=False)
    hide_home(monkeypatch, home)
    open_gcs().read("a").result()
    assert tokens_of(server) == [None]


OPENING = """
import google.oauth2.credentials
import gpustore
from gpustore.kvstores import gcs
from gpustore.kvstores.http.message import Origin

gcs.GOOGLE = Origin("http", "127.0.0.1", {port})
google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT = "{url}/token"
store = gpustore.KvStore.open("gs://bucket/").result()
"""


@pytest.mark.matrix("costly")
def test_forked_child_fetches_a_token_itself(server, signed_in):
    opening = OPENING.format(port=server.port, url=signed_in.url)
    check_forked_child_finds_credentials(opening, signed_in)
    assert set(tokens_of(server)) == {"Bearer TOKEN"}


def test_fork_while_another_thread_asks_does_not_wait_for_ever(server, signed_in):
    store = open_gcs()
    check_fork_while_another_thread_asks(
        signed_in, store, store.driver._bucket.authorization.fields
    )


def test_missing_package_is_named(server, adc, monkeypatch):
    adc.write_text(json.dumps(USER))
    monkeypatch.setattr("gpustore.registry.is_installed", lambda module: False)
    with pytest.raises(UnsupportedError, match=r"google.auth: pip install 'gpustore\[cloud\]'"):
        open_gcs()
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    open_gcs().read("a").result()
