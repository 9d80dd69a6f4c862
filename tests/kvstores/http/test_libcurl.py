"""What libcurl lacks to carry the requests: docs/design/009-network.md says why it does not.

Each test fails with libcurl 8.23 and is expected to. One that passes is the news that a reason has
gone.
"""

import pytest

from tests.kvstores.http.http_server import Fault, HttpServer

pycurl = pytest.importorskip("pycurl")

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def perform(answer, timeout_ms=20_000):
    """The lines that libcurl shows of a head, the body, and libcurl's error or None."""
    head, body, error = [], [], None
    with HttpServer() as server:
        server.faults.append(Fault(answer))
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, f"{server.url}/k")
        curl.setopt(pycurl.NOPROXY, "*")
        curl.setopt(pycurl.HEADERFUNCTION, head.append)
        curl.setopt(pycurl.WRITEFUNCTION, body.append)
        curl.setopt(pycurl.TIMEOUT_MS, timeout_ms)
        try:
            curl.perform()
        except pycurl.error as caught:
            error = caught.args[0]
        curl.close()
    return head, b"".join(body), error


def says(data):
    def answer(server, connection, request):
        connection.sendall(data)
        return False

    return answer


@pytest.mark.xfail(strict=True, reason="libcurl joins folded lines before it shows them")
def test_folded_line_can_be_told_from_a_whole_one():
    fields = b'ETag: "a\r\n b"\r\nContent-Length: 3\r\n\r\nabc'
    folded = perform(says(OK + fields))
    whole = perform(says(OK + fields.replace(b"\r\n b", b" b")))
    assert folded != whole


@pytest.mark.xfail(strict=True, reason="libcurl passes over what follows the digits")
def test_chunk_length_that_is_none_is_refused():
    _, body, error = perform(says(CHUNKED + b"3x\r\nabc\r\n0x5\r\n\r\n"))
    assert (body, error) != (b"abc", None)


@pytest.mark.xfail(strict=True, reason="libcurl passes over a chunk extension of any length")
def test_chunk_extension_without_end_is_refused():
    def answer(server, connection, request):
        connection.sendall(CHUNKED + b"3;")
        while not server.stopped.is_set():
            connection.sendall(bytes(1 << 16).replace(b"\0", b"x"))
        return False

    _, _, error = perform(answer, 300)
    assert error != pycurl.E_OPERATION_TIMEDOUT
