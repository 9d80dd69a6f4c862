"""Servers that answer what no server should, over TCP and TLS."""

import itertools
import os
import socket
import ssl
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import GpustoreError, LimitError, StoreIOError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.http import connection, pool
from gpustore.kvstores.http.pool import POOL
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.http.tls import Authority, TlsServer

SOON = {"max_retries": 2, "initial_delay": "1ms", "max_delay": "2ms"}
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def shared_server():
    with HttpServer() as server:
        yield server


@pytest.fixture
def server(shared_server):
    POOL.close()
    shared_server.values["k"] = bytes(range(256)) * 1200
    yield shared_server
    POOL.close()
    shared_server.forget()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def trusted(authority, monkeypatch):
    """What the authority has signed is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setattr(connection, "_TLS", [])
    POOL.close()
    yield authority
    POOL.close()


def open_store(url, **members):
    spec = {"driver": "http", "base_url": f"{url}/", "http_request_retries": SOON, **members}
    return KvStore.open(spec).result()


def read(store, key="k", **options):
    """The value or the error; a client that waits for ever fails the test."""
    found = []
    request = ReadRequest([key], **{"max_nbytes": 1 << 20, **options})
    thread = threading.Thread(target=lambda: found.append(store.read_many(request)), daemon=True)
    thread.start()
    thread.join(30)
    assert found, "no end, or an error that is none of ours"
    [columns] = found
    return columns.error[0] if columns.error else columns.value[0] and bytes(columns.value[0])


def says(*parts, again=b""):
    """Answer with these bytes, and with `again` as long as anybody listens; then close."""

    def answer(server, connection, request):
        connection.sendall(b"".join(parts))
        many = again * (1 + (1 << 16) // len(again)) if again else b""
        while many and not server.stopped.is_set():
            connection.sendall(many)
        return False

    return answer


# ------------------------------------------------------------------------- responses

MALFORMED = {
    "informational responses without end": says(again=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers without end": says(CHUNKED, b"1\r\na\r\n0\r\n", again=b"X: y\r\n"),
    "a trailer without end": says(CHUNKED, b"1\r\na\r\n0\r\nX:", again=b"y"),
    "fields without end": says(OK, again=b"X: y\r\n"),
    "a field without end": says(OK, b"X:", again=b"y"),
    "a chunk extension without end": says(CHUNKED, b"3;", again=b"x=y;"),
    "a chunk of 2 ** 64 bytes": says(CHUNKED, b"10000000000000000\r\nabc"),
    "a negative chunk": says(CHUNKED, b"-3\r\nabc\r\n0\r\n\r\n"),
    "no chunk length": says(CHUNKED, b"\r\nabc\r\n0\r\n\r\n"),
    "a chunk that goes on": says(CHUNKED, b"3\r\nabcdefgh\r\n0\r\n\r\n"),
    "another protocol": says(b"PRI * HTTP/2.0\r\n\r\n"),
    "two lengths": says(OK, b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "a length and chunks": says(OK, b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"),
    "an unknown coding": says(OK, b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "a length that is none": says(OK, b"Content-Length: 3, 3\r\n\r\nabc"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_response_is_an_error_at_once(server, name):
    server.faults.append(Fault(MALFORMED[name]))
    error = read(open_store(server.url))
    assert isinstance(error, StoreIOError)
    assert str(error).startswith(f'UNKNOWN: Error reading "{server.url}/k": the ')
    assert len(server.requests) == 1


LOST = {
    "no head": says(b"<html>an answer of the year 1991"),
    "half a head": says(OK[:9]),
    "half a body": says(OK, b"Content-Length: 9\r\n\r\nhalf"),
    "half a chunk": says(CHUNKED, b"9\r\nhalf"),
    "no last chunk": says(CHUNKED, b"4\r\nhalf\r\n"),
    "no end of the trailers": says(CHUNKED, b"4\r\nhalf\r\n0\r\n"),
}


@pytest.mark.parametrize("name", LOST)
def test_connection_that_ends_too_early_is_an_error_that_counts_the_attempts(server, name):
    server.faults.append(Fault(LOST[name]))
    error = read(open_store(server.url))
    assert isinstance(error, StoreIOError)
    assert "All 2 retry attempts failed" in str(error)
    assert len(server.requests) == 3


@given(
    cut=st.integers(0, 119),
    noise=st.none() | st.tuples(st.integers(0, 119), st.integers(0, 255)),
    chunked=st.booleans(),
)
def test_response_with_a_wrong_byte_or_cut_anywhere_is_right_or_an_error(
    shared_server, cut, noise, chunked
):
    body = b"4\r\nabcd\r\n2;x=y\r\nef\r\n0\r\n\r\n" if chunked else b"abcdef"
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 6"
    response = bytearray(OK + b'ETag: "1"\r\nX-Other: something\r\n' + length + b"\r\n\r\n" + body)
    whole = len(response)
    if noise is not None:
        response[noise[0] % whole] = noise[1]
    shared_server.faults[:] = [Fault(says(bytes(response[: min(cut, whole)])))]
    store = open_store(shared_server.url, http_request_retries={"max_retries": 0})
    found = read(store)
    POOL.close()
    shared_server.faults.clear()
    if noise is None:
        assert found == b"abcdef" if cut >= whole else isinstance(found, StoreIOError)
    else:  # The byte may be one of the body, of its length, or of the status.
        assert found is None or isinstance(found, bytes | GpustoreError)


def test_no_message_shows_a_field_of_a_malformed_head(server):
    secret = b"Set-Cookie: id=hidden\r\n"
    for lines in (
        secret + b"X: y\n\r\n",
        b"Set-Cookie: id=1;\r\n  more=hidden\r\n",
        b"Location: /a?token=hidden\r\nLocation: /b?token=hidden\r\n",
        b"A token=hidden\r\n",
        b"Etag: \0hidden\r\n",
    ):
        server.faults[:] = [Fault(says(OK, lines, b"Content-Length: 0\r\n\r\n"))]
        error = read(open_store(server.url))
        assert isinstance(error, StoreIOError)
        assert "malformed" in str(error)
        assert "hidden" not in str(error)


@pytest.mark.parametrize(
    "location", [b"http://[bad/", b"http://a]b/", b"http://h:99999999/", b"//", b"\xff", b"x:y"]
)
def test_redirect_to_what_is_no_url_is_an_error(server, location):
    lines = b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"
    server.faults.append(Fault(says(lines)))
    error = read(open_store(server.url))
    assert isinstance(error, StoreIOError)
    assert "redirect" in str(error)


def test_upgrade_nobody_asked_for_is_an_error(server):
    server.faults.append(Fault(says(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", again=b"x")))
    error = read(open_store(server.url))
    assert str(error).startswith("FAILED_PRECONDITION: ")
    assert "[HTTP code 101]" in str(error)


def test_range_that_is_longer_than_allowed_is_not_received(server):
    sent = []

    def long(server, connection, request):
        fields = [("Content-Range", f"bytes 0-{10**9 - 1}/{10**9}"), ("Content-Length", 10**9)]
        if request.method == "HEAD":
            connection.sendall(head(200, fields[1:]))
            return None
        connection.sendall(head(206, fields))
        for _ in range(10**3):
            connection.sendall(bytes(10**6))
            sent.append(10**6)
        return False

    server.faults.append(Fault(long))
    error = read(open_store(server.url), start=[0], stop=[10**9], max_nbytes=10)
    assert isinstance(error, LimitError)
    assert sum(sent) <= 10**7


def test_body_after_a_response_without_one_is_not_taken_for_the_next(server):
    def wrong(server, connection, request):
        connection.sendall(OK + b"Content-Length: 3\r\n\r\nabc")

    store = open_store(server.url)
    server.faults.append(Fault(wrong, times=1))
    assert read(store, start=[0], stop=[0]) == b""
    assert server.requests[0].method == "HEAD"
    assert read(store) == server.values["k"]


WRONG = OK + b"Content-Length: 5\r\n\r\nwrong"
BEHIND = {
    "in the same record": [bytes(1_000_000) + WRONG],
    "in the next record": [bytes(1_000_000), WRONG],
    "in small records": [b"small", WRONG],
    "half a head": [bytes(1_000_000) + b"HTTP/1.1 200 OK\r\nX:"],
    "half a head in the next record": [b"small", b"HTTP/1.1 200"],
    "two responses": [bytes(1_000_000), WRONG + WRONG],
    "behind chunks": [b"behind chunks"],
}


@pytest.mark.parametrize("how", BEHIND)
@pytest.mark.parametrize("encrypted", [False, True])
def test_bytes_behind_a_body_are_not_taken_for_the_next_response(trusted, encrypted, how):
    body, *more = BEHIND[how]
    length = 1_000_000 if len(body) > 100 else len(body)

    def answer(server, connection, request):
        if how == "behind chunks":
            connection.sendall(CHUNKED + b"d\r\nbehind chunks\r\n0\r\n\r\n" + WRONG)
        else:
            connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % length + body)
        for part in more:
            connection.sendall(part)
        sent.release()

    sent = threading.Semaphore(0)
    values = {"k": b"right"}
    with TlsServer(trusted.context(), values) if encrypted else HttpServer(values) as server:
        server.faults.append(Fault(answer, "first"))
        store = open_store(server.url)
        for _ in range(3):
            assert read(store, "first") == body[:length]
            assert sent.acquire(timeout=30)
            for _ in range(3):
                assert read(store) == b"right"
        POOL.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_that_says_nothing_unasked_is_used_again(trusted, encrypted):
    values = {"k": os.urandom(300_000)}
    with TlsServer(trusted.context(), values) if encrypted else HttpServer(values) as server:
        store = open_store(server.url)
        for start in range(0, 200_000, 10_000):
            assert read(store, start=[start], stop=[start + 70_000]) == values["k"][start:][:70_000]
        assert (server.connections, len(server.requests)) == (1, 20)
        POOL.close()


def test_connections_that_nobody_uses_any_more_are_closed(server, monkeypatch):
    monkeypatch.setattr(pool, "_IDLE_S", 0.0)
    with HttpServer({"k": b"1"}) as other:
        assert read(open_store(other.url)) == b"1"
        [[idle]] = POOL._idle.values()
        assert idle.connected
        assert read(open_store(server.url)) == server.values["k"]
        assert not idle.connected
        assert len(POOL._idle) == 1


@pytest.mark.parametrize("fields", [b"Content-Length: 1125899906842624\r\n", b""])
def test_value_before_the_range_is_not_passed_over_for_ever(server, fields):
    server.faults.append(Fault(says(OK, fields, b"\r\n", again=bytes(1 << 16))))
    store = open_store(server.url, http_request_timeouts={"total": "200ms"})
    start = 1 << 49
    error = read(store, start=[start], stop=[start + 9])
    assert str(error).startswith("DEADLINE_EXCEEDED: ")
    assert "no complete response within 0.2 s" in str(error)
    if fields:
        assert "no complete response within 0.2 s" in str(read(store, start=[-9]))


def test_read_can_be_cancelled_while_bytes_keep_coming(server):
    def endless(server, connection, request):
        connection.sendall(OK + b"\r\n")
        many = bytes(1 << 20)
        while not server.stopped.is_set():
            connection.sendall(many)

    server.faults.append(Fault(endless))
    # What precedes the range is passed over: more than anybody can wait for.
    future = open_store(server.url).read("k", byte_range=slice(1 << 60, (1 << 60) + 1))
    server.wait_for_request()
    future.cancel()
    POOL.close()
    server.wait_for_the_last()  # It sends until nobody receives.


# ------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "path", ["a%2Fb\r\nX-Other: 1\r\n", "a%2F b", "%2F\u4e2d", "%2F\xe9", "%2f\0"]
)
def test_address_cannot_add_anything_to_a_request(server, path):
    store = KvStore.open(
        {"driver": "http", "base_url": f"{server.url}/{path}/", "http_request_retries": SOON}
    ).result()
    assert read(store) is None
    # One of an earlier test, which was cancelled, may arrive late at the server they share.
    [request] = [one for one in server.requests if one.target != "/k"]
    assert "x-other" not in request.headers
    assert request.target.isascii()
    assert request.target.isprintable()


# ------------------------------------------------------------------------- addresses


def test_address_that_does_not_answer_is_not_tried_again_first(server, silent, monkeypatch):
    real = socket.getaddrinfo

    def two(host, port, *args, **options):
        [good] = real("127.0.0.1", server.port, *args, **options)
        return [(*good[:4], silent), good] if host == "two.test" else [good]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    store = open_store(
        f"http://two.test:{server.port}",
        http_request_timeouts={"connect": "300ms", "total": "20s"},
        http_request_retries={**SOON, "max_retries": 9},
    )
    keys = ["k"] * 3
    request = ReadRequest(keys, start=[0, 100_000, 200_000], stop=[5, 100_005, 200_005])
    columns = store.read_many(request)
    assert columns.error == {}
    assert [bytes(value) for value in columns.value] == [
        server.values["k"][start : start + 5] for start in request.start
    ]


def test_resolver_that_hangs_is_given_up(server, monkeypatch):
    release = threading.Event()
    asked = itertools.count()
    answered = []
    real = socket.getaddrinfo

    def hang(host, *args, **options):
        if host == "slow.test" and not options.get("flags"):
            next(asked)
            answered.append(release.wait(60))
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    timeouts = {"connect": "50ms", "total": "1s"}
    store = open_store("http://slow.test:80", http_request_timeouts=timeouts)
    error = read(store)
    assert not answered
    assert str(error).startswith("DEADLINE_EXCEEDED: ")
    assert "no connection within 0.05 s" in str(error)
    release.set()
    assert next(asked) == 1  # All attempts wait for the same answer.


def test_unknown_host_is_an_error_at_once(monkeypatch):
    asked = itertools.count()

    def unknown(host, *args, **options):
        if not options.get("flags"):
            next(asked)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = read(open_store("http://unknown.test:80"))
    text = "cannot resolve host 'unknown.test': Name or service not known"
    assert str(error) == f'NOT_FOUND: Error reading "http://unknown.test/k": {text}'
    assert next(asked) == 1


def test_name_that_cannot_be_one_is_an_error():
    for host in (".bad", "a..b"):
        error = read(open_store(f"http://{host}:80"))
        assert isinstance(error, StoreIOError)
        assert "resolve host" in str(error)


def test_address_of_version_6():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no address of version 6")
    with listener:
        port = listener.getsockname()[1]
        asked = []

        def serve():
            with listener.accept()[0] as connection:
                asked.append(connection.recv(1 << 16))
                connection.sendall(OK + b"Content-Length: 5\r\n\r\nvalue")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert read(open_store(f"http://[::1]:{port}")) == b"value"
        assert f"\r\nHost: [::1]:{port}\r\n".encode() in asked[0]
        thread.join(30)


# ------------------------------------------------------------------------- TLS


def test_values_are_read_over_tls(trusted):
    values = {"k": os.urandom(1_000_000), "small": b"1"}
    with TlsServer(trusted.context(), values) as server:
        store = open_store(server.url)
        assert read(store) == values["k"]
        request = ReadRequest(
            ["k"] * 9, start=range(0, 900_000, 100_000), stop=range(20_000, 920_000, 100_000)
        )
        columns = store.read_many(request)
        assert columns.error == {}
        for value, start in zip(columns.value, request.start, strict=True):
            assert bytes(value) == values["k"][start : start + 20_000]
        assert read(store, "small") == b"1"
        assert read(store, "none") is None
        assert len(server.requests) == 12
        server.drop_connections()
        assert read(store, "small") == b"1"
        POOL.close()


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ({"host": "other.test", "address": "127.0.0.2"}, "not valid for 'localhost'"),
        ({"first_day": -3, "last_day": -2}, "expired"),
        ({"first_day": 2, "last_day": 3}, "not yet valid"),
    ],
    ids=["wrong name", "expired", "not yet valid"],
)
def test_certificate_that_is_not_valid_is_an_error_at_once(trusted, problem, words):
    with TlsServer(trusted.context(**problem), {"k": b"1"}) as server:
        error = read(open_store(server.url))
        assert isinstance(error, StoreIOError)
        assert f"the certificate of {server.url} is not valid: " in str(error)
        assert words in str(error)
        assert server.requests == []
        assert server.connections == 1


def test_authority_that_nobody_trusts_is_an_error(trusted, tmp_path):
    with TlsServer(Authority(tmp_path).context(), {"k": b"1"}) as server:
        error = read(open_store(server.url))
        assert f"the certificate of {server.url} is not valid: " in str(error)
        assert server.requests == []


def test_server_that_does_not_speak_tls_is_given_up(trusted):
    answers = [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    given_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for answer in answers:
                with listener.accept()[0] as connection:
                    connection.recv(1 << 16)
                    if answer is None:
                        given_up.wait(30)
                    else:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        once = {"http_request_retries": {"max_retries": 0}}
        timeouts = {"connect": "100ms", "total": "5s"}
        error = read(open_store(url, http_request_timeouts=timeouts, **once))
        assert "no connection within 0.1 s" in str(error)
        given_up.set()
        error = read(open_store(url, **once))
        thread.join(30)
    assert str(error).startswith("ABORTED: ")
    assert "TLS: " in str(error)


@pytest.mark.parametrize("preset", [0, getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)])
def test_encrypted_body_of_no_length_must_end_as_tls_does(trusted, monkeypatch, preset):
    """Also where Python sets the option by which any end will do, as 3.11.2 did."""
    made = ssl.create_default_context()
    made.options |= preset
    monkeypatch.setattr(ssl, "create_default_context", lambda: made)

    def answer(server, connection, request):
        connection.sendall(OK + b"\r\nthe first half")
        if not request.path.endswith("cut"):
            connection.unwrap()
        return False

    with TlsServer(trusted.context()) as server:
        server.faults.append(Fault(answer))
        store = open_store(server.url)
        assert read(store, "whole") == b"the first half"
        error = read(store, "cut")
        assert "All 2 retry attempts failed" in str(error)


def test_redirect_from_tls_to_plain_is_refused(trusted, server):
    def answer(tls_server, connection, request):
        fields = [("Location", f"{server.url}/k?token=hidden"), ("Content-Length", 0)]
        connection.sendall(head(302, fields))

    with TlsServer(trusted.context()) as tls_server:
        tls_server.faults.append(Fault(answer))
        error = read(open_store(tls_server.url))
    assert f"the redirect to another origin, {server.url}, is not followed" in str(error)
    assert "hidden" not in str(error)
    assert server.requests == []
