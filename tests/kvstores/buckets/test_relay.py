"""The proxy on loopback that sends what obstore asks for."""

import base64
import contextlib
import os
import select
import socket
import threading
from urllib.parse import urlsplit

import pytest

from gpustore.errors import LimitError, StoreIOError
from gpustore.kvstores.buckets import relay
from gpustore.kvstores.buckets.relay import RELAY, Route
from gpustore.kvstores.http import connection
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.http.tls import Authority, TlsServer


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)


@pytest.fixture
def server():
    with HttpServer({"k": b"value"}) as server:
        yield server


def make_route(server, **different):
    client = HttpClient(
        Origin("http", "127.0.0.1", server.port),
        permits=Permits(8),
        retries=Retries(2, 1e-3, 2e-3),
        timeouts=Timeouts(5.0, 5.0, different.get("total_s", 20.0)),
    )
    return Route(client, "anonymously", different.get("signs", False))


@contextlib.contextmanager
def asking(route, first, lines=(), body=b"", *, secret=None):
    """A connection to the relay that has sent a request, and what comes back."""
    url = urlsplit(RELAY.open(route))
    secret = url.username if secret is None else secret
    key = base64.b64encode(f"{secret}:".encode()).decode()
    lines = [first, f"Proxy-Authorization: Basic {key}", *lines, "", ""]
    with (
        socket.create_connection((url.hostname, url.port), 20) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall("\r\n".join(lines).encode() + body)
        yield connection, stream


def read_head(stream):
    return b"".join(iter(stream.readline, b"\r\n")).decode()


def ask(*args, **options):
    """What the relay answers: head and body."""
    with asking(*args, **options) as (_, stream):
        return read_head(stream), stream.read()


def failure(route, answer):
    assert answer[0].startswith("HTTP/1.1 400 ")
    text = answer[1].decode()
    found = route.failure(f"Generic error: status 400: {text}")
    assert route.failure(text) is None
    return found


def test_request_is_sent_on_without_what_is_the_relays_business(server):
    route = make_route(server)
    top, body = ask(
        route, f"GET {server.url}/k?a=b HTTP/1.1", ["Connection: keep-alive", "X-Signed: yes"]
    )
    assert (top.split(" ")[1], body) == ("200", b"value")
    [sent] = server.requests
    assert (sent.method, sent.target) == ("GET", "/k?a=b")
    assert sent.headers["x-signed"] == "yes"
    assert sent.headers["host"] == f"127.0.0.1:{server.port}"
    assert not {"proxy-authorization", "connection"} & set(sent.headers)


@pytest.mark.parametrize("secret", ["", "0" * 32])
def test_who_does_not_know_the_secret_is_refused(server, secret):
    for first in (f"GET {server.url}/k HTTP/1.1", "CONNECT 127.0.0.1:1 HTTP/1.1"):
        top, body = ask(make_route(server), first, secret=secret)
        assert (top.split(" ")[1], body) == ("407", b"")
    assert server.requests == []


def test_nothing_but_the_head_is_received_from_strangers(server):
    key, lines = "0" * 32, [f"Content-Length: {64 << 20}"]
    top, _ = ask(make_route(server), f"PUT {server.url}/k HTTP/1.1", lines, secret=key)
    assert top.split(" ")[1] == "407"


def test_strangers_do_not_stay(server, monkeypatch):
    monkeypatch.setattr(relay, "_OWN_WAIT_S", 0.2)
    url = urlsplit(RELAY.open(make_route(server)))
    with (
        socket.create_connection((url.hostname, url.port), 30) as connection,
        contextlib.suppress(ConnectionError),
    ):
        for _ in range(600):  # Each byte comes in time.
            connection.sendall(b"G")
            if select.select([connection], [], [], 0.05)[0]:
                break
        assert connection.recv(1) == b""


def test_strangers_are_not_many(server, monkeypatch):
    monkeypatch.setattr(relay, "_MOST_STRANGERS", 3)
    route = make_route(server)
    url = urlsplit(RELAY.open(route))
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((url.hostname, url.port), 30))
            for _ in range(10)
        ]
        for connection in connections[:7]:
            assert connection.recv(1) == b""
        assert ask(route, f"GET {server.url}/k HTTP/1.1")[1] == b"value"


