"""Pages of lists, as servers send them and as they should not."""

import codecs
import itertools
import threading

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.buckets.listing import Listing, parse_page
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.runtime.executor import Executor
from tests.kvstores.http.http_server import Fault, HttpServer, head


def page(*keys, token="", names=(), more=""):
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    entries += "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in names)
    if token:
        entries += f"<NextContinuationToken>{token}</NextContinuationToken>"
    return f"<ListBucketResult><Prefix></Prefix>{more}{entries}</ListBucketResult>".encode()


@pytest.fixture
def server():
    with HttpServer() as server:
        yield server


def listing(server):
    client = HttpClient(
        Origin("http", "127.0.0.1", server.port),
        permits=Permits(1),
        retries=Retries(0, 0.0, 0.0),
        timeouts=Timeouts(10.0, 10.0, 100.0, 10.0),
    )
    return Listing(
        client, lambda asked: (HttpRequest(m, f"{path}?{query}") for m, path, query in asked), "/b"
    )


def send_pages(server, make):
    """Send the pages that ``make(0)``, ``make(1)`` ... are."""
    numbers = itertools.count()

    def answer(server, connection, request):
        body = make(next(numbers))
        connection.sendall(head(200, [("Content-Length", len(body))]) + body)

    server.faults = [Fault(answer)]


def test_query_is_sorted_and_encoded(server):
    send_pages(server, lambda number: page(token="t +/&amp;" if number == 0 else ""))
    list(listing(server).pages("a b/é+", "a c", "/"))
    first, second = [sent.target.partition("?")[2] for sent in server.requests]
    assert first == (
        "delimiter=%2F&encoding-type=url&list-type=2&prefix=a%20b%2F%C3%A9%2B&start-after=a%20c"
    )
    assert second == f"continuation-token=t%20%2B%2F%26&{first}"


@pytest.mark.parametrize(
    "make",
    [
        lambda number: page(f"k{number:05}", token=f"t{number}" if number < 300 else ""),
        lambda number: page(names=[f"k{number:05}/"], token=f"t{number}" if number < 300 else ""),
        lambda number: page(token=f"t{number}" if number < 90 else ""),
    ],
)
def test_list_that_gets_on_may_be_long(server, make):
    send_pages(server, make)
    assert sum(1 for _ in listing(server).pages("")) in (301, 91)


@pytest.mark.parametrize(
    "make",
    [
        lambda number: page(token=f"t{number}"),
        lambda number: page("same", token=f"t{number}"),
        lambda number: page(names=["same/"], token=f"t{number}"),
        lambda number: page(f"k{9 - number}", token=f"t{number}"),
        lambda number: page("a", token="t" * (1 << 15)),
        lambda number: page("a", more="<IsTruncated>true</IsTruncated>"),
    ],
)
def test_list_that_does_not_get_on_is_an_error(server, make):
    send_pages(server, make)
    with pytest.raises(StoreIOError, match="the list of keys does not get on"):
        list(listing(server).pages(""))
    assert len(server.requests) < 110


def test_cancelled_list_ends_with_the_page(server):
    second, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    def make(number):
        if number == 1:
            second.set()
            go_on.wait(30)
        return page(f"k{number:05}", token=f"t{number}")

    def task():
        try:
            list(listing(server).pages(""))
        finally:
            ended.set()

    send_pages(server, make)
    future = Executor(1).run_all([task], lambda: None)
    assert second.wait(30)
    future.cancel()
    go_on.set()
    assert ended.wait(30)
    assert len(server.requests) == 2


def test_namespaces_and_encodings_are_understood():
    space = b'<ListBucketResult xmlns="http://x/y">'
    assert parse_page(page("a").replace(b"<ListBucketResult>", space)).nbytes == {"a": 1}
    assert parse_page(b'\n<?xml version="1.0" encoding="utf-8"?>' + page("é")).nbytes == {"é": 1}
    latin = '<?xml version="1.0" encoding="latin-1"?>' + page("é").decode()
    assert parse_page(latin.encode("latin-1")).nbytes == {"é": 1}
    assert parse_page(page("a&amp;b%20+")).nbytes == {"a&b%20+": 1}
    encoded = page("a%00+%2B%C3%A9/", more="<EncodingType>url</EncodingType>")
    assert parse_page(encoded).nbytes == {"a\0 +é/": 1}


BOMB = b'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"</Key>",
        b"<Key>",
        b"<a></a>",
        b"<Error><Code>x</Code></Error>",
        b"\xff",
        b"<ListBucketResult>" * 100_000,
        page("a")[:-3],
        page("\0"),
        page(""),
        page("a").replace(b"<Size>1</Size>", b""),
        page("a").replace(b">1<", b">-1<"),
        page("a").replace(b">1<", b">1e3<"),
        page("a").replace(b">1<", "><".join("٣").encode()),
        page("a").replace(b">1<", b">" + b"9" * 30 + b"<"),
        page("a").replace(b"Key>", b"Name>"),
        page(names=[""]),
        page("%FF", more="<EncodingType>url</EncodingType>"),
        BOMB + page("&b;"),
        b"<!DOCTYPE x>" + page("a"),
        codecs.BOM_UTF16 + (BOMB + page("&b;")).decode().encode("utf-16-le"),
        codecs.BOM_UTF16 + page("a").decode().encode("utf-16-le"),
        b'<?xml version="1.0" encoding="utf-7"?>' + page("a"),
        b'<?xml version="1.0" encoding="cp037"?>' + page("a").decode().encode("cp037"),
        b'<?xml version="1.0" encoding="nothing"?>' + page("a"),
        b'<?xml version="1.1"?><!ENTITY % x SYSTEM "file:///etc/passwd">' + page("a"),
    ],
    ids=lambda one: repr(one[:40]),
)
def test_what_is_no_list_is_an_error(body):
    with pytest.raises(StoreIOError, match="the response is not a list of keys"):
        parse_page(body)
