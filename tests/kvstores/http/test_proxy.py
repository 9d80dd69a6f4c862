"""Requests through a proxy on loopback, which the environment names."""

import select
import socket
import ssl

import pytest

from gpustore.errors import MetadataError, StoreIOError, UnsupportedError
from gpustore.kvstores.http import connection
from gpustore.kvstores.http.message import Origin
from gpustore.kvstores.http.pool import POOL
from gpustore.kvstores.http.proxy import proxy_for
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import HttpServer, Request, head
from tests.kvstores.http.tls import Authority, TlsServer

SOON = {"max_retries": 2, "initial_delay": "1ms", "max_delay": "2ms"}


class ProxyServer(HttpServer):
    """Has tunnels to one server, whatever the name; what comes in the clear it knows itself."""

    def __init__(self, port=0, values=None):
        self.to = port
        self.status = 200
        super().__init__(values)

    def serve(self, connection, request, **_):
        if self.status != 200:
            connection.sendall(head(self.status, [("Content-Length", 0)]))
            return None
        if request.method != "CONNECT":
            assert request.target.startswith(f"http://{request.headers['host']}/")
            path = request.target.partition("://")[2].partition("/")[2]
            super().serve(connection, Request(request.method, f"/{path}", request.headers))
            return None
        with socket.create_connection(("127.0.0.1", self.to)) as other:
            connection.sendall(head(200))
            ends = {connection: other, other: connection}
            while not self.stopped.is_set():
                for end in select.select(list(ends), [], [], 0.05)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return False
                    ends[end].sendall(data)
        return False


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    POOL.close()
    yield
    POOL.close()


def open_store(url):
    return KvStore.open({"driver": "http", "base_url": url, "http_request_retries": SOON}).result()


def test_plain_requests_are_passed_on_with_the_whole_url(monkeypatch):
    with ProxyServer(values={"x/a": b"value", "x/b": b"other"}) as proxy, HttpServer() as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://us%40er:SECRET@127.0.0.1:{proxy.port}")
        store = open_store("http://data.example/x/")
        assert (store["a"], store["b"]) == (b"value", b"other")
        sent = proxy.requests[0]
        assert sent.target == "http://data.example/x/a"
        assert sent.headers["host"] == "data.example"
        assert sent.headers["proxy-authorization"] == "Basic dXNAZXI6U0VDUkVU"
        monkeypatch.setenv("NO_PROXY", "data.example,127.0.0.1")
        server.values["x/a"] = b"direct"
        assert open_store(f"{server.url}/x/")["a"] == b"direct"
        assert len(proxy.requests) == 2


def test_encrypted_requests_go_through_a_tunnel(monkeypatch, tmp_path):
    authority = Authority(tmp_path)
    monkeypatch.setattr(connection, "_TLS", [ssl.create_default_context(cafile=authority.path)])
    with (
        TlsServer(authority.context(host="data.example"), {"x/a": b"value"}) as server,
        ProxyServer(server.port) as proxy,
    ):
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        store = open_store("https://data.example/x/")
        assert store["a"] == b"value"
        assert store["a"] == b"value"
        assert [(sent.method, sent.target) for sent in proxy.requests] == [
            ("CONNECT", "data.example:443")
        ]
        assert [sent.headers["host"] for sent in server.requests] == ["data.example"] * 2
        with pytest.raises(
            StoreIOError, match=r"certificate of https://other.example is not valid"
        ):
            open_store("https://other.example/x/").read("a").result()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (407, r"the proxy {} does not connect to https://data.example \[HTTP code 407\]$"),
        (502, r"All 2 retry attempts failed, .*: the proxy {} cannot connect \[HTTP code 502\]$"),
    ],
)
def test_proxy_that_refuses_is_named_without_its_password(monkeypatch, status, text):
    with ProxyServer(0) as proxy:
        proxy.status = status
        monkeypatch.setenv("https_proxy", f"http://user:SECRET@127.0.0.1:{proxy.port}")
        with pytest.raises(StoreIOError, match=text.format(proxy.url)) as caught:
            open_store("https://data.example/x/").read("a").result()
        assert "SECRET" not in str(caught.value)
        assert len(proxy.requests) == (1 if status == 407 else 3)


def test_proxy_that_is_not_there_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("all_proxy", f"http://127.0.0.1:{port}")
    for scheme in ("http", "https"):
        url = f"{scheme}://data.example"
        text = (
            f"cannot connect to {url} through the proxy http://127.0.0.1:{port}: Connection refused"
        )
        with pytest.raises(StoreIOError, match=text):
            open_store(url).read("a").result()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("socks5://user:SECRET@h:1", UnsupportedError),
        ("https://user:SECRET@h:1", UnsupportedError),
        ("http://user:SECRET@h:99999", MetadataError),
        ("http://user:SECRET@h h", MetadataError),
        ("http://[", MetadataError),
    ],
)
def test_proxy_that_cannot_be_used_is_refused_without_its_password(monkeypatch, url, error):
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(error, match="environment variable http_proxy") as caught:
        open_store("http://data.example").read("a").result()
    assert "SECRET" not in str(caught.value)


def test_nobody_sees_the_password_of_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:SECRET@h:1")
    proxy = proxy_for(Origin("http", "data.example", 80))
    assert proxy.headers
    assert repr(proxy) == "Proxy(http://h:1)"


def test_services_of_the_machine_are_asked_by_no_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    for host in ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254"):
        assert proxy_for(Origin("http", host, 80)) is None
    assert proxy_for(Origin("http", "data.example", 80)) is not None
