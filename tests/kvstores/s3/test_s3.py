"""The s3 kvstore, against a double on loopback."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import contextlib
import itertools
import pickle
import re
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.errors import (
    InvalidKeyError,
    LimitError,
    MetadataError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.columns import ABSENT, ReadState
from gpustore.kvstores.http import connection
from gpustore.kvstores.http.message import Origin
from gpustore.kvstores.kvstore import KvStore, WriteRequest
from gpustore.kvstores.s3 import address as s3_address
from tests.kvstores.buckets.bucket_contract import *
from tests.kvstores.contract import *
from tests.kvstores.http.http_server import Fault, head
from tests.kvstores.http.tls import Authority, TlsServer
from tests.kvstores.s3.s3_server import DATE, SOON, S3Server, open_s3, refuse
from tests.kvstores.spec_contract import check_spec, check_wrong_spec
from tests.on_device import emulated, on_host


@pytest.fixture
def make_store(server):
    numbers = itertools.count()
    server.page_keys = 3
    return lambda: open_s3(server, f"{next(numbers)} é/")


@pytest.fixture
def open_bucket(server):
    return lambda: open_s3(server)


@pytest.fixture
def other_server():
    return S3Server


@pytest.fixture
def generations_tell_writes_apart():
    return False


@pytest.fixture
def model_examples():
    return 10


# ------------------------------------------------------------------------- specs and URLs


@pytest.mark.parametrize(
    "spec",
    [
        *("s3://bucket/p/q", "s3://bucket", "s3://bucket/", "s3://bucket/a%20b"),
        *("s3://my.bucket/x", "s3://bucket/a b"),
        {"driver": "s3", "bucket": "bucket"},
        {"driver": "s3", "bucket": "Bucket"},
        {"driver": "s3", "bucket": "buck_et", "path": "a/b"},
        {"driver": "s3", "endpoint": "http://h"},
        {"driver": "s3", "bucket": "", "endpoint": "http://h"},
        {
            "driver": "s3",
            "bucket": "bucket",
            "endpoint": "http://localhost:9000",
            "host_header": "x",
        },
        {
            "driver": "s3",
            "bucket": "bucket",
            "requester_pays": True,
            "aws_region": "eu-west-1",
            "use_conditional_write": False,
        },
        {"driver": "s3", "bucket": "bucket", "aws_region": ""},
        {"driver": "s3", "bucket": "bucket", "aws_credentials": {"type": "anonymous"}},
        {"driver": "s3", "bucket": "bucket", "s3_request_retries": {"max_retries": 1}},
    ],
    ids=str,
)
def test_spec_is_what_tensorstore_makes_of_it(spec):
    ours, theirs = check_spec(spec, "http_request_timeouts")
    if "endpoint" in ours.to_json():
        with pytest.raises(NotImplementedError) as caught:
            theirs.url  # noqa: B018
        with pytest.raises(UnsupportedError, match=re.escape(str(caught.value))):
            ours.url  # noqa: B018
    else:
        assert ours.url == theirs.url


@pytest.mark.parametrize(
    "spec",
    [
        *("s3://B/p", "s3://bu/p", "s3:bucket/p", "s3://bucket/p?x", "s3://bucket/p#x", "s3://"),
        *("s3:///x", "s3://1.2.3.4/x"),
        {"driver": "s3"},
        {"driver": "s3", "bucket": "b"},
        {"driver": "s3", "bucket": "a..b"},
        {"driver": "s3", "bucket": ""},
        {"driver": "s3", "bucket": "bucket", "host_header": "x"},
        {"driver": "s3", "bucket": "bucket", "requester_pays": 1},
        {"driver": "s3", "bucket": "bucket", "zz": 1},
    ],
    ids=str,
)
def test_wrong_spec_is_refused_in_tensorstores_words(spec):
    check_wrong_spec(spec)


@pytest.mark.parametrize("said", ["spec", "environment"])
@pytest.mark.parametrize("region", ["a\r\nEvil: 1", "a b", "a/b", "\u00e9", "\u65e5", "x" * 65])
def test_region_that_would_break_a_header_is_refused(server, monkeypatch, region, said):
    members = {}
    if said == "spec":
        members["aws_region"] = region
    else:
        monkeypatch.setenv("AWS_REGION", region)
    with pytest.raises(MetadataError, match="Invalid AWS region"):
        open_s3(server, **members)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("localhost", "ftp://h/", "http://h/?x", "http://h/#x", "http://a b", "http://h:0"),
        *("http://h/a/../b", "http://h/./b", "http://h/a//b", "http://h/a b", "http://h/\u00e9"),
        "http://[::1/",
    ],
)
def test_wrong_endpoint_is_refused_when_it_is_opened(endpoint):
    with pytest.raises(MetadataError, match='Invalid "endpoint"'):
        KvStore.open({"driver": "s3", "bucket": "bucket", "endpoint": endpoint}).result()


@pytest.mark.parametrize("host", ["127.1", "0x7f.0.0.1", "2130706433", "[0:0::1]", "127.0.0.01"])
def test_address_that_programs_rewrite_is_refused(server, host):
    spec = {"driver": "s3", "bucket": "bucket", "endpoint": f"http://{host}:{server.port}"}
    with pytest.raises(UnsupportedError, match="in another form than the usual one"):
        KvStore.open(spec).result().list().result()
    assert server.requests == []


@pytest.mark.parametrize(
    "key", ["", "a/../b", "./a", "nul\0", "x" * 1025, "..", "tab\t", b"\xff"], ids=str
)
def test_key_that_is_not_legal_is_refused(server, key):
    store = open_s3(server)
    for call in (lambda: store.read(key).result(), lambda: store.write(key, b"1").result()):
        with pytest.raises(InvalidKeyError, match="Invalid key"):
            call()
    assert server.requests == []


# ------------------------------------------------------------------------- requests


def test_host_header_is_refused(server):
    with pytest.raises(UnsupportedError):
        open_s3(server, host_header="x")


def test_endpoint_can_be_that_of_the_bucket(server):
    store = KvStore.open({"driver": "s3", "endpoint": f"{server.url}/bucket/"}).result()
    store["a b/c"] = b"value"
    assert list(server.values) == ["bucket/a b/c"]
    assert store["a b/c"] == b"value"
    assert store.list().result() == [b"a b/c"]
    theirs = {"driver": "s3", "endpoint": f"{server.url}/bucket"}
    theirs = tensorstore.KvStore.open(theirs).result()
    assert theirs.read("a b/c").result().value == b"value"
    with pytest.raises(gpustore.NotFoundError, match=f'"{server.url}/bucket/x" does not exist'):
        store["x"]


@pytest.mark.parametrize(
    ("bucket", "members", "address"),
    [
        ("bucket", {}, "https://bucket.s3.eu-west-3.amazonaws.com/"),
        ("my.bucket", {}, "https://s3.eu-west-3.amazonaws.com/my.bucket/"),
        ("bucket", {"aws_region": "eu-west-1"}, "https://bucket.s3.eu-west-1.amazonaws.com/"),
        ("unknown", {}, "https://unknown.s3.ap-south-1.amazonaws.com/"),
    ],
)
def test_amazon_is_asked_for_the_region_of_a_bucket(server, monkeypatch, bucket, members, address):
    def answer(server, connection, request):
        fields = [("Content-Length", 0)]
        if request.path != "/unknown":
            fields.append(("x-amz-bucket-region", "eu-west-3"))
        connection.sendall(head(403, fields))

    server.faults = [Fault(answer)]
    monkeypatch.setattr(s3_address, "AMAZON", Origin("http", "127.0.0.1", server.port))
    monkeypatch.setattr(s3_address, "_REGIONS", {})
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    for _ in range(2):
        store = KvStore.open({"driver": "s3", "bucket": bucket, **members}).result()
        inner = store.driver._bucket
        [request] = inner.requests([("GET", "a")])
        assert f"{inner.client.origin}{request.target}" == f"{address}a"
    asked = [(sent.method, sent.target) for sent in server.requests]
    known = 1 if bucket != "unknown" else 2
    assert asked == ([] if members else [("HEAD", f"/{bucket}")] * known)
    assert not any("authorization" in sent.headers for sent in server.requests)


def test_amazon_that_cannot_be_reached_is_no_error(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setattr(s3_address, "AMAZON", Origin("http", "127.0.0.1", port))
    assert s3_address.region_of_bucket("bucket") == ""


def test_other_region_is_an_error_that_says_so(server):
    wrong = [("x-amz-bucket-region", "eu-west-3")]
    server.faults = [Fault(lambda s, c, r: refuse(c, 301, "PermanentRedirect", wrong))]
    with pytest.raises(StoreIOError, match='in another region than us-east-1\\? Set "aws_region"'):
        open_s3(server).read("a").result()


def test_missing_bucket_is_an_error_and_not_missing_data(server):
    store = open_s3(server, bucket="other")
    for call in (
        lambda: store.read("a").result(),
        lambda: "a" in store,
        lambda: store.write("a", b"1").result(),
        lambda: store.write("a", None).result(),
        lambda: store.list().result(),
    ):
        with pytest.raises(StoreIOError, match="NoSuchBucket"):
            call()
    assert "a" not in open_s3(server)


def test_error_names_code_and_message_and_no_secret(server):
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "SignatureDoesNotMatch"))]
    store = open_s3(server)
    calls = {
        "reading": lambda: store.read("a").result(),
        "writing": lambda: store.write("a", b"1").result(),
        "deleting": lambda: store.write("a", None).result(),
        "listing": lambda: store.list().result(),
    }
    for what, call in calls.items():
        with pytest.raises(StoreIOError) as caught:
            call()
        text = str(caught.value)
        assert f'PERMISSION_DENIED: Error {what} "{server.url}/bucket/' in text
        assert text.endswith("Forbidden [HTTP code 403]: SignatureDoesNotMatch")
    spec = store.spec(unbind_context=True)
    shown = [text, repr(store), repr(spec), str(pickle.dumps(store)), repr(store.driver._bucket)]
    assert not [one for one in shown if "SECRET" in one]


def test_what_passes_is_repeated_and_counted(server):
    store = open_s3(server)
    slow = Fault(lambda s, c, r: refuse(c, 503, "SlowDown"), times=2)
    server.faults = [slow]
    store["a"] = b"1"
    slow.done = 0
    assert store.list().result() == [b"a"]
    slow.times = 1 << 30
    with pytest.raises(StoreIOError, match=r"All 3 retry attempts failed.*503\]: SlowDown"):
        store.write("a", b"2").result()


@pytest.mark.parametrize("answer", ["none", "500"])
def test_lost_answer_to_a_conditional_write_is_found_out(server, answer):
    def obey_and_hang_up(server, connection, request):
        first, second = socket.socketpair()
        with first, second:
            server.serve(first, request)
        if answer == "none":
            return False
        return refuse(connection, 500, "InternalError")

    store = open_s3(server, use_conditional_write=True)
    server.faults = [Fault(obey_and_hang_up, times=1)]
    first = put(store, "a", b"1", ABSENT)
    assert get(store, "a") == (ReadState.VALUE, b"1", first)
    server.faults = [Fault(obey_and_hang_up, times=1)]
    second = put(store, "a", b"2", first)
    assert second not in (b"", first)
    assert put(store, "a", b"3", first) == b""
    server.faults = [Fault(obey_and_hang_up, times=1)]
    assert put(store, "a", None, second) == ABSENT
    # What another writer has stored is not ours.
    server.faults = [Fault(lambda s, c, r: False, times=1)]
    server.values["bucket/a"] = b"other"
    assert put(store, "a", b"2", ABSENT) == b""
    assert store["a"] == b"other"


def test_conflict_is_repeated(server):
    store = open_s3(server, use_conditional_write=True)
    answer = Fault(lambda s, c, r: refuse(c, 409, "ConditionalRequestConflict"), times=1)
    server.faults = [answer]
    assert put(store, "a", b"1", ABSENT) != b""
    assert answer.done == 1


def test_server_that_ignores_conditions_is_not_trusted_with_them(server):
    def ignore(server, connection, request):
        for name in ("if-match", "if-none-match"):
            request.headers.pop(name, None)
        return server.serve(connection, request)

    server.faults = [Fault(ignore)]
    for members in ({}, {"use_conditional_write": False}):
        store = open_s3(server, **members)
        assert not store.driver.atomic_single_key
        store["a"] = b"1"
        assert put(store, "a", b"2", ABSENT) == b""
        assert put(store, "a", None, b'"other"') == b""
        assert store["a"] == b"1"


def test_list_that_never_ends_is_an_error(server):
    server.values.update({f"bucket/{i:03}": b"" for i in range(10)})
    server.page_keys = 4
    store = open_s3(server)
    assert len(store.list().result()) == 10
    assert len(server.requests) == 3

    def again(server, connection, request):
        request.target = request.target.partition("?")[0] + "?list-type=2"
        return server.serve(connection, request)

    server.faults = [Fault(again)]
    with pytest.raises(StoreIOError, match="does not get on"):
        store.list().result()


@pytest.mark.parametrize("keys", [[], ["same"]], ids=str)
def test_pages_without_end_are_an_error(server, keys):
    pages = itertools.count()

    def answer(server, connection, request):
        kept = server.values
        server.values = {f"bucket/{key}": b"" for key in keys}
        first, second = socket.socketpair()
        with first, second:
            S3Server.serve(server, first, request)
            body = second.recv(1 << 16).partition(b"\r\n\r\n")[2]
        server.values = kept
        token = f"<NextContinuationToken>{next(pages)}</NextContinuationToken></ListB".encode()
        body = body.replace(b"</ListB", token).replace(b">false<", b">true<")
        connection.sendall(head(200, [("Content-Length", len(body))]) + body)

    server.faults = [Fault(answer)]
    store = open_s3(server)
    for call in (lambda: store.list().result(), lambda: store.list_names().result()):
        with pytest.raises(StoreIOError, match="the list of keys does not get on"):
            call()
    assert len(server.requests) < 250


ODD = ["/", "//", "/a", "a/", "a//b", "c/", "c/d/", "e", "a b/\u00e9%20+~=", "*?&;#", "...", "a~"]


@pytest.mark.parametrize("encodes", [True, False])
def test_odd_keys_are_read_written_listed_and_deleted(server, monkeypatch, encodes):
    monkeypatch.setattr(server, "encodes", encodes)
    server.page_keys = 3
    store = open_s3(server)
    store.write_many(WriteRequest(ODD, [key.encode() for key in ODD])).raise_first()
    assert server.values == {f"bucket/{key}": key.encode() for key in ODD}
    assert store.list().result() == sorted(key.encode() for key in ODD)
    assert [store[key] for key in ODD] == [key.encode() for key in ODD]
    assert put(store, "a//b", b"2", ABSENT) == b""
    names = {"/", "*?&;#", "...", "a b/", "a/", "a~", "c/", "e"}
    assert store.list_names().result() == sorted(names)
    assert store.driver.list_names("a/") == ["/"]  # The object "a/" is not below itself.
    assert store.driver.list_names("c/") == ["d/"]
    assert store.driver.list_names("/") == ["/", "a"]
    store.delete_range(KvStore.KeyRange("a/", "a0")).result()
    assert store.list(KvStore.KeyRange("a", "b")).result() == ["a b/\u00e9%20+~=".encode(), b"a~"]
    del store["//"]
    assert store.list(KvStore.KeyRange("/", "0")).result() == [b"/", b"/a"]


def test_only_keys_in_question_are_asked_for(server):
    server.values.update({f"bucket/k{i:03}": b"" for i in range(500)})
    server.page_keys = 10
    store = open_s3(server)
    found = store.list(KvStore.KeyRange("k222", "k230")).result()
    assert found == [f"k{i}".encode() for i in range(222, 230)]
    assert len(server.requests) == 1


def test_ends_of_a_range_need_not_be_legal_keys(server):
    names = ["a", "a.", "a/b", "a/bb", "a/c", "b", "b~"]
    server.values.update({f"bucket/{name}": b"" for name in names})
    store = open_s3(server)
    ends = [
        "",
        "a/",
        "a//bcd",
        "a/../b",
        "a/./",
        "a\0b",
        "a\0b/c",
        "/",
        "//",
        "a/b\x7f",
        "./",
        "b/",
    ]
    for low, high in itertools.product(ends, [*ends, "\x7f"]):
        expected = [name.encode() for name in names if low <= name and (not high or name < high)]
        assert store.list(KvStore.KeyRange(low, high)).result() == expected


@pytest.mark.parametrize("body", [b"", b"<a>", b"\xff", b"<Error></Error>"], ids=str)
def test_malformed_list_is_an_error(server, body):
    def answer(server, connection, request):
        connection.sendall(head(200, [("Content-Length", len(body))]) + body)

    server.faults = [Fault(answer)]
    for call in (lambda store: store.list(), lambda store: store.list_names()):
        with pytest.raises(StoreIOError, match=r"Error listing .*: the response is not a list of"):
            call(open_s3(server)).result()


# ------------------------------------------------------------------------- what goes wrong


def test_server_that_hangs_is_given_up(server):
    server.faults = [Fault(lambda s, c, r: s.stopped.wait(60) and False)]
    store = open_s3(server, http_request_timeouts={"idle": "50ms"})
    with pytest.raises(StoreIOError, match=r"All 3 retry attempts failed, .*: no data for 0.05 s"):
        store.read("a").result()


def test_lost_connections_are_repeated(server):
    server.values["bucket/a"] = b"value"
    lost = Fault(lambda s, c, r: False, times=2)
    server.faults = [lost]
    assert open_s3(server)["a"] == b"value"
    lost.times = 1 << 30
    with pytest.raises(StoreIOError, match="All 3 retry attempts failed"):
        open_s3(server).read("a").result()


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([("Content-Range", "bytes 1-5/100")], None),
        ([("Content-Range", "bytes 0-98/100")], None),
        ([("Content-Range", None)], None),
        ([], b"short"),
        ([], bytes(99)),
    ],
    ids=str,
)
def test_wrong_range_is_an_error(server, fields, body):
    server.values["bucket/a"] = bytes(100)
    different = {"fields": fields} | ({} if body is None else {"body": body})
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, **different))]
    with pytest.raises((StoreIOError, LimitError), match="Error reading"):
        open_s3(server).read("a", byte_range=slice(0, 7)).result()


def test_endless_body_takes_no_memory(server):
    server.values["bucket/a"] = bytes(100)
    sent = []

    def endless(server, connection, request):
        fields = {"Content-Range": "bytes 0-9/100", "Last-Modified": DATE, "ETag": '"x"'}
        fields |= {"Transfer-Encoding": "chunked"}
        connection.sendall(head(206, fields.items()))
        block = b"10000\r\n" + bytes(65536) + b"\r\n"
        while not server.stopped.is_set():
            connection.sendall(block)
            sent.append(len(block))

    server.faults = [Fault(endless)]
    store = open_s3(server)
    assert store.read("a", byte_range=slice(0, 10)).result().value == bytes(10)
    with pytest.raises((StoreIOError, LimitError)):
        store.read("a").result()
    assert sum(sent) < 64 << 20


def test_value_of_another_length_than_announced_is_refused_before_it_is_read(server):
    server.values["bucket/a"] = bytes(100_000)
    with pytest.raises(LimitError, match="has 100000 bytes, at most 10 are expected"):
        get(open_s3(server), "a", max_nbytes=10)


def test_no_more_requests_are_under_way_than_the_limit(server):
    gate = threading.Barrier(3)

    def meet(server, connection, request):
        gate.wait(30)  # Only three at the same time come past this.
        return server.serve(connection, request)

    with S3Server() as alone:
        alone.values.update({f"bucket/k{i}": bytes([i]) for i in range(30)})
        alone.faults = [Fault(meet)]
        store = open_s3(alone, s3_request_concurrency={"limit": 3})
        columns = store.read_many(
            gpustore.kvstores.kvstore.ReadRequest([f"k{i}" for i in range(30)])
        )
        columns.raise_first()
        assert [bytes(value) for value in columns.value] == [bytes([i]) for i in range(30)]
        assert alone.most == 3


@pytest.mark.long
def test_pause_is_as_long_as_the_server_says(server):
    server.values["bucket/a"] = b"value"
    store = open_s3(server)
    for call in (lambda: store["a"], lambda: store.list().result()):
        server.faults = [Fault(lambda s, c, r: refuse(c, 503, "", [("Retry-After", "1")]), times=1)]
        begun = time.monotonic()
        assert call() in (b"value", [b"a"])
        assert time.monotonic() - begun >= 1


@pytest.mark.matrix("costly")
def test_long_value_is_written_in_parts(server, short_parts):
    value = np.random.default_rng(0).bytes(35 << 20)
    busy = Fault(lambda s, c, r: refuse(c, 503, "SlowDown"), times=2)
    server.faults = [busy]
    store = open_s3(server)
    assert put(store, "a/b c", value) == b'"whole"'
    assert server.values == {"bucket/a/b c": value}
    assert busy.done == 2
    assert sorted(len(sent.body) for sent in server.requests if sent.method == "PUT") == [
        *(3 << 20, 16 << 20, 16 << 20)
    ]
    # A condition has to hold for the whole value at once.
    assert put(store, "a/b c", bytes(100), ABSENT) == b""
    assert store["a/b c"] == value
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"))]
    with pytest.raises(StoreIOError, match=r'^PERMISSION_DENIED: Error writing ".*/bucket/k": For'):
        store["k"] = bytes(100)


def test_lost_answer_about_a_value_in_parts_is_found_out(server, monkeypatch):
    monkeypatch.setattr("gpustore.kvstores.buckets.bucket.WHOLE_NBYTES", 99)
    value = bytes(range(100))

    def obey_and_hang_up(server, connection, request):
        if request.method != "POST" or "uploadId" not in request.query:
            return server.serve(connection, request)
        if not server.parts:
            return refuse(connection, 404, "NoSuchUpload")
        first, second = socket.socketpair()
        with first, second:
            server.serve(first, request)
        return False

    server.faults = [Fault(obey_and_hang_up)]
    store = open_s3(server)
    assert get(store, "a") == (ReadState.MISSING, None, ABSENT)
    generation = put(store, "a", value)
    assert get(store, "a") == (ReadState.VALUE, value, generation)
    # What is there may be of somebody else.
    server.faults = [Fault(lambda s, c, r: refuse(c, 404, "NoSuchUpload"), times=1)]
    with pytest.raises(StoreIOError, match="NoSuchUpload"):
        store.write("a", bytes(100)).result()


def test_parts_of_a_value_that_fails_do_not_stay(server, monkeypatch):
    monkeypatch.setattr("gpustore.kvstores.buckets.bucket.WHOLE_NBYTES", 99)

    def fail(server, connection, request):
        if request.method == "PUT":
            return refuse(connection, 403, "AccessDenied")
        return server.serve(connection, request)

    server.faults = [Fault(fail)]
    with pytest.raises(StoreIOError, match="AccessDenied"):
        open_s3(server).write("a", bytes(100)).result()
    assert server.values == server.parts == {}


def test_part_that_arrives_late_does_not_stay(server, monkeypatch):
    monkeypatch.setattr("gpustore.kvstores.buckets.bucket.WHOLE_NBYTES", 99)
    both, deleted = threading.Barrier(2), threading.Event()

    def fail(server, connection, request):
        if request.method == "PUT":
            both.wait(30)
            if "partNumber=1&" in request.query:
                return refuse(connection, 403, "AccessDenied")
            deleted.wait(0.3)  # Long enough for a deletion that does not wait.
        server.serve(connection, request)
        if request.method == "DELETE":
            deleted.set()

    server.faults = [Fault(fail)]
    with pytest.raises(StoreIOError, match="AccessDenied"):
        open_s3(server).write("a", bytes(17 << 20)).result()
    assert deleted.wait(30)
    assert server.parts == {}


def test_list_is_longer_than_any_page_can_be(server):
    def endless(server, connection, request):
        connection.sendall(head(200, [("Content-Length", 1 << 40)]))
        with contextlib.suppress(OSError):
            while not server.stopped.is_set():
                connection.sendall(b" " * (1 << 20))
        return False

    server.faults = [Fault(endless)]
    with pytest.raises(LimitError, match=r"Error listing .*: the response has 1099511627776 bytes"):
        open_s3(server).list().result()


def test_everything_is_encrypted_where_the_bucket_is(monkeypatch, short_parts, tmp_path):
    class Server(TlsServer, S3Server):
        def __init__(self, context):
            self._context = context
            S3Server.__init__(self)

    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setattr(connection, "_TLS", [])
    with Server(authority.context()) as server:
        store = open_s3(server)
        store["a/b"] = b"1"
        store["c"] = bytes(100)
        assert store.list().result() == [b"a/b", b"c"]
        assert store.driver.list_names("") == ["a/", "c"]
        assert (store["a/b"], store["c"]) == (b"1", bytes(100))


def test_server_that_refuses_a_body_or_does_not_read_it(server):
    value = bytes(16 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve(answer):
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    if answer:
                        connection.sendall(head(403, [("Content-Length", 0)]))
                    stop.wait(0.01 if answer else 30)

        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        spec = {"driver": "s3", "bucket": "bucket", "endpoint": url}
        spec["s3_request_retries"] = {**SOON, "max_retries": 1}
        spec["http_request_timeouts"] = {"idle": "200ms"}
        for answer, text in ((True, "HTTP code 403|reset"), (False, "no data for 0.2 s")):
            stop.clear()
            thread = threading.Thread(target=serve, args=(answer,), daemon=True)
            thread.start()
            store = KvStore.open(spec).result()
            with pytest.raises(StoreIOError, match=text):
                store.write("a", value).result()
            stop.set()
            if answer:
                socket.create_connection(listener.getsockname()).close()  # Wakes it.
                thread.join(30)
        listener.close()


def test_answer_without_a_generation_is_no_success_of_a_condition(server):
    fields = [("Content-Length", 0)]
    server.faults = [Fault(lambda s, c, r: c.sendall(head(200, fields)))]
    store = open_s3(server, use_conditional_write=True)
    with pytest.raises(StoreIOError, match="does not say what was written"):
        store.write("a", b"1", if_equal=ABSENT).result()
    assert put(store, "a", b"1") == b""


@pytest.mark.parametrize(
    "members", [{}, {"use_conditional_write": True}, {"use_conditional_write": False}], ids=str
)
def test_condition_that_is_no_generation_cannot_hold(server, members):
    store = open_s3(server, **members)
    store["a"] = b"1"
    server.requests.clear()
    for strange in (b'"x"\r\nEvil: 1', b"\0", b"\xff", b'"' + b"x" * 2000 + b'"'):
        assert put(store, "a", b"2", strange) == b""
        assert put(store, "a", None, strange) == b""
        assert store.read("a", if_not_equal=strange).result().value == b"1"
    assert not any("evil" in sent.headers for sent in server.requests)
    assert all(sent.method in ("GET", "HEAD") for sent in server.requests)


def test_names_and_sizes_come_with_the_list(server):
    server.values.update(
        {"bucket/d/a": b"", "bucket/d/b/c": b"12", "bucket/d/b/d": b"123", "bucket/e": b""}
    )
    store = open_s3(server, "d/")
    assert store.list_names().result() == ["a", "b/"]
    assert store.list_nbytes().result() == ({"a": 0, "b/c": 2, "b/d": 3}, {})
    assert len(server.requests) == 2


def test_facts_about_an_array_have_the_sizes_of_the_listing(server):
    folder = open_s3(server, "a/")
    values = np.arange(6, dtype="uint8")
    store = gpustore.create_array(folder, shape=6, dtype="u1", chunks=2, data=values).result()
    del folder["c/1"]
    server.requests.clear()
    info = store.info_complete()
    assert (info.values_stored, info.stored_nbytes) == (2, 4)
    assert len([one for one in server.requests if "list-type" in one.target]) == 1


def test_remark_on_the_encoding_changes_no_bytes(server):
    server.values["bucket/a"] = b"stored"
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, fields={"Content-Encoding": "gzip"}))]
    assert open_s3(server)["a"] == b"stored"


def test_condition_of_a_deletion_is_sent_to_who_knows_it(server):
    store = open_s3(server, use_conditional_write=True)
    first = put(store, "a", b"1")
    server.requests.clear()
    assert put(store, "a", None, b'"other"') == b""
    assert put(store, "a", None, first) == ABSENT
    # Looked at before, so that a lost answer is understood.
    assert [(sent.method, sent.headers.get("if-match")) for sent in server.requests] == [
        ("HEAD", None),
        ("HEAD", None),
        ("DELETE", first.decode()),
    ]
    assert put(store, "a", None, first) == b""


# ------------------------------------------------------------------------- processes

FORK = """
import os
import gpustore
spec = {{"driver": "s3", "bucket": "bucket", "endpoint": "{url}"}}
spec["aws_credentials"] = {{"type": "{type}"}}
store = gpustore.KvStore.open(spec).result()
store["a"] = b"1"
child = os.fork()
if not child:
    code = 1
    try:
        for one in (store, gpustore.KvStore.open(spec).result()):
            one["b"] = one["a"] + b"2"
        assert one["b"] == b"12"
        code = len(one.list().result())
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(store["b"])
"""


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("type", ["environment", "profile", "anonymous"])
def test_forked_child_reads_writes_and_lists(server, monkeypatch, tmp_path, type):
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=D\naws_secret_access_key=S\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK.format(url=server.url, type=type)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout == "2\nb'12'\n"


# ------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("version", ["zarr2", "zarr3"])
def test_array_is_written_and_read_by_url(server, monkeypatch, version):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    volume = np.arange(100, dtype="uint16").reshape(10, 10)
    url = f"s3://bucket/x.zarr|{version}:"
    layout = gpustore.ChunkLayout(chunk_shape=[4, 4])
    made = gpustore.open(url, create=True, dtype="uint16", shape=[10, 10], chunk_layout=layout)
    made.result().write(volume).result()
    store = gpustore.open(url).result()
    store[2:3].write(7).result()
    volume[2:3] = 7
    assert np.array_equal(store.read().result(), volume)
    assert np.array_equal(store.read_many([[0, 0], [5, 6]], [3, 3]).result()[1], volume[5:8, 6:9])
    again = pickle.loads(pickle.dumps(store))
    assert np.array_equal(again[3:7].read().result(), volume[3:7])
    with emulated() as device:
        found = gpustore.open(url, device=device.name).result().read().result()
        assert np.array_equal(on_host(device, found), volume)
        del found
    store.resize(exclusive_max=[4, 4]).result()
    assert sum("x.zarr/" in key for key in server.values) == 2


def test_group_of_shards_is_read(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    group = gpustore.open_group("s3://bucket/group.zarr|zarr3:", create=True).result()
    layout = gpustore.ChunkLayout(read_chunk_shape=[5, 5], write_chunk_shape=[20, 20])
    array = group.create_array("a/b", dtype="float32", shape=[40, 40], chunk_layout=layout).result()
    volume = np.random.default_rng(0).random((40, 40), "float32")
    array.write(volume).result()
    assert list(group.members(max_depth=None).result()) == ["a", "a/b"]
    array = gpustore.open("s3://bucket/group.zarr/a/b|zarr3:").result()
    server.requests.clear()
    assert np.array_equal(array[7:12, 3:30].read().result(), volume[7:12, 3:30])
    assert all("range" in request.headers for request in server.requests)