def test_who_does_not_show_who_asks_is_not_sent_on(server):
    route = make_route(server, signs=True)
    for lines in ([], ["Authorization:"], ["Authorization: Bearer "]):
        found = failure(route, ask(route, f"GET {server.url}/k HTTP/1.1", lines))
        assert "there are no credentials" in str(found)
    assert server.requests == []
    assert ask(route, f"GET {server.url}/k HTTP/1.1", ["Authorization: x"])[1] == b"value"


def test_remembered_failure_holds_no_part_of_a_value(server):
    server.faults = [Fault(lambda s, c, r: c.sendall(head(403, [("Content-Length", 0)])))]
    route = make_route(server)
    lines, body = ["Content-Length: 5"], b"value"
    ask(route, f"PUT {server.url}/k HTTP/1.1", lines, body)
    ask(route, "PUT http://127.0.0.1:1/k HTTP/1.1", lines, body)
    assert len(route._failures) == 2
    for error in route._failures.values():
        while error is not None:
            assert error.__traceback__ is None
            error = error.__cause__ or error.__context__


def test_route_that_nobody_holds_any_more_is_not_served(server):
    route = make_route(server)
    secret = route.secret
    del route
    top, _ = ask(make_route(server), f"GET {server.url}/k HTTP/1.1", secret=secret)
    assert top.split(" ")[1] == "407"


def test_secret_is_not_shown(server):
    route = make_route(server)
    route.authorization = "TOKEN"
    assert route.secret not in repr(route)
    assert "TOKEN" not in repr(route)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b" / HTTP/1.1\r\n{key}\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\n{key}\r\nabc",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n{key}\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n{key}\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 2\r\n{key}\r\nlonger",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n{key}\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * (1 << 17) + b"\r\n\r\n",
    ],
    ids=lambda one: repr(one[:40]),
)
def test_what_is_no_request_is_not_answered(server, request_):
    route = make_route(server)
    url = urlsplit(RELAY.open(route))
    key = base64.b64encode(f"{url.username}:".encode())
    request_ = request_.replace(b"{key}", b"Proxy-Authorization: Basic " + key + b"\r\n")
    with socket.create_connection((url.hostname, url.port), 20) as connection:
        try:
            connection.sendall(request_)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
        except ConnectionError:  # It was closed with something unread.
            pass


def test_failure_is_remembered_with_its_retries(server):
    route = make_route(server)
    server.faults = [Fault(lambda s, c, r: c.sendall(head(503, [("Content-Length", 0)])))]
    found = failure(route, ask(route, f"GET {server.url}/k HTTP/1.1"))
    assert "All 2 retry attempts failed" in str(found)
    assert len(server.requests) == 3


def test_redirect_is_a_failure(server):
    fields = [("Location", f"{server.url}/other"), ("Content-Length", 0)]
    server.faults = [Fault(lambda s, c, r: c.sendall(head(302, fields)), path="k")]
    route = make_route(server)
    assert "Found [HTTP code 302]" in str(
        failure(route, ask(route, f"GET {server.url}/k HTTP/1.1"))
    )
    # A service for credentials is another origin; its redirects are kept back as well.
    with HttpServer() as bucket:
        route = make_route(bucket)
        found = failure(route, ask(route, f"GET {server.url}/k HTTP/1.1"))
        assert "there are no credentials, or they cannot be fetched" in str(found)
        assert bucket.requests == []
    assert [sent.target for sent in server.requests] == ["/k", "/k"]


def test_answer_of_a_service_for_credentials_is_handed_back(server):
    with HttpServer() as bucket:
        route = make_route(bucket)
        top, body = ask(route, f"GET {server.url}/k HTTP/1.1")
        assert (top.split(" ")[1], body) == ("200", b"value")
        top, _ = ask(route, f"PUT {server.url}/nothing HTTP/1.1", ["Content-Length: 0"])
        assert top.split(" ")[1] in ("404", "405", "501")
        assert bucket.requests == []


def test_body_is_not_longer_than_a_page(server):
    fields = [("Content-Length", 1 << 40)]
    server.faults = [Fault(lambda s, c, r: c.sendall(head(200, fields)))]
    route = make_route(server)
    found = failure(route, ask(route, f"GET {server.url}/k HTTP/1.1"))
    assert isinstance(found, LimitError)


