"""The gcs kvstore, against a double of the XML API on loopback."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import itertools
import json
import pickle
import re

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.errors import InvalidKeyError, MetadataError, StoreIOError
from gpustore.kvstore import KvStore
from gpustore.kvstores import _machine, gcs
from gpustore.kvstores.base import ABSENT
from tests.kvstores.contract import *
from tests.kvstores.gcs_server import GcsServer, open_gcs
from tests.kvstores.http_server import Fault
from tests.kvstores.s3_server import refuse
from tests.on_device import emulated, on_host


@pytest.fixture(scope="module")
def shared_server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", shared_server.url)
    yield shared_server
    shared_server.values.clear()
    shared_server.faults.clear()
    shared_server.requests.clear()


@pytest.fixture
def make_store(server):
    numbers = itertools.count()
    return lambda: open_gcs(f"{next(numbers)} é/")


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
    ours, theirs = KvStore.Spec(spec), tensorstore.KvStore.Spec(spec)
    assert ours.to_json() == theirs.to_json()
    assert ours.url == theirs.url
    everything = ours.to_json(include_defaults=True)
    assert everything.pop("http_request_timeouts") == "http_request_timeouts"
    assert everything == theirs.to_json(include_defaults=True)
    assert KvStore.Spec(ours.to_json()) == ours == pickle.loads(pickle.dumps(ours))


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
    with pytest.raises(ValueError) as theirs:  # noqa: PT011  the text is what is compared
        tensorstore.KvStore.Spec(spec)
    with pytest.raises((MetadataError, InvalidKeyError)) as ours:
        KvStore.Spec(spec)
    assert str(ours.value).startswith(str(theirs.value))


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


@pytest.mark.parametrize("there", [None, "variable", "file", "machine"])
def test_requests_are_anonymous_where_there_are_no_credentials(monkeypatch, tmp_path, there):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for name in gcs._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_machine, "FIRMWARE", tmp_path)
    account = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
    account["refresh_token"] = "SECRET"
    path = tmp_path / ".config/gcloud/application_default_credentials.json"
    path.parent.mkdir(parents=True)
    if there in ("variable", "file"):
        path.write_text(json.dumps(account))
    if there == "variable":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path.rename(tmp_path / "a.json")))
    if there == "machine":
        (tmp_path / "product_name").write_text("Google Compute Engine\n")
    config = open_gcs().driver._bucket.store.config
    assert bool(config.get("skip_signature")) == (there is None)
