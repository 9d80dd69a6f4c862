"""Values in parts, and what servers may do with them."""

import itertools
import socket
import threading

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.buckets import multipart
from gpustore.kvstores.columns import ABSENT, WriteRequest
from gpustore.runtime.executor import Executor
from tests.kvstores.contract import put
from tests.kvstores.http.http_server import Fault, head
from tests.kvstores.s3.s3_server import S3Server, open_s3, refuse

VALUE = bytes(range(200))


@pytest.fixture(scope="module")
def shared_server():
    with S3Server() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch, short_parts):
    monkeypatch.setattr(multipart, "PART_NBYTES", 40)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    yield shared_server
    for one in ("values", "faults", "requests", "parts"):
        getattr(shared_server, one).clear()


def says(status, body, **fields):
    fields = {"Content-Length": len(body), **fields}
    return lambda s, c, r: c.sendall(head(status, fields.items()) + body)


def only(method, query, answer, **options):
    """A fault of requests of one kind."""

    def fault(server, connection, request):
        if request.method == method and query in request.query:
            return answer(server, connection, request)
        return server.serve(connection, request)

    return Fault(fault, **options)


def kinds(server):
    """What was asked for, and how often in succession."""
    words = {"POST": ("begin", "complete"), "PUT": ("put", "part"), "DELETE": ("delete", "abort")}
    asked = [
        words.get(sent.method, (sent.method,) * 2)["uploadId" in sent.query]
        for sent in server.requests
    ]
    return [(name, len(list(group))) for name, group in itertools.groupby(asked)]


def test_parts_are_put_together_in_order(server):
    assert put(open_s3(server), "a b", VALUE) == b'"whole"'
    assert server.values == {"bucket/a b": VALUE}
    assert kinds(server) == [("begin", 1), ("part", 5), ("complete", 1)]


def test_parts_are_not_more_than_a_server_takes(server, monkeypatch):
    monkeypatch.setattr(multipart, "_MOST_PARTS", 3)
    put(open_s3(server), "a", VALUE)
    sizes = [len(sent.body) for sent in server.requests if sent.method == "PUT"]
    assert sorted(sizes) == [66, 67, 67]
    assert server.values == {"bucket/a": VALUE}


@pytest.mark.parametrize("status", [412, 404])
@pytest.mark.parametrize("condition", [ABSENT, b'"old"'])
def test_condition_is_compared_when_parts_are_put_together(server, condition, status):
    store = open_s3(server, use_conditional_write=True)
    assert put(store, "a", VALUE, condition) == b'"whole"'
    *_, last = server.requests
    name, text = ("if-none-match", "*") if condition == ABSENT else ("if-match", '"old"')
    assert last.headers[name] == text
    assert not any(name in sent.headers for sent in server.requests[:-1])
    server.requests.clear()
    code = "PreconditionFailed" if status == 412 else "NoSuchKey"
    server.faults = [only("POST", "uploadId", lambda s, c, r: refuse(c, status, code))]
    assert put(store, "a", bytes(200), condition) == b""
    assert kinds(server) == [("begin", 1), ("part", 5), ("complete", 1), ("abort", 1)]
    assert server.parts == {}


def test_lost_answer_under_a_condition_is_found_out(server):
    def obey_and_hang_up(server, connection, request):
        if "uploadId=" in request.query and request.query.split("uploadId=")[1] in server.parts:
            first, second = socket.socketpair()
            with first, second:
                server.serve(first, request)
            return False
        return refuse(connection, 412, "PreconditionFailed")

    server.faults = [only("POST", "uploadId", obey_and_hang_up)]
    store = open_s3(server, use_conditional_write=True)
    assert put(store, "a", VALUE, ABSENT) not in (b"", ABSENT)
    assert store["a"] == VALUE


ERROR = b"<?xml version='1.0'?>\n<Error><Code>%s</Code></Error>"


def test_success_that_is_none_is_repeated_or_an_error(server):
    store = open_s3(server)
    server.faults = [only("POST", "uploadId", says(200, ERROR % b"AccessDenied"))]
    with pytest.raises(StoreIOError, match=r"OK \[HTTP code 200\]: AccessDenied"):
        store.write("a", VALUE).result()
    assert kinds(server)[2:] == [("complete", 1), ("abort", 1)]
    answers = iter([says(200, ERROR % b"InternalError")] * 2 + [S3Server.serve])
    server.faults = [only("POST", "uploadId", lambda *args: next(answers)(*args))]
    assert put(store, "a", VALUE) == b'"whole"'
    server.requests.clear()
    server.faults = [only("POST", "uploadId", says(200, ERROR % b"SlowDown"))]
    with pytest.raises(StoreIOError, match="SlowDown; 4 attempts were made"):
        store.write("a", VALUE).result()
    assert kinds(server)[2:] == [("complete", 4), ("abort", 1)]
    assert server.parts == {}


@pytest.mark.parametrize(
    ("method", "query", "answer", "text"),
    [
        ("POST", "uploads", says(200, b""), "does not name an upload"),
        ("POST", "uploads", says(200, b"<!DOCTYPE a><a/>"), "does not name an upload"),
        ("POST", "uploads", says(200, b"<R><UploadId>x</UploadId></R>"), "does not name an upl"),
        ("PUT", "", says(200, b""), "does not say which part was stored"),
        ("PUT", "Number=3&", says(403, b""), r"Forbidden \[HTTP code 403\]"),
        ("POST", "uploadId", says(200, b""), "does not say what was written"),
        ("POST", "uploadId", says(200, b"<Error xmlns='x'/>"), "does not say what was written"),
        ("POST", "uploadId", says(400, b"<Code>InvalidPart</Code>"), "InvalidPart"),
        ("POST", "uploadId", lambda s, c, r: False, "All 3 retry attempts failed"),
    ],
)
def test_upload_that_fails_leaves_nothing(server, method, query, answer, text):
    server.faults = [only(method, query, answer)]
    with pytest.raises(StoreIOError, match=rf'Error writing ".*/bucket/a": .*{text}'):
        open_s3(server).write("a", VALUE).result()
    assert server.values == server.parts == {}
    assert (kinds(server)[-1] == ("abort", 1)) == (query != "uploads")


def test_many_parts_are_not_sent_after_one_has_failed(server, monkeypatch):
    monkeypatch.setattr(multipart, "_AT_ONCE", 2)
    server.faults = [only("PUT", "Number=2&", says(403, b""))]
    with pytest.raises(StoreIOError, match="403"):
        open_s3(server).write("a", VALUE).result()
    assert kinds(server) == [("begin", 1), ("part", 2), ("abort", 1)]


def test_cancelled_upload_is_deleted(server):
    waiting, aborted = threading.Event(), threading.Event()

    def wait(server, connection, request):
        waiting.set()
        server.stopped.wait(30)
        return False

    def abort(server, connection, request):
        server.serve(connection, request)
        aborted.set()

    def answer(server, connection, request):
        does = {"PUT": wait, "DELETE": abort}.get(request.method, S3Server.serve)
        return does(server, connection, request)

    with S3Server() as alone:  # Whose requests end when it is closed.
        alone.faults = [Fault(answer)]
        driver, wanted = open_s3(alone).driver, WriteRequest(["a"], [VALUE])
        future = Executor(1).run_all([lambda: driver.write_many(wanted)], lambda: None)
        assert waiting.wait(30)
        future.cancel()
        assert aborted.wait(30)
        assert alone.parts == {}