def test_failures_nobody_asks_for_do_not_pile_up(server):
    route = make_route(server)
    for _ in range(1100):
        route.failed(StoreIOError("x"))
    assert len(route._failures) == 1024


def test_request_that_is_not_sent_shows_its_authorization(server):
    route = make_route(server)
    first = f"HEAD {server.url}/bucket/{route.unsent} HTTP/1.1"
    top, _ = ask(route, first, ["Authorization: Bearer TOKEN"])
    assert top.split(" ")[1] == "404"
    assert route.authorization == "Bearer TOKEN"
    assert server.requests == []


def test_parts_that_are_not_put_together_are_a_failure(server):
    route = make_route(server)
    first = f"POST {server.url}/k?uploadId=x HTTP/1.1"

    def answer(code):
        body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>".encode()
        return lambda s, c, r: c.sendall(head(200, [("Content-Length", len(body))]) + body)

    server.faults = [Fault(answer("AccessDenied"), times=1)]
    assert str(failure(route, ask(route, first))).endswith("OK [HTTP code 200]")
    assert len(server.requests) == 1
    server.faults = [Fault(answer("InternalError"), times=2)]
    assert ask(route, first)[1] == b"value"
    assert len(server.requests) == 4
    server.faults = [Fault(answer("SlowDown"))]
    assert "; 3 attempts were made" in str(failure(route, ask(route, first)))
    assert len(server.requests) == 7


def test_there_are_no_tunnels(server):
    with HttpServer() as other:
        for port in (server.port, other.port):
            top, _ = ask(make_route(server), f"CONNECT 127.0.0.1:{port} HTTP/1.1")
            assert top.split(" ")[1] == "403"
        assert server.requests == other.requests == []


def test_service_is_asked_as_it_is_meant(server, monkeypatch, tmp_path):
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setattr(connection, "_TLS", [])
    with TlsServer(authority.context(), {"k": b"secret"}) as service:
        route = make_route(server)
        origin = Origin("https", "localhost", service.port)
        route.encrypted[origin.authority] = origin
        first = f"POST http://{origin.authority}/k HTTP/1.1"
        assert ask(route, first)[1] == b"secret"
        service.faults = [Fault(lambda s, c, r: c.sendall(head(403, [("Content-Length", 0)])))]
        assert ask(route, first)[0].startswith("HTTP/1.1 403")
        busy = Fault(lambda s, c, r: c.sendall(head(503, [("Content-Length", 0)])))
        service.faults = [busy]
        assert "All 2 retry attempts failed" in str(failure(route, ask(route, first)))
        assert busy.done == 3
        for to in (f"{service.url}/other", f"{server.url}/k"):
            fields = [("Location", to), ("Content-Length", 0)]
            service.faults = [Fault(lambda s, c, r, f=fields: c.sendall(head(307, f)))]
            found = failure(route, ask(route, first))
            assert "there are no credentials" in str(found)
            assert "HTTP code 307" in str(found)
        fields = [("Content-Length", 1 << 40)]
        service.faults = [Fault(lambda s, c, r: c.sendall(head(200, fields) + bytes(1 << 20)))]
        assert len(ask(route, first)[1]) == 1 << 16
        assert server.requests == []


def test_bucket_may_hand_out_credentials_itself(server):
    route = make_route(server, signs=True)
    route.encrypted[f"127.0.0.1:{server.port}"] = route.client.origin
    assert ask(route, f"POST {server.url}/k HTTP/1.1")[1] == b"value"
    assert route.authorization == ""
    assert ask(route, f"GET {server.url}/k HTTP/1.1", ["Authorization: x"])[1] == b"value"
    assert route.authorization == "x"


def test_relay_without_threads_is_an_error(server, monkeypatch):
    relay = type(RELAY)()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StoreIOError, match=r"cannot listen at 127\.0\.0\.1.*new thread"):
        relay.open(make_route(server))


def test_forked_child_has_a_relay_of_its_own(server):
    route = make_route(server)
    before = RELAY.open(route)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            after = RELAY.open(route)
            top, body = ask(route, f"GET {server.url}/k HTTP/1.1")
            os.write(writer, f"{after != before} {top.split(' ')[1]} {body!r}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"True 200 b'value'"
    os.close(reader)
    os.close(writer)
    assert RELAY.open(route) == before
    assert ask(route, f"GET {server.url}/k HTTP/1.1")[1] == b"value"
