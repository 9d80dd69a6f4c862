"""OCDBT databases in kvstores of all kinds: archives, web servers, buckets."""

import itertools
import threading
import zipfile

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import StoreIOError, UnsupportedError
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import Fault, HttpServer
from tests.kvstores.ocdbt.tensorstore_ocdbt import Opened, TensorStoreDatabase
from tests.kvstores.s3.s3_server import refuse
from tests.on_device import emulated, on_host

SOON = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "2ms"}
KINDS = ["single", "numbered"]


def items(store):
    return {key: store[key] for key in store.list().result()}


@pytest.fixture(scope="module")
def web():
    with HttpServer() as server:
        yield server


@pytest.fixture(params=["s3", "gcs"])
def bucket(request, monkeypatch):
    """The server, and JSON of a kvstore in its bucket."""
    server = request.getfixturevalue(request.param)
    server.values.clear()
    server.faults.clear()
    if request.param == "gcs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        return server, {"driver": "gcs", "bucket": "bucket", "gcs_request_retries": SOON}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    base = {"driver": "s3", "bucket": "bucket", "endpoint": server.url}
    return server, {**base, "s3_request_retries": SOON}


def written_by_both(kind):
    """Values, and the files of a database that has them."""
    config = {"manifest_kind": kind, "max_decoded_node_bytes": 200, "version_tree_arity_log2": 1}
    theirs = TensorStoreDatabase(config)
    for i in range(5):
        theirs.apply({f"a/{i}": b"%d" % i * 300, f"b/{i}": b"%d" % i})
    ours = Opened(files=theirs.files)
    for i in range(5, 9):
        ours.apply({f"a/{i}": b"%d" % i * 300, "b/0": b"%d" % i})
    return ours.items(), ours.files


def test_database_on_a_web_server_is_read_in_all_versions(web):
    wanted, files = written_by_both("single")
    web.values.update({f"db/{name.decode()}": data for name, data in files.items()})
    url = f"{web.url}/db/|ocdbt:"
    ours, theirs = KvStore.open(url).result(), ts.KvStore.open(url).result()
    assert items(ours) == items(theirs) == wanted
    old = f"{url}@v4/"
    assert items(KvStore.open(old).result()) == items(ts.KvStore.open(old).result())
    for write in (
        lambda: ours.write("x", b"1").result(),
        lambda: ours.delete_range(KvStore.KeyRange("x")).result(),
    ):
        with pytest.raises(UnsupportedError, match="does not support writing"):
            write()


def test_numbered_manifests_on_a_web_server_cannot_be_listed(web):
    _, files = written_by_both("numbered")
    web.values.update({f"numbered/{name.decode()}": data for name, data in files.items()})
    url = f"{web.url}/numbered/|ocdbt:"
    for library in (gpustore, ts):
        with pytest.raises(NotImplementedError, match="does not support listing"):
            library.KvStore.open(url).result()["a/1"]


@pytest.mark.parametrize("kind", KINDS)
def test_database_in_an_archive_is_read_and_gone_on_with_by_both(tmp_path, kind):
    wanted, files = written_by_both(kind)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(f"db/{name.decode()}", data)
    url = f"file://{tmp_path}/x.zip|zip:db/|ocdbt:"
    assert items(KvStore.open(url).result()) == items(ts.KvStore.open(url).result()) == wanted
    for i, library in enumerate((gpustore, ts, gpustore)):
        library.KvStore.open(url).result()[f"c/{i}"] = b"%d" % i * 200
        wanted[b"c/%d" % i] = b"%d" % i * 200
        assert items(KvStore.open(url).result()) == wanted
        assert items(ts.KvStore.open(url).result()) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_database_in_a_bucket_is_whole_although_answers_are_lost(bucket, kind):
    server, base = bucket
    config = {"manifest_kind": kind, "max_decoded_node_bytes": 200}
    spec = {"driver": "ocdbt", "base": {**base, "path": "db/"}, "config": config}
    store, wanted = KvStore.open(spec).result(), {}
    numbers = itertools.count()

    def lose(server, connection, request):
        if request.method == "PUT" and next(numbers) % 2:
            server.serve(connection, request, status=503)
            return None
        return server.serve(connection, request)

    server.faults = [Fault(lose)]
    for i in range(8):
        values = {f"a/{i}": b"%d" % i * 300, "n": b"%d" % i}
        store.write_many(WriteRequest(list(values), list(values.values()))).raise_first()
        wanted.update({key.encode(): value for key, value in values.items()})
    server.faults.clear()
    again = KvStore.open(spec).result()
    assert items(again) == wanted
    assert again.driver._version().generation == 9
    files = {key.removeprefix("bucket/db/").encode(): value for key, value in server.values.items()}
    assert TensorStoreDatabase(files=files).items() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_writers_of_one_database_in_a_bucket_lose_nothing(bucket, kind):
    _, base = bucket
    spec = {"driver": "ocdbt", "base": {**base, "path": "both/"}, "config": {"manifest_kind": kind}}
    # Two that do not know of each other.
    stores = [
        KvStore.open({**spec, "cache_pool": {"total_bytes_limit": i}}).result() for i in range(2)
    ]
    assert stores[0].driver is not stores[1].driver
    failures = []

    def count(store):
        try:
            for _ in range(6):
                while True:
                    read = store.read_many(ReadRequest(["n"]))
                    read.raise_first()
                    value = b"%d" % (int(read.value[0] or b"0") + 1)
                    written = store.write_many(WriteRequest(["n"], [value], read.generation))
                    written.raise_first()
                    if written.generation[0]:
                        break
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert stores[0]["n"] == b"12"
    assert stores[0].driver._version().generation == 13


