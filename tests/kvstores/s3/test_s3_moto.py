"""The s3 kvstore against moto, which is neither ours nor Amazon's, and against TensorStore."""

# ruff: noqa: F403  the shared suite is taken over by name

import itertools
import urllib.request

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.contract import *
from tests.kvstores.s3.moto_server import make_bucket, moto

# moto compares and writes in two steps, between which another thread may write.
del test_threads_lose_no_conditional_increment  # noqa: F821

pytestmark = pytest.mark.long
"""Each request takes moto five milliseconds."""


@pytest.fixture(scope="module")
def endpoint():
    with moto() as url:
        yield url


@pytest.fixture(autouse=True)
def _bucket(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    make_bucket(endpoint)


@pytest.fixture
def make_store(endpoint):
    numbers = itertools.count()
    json = {"driver": "s3", "bucket": "bucket", "endpoint": endpoint}

    def make():
        store = KvStore.open({**json, "path": f"{next(numbers)} é+&/"}).result()
        store.delete_range(KvStore.KeyRange()).result()
        return store

    return make


@pytest.fixture
def generations_tell_writes_apart():
    return False


@pytest.fixture
def model_examples():
    return 10


def test_keys_of_all_kinds_are_listed(make_store):
    store = make_store()
    names = ["a b", "a+b", "a%20b", "é/ü", "x&y<z>", "\U0001f600", "q'\"q", "a%2Fb"]
    for name in names:
        store[name] = name.encode()
    assert sorted(store.list().result()) == sorted(name.encode() for name in names)
    assert [store[name] for name in names] == [name.encode() for name in names]


def test_more_keys_than_a_page_holds(make_store, endpoint, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "100")
    store = make_store()
    names = [f"k{i:03}" for i in range(110)]
    store.write_many(gpustore.kvstores.kvstore.WriteRequest(names, [b""] * 110)).raise_first()
    with urllib.request.urlopen(f"{endpoint}/bucket?list-type=2") as page:
        assert b"<IsTruncated>true<" in page.read()
    assert store.list().result() == [name.encode() for name in names]
    assert store.list(KvStore.KeyRange("k050", "k053")).result() == [b"k050", b"k051", b"k052"]
    store.delete_range(KvStore.KeyRange("k001")).result()
    assert store.list().result() == [b"k000"]


def test_long_value_is_written_in_parts(make_store, short_parts):
    store, value = make_store(), np.random.default_rng(0).bytes(35 << 20)
    written = store.write("a b/é+", value).result()
    read = store.read("a b/é+").result()
    assert read.value == value
    assert written.generation == read.stamp.generation
    assert read.stamp.generation.endswith(b'-3"')  # As S3 names what came in three parts.


def test_tensorstore_reads_what_is_written_and_the_other_way_round(endpoint):
    volume = np.arange(300, dtype="uint16").reshape(15, 20)
    kvstore = {"driver": "s3", "bucket": "bucket", "endpoint": endpoint, "path": "both.zarr/"}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    ours = gpustore.open(spec, create=True, delete_existing=True, dtype="uint16", shape=[15, 20])
    ours.result().write(volume).result()
    theirs = tensorstore.open(spec).result()
    assert np.array_equal(theirs.read().result(), volume)
    theirs[3:5].write(9).result()
    volume[3:5] = 9
    assert np.array_equal(gpustore.open(spec).result().read().result(), volume)
