"""Signatures in header fields, which are those that Amazon's own library makes."""

import time

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import StoreIOError
from gpustore.kvstores.s3 import signature
from gpustore.kvstores.s3.signature import AwsKeys, SignedFields
from tests.kvstores.s3.s3_server import open_s3, shown_by

KEYS = AwsKeys("KEY", "SECRET", "TOKEN")
VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def percent(text):
    kept = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/"
    return "".join(chr(c) if c in kept else f"%{c:02X}" for c in text.encode())


@given(
    key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
    | st.sampled_from(["a//b", "a/", "/a", "a b/\u00e9%20+~=", "\U0001f600", "a?b#c;d&e", "*"]),
    query=st.dictionaries(
        st.sampled_from(["delimiter", "list-type", "partNumber", "prefix", "uploadId", "uploads"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    ),
    keys=st.builds(AwsKeys, VISIBLE, VISIBLE, st.just("") | VISIBLE),
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    fields=st.sampled_from([{}, {"x-amz-request-payer": "requester"}]),
    now=st.integers(0, 1 << 32),
)
def test_signature_is_botocores(key, query, keys, method, fields, now):
    path = f"/bucket/{percent(key)}"
    asked = "&".join(f"{name}={percent(query[name]).replace('/', '%2F')}" for name in sorted(query))
    ours = SignedFields(lambda: keys, "eu-north-1", "h.example:9000", fields)
    found = ours._signature(keys, float(now))((method, path, asked))
    sent = {name: value for name, value in found.items() if name != "Authorization"}
    url = f"https://h.example:9000{path}" + (f"?{asked}" if asked else "")
    request = AWSRequest(method, url, {**sent, "Host": "h.example:9000"})
    request.context["timestamp"] = found["x-amz-date"]
    request.context["payload_signing_enabled"] = False
    credentials = Credentials(keys.access_key, keys.secret_key, keys.token or None)
    theirs = S3SigV4Auth(credentials, "s3", "eu-north-1")
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    expected = theirs.signature(text, request)
    names = theirs.signed_headers(theirs.headers_to_sign(request))
    assert found["Authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={theirs.scope(request)}, SignedHeaders={names}, "
        f"Signature={expected}"
    )


def test_request_shows_who_asks(server, monkeypatch):
    store = open_s3(server, requester_pays=True, aws_region="eu-north-1")
    store["a b"] = b"value"
    [sent] = server.requests
    assert (sent.method, sent.target) == ("PUT", "/bucket/a%20b")
    shown = shown_by(sent)
    assert shown["Credential"].startswith("KEY/")
    assert shown["Credential"].endswith("/eu-north-1/s3/aws4_request")
    assert sent.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert sent.headers["x-amz-request-payer"] == "requester"
    assert shown["SignedHeaders"] == "host;x-amz-content-sha256;x-amz-date;x-amz-request-payer"
    assert len(shown["Signature"]) == 64
    assert store.list().result() == [b"a b"]
    assert shown_by(server.requests[-1])["Credential"] == shown["Credential"]
    open_s3(server, aws_credentials={"type": "anonymous"}).read("a b").result()
    assert shown_by(server.requests[-1]) == {}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # The spec goes first.
    open_s3(server).read("a b").result()
    assert server.requests[-1].headers["x-amz-security-token"] == "TOKEN"
    assert "/ap-south-1/s3/" in shown_by(server.requests[-1])["Credential"]


@pytest.fixture
def clock(monkeypatch):
    """The time that signatures see: an element that a test changes."""
    now = [time.time()]
    monkeypatch.setattr(signature.time, "time", lambda: now[0])
    return now


ASKED = [("GET", "/bucket/a", ""), ("GET", "/bucket/b", "")] * 3


def test_requests_for_an_object_share_a_signature_for_a_minute(clock):
    ours = SignedFields(lambda: KEYS, "r", "h", {})
    requests = list(ours.requests(ASKED))
    assert [sent.target for sent in requests] == [path for _, path, _ in ASKED]
    requests[0].headers["Range"] = "bytes=0-1"  # Of this one only.
    assert "Range" not in requests[2].headers
    known = ours._last.known
    assert set(known) == set(ASKED)
    clock[0] += 59.0
    list(ours.requests(ASKED))
    assert ours._last.known is known
    clock[0] += 2.0
    old, new = requests[1], next(ours.requests(ASKED[1:]))
    assert old.headers["Authorization"] != new.headers["Authorization"]


def test_signatures_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(signature, "_MOST", 2)
    ours = SignedFields(lambda: KEYS, "r", "h", {})
    for number in range(10):
        list(ours.requests([("GET", f"/{number}", "")]))
        assert len(ours._last.known) <= 3


def test_batch_may_last_longer_than_keys(clock):
    keys = [KEYS]
    rows = SignedFields(lambda: keys[-1], "r", "h", {}).requests(ASKED)
    first = next(rows)
    keys.append(AwsKeys("OTHER", "SECRET"))
    assert next(rows).headers["Authorization"].count("Credential=KEY/")
    clock[0] += 61.0
    rest = list(rows)
    assert "Credential=KEY/" in first.headers["Authorization"]
    assert all("Credential=OTHER/" in sent.headers["Authorization"] for sent in rest)


def test_other_keys_make_other_signatures():
    keys = [KEYS]
    ours = SignedFields(lambda: keys[-1], "r", "h", {})
    next(ours.requests(ASKED))
    keys.append(AwsKeys("OTHER", "SECRET"))
    assert "Credential=OTHER/" in next(ours.requests(ASKED)).headers["Authorization"]


def test_keys_that_cannot_be_renewed_are_used_on(clock):
    answers = iter([KEYS])

    def find():
        for found in answers:
            return found
        raise StoreIOError("gone")

    ours = SignedFields(find, "r", "h", {})
    rows = ours.requests(ASKED)
    first = next(rows).headers["x-amz-date"]
    clock[0] += 100.0
    assert next(rows).headers["x-amz-date"] != first
    with pytest.raises(StoreIOError, match="gone"):
        ours.requests(ASKED)


def test_nothing_secret_is_shown():
    ours = SignedFields(lambda: KEYS, "r", "h", {})
    [request] = ours.requests([("GET", "/a", "")])
    text = f"{KEYS!r} {ours!r} {request!r}"
    assert not any(one in text for one in ("KEY", "SECRET", "TOKEN", "Signature"))