@pytest.mark.parametrize("kind", KINDS)
def test_database_in_a_bucket_is_exchanged_with_tensorstore(s3, monkeypatch, kind):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "us-east-1")
    s3.values.clear()
    base = {"driver": "s3", "bucket": "bucket", "endpoint": s3.url, "path": "ex/"}
    config = {"manifest_kind": kind, "version_tree_arity_log2": 1, "max_inline_value_bytes": 0}
    spec = {"driver": "ocdbt", "base": base, "config": config}
    stores = [library.KvStore.open(spec).result() for library in (gpustore, ts)]
    wanted = {}
    for i in range(6):
        stores[i % 2].write(f"k{i % 4}", b"%d" % i).result()
        wanted[b"k%d" % (i % 4)] = b"%d" % i
        for store in stores:
            assert items(store) == wanted


def test_bucket_that_fails_is_no_missing_key(bucket):
    server, base = bucket
    spec = {"driver": "ocdbt", "base": {**base, "path": "db/"}}
    store = KvStore.open(spec).result()
    store["a"] = b"1" * 200
    for path in ("manifest.ocdbt", *(key for key in server.values if "/d/" in key)):
        fault = Fault(lambda s, c, r: refuse(c, 500, "InternalError"), path=path)
        server.faults = [fault]
        with pytest.raises(StoreIOError, match=r"a.* in OCDBT database at"):
            store["a"]
        assert fault.done == 4
        server.faults.clear()
    assert store["a"] == b"1" * 200


@pytest.mark.parametrize("where", ["web", "bucket s3", "bucket gcs", "archive"])
def test_the_device_reads_the_same_bytes_from_everywhere(where, tmp_path, request, monkeypatch):
    volume = np.arange(600, dtype="uint16").reshape(20, 30)
    layout = gpustore.ChunkLayout(chunk_shape=[7, 8])
    made = Opened()
    array = gpustore.open(
        "memory://|ocdbt:a/|zarr3:",
        create=True,
        dtype="uint16",
        shape=[20, 30],
        chunk_layout=layout,
        context=made.context,
    ).result()
    array[...] = volume
    files = {f"db/{name.decode()}": data for name, data in made.files.items()}
    base = "memory://"
    if where == "archive":
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        base = f"file://{tmp_path}/x.zip|zip:db/"
    elif where == "web":
        web = request.getfixturevalue("web")
        web.values.update(files)
        base = f"{web.url}/db/"
    else:
        id = where.removeprefix("bucket ")
        server = request.getfixturevalue(id)
        server.values.update({f"bucket/{name}": data for name, data in files.items()})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
        base = f"{'gs' if id == 'gcs' else id}://bucket/db/"
    with emulated() as device:
        store = gpustore.open(f"{base}|ocdbt:a/", device=device.name).result()
        assert np.array_equal(on_host(device, store.read().result()), volume)
        part = store[3:19:2, 28:1:-3].read().result()
        assert np.array_equal(on_host(device, part), volume[3:19:2, 28:1:-3])
        del store, part
