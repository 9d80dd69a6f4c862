"""The gcs kvstore, against a double of the XML API on loopback."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import itertools
import re
import socket
from dataclasses import replace

import numpy as np
import pytest

import gpustore
from gpustore.errors import InvalidKeyError, MetadataError, StoreIOError
from gpustore.kvstores.columns import ABSENT, ReadState
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.buckets.bucket_contract import *
from tests.kvstores.contract import *
from tests.kvstores.gcs.gcs_server import GcsServer, open_gcs
from tests.kvstores.http.http_server import Fault
from tests.kvstores.s3.s3_server import refuse
from tests.kvstores.spec_contract import check_spec, check_wrong_spec
from tests.on_device import emulated, on_host


@pytest.fixture
def make_store(server):
    numbers = itertools.count()
    return lambda: open_gcs(f"{next(numbers)} é/")


@pytest.fixture
def open_bucket(server):
    return open_gcs


@pytest.fixture
def other_server():
    return GcsServer


@pytest.fixture
def model_examples():
    return 10


@pytest.mark.parametrize(
    "spec",
    [
        *("gs://bucket/p/q", "gs://bucket", "gs://bucket/", "gs://bucket/a%20b", "gs://my-_buck/x"),
        {"driver": "gcs", "bucket": "bucket"},
        {"driver": "gcs", "bucket": "b.b.c", "path": "a/"},
        {"driver": "gcs", "bucket": "bucket", "gcs_user_project": {"project_id": "x"}},
        {"driver": "gcs", "bucket": "bucket", "gcs_request_concurrency": {"limit": 2}},
    ],
    ids=str,
)
def test_spec_is_what_tensorstore_makes_of_it(spec):
    ours, theirs = check_spec(spec, "http_request_timeouts")
    assert ours.url == theirs.url


@pytest.mark.parametrize(
    "spec",
    [
        *("gs://b/x", "gs://", "gs://bucket/p?x", "gs:bucket/p", "gs://B_u/x"),
        {"driver": "gcs"},
        {"driver": "gcs", "bucket": "bu"},
        {"driver": "gcs", "bucket": "Bucket"},
        {"driver": "gcs", "bucket": "bucket-"},
        {"driver": "gcs", "bucket": "bucket", "endpoint": "x"},
        {"driver": "gcs", "bucket": "bucket", "path": "a\rb"},
        {"driver": "gcs", "bucket": "bucket", "path": "."},
    ],
    ids=str,
)
def test_wrong_spec_is_refused_in_tensorstores_words(spec):
    check_wrong_spec(spec, (MetadataError, InvalidKeyError))


@pytest.mark.parametrize("project", ["a\r\nEvil: 1", "a b", "\u00e9", "\u65e5"])
def test_project_that_would_break_a_header_is_refused(project):
    with pytest.raises(MetadataError, match="project_id"):
        open_gcs(gcs_user_project={"project_id": project})


@pytest.mark.parametrize("host", ["[::1", "ftp://h", "h:x"])
def test_wrong_address_of_an_emulator_is_refused(monkeypatch, host):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    with pytest.raises(MetadataError, match="STORAGE_EMULATOR_HOST"):
        open_gcs()


def test_project_that_pays_is_named(server):
    store = open_gcs(gcs_user_project={"project_id": "my-project"})
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert [r.headers["x-goog-user-project"] for r in server.requests] == ["my-project"] * 2


def test_condition_is_the_generation(server):
    store = open_gcs()
    first = put(store, "a", b"1", ABSENT)
    assert first == str(server.generations["bucket/a"]).encode()
    assert server.requests[-1].headers["x-goog-if-generation-match"] == "0"
    put(store, "a", b"2", first)
    assert server.requests[-1].headers["x-goog-if-generation-match"] == first.decode()


def test_condition_that_is_no_generation_cannot_hold(server):
    store = open_gcs()
    store["a"] = b"1"
    for strange in (b"\0other", b'"x"', b"-1", b"0", b"9" * 20):
        assert put(store, "a", b"2", strange) == b""
        assert put(store, "a", None, strange) == b""
        assert store.read("a", if_not_equal=strange).result().value == b"1"


def test_what_passes_is_repeated_and_counted(server):
    store = open_gcs()
    slow = Fault(lambda s, c, r: refuse(c, 429, "TooManyRequests"), times=2)
    server.faults = [slow]
    store["a"] = b"1"
    slow.done = 0
    assert store["a"] == b"1"
    slow.times = 1 << 30
    for what, call in (("reading", store.read), ("listing", lambda key: store.list())):
        with pytest.raises(StoreIOError) as caught:
            call("a").result()
        assert re.search(
            rf'^ABORTED: Error {what} "gs://bucket/a?": All 3 retry attempts failed, within '
            r"[\d.]+ s: Too Many Requests \[HTTP code 429\]: TooManyRequests$",
            str(caught.value),
        )


def test_array_is_written_and_read_by_url(server):
    volume = np.arange(100, dtype="uint16").reshape(10, 10)
    url = "gs://bucket/x.zarr|zarr3:"
    layout = gpustore.ChunkLayout(read_chunk_shape=[2, 2], write_chunk_shape=[4, 4])
    made = gpustore.open(url, create=True, dtype="uint16", shape=[10, 10], chunk_layout=layout)
    made.result().write(volume).result()
    store = gpustore.open(url).result()
    store[2:3].write(7).result()
    volume[2:3] = 7
    assert np.array_equal(store.read().result(), volume)
    with emulated() as device:
        found = gpustore.open(url, device=device.name).result().read().result()
        assert np.array_equal(on_host(device, found), volume)
        del found


def test_lost_answer_to_a_conditional_write_is_found_out(server):
    def obey_and_hang_up(server, connection, request):
        first, second = socket.socketpair()
        with first, second:
            server.serve(first, request)
        return False

    def repeated(*args):
        server.faults = [Fault(obey_and_hang_up, times=1)]
        return put(*args)

    store = open_gcs()
    first = repeated(store, "a", b"1", ABSENT)
    assert get(store, "a") == (ReadState.VALUE, b"1", first)
    second = repeated(store, "a", b"2", first)
    assert second not in (b"", first)
    assert repeated(store, "a", b"3", first) == b""
    assert get(store, "a") == (ReadState.VALUE, b"2", second)
    assert repeated(store, "a", None, second) == ABSENT
    assert get(store, "a")[0] == ReadState.MISSING


def test_condition_of_a_deletion_is_compared_by_the_server(server):
    store = open_gcs()
    first = put(store, "a", b"1")

    def write_between(server, connection, request):
        if request.method != "DELETE":
            return server.serve(connection, request)
        other = replace(request, method="PUT", headers={}, body=b"2")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server.serve(ours, other)
        return server.serve(connection, request)

    server.faults = [Fault(write_between, times=2)]
    assert put(store, "a", None, first) == b""
    assert store["a"] == b"2"
    deletions = [sent for sent in server.requests if sent.method == "DELETE"]
    assert [sent.headers["x-goog-if-generation-match"] for sent in deletions] == [first.decode()]


def test_deletion_whose_answer_is_lost_has_not_deleted_what_was_never_there(server):
    store = open_gcs()
    for answer in (lambda s, c, r: False, lambda s, c, r: refuse(c, 500, "InternalError")):
        server.faults = [Fault(answer, times=2)]
        assert put(store, "a", None, b"77") == b""
    first = put(store, "a", b"1")

    def obey_and_hang_up(server, connection, request):
        if request.method != "DELETE":
            return server.serve(connection, request)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server.serve(ours, request)
        return False

    server.faults = [Fault(obey_and_hang_up, times=2)]
    assert put(store, "a", None, first) == ABSENT


def test_long_value_is_written_in_parts(server, short_parts):
    value = np.random.default_rng(0).bytes(17 << 20)
    assert put(open_gcs(), "a/b c", value) == b"77"
    assert server.values == {"bucket/a/b c": value}
    server.requests.clear()
    # Google compares no condition where parts are put together.
    assert put(open_gcs(), "x", bytes(100), ABSENT) not in (b"", b"77")
    assert [sent.method for sent in server.requests] == ["PUT"]


def test_odd_keys_are_read_written_listed_and_deleted(server):
    store = open_gcs()
    keys = ["/a", "a/", "a//b", "c/", "c/d/", "a b/\u00e9%20+~="]
    for key in keys:
        store[key] = key.encode()
    assert store.list().result() == sorted(key.encode() for key in keys)
    assert [store[key] for key in keys] == [key.encode() for key in keys]
    assert store.list_names().result() == ["/", "a b/", "a/", "c/"]
    store.delete_range(KvStore.KeyRange("a/", "a0")).result()
    assert sorted(server.values) == sorted(f"bucket/{key}" for key in keys if key[:2] != "a/")


@pytest.mark.parametrize("key", ["", "..", "a/../b", "a\rb", "nul\0", "x" * 1025], ids=str)
def test_key_that_is_not_legal_is_refused(server, key):
    store = open_gcs()
    for call in (lambda: store.read(key).result(), lambda: store.write(key, b"1").result()):
        with pytest.raises(InvalidKeyError, match="Invalid key"):
            call()
    assert server.requests == []
