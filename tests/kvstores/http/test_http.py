"""The http kvstore, against a server on loopback that also misbehaves."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import gzip
import itertools
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
import traceback

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
from gpustore.kvstores.columns import ReadState
from gpustore.kvstores.http.pool import POOL
from gpustore.kvstores.http.range_reader import MERGED_NBYTES
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.read_contract import *
from tests.kvstores.spec_contract import check_spec, check_wrong_spec
from tests.on_device import emulated, on_host

SOON = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "2ms"}


@pytest.fixture(scope="module")
def shared_server():
    with HttpServer() as server:
        yield server


@pytest.fixture
def server(shared_server):
    POOL.close()  # Each test begins with connections of its own.
    yield shared_server
    shared_server.forget()


def open_store(server, path="", **members):
    json = {"driver": "http", "base_url": f"{server.url}/", "path": path}
    return KvStore.open({"http_request_retries": SOON, **json, **members}).result()


@pytest.fixture
def make_filled(server):
    numbers = itertools.count()

    def make(values):
        prefix = f"{next(numbers)} é/"
        server.values.update({prefix + key: value for key, value in values.items()})
        return open_store(server, prefix)

    return make


# ------------------------------------------------------------------------- specs and URLs

SPECS = [
    *("http://h/p", "https://h:80/p/q?x=1&y", "http://h", "http://h/", "http://h/a%20b/c"),
    *("http://[::1]:8/p", "http://h?x=1", "http://h/a//b", "http://h/p%2Fq", "http://h/%C3%A9"),
    {"driver": "http", "base_url": "http://h/p"},
    {"driver": "http", "base_url": "http://h/p?x=1", "path": "a/b c"},
    {"driver": "http", "base_url": "http://h", "path": "a"},
    {"driver": "http", "base_url": "http://h", "path": "/a"},
    {"driver": "http", "base_url": "http://h/", "path": "/a"},
    {"driver": "http", "base_url": "http://h/p/", "path": "a"},
    {"driver": "http", "base_url": "http://h/a%20b", "path": "é?#%"},
    {"driver": "http", "base_url": "http://h/", "headers": ["A: b", "a:c"]},
    {
        "driver": "http",
        "base_url": "http://h/",
        "http_request_concurrency": {"limit": 3},
        "http_request_retries": {"max_retries": 3, "initial_delay": "1ms"},
    },
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_spec_is_what_tensorstore_makes_of_it(spec):
    ours, theirs = check_spec(spec, "http_authorization", "http_request_timeouts")
    assert ours.url == theirs.url
    assert KvStore.Spec(ours.url).url == ours.url


@pytest.mark.parametrize(
    "spec",
    [
        "http://h/p#f",
        {"driver": "http"},
        {"driver": "http", "base_url": 1},
        {"driver": "http", "base_url": "h"},
        {"driver": "http", "base_url": "ftp://h/p"},
        {"driver": "http", "base_url": "http://h/p#f"},
        {"driver": "http", "base_url": "http://h/p/", "path": "/a"},
        {"driver": "http", "base_url": "http://h/", "headers": "A: b"},
        {"driver": "http", "base_url": "http://h/", "headers": ["A b"]},
        {"driver": "http", "base_url": "http://h/", "headers": [""]},
        {"driver": "http", "base_url": "http://h/", "headers": [": b"]},
        {"driver": "http", "base_url": "http://h/", "headers": ["A: b\r\nX: y"]},
        {"driver": "http", "base_url": "http://h/", "zz": 1},
    ],
    ids=str,
)
def test_wrong_spec_is_refused_in_tensorstores_words(spec):
    check_wrong_spec(spec)


@pytest.mark.parametrize(
    "url", ["http:h/p", "http:///p", "http://h:0/p", "http://h:x/", "http://a b"]
)
def test_wrong_url_is_refused(url):
    with pytest.raises(MetadataError, match="Parsing spec from url"):
        KvStore.Spec(url)


@pytest.mark.parametrize("path", ["a/../b", "..", "a/./b", "a\0b", "..\\x"])
def test_path_that_means_another_is_refused(path, server):
    with pytest.raises(InvalidKeyError, match="Invalid key"):
        KvStore.Spec({"driver": "http", "base_url": "http://h/", "path": path})
    with pytest.raises(InvalidKeyError, match="Invalid key"):
        open_store(server).read(path).result()
    assert server.requests == []


# ------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "spec",
    [
        "http://me:SECRET@h/p",
        "http://me:%53ECRET@h/a/../b",
        "HTTPS://me:SECRET@h/p|zip:",
        "http://me@h/p?session=SECRET",
        "http://h/p?a=b&sig=SECRET",
        "http://h/p?X%2DAmz%2DSignature=SECRET|zip:|nothing:",
        {"driver": "http", "base_url": "http://me:SECRET@h/p"},
        {"driver": "http", "base_url": "http://h/p?access_token=SECRET"},
        *(
            {"driver": "http", "base_url": "http://h/", "headers": [f"{name}: SECRET"]}
            for name in ("Authorization", "cookie", "PROXY-Authorization", "X-Auth-Token", "a-Key")
        ),
        {"driver": "http", "base_url": "http://h/", "headers": ["Authorization : SECRET"]},
        {"driver": "http", "base_url": "http://h/", "headers": ["Authorization: SECRET é"]},
        {"driver": "http", "base_url": "http://h/", "http_authorization": "Bearer SECRET"},
        {"driver": "s3", "bucket": "abc", "endpoint": "http://me:SECRET@h"},
        "s3://me:SECRET@bucket/p",
    ],
    ids=str,
)
def test_secret_in_a_spec_is_refused_and_not_shown(spec):
    for parse in (KvStore.Spec, gpustore.Spec):
        with pytest.raises((MetadataError, InvalidKeyError)) as caught:
            parse(spec if isinstance(spec, str) or parse is KvStore.Spec else {"kvstore": spec})
        assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_what_only_sounds_like_a_secret_is_sent(server):
    server.values["a"] = b"value"
    url = f"{server.url}/?author=me&keys=1&design=2"
    store = KvStore.open({"driver": "http", "base_url": url, "headers": ["X-Author: me"]}).result()
    assert store["a"] == b"value"
    assert server.requests[-1].target == "/a?author=me&keys=1&design=2"
    assert server.requests[-1].headers["x-author"] == "me"


def test_what_a_server_is_asked_with_is_not_shown_in_errors():
    with pytest.raises(MetadataError, match=re.escape('"http://h/p?***|nothing:"')) as caught:
        KvStore.Spec("http://h/p?page=PERHAPS%20SECRET|nothing:")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:SECRET@h/p", "https://SECRET@h:x/p|zarr3:", "http://me:SECRET@h/%zz"),
        *("s3://me:SECRET@bucket/p", "gs://me:SECRET@bucket", "htp://me:SECRET@h|nonono:"),
    ],
)
def test_secret_in_a_url_is_not_shown(url):
    inner = {"driver": "zarr3", "kvstore": url}
    for parse in (KvStore.Spec, gpustore.Spec, lambda _: gpustore.Spec(inner)):
        with pytest.raises(MetadataError) as caught:
            parse(url)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(MetadataError, match=r"://\*\*\*@.*user name and password are not allowed"):
        KvStore.Spec(url)


def test_what_looks_like_a_password_elsewhere_is_none():
    for url in ("file://me:x@h/p", "memory://me:x%40h", "http://h/me:x%40h"):
        assert KvStore.Spec(url).url == url


def test_secret_comes_from_where_the_context_says_and_is_never_shown(server, monkeypatch, tmp_path):
    server.values["a"] = b"value"
    (tmp_path / "token").write_text("Bearer FILE-SECRET\n")
    monkeypatch.setenv("TOKEN", "Bearer ENVIRONMENT-SECRET")
    sources = {"environment": "TOKEN"}, {"file": str(tmp_path / "token")}
    for source, wanted in zip(sources, ("ENVIRONMENT-SECRET", "FILE-SECRET"), strict=True):
        store = open_store(server, http_authorization=source)
        assert store["a"] == b"value"
        assert server.requests[-1].headers["authorization"] == f"Bearer {wanted}"
        server.faults = [Fault(lambda s, c, r: s.serve(c, r, status=403))]
        with pytest.raises(StoreIOError) as caught:
            store.read("a").result()
        server.faults = []
        spec = store.spec(unbind_context=True)
        shown = [str(caught.value), repr(store), repr(spec), store.url, str(pickle.dumps(store))]
        assert not [text for text in shown if "SECRET" in text]
        assert source.items() <= spec.to_json()["http_authorization"].items()
        assert pickle.loads(pickle.dumps(store))["a"] == b"value"
    monkeypatch.delenv("TOKEN")
    with pytest.raises(gpustore.NotFoundError, match="environment variable TOKEN holds no"):
        open_store(server, http_authorization=sources[0]).read("a").result()


@pytest.mark.parametrize("own", ["", "?page=1"])
def test_secret_in_a_query_comes_from_the_context_too(server, monkeypatch, own):
    server.values["a"] = b"value"
    monkeypatch.setenv("SAS", "?sv=1&sig=SECRET #")
    source = {"environment": "SAS", "as": "query"}
    spec = {"driver": "http", "base_url": f"{server.url}/{own}", "http_authorization": source}
    store = KvStore.open(spec).result()
    assert store["a"] == b"value"
    wanted = "sv=1&sig=SECRET%20%23"
    assert server.requests[-1].target == (f"/a{own}&{wanted}" if own else f"/a?{wanted}")
    assert "authorization" not in server.requests[-1].headers
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, status=403))]
    with pytest.raises(StoreIOError) as caught:
        store.read("a").result()
    spec = store.spec(unbind_context=True)
    shown = [str(caught.value), repr(store), repr(spec), store.url, str(pickle.dumps(store))]
    assert not [text for text in shown if "SECRET" in text]
    assert spec.to_json()["http_authorization"] == source
    server.faults = []
    assert pickle.loads(pickle.dumps(store))["a"] == b"value"


def test_secret_is_sent_in_the_field_that_the_context_names(server, monkeypatch):
    server.values["a"] = b"value"
    monkeypatch.setenv("MY_KEY", "SECRET")
    source = {"environment": "MY_KEY", "as": "X-Api-Key"}
    store = open_store(server, http_authorization=source, headers=["X-Other: 1"])
    assert store["a"] == b"value"
    sent = server.requests[-1].headers
    assert (sent["x-api-key"], sent["x-other"]) == ("SECRET", "1")
    assert "authorization" not in sent
    assert store.spec(unbind_context=True).to_json()["http_authorization"] == source
    for name in ("Range", "x-other", "HOST"):
        with pytest.raises(MetadataError, match=f'http_authorization: HTTP header "{name.lower()}'):
            open_store(server, http_authorization={**source, "as": name}, headers=["X-Other: 1"])


def test_query_is_sent_but_not_shown_in_errors(server):
    server.values["a b"] = b"value"
    store = KvStore.open(f"{server.url}/?page=SECRET&x=é y").result()
    assert store["a b"] == b"value"
    assert server.requests[-1].target == "/a%20b?page=SECRET&x=%C3%A9%20y"
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, status=403))]
    with pytest.raises(StoreIOError, match=re.escape(f'"{server.url}/a%20b"')) as caught:
        store.read("a b").result()
    assert "SECRET" not in str(caught.value)


def test_headers_are_sent(server):
    server.values["a"] = b"1"
    store = open_store(server, headers=["X-One: 1", "X-Two:  two words ", "X-One: 3"])
    assert store["a"] == b"1"
    sent = server.requests[-1].headers
    assert (sent["x-one"], sent["x-two"]) == ("1, 3", "two words")
    assert sent["accept-encoding"] == "identity"


# ------------------------------------------------------------------------- batches


def test_close_ranges_are_one_request_and_many_are_under_way_at_once(server):
    value = np.random.default_rng(0).bytes(2_000_000)
    server.values["a"] = value
    store = open_store(server)
    starts = [0, 100, 50, 200 + 4095, 9000, 1_000_000, 1_999_000, 0]
    stops = [100, 150, 200, 4400, 9001, 1_000_010, 2_000_000, 100]
    columns = store.read_many(gpustore.kvstores.kvstore.ReadRequest(["a"] * 8, starts, stops))
    columns.raise_first()
    wanted = [value[start:stop] for start, stop in zip(starts, stops, strict=True)]
    assert [bytes(part) for part in columns.value] == wanted
    sent = sorted(request.headers["range"] for request in server.requests)
    assert sent == [
        "bytes=0-4399",
        "bytes=1000000-1000009",
        "bytes=1999000-1999999",
        "bytes=9000-9000",
    ]
    assert MERGED_NBYTES > 4400


@pytest.mark.parametrize(
    ("nbytes", "gap", "requests"),
    [(10_000, 10_000, 1), (10_000, 10_001, 2), (100_000, 1 << 16, 1), (100_000, (1 << 16) + 1, 2)],
)
def test_gap_no_longer_than_the_range_behind_it_is_read_along(server, nbytes, gap, requests):
    value = server.values["a"] = np.random.default_rng(0).bytes(400_000)
    starts = [7, 7 + nbytes + gap]
    stops = [start + nbytes for start in starts]
    columns = open_store(server).read_many(
        gpustore.kvstores.kvstore.ReadRequest(["a"] * 2, starts, stops)
    )
    columns.raise_first()
    assert [bytes(part) for part in columns.value] == [
        value[start:stop] for start, stop in zip(starts, stops, strict=True)
    ]
    assert len(server.requests) == requests


def test_no_more_requests_are_under_way_than_the_limit():
    gate = threading.Barrier(3)

    def meet(server, connection, request):
        gate.wait(30)  # Only three at the same time come past this.
        return server.serve(connection, request)

    with HttpServer({f"k{i}": bytes([i]) for i in range(39)}) as alone:
        alone.faults = [Fault(meet)]
        store = open_store(alone, http_request_concurrency={"limit": 3})
        columns = store.read_many(
            gpustore.kvstores.kvstore.ReadRequest([f"k{i}" for i in range(39)])
        )
        columns.raise_first()
        assert [bytes(value) for value in columns.value] == [bytes([i]) for i in range(39)]
        assert alone.most == 3


def test_two_threads_share_a_limit_of_one():
    context = Context({"http_request_concurrency": {"limit": 1}})
    keys = [f"k{i}" for i in range(20)]
    found = []
    with HttpServer({f"k{i}": bytes([i]) for i in range(20)}) as alone:
        store = KvStore.open(f"{alone.url}/", context=context).result()

        def read():
            found.append(store.read_many(gpustore.kvstores.kvstore.ReadRequest(keys)).value)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [b"".join(map(bytes, values)) for values in found] == [bytes(range(20))] * 3
        assert alone.most == 1


def test_connections_are_used_again_also_after_the_server_closed_them(server):
    server.values["a"] = b"1"
    store = open_store(server)
    before = server.connections
    for _ in range(5):
        assert store["a"] == b"1"
    assert server.connections <= before + 1
    server.drop_connections()
    assert store["a"] == b"1"


# ------------------------------------------------------------------------- what goes wrong


def error_of(server, key="a", **members):
    """The error of one read, of a server whose faults are set."""
    with pytest.raises((StoreIOError, LimitError)) as caught:
        open_store(server, **members).read(key).result()
    assert f'Error reading "{server.url}/{key}": ' in str(caught.value)
    assert caught.value.key == f"/{key}"
    return str(caught.value)


def refuse(status, *fields):
    return lambda s, c, r: s.serve(c, r, status=status, fields=fields, body=b"the reason")


def reset(server, connection, request):
    return False


def short(server, connection, request):
    server.serve(connection, request, fields=[("Content-Length", 100)])
    return False


def name_of(fault):
    return str(fault) if isinstance(fault, int) else fault.__name__


@pytest.mark.parametrize("fault", [408, 429, 500, 502, 503, 504, reset, short], ids=name_of)
def test_what_passes_is_repeated(server, fault):
    server.values["a"] = bytes(range(99))
    server.faults = [Fault(refuse(fault) if isinstance(fault, int) else fault, times=2)]
    before = gpustore.statistics["retries"]
    assert open_store(server)["a"] == bytes(range(99))
    assert gpustore.statistics["retries"] == before + 2
    assert len(server.requests) == 3


@pytest.mark.parametrize("fault", [500, 429, reset, short], ids=name_of)
def test_what_does_not_pass_is_an_error_that_counts_the_attempts(server, fault):
    server.values["a"] = bytes(range(99))
    server.faults = [Fault(refuse(fault) if isinstance(fault, int) else fault)]
    text = error_of(server)
    assert re.search(r"^ABORTED: .*: All 3 retry attempts failed, within [\d.]+ s: ", text)
    assert len(server.requests) == 4
    if fault == 500:
        assert "Internal Server Error [HTTP code 500]" in text


def test_nobody_listens(server):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    store = KvStore.open({"driver": "http", "base_url": url, "http_request_retries": SOON}).result()
    with pytest.raises(StoreIOError, match=f"All 3 retry attempts failed.*cannot connect to {url}"):
        store.read("a").result()


@pytest.mark.parametrize("status", [400, 401, 403, 405, 501])
def test_other_status_is_an_error_at_once_and_never_missing(server, status):
    server.faults = [Fault(refuse(status))]
    text = error_of(server)
    assert f"[HTTP code {status}]" in text
    assert text.startswith("PERMISSION_DENIED" if status in (401, 403) else "FAILED_PRECONDITION")
    assert len(server.requests) == 1


def test_server_that_hangs_is_given_up(server):
    server.faults = [Fault(lambda s, c, r: s.stopped.wait(60) and False)]
    timeouts = {"idle": "20ms"}
    text = error_of(server, http_request_timeouts=timeouts)
    assert text.startswith("DEADLINE_EXCEEDED: ")
    assert "All 3 retry attempts failed" in text
    assert "no data for 0.02 s" in text
    assert 'context resource "http_request_timeouts"' in text


def test_server_that_drips_is_given_up(server):
    def drip(server, connection, request):
        connection.sendall(head(200, [("Content-Length", 1_000_000)]))
        while not server.stopped.wait(0.005):
            connection.sendall(b"x")
        return False

    server.faults = [Fault(drip)]
    text = error_of(server, http_request_timeouts={"total": "100ms"})
    assert text.startswith("DEADLINE_EXCEEDED: ")
    assert "no complete response within 0.1 s" in text


def test_server_that_wants_a_long_pause_is_given_up_at_once(server):
    server.faults = [Fault(refuse(503, ("Retry-After", "31")))]
    assert "the server wants to be left alone for 31 s" in error_of(server)
    server.faults = [Fault(refuse(503, ("Retry-After", "Fri, 31 Dec 2100 00:00:00 GMT")))]
    assert "the server wants to be left alone for" in error_of(server)
    assert len(server.requests) == 2


@pytest.mark.long
def test_pause_is_as_long_as_the_server_wants(server):
    server.values["a"] = b"1"
    server.faults = [Fault(refuse(429, ("Retry-After", "1")), times=1)]
    begin = time.monotonic()
    assert open_store(server)["a"] == b"1"
    assert time.monotonic() - begin >= 1
    server.faults = [Fault(refuse(429, ("Retry-After", "soon")), times=1)]
    assert open_store(server)["a"] == b"1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"Content-Range": "bytes 1-5/100"},
        {"Content-Range": "bytes 0-9/100"},
        {"Content-Range": "bytes 0-3/100"},
        {"Content-Range": "bytes */100"},
        {"Content-Range": "bytes 4-0/100"},
        {"Content-Range": "bytes 0-4/4"},
        {"Content-Range": "lines 0-4/100"},
        {"Content-Range": None},
        {"Content-Length": "4"},
        {"Content-Length": "6"},
    ],
    ids=str,
)
def test_wrong_range_is_an_error(server, wrong):
    server.values["a"] = bytes(range(100))
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, fields=wrong.items()))]
    with pytest.raises(StoreIOError, match=r"holds another range than was asked for.*bytes=0-4"):
        open_store(server).read("a", byte_range=slice(0, 5)).result()
    assert len(server.requests) == 1


def test_server_without_ranges_is_read_as_far_as_needed(server):
    value = np.random.default_rng(1).bytes(300_000)
    server.values["a"] = value

    def whole(server, connection, request):
        request.headers.pop("range", None)
        return server.serve(connection, request)

    server.faults = [Fault(whole)]
    store = open_store(server)
    for part in (slice(0, 5), slice(200_000, 200_100), slice(-7, None), slice(299_999, None)):
        assert store.read("a", byte_range=part).result().value == value[part]
    with pytest.raises(ValueError, match=r"OUT_OF_RANGE.*size 300000"):
        store.read("a", byte_range=slice(299_000, 300_001)).result()


def test_server_that_does_not_say_how_much_comes(server):
    def chunked(server, connection, request):
        if request.method == "HEAD":
            return server.serve(connection, request, fields=[("Content-Length", None)])
        connection.sendall(head(200, [("Transfer-Encoding", "chunked"), ("ETag", '"t"')]))
        connection.sendall(b"5\r\n01234\r\n1;x=y\r\n5\r\n00004\r\n6789\r\n0\r\nTrailer: x\r\n\r\n")
        return None

    def until_closed(server, connection, request):
        connection.sendall(head(200, [("ETag", '"t"')]) + b"0123456789")
        return False

    for answer in (chunked, until_closed):
        server.faults = [Fault(answer)]
        store = open_store(server)
        assert get(store, "a")[1:] == (b"0123456789", b'"t"')
        assert get(store, "a", into=gpustore.kvstores.arena.Arena())[1] == b"0123456789"
        assert get(store, "a", max_nbytes=10)[1] == b"0123456789"
        assert get(store, "a", start=[3], stop=[7])[1] == b"3456"
        with pytest.raises(LimitError, match='a" has 10 bytes or more, at most 9 are expected'):
            get(store, "a", max_nbytes=9)
        with pytest.raises(StoreIOError, match="neither ranges nor how long"):
            get(store, "a", start=[3], stop=[None])


@pytest.mark.parametrize("declared", [None, 1 << 50], ids=["endless", "declared"])
def test_endless_body_is_an_error_and_takes_no_memory(server, declared):
    sent = []

    def endless(server, connection, request):
        fields = [("Content-Length", declared)] if declared else [("Transfer-Encoding", "chunked")]
        connection.sendall(head(200, fields))
        block = b"10000\r\n" + bytes(65536) + b"\r\n"
        while not server.stopped.is_set():
            connection.sendall(block)
            sent.append(len(block))

    server.faults = [Fault(endless)]
    store = open_store(server)
    with pytest.raises(LimitError, match="at most 100000 are expected"):
        get(store, "a", max_nbytes=100_000)
    assert sum(sent) < 64 << 20
    assert len(server.requests) == 1
    if declared is None:
        server.faults = [Fault(endless)]
        assert len(get(store, "a", start=[10], stop=[30])[1]) == 20


def test_compressed_response_is_refused(server):
    bomb = gzip.compress(bytes(2_000_000))
    fields = [("Content-Encoding", "gzip")]
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, fields=fields, body=bomb))]
    assert 'Content-Encoding "gzip"' in error_of(server)
    assert len(server.requests) == 1


def test_redirect_within_the_origin_is_followed(server):
    server.values["new place"] = b"0123456789"
    server.faults = [Fault(refuse(308, ("Location", "../new%20place")), "old/a")]
    store = open_store(server)
    assert store.read("old/a", byte_range=slice(2, 5)).result().value == b"234"
    assert server.requests[-1].headers["range"] == "bytes=2-4"
    loop = Fault(refuse(302, ("Location", f"{server.url}/a")))
    server.faults = [loop]
    assert "there were more than 5 redirects" in error_of(server)
    assert loop.done == 6


def test_redirect_to_another_origin_is_refused(server, monkeypatch):
    monkeypatch.setenv("TOKEN", "Bearer SECRET")
    with HttpServer({"a": b"stolen"}) as other:
        for place in (
            f"{other.url}/a?q=SECRET",
            f"//127.0.0.1:{other.port}/a",
            "file:///etc/passwd",
        ):
            server.faults = [Fault(refuse(301, ("Location", place)))]
            text = error_of(server, http_authorization={"environment": "TOKEN"})
            assert "the redirect to another origin, " in text
            assert "is not followed" in text
            assert "SECRET" not in text
        assert other.requests == []


def test_malformed_head_is_an_error(server):
    for raw in (
        b"HTTP/2 200 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ):
        server.faults = [Fault(lambda s, c, r, raw=raw: c.sendall(raw) or False)]
        text = error_of(server)
        assert "malformed" in text or "a head of more than" in text


def test_other_version_between_two_reads_is_noticed(server):
    server.values["a"] = b"first"
    store = open_store(server)
    generation = get(store, "a")[2]
    server.values["a"] = b"other"
    assert get(store, "a", if_equal=[generation], start=[1], stop=[3])[1] is None
    server.faults = [Fault(lambda s, c, r: s.serve(c, r, fields=[("ETag", 'W/"weak"')]))]
    assert get(store, "a") == (ReadState.VALUE, b"other", b"")


def test_writing_is_refused_with_a_typed_error(server):
    store = open_store(server)
    with pytest.raises(UnsupportedError, match='"http" does not support writing'):
        store.write("a", b"1").result()
    with pytest.raises(UnsupportedError, match='"http" does not support deleting ranges'):
        store.delete_range(KvStore.KeyRange()).result()
    assert server.requests == []


# ------------------------------------------------------------------------- processes


def test_forked_child_reads_and_so_does_its_parent(server):
    server.values.update({f"k{i}": bytes([i]) for i in range(8)})
    store = open_store(server)
    keys = [f"k{i}" for i in range(8)]

    def read():
        columns = store.read_many(gpustore.kvstores.kvstore.ReadRequest(keys))
        columns.raise_first()
        return b"".join(map(bytes, columns.value))

    assert read() == bytes(range(8))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, read() + store.read("k3").result().value)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        assert stream.read() == bytes([*range(8), 3])
    os.waitpid(child, 0)
    assert read() == bytes(range(8))


@pytest.mark.long
def test_program_ends_at_once_and_without_warnings(server):
    server.values["a"] = b"value"
    code = (
        "import gpustore\n"
        f"store = gpustore.KvStore.open('{server.url}/').result()\n"
        "print(store['a'].decode(), store.read('a').result().state)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "value value\n", "")


def test_cancelled_read_ends(server):
    server.faults = [Fault(lambda s, c, r: s.stopped.wait(60) and False)]
    future = open_store(server).read("a")
    server.wait_for_request()
    assert future.cancel()
    POOL.close()


@pytest.mark.long
def test_the_server_of_the_standard_library_is_read(tmp_path):
    volume = np.arange(4096, dtype="uint16").reshape(64, 64)
    made = gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{tmp_path}/x.zarr/"},
        create=True,
        dtype="uint16",
        shape=[64, 64],
        chunk_layout=gpustore.ChunkLayout(read_chunk_shape=[8, 8], write_chunk_shape=[32, 32]),
    ).result()
    made.write(volume).result()
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            port = re.search(r"port (\d+)", process.stdout.readline())[1]
            store = gpustore.open(f"http://127.0.0.1:{port}/x.zarr/|zarr3:").result()
            assert np.array_equal(store[10:50, 3:60].read().result(), volume[10:50, 3:60])
        finally:
            process.terminate()


# ------------------------------------------------------------------------- arrays and groups


def serve_group(server, tmp_path):
    """A group of two sharded arrays with consolidated metadata; what they hold."""
    path = tmp_path / "group.zarr"
    group = gpustore.open_group(str(path), create=True).result()
    volume = np.random.default_rng(2).integers(0, 1000, (40, 60), "uint16")
    layout = gpustore.ChunkLayout(read_chunk_shape=[5, 6], write_chunk_shape=[20, 30])
    for name in ("a", "b"):
        codecs = [{"name": "zstd"}, {"name": "crc32c"}]
        codec = gpustore.CodecSpec({"driver": "zarr3", "codecs": codecs})
        array = group.create_array(
            name, dtype="uint16", shape=[40, 60], chunk_layout=layout, codec=codec
        ).result()
        array.write(volume).result()
    group.consolidate().result()
    for file in path.rglob("*"):
        if file.is_file():
            server.values[f"group.zarr/{file.relative_to(path)}"] = file.read_bytes()
    return volume


def test_group_and_its_shards_are_read(server, tmp_path):
    volume = serve_group(server, tmp_path)
    group = gpustore.open_group(f"{server.url}/group.zarr|zarr3:").result()
    assert len(server.requests) == 1
    assert sorted(group) == ["a", "b"]
    before = len(server.requests)
    store = group["a"]
    assert len(server.requests) == before  # Consolidated metadata know it.
    assert np.array_equal(store.read().result(), volume)
    server.requests.clear()
    assert np.array_equal(store[3:9, 10:20].read().result(), volume[3:9, 10:20])
    # The index of one shard, and the inner chunks that lie close together.
    assert len(server.requests) <= 3
    assert all("range" in request.headers for request in server.requests)
    crops = store.read_many([[0, 0], [17, 25]], [4, 8]).result()
    assert np.array_equal(crops, [volume[:4, :8], volume[17:21, 25:33]])
    with pytest.raises(MetadataError, match="Destination does not support writing"):
        store.write(0).result()


def test_array_of_other_versions_opens_by_url(server, tmp_path):
    value = np.arange(100, dtype="float32").reshape(10, 10)
    path = tmp_path / "old.zarr"
    layout = gpustore.ChunkLayout(chunk_shape=[4, 4])
    url = f"{path}|zarr2:"
    made = gpustore.open(url, create=True, dtype="float32", shape=[10, 10], chunk_layout=layout)
    made.result().write(value).result()
    for file in path.iterdir():
        server.values[f"x/old.zarr/{file.name}"] = file.read_bytes()
    for end in ("old.zarr|zarr2:", "old.zarr/", "|zarr2:old.zarr"):
        url = f"{server.url}/x/{end}"
        store = gpustore.open(url).result()
        assert np.array_equal(store[2:7].read().result(), value[2:7])
        theirs = tensorstore.open(store.url).result()
        assert np.array_equal(theirs[2:7].read().result(), value[2:7])
    server.faults = [Fault(refuse(500), "0.0")]
    store = gpustore.open(
        f"{server.url}/x/old.zarr|zarr2:", context=Context({"http_request_retries": SOON})
    ).result()
    with pytest.raises(StoreIOError, match=f'{server.url}/x/old.zarr/0.0".*All 3 retry attempts'):
        store.read().result()
    assert np.array_equal(store[4:, 4:].read().result(), value[4:, 4:])


def test_device_gets_the_same_bytes_but_only_from_decoders_that_check_them(server, tmp_path):
    volume = serve_group(server, tmp_path)
    for trust, by_host in (("auto", True), ("verified", False)):
        with emulated() as device:
            context = Context({"gpu_decode_trust": trust})
            store = gpustore.open(
                f"{server.url}/group.zarr/a|zarr3:", device=device.name, context=context
            ).result()
            found = store[3:30, 10:50].read()
            assert np.array_equal(on_host(device, found.result()), volume[3:30, 10:50])
            assert bool(found.statistics["host_fallbacks"]) == by_host
            del found, store
