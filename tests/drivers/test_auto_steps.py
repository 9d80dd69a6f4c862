"""Detection through adapters, and the examples of the auto driver's page."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore import registry
from gpustore.errors import MismatchError, UnsupportedError
from tests.emulator.queue import ORDERS
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.on_device import emulated, on_host

METADATA = {
    "chunk_grid": {"configuration": {"chunk_shape": [5]}, "name": "regular"},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
    "data_type": "int32",
    "fill_value": 0,
    "node_type": "array",
    "shape": [5],
    "zarr_format": 3,
}
TRANSFORM = {"input_exclusive_max": [[5]], "input_inclusive_min": [0]}


def database(path):
    """The kvstore that the page shows, without the identifier of the database."""
    return {
        "base": {"driver": "file", "path": path},
        "config": {
            "compression": {"id": "zstd"},
            "max_decoded_node_bytes": 8388608,
            "max_inline_value_bytes": 100,
            "version_tree_arity_log2": 4,
        },
        "driver": "ocdbt",
    }


def shown(store):
    """The spec of a store, without what differs from time to time."""
    json = store.spec().to_json()
    json["kvstore"].get("config", {}).pop("uuid", None)
    return json


def create(url):
    return gpustore.open(url, dtype="int32", shape=[5], create=True).result()


def test_documents_example_of_an_array(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = {
        "driver": "zarr3",
        "dtype": "int32",
        "kvstore": {"driver": "file", "path": "tmp/dataset.zarr/"},
        "metadata": METADATA,
        "transform": TRANSFORM,
    }
    assert shown(create("file://tmp/dataset.zarr|zarr3")) == expected
    assert shown(gpustore.open("file://tmp/dataset.zarr").result()) == expected
    spec = {"driver": "auto", "kvstore": {"driver": "file", "path": "tmp/dataset"}}
    assert gpustore.Spec("file://tmp/dataset|auto").to_json() == spec
    assert gpustore.Spec("file://tmp/dataset").to_json() == spec
    spec = {"driver": "auto", "kvstore": {"driver": "file", "path": "/tmp/dataset.zarr/"}}
    assert gpustore.Spec("file:///tmp/dataset.zarr/|auto:").to_json() == spec


def test_documents_example_of_a_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = {
        "driver": "zarr3",
        "dtype": "int32",
        "kvstore": database("tmp/dataset.ocdbt/"),
        "metadata": METADATA,
        "transform": TRANSFORM,
    }
    assert shown(create("file://tmp/dataset.ocdbt|ocdbt|zarr3")) == expected
    assert shown(gpustore.open("file://tmp/dataset.ocdbt").result()) == expected


def test_documents_example_of_an_array_within_a_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = create("file://tmp/dataset2.ocdbt|ocdbt:path/within/database|zarr3")
    kvstore = {**database("tmp/dataset2.ocdbt/"), "path": "path/within/database/"}
    assert shown(made)["kvstore"] == kvstore
    with pytest.raises(MismatchError) as caught:
        gpustore.open("file://tmp/dataset2.ocdbt").result()
    assert str(caught.value).startswith(
        'FAILED_PRECONDITION: Error opening "auto" driver: Failed to detect format for "" in OCDBT '
        'database at local file "tmp/dataset2.ocdbt/"'
    )


CHAINS = {
    "zip": "x.zip|zip:",
    "ocdbt": "x/|ocdbt:",
    "zip in zip": "x.zip|zip:a/y.zip|zip:",
    "zip in a database": "x/|ocdbt:y.zip|zip:",
    "database in zip": "x.zip|zip:db/|ocdbt:",
    "zip in a database in zip": "x.zip|zip:db/|ocdbt:a/y.zip|zip:",
}
# Where detection begins: the adapters that stand at the end are found.
BEGIN = {
    "zip": "x.zip",
    "ocdbt": "x",
    "zip in zip": "x.zip|zip:a/y.zip",
    "zip in a database": "x|ocdbt:y.zip",
    "database in zip": "x.zip|zip:db",
    "zip in a database in zip": "x.zip|zip:db/|ocdbt:a/y.zip",
}


@pytest.fixture(params=CHAINS)
def chain(request, tmp_path):
    """URLs of a place, and of where detection is to begin."""
    root = f"file://{tmp_path}/"
    return root + CHAINS[request.param], root + BEGIN[request.param]


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_arrays_are_found_through_adapters(chain, driver):
    url, begin = chain
    store = gpustore.open(f"{url}|{driver}:", create=True, dtype="uint16", shape=[4]).result()
    store[...] = np.arange(4, dtype=np.uint16)
    found = gpustore.open(begin).result()
    assert found.spec() == store.spec()
    assert found.url == store.url == f"{url}|{driver}:"
    for again in (found.spec(), found.url, pickle.loads(pickle.dumps(found)).spec()):
        opened = gpustore.open(again).result()
        assert opened.read().result().tolist() == [0, 1, 2, 3]
    # The detected spec is opened without looking for formats.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpustore.drivers.auto.through_adapters", None)
        assert gpustore.open(found.spec()).result().shape == (4,)
        assert pickle.loads(pickle.dumps(found)).shape == (4,)
        with pytest.raises(TypeError):
            gpustore.open(begin).result()


class _Server(HttpServer):
    """Serves a directory, and tells what one opening asked for."""

    def __init__(self, folder):
        files = (path for path in folder.rglob("*") if path.is_file())
        super().__init__({str(path.relative_to(folder)): path.read_bytes() for path in files})

    def asked(self, library, url):
        """Return the number of requests, and the store or the error."""
        del self.requests[:]
        try:
            found = library.open(url).result()
        except (ValueError, UnsupportedError) as error:
            found = error
        return len(self.requests), found


def test_a_server_is_asked_no_more_than_by_tensorstore(tmp_path):
    for driver, url in (
        ("zarr2", "a|"),
        ("zarr3", "b|"),
        ("zarr3", "x.zip|zip:|"),
        ("zarr3", "d|ocdbt:|"),
    ):
        create(f"file://{tmp_path}/{url}{driver}:")[...] = np.arange(5, dtype=np.int32)
    gpustore.open_group(f"{tmp_path}/g|zarr3:", create=True).result()
    gpustore.open_group(f"{tmp_path}/g2|zarr2:", create=True).result()
    (tmp_path / "image").write_bytes(b"BM" + bytes(60))
    with _Server(tmp_path) as server:
        asked = {}
        for name in ("a", "a/", "b", "b/", "x.zip", "d", "d/", "g", "g/", "image"):
            asked[name], _ = server.asked(gpustore, f"{server.url}/{name}")
            assert asked[name] <= server.asked(ts, f"{server.url}/{name}")[0], name
        # Both ends of a file that is none, five names, and nothing else.
        assert (asked["a"], asked["a/"]) == (7, 5)
        # One more where there is nothing: it may be a group.
        for name in ("missing", "missing/", "g2/"):
            assert server.asked(gpustore, f"{server.url}/{name}")[0] == 6 + 2 * ("/" not in name)


def test_a_server_may_refuse_directories(tmp_path):
    create(f"file://{tmp_path}/a|zarr3:")[...] = np.arange(5, dtype=np.int32)
    for version in (2, 3):
        gpustore.open_group(f"{tmp_path}/g{version}|zarr{version}:", create=True).result()
    with _Server(tmp_path) as server:

        def refuse(_, connection, __):
            connection.sendall(head(403, [("Content-Length", "0")]))
            return True

        server.faults = [Fault(refuse, path=name) for name in ("/a", "/g2", "/g3", "/no")]
        assert gpustore.open(f"{server.url}/a").result()[4].read().result() == 4
        for version in (2, 3):
            group = gpustore.open_group(f"{server.url}/g{version}").result()
            assert group.zarr_format == version
        with pytest.raises(gpustore.StoreIOError, match="403"):
            gpustore.open(f"{server.url}/no").result()


def test_a_detected_array_is_opened_again_without_detection(tmp_path):
    create(f"file://{tmp_path}/a|zarr3:")
    with _Server(tmp_path) as server:
        _, store = server.asked(gpustore, f"{server.url}/a")
        for again in (store.spec(), pickle.loads(pickle.dumps(store.spec())), store.url):
            assert server.asked(gpustore, again)[0] == 1
        del server.requests[:]
        assert pickle.loads(pickle.dumps(store)).shape == (5,)
        assert len(server.requests) <= 1


def test_errors_in_metadata_name_their_file(tmp_path):
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3')
    messages = []
    for url in (f"file://{tmp_path}/|zarr3:", f"file://{tmp_path}/"):
        with pytest.raises(gpustore.MetadataError) as caught:
            gpustore.open(url).result()
        messages.append(str(caught.value).replace('Error opening "auto" driver: ', ""))
        assert caught.value.key == f"{tmp_path}/zarr.json"
    assert messages[0] == messages[1]
    limits = gpustore.Context({"limits": {"metadata_nbytes": 5}})
    with pytest.raises(gpustore.LimitError, match=r"zarr\.json.* has 17 bytes"):
        gpustore.open(tmp_path, context=limits).result()


def test_groups_are_found_through_adapters(chain):
    url, begin = chain
    group = gpustore.open_group(f"{url}|zarr3:", create=True).result()
    group.create_array("a/b", dtype="int8", shape=[3]).result()[...] = 7
    found = gpustore.open_group(begin).result()
    assert found["a/b"].read().result().tolist() == [7, 7, 7]
    assert [path for path, _ in found.walk()] == ["a", "a/b"]
    with pytest.raises(ValueError, match=r"group with gpustore\.open_group"):
        gpustore.open(begin).result()


def test_tensorstore_finds_the_same(tmp_path):
    for number, chain in enumerate(("x.zip|zip:", "x/|ocdbt:")):
        base = f"file://{tmp_path}/{number}/{chain}"
        store = gpustore.open(f"{base}|zarr3:", create=True, dtype="int32", shape=[5]).result()
        store[...] = np.arange(5, dtype=np.int32)
        begin = base.partition("|")[0]
        assert ts.open(begin).result().read().result().tolist() == list(range(5))
        assert gpustore.open(begin).result().read().result().tolist() == list(range(5))


def test_an_image_in_an_archive_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/b", b"BM" + bytes(60))
    with pytest.raises(gpustore.CorruptChunkError, match=r'"bmp" driver: .*"a/b" in .*x\.zip"'):
        gpustore.open(f"{tmp_path}/x.zip|zip:a/b").result()
    with pytest.raises(MismatchError, match=r'Failed to detect format for "" in .*x\.zip"'):
        gpustore.open(f"{tmp_path}/x.zip").result()


def test_archives_within_each_other_without_end(tmp_path):
    # A database whose root is an archive that never ends cannot be made: twenty are enough.
    data = b""
    for _ in range(20):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("manifest.ocdbt", data or b"none")
        data = file.getvalue()
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(gpustore.GpustoreError) as caught:
        gpustore.open(tmp_path / "x.zip").result()
    assert "auto" in str(caught.value)


def test_a_detected_array_shares_the_open_archive(tmp_path):
    url = f"file://{tmp_path}/x.zip"
    for name in ("a", "b"):
        gpustore.open(f"{url}|zip:{name}|zarr3:", create=True, dtype="int8", shape=[2]).result()
    context = gpustore.Context()
    stores = [gpustore.open(f"{url}|zip:{name}", context=context).result() for name in ("a", "b")]
    drivers = {id(store.kvstore.driver) for store in stores}
    assert len(drivers) == 1
    assert registry.find("kvstores", "zip").is_adapter


@pytest.mark.parametrize("order", ORDERS)
def test_found_arrays_are_read_to_a_device(tmp_path, order):
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    for number, chain in enumerate(CHAINS.values()):
        url = f"file://{tmp_path}/{number}/{chain}|zarr3:"
        layout = gpustore.ChunkLayout(chunk_shape=[4, 4])
        store = gpustore.open(
            url, create=True, dtype="uint16", shape=[8, 8], chunk_layout=layout
        ).result()
        store[...] = values
    with emulated(order) as device:
        for number, begin in enumerate(BEGIN.values()):
            _read_to(device, f"file://{tmp_path}/{number}/{begin}", values)


def _read_to(device, url, values):
    store = gpustore.open(url, device=device.name).result()
    array = store[1:, ::3].read().result()
    assert np.array_equal(on_host(device, array), values[1:, ::3])
