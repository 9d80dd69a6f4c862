"""Arrays in OCDBT databases, on the host and on the emulated device, also TensorStore's."""

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.backends.device import direct_read
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

SHAPE = (60, 70)
VALUES = np.arange(60 * 70, dtype="uint16").reshape(SHAPE)
ARRAYS = {
    "zarr3": {"driver": "zarr3", "metadata": {"codecs": [{"name": "bytes"}, {"name": "zstd"}]}},
    "zarr3 raw": {"driver": "zarr3"},
    "zarr3 sharded": {
        "driver": "zarr3",
        "metadata": {
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [10, 10],
                        "codecs": [{"name": "bytes"}, {"name": "crc32c"}],
                    },
                }
            ]
        },
    },
    "zarr2": {"driver": "zarr", "metadata": {"compressor": {"id": "blosc"}}},
    "zarr2 raw": {"driver": "zarr", "metadata": {"compressor": None}},
}


def spec(path, name, **config):
    array = ARRAYS[name]
    kvstore = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{path}/", "file_io_sync": False},
        "path": "a/",
        "config": {"max_decoded_node_bytes": 300, **config},
    }
    layout = {"grid_origin": [0, 0], "write_chunk": {"shape": [20, 30]}}
    schema = {"dtype": "uint16", "domain": {"shape": list(SHAPE)}, "chunk_layout": layout}
    return {**array, "kvstore": kvstore, "schema": schema}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_exchanged_with_tensorstore(tmp_path, name):
    ours = gpustore.open(spec(tmp_path / "ours", name), create=True).result()
    theirs = ts.open(spec(tmp_path / "theirs", name), create=True).result()
    for store in (ours, theirs):
        store[...] = VALUES
        store[3:25, 7:40] = 5
    wanted = VALUES.copy()
    wanted[3:25, 7:40] = 5
    read = gpustore.open(spec(tmp_path / "theirs", name)).result()
    assert np.array_equal(read.read().result(), wanted)
    assert np.array_equal(ts.open(spec(tmp_path / "ours", name)).result().read().result(), wanted)
    assert np.array_equal(ours.read().result(), wanted)


@pytest.mark.parametrize("name", ARRAYS)
def test_the_device_reads_the_same_bytes(tmp_path, name, monkeypatch):
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})
    gpustore.open(spec(tmp_path, name), create=True).result()[...] = VALUES
    for i, order in enumerate(ORDERS):
        with emulated(order, seed=i) as device:
            store = gpustore.open(spec(tmp_path, name), device=device.name).result()
            before = gpustore.statistics.snapshot().get("direct_reads", 0)
            assert np.array_equal(on_host(device, store.read().result()), VALUES)
            part = store[5:50:3, 60:2:-7].read().result()
            assert np.array_equal(on_host(device, part), VALUES[5:50:3, 60:2:-7])
            direct = gpustore.statistics.snapshot().get("direct_reads", 0) - before
            # Chunks that the host need not see come straight from the data files.
            assert (direct > 0) == (name in ("zarr3 raw", "zarr3 sharded", "zarr2 raw"))
            del store, part


def test_small_chunks_within_nodes_are_read_to_the_device(tmp_path):
    inside = spec(tmp_path, "zarr3", max_inline_value_bytes=1 << 20)
    gpustore.open(inside, create=True).result()[...] = VALUES
    with emulated() as device:
        store = gpustore.open(inside, device=device.name).result()
        assert np.array_equal(on_host(device, store.read().result()), VALUES)
        del store


def test_values_are_located_in_data_files(tmp_path):
    gpustore.open(spec(tmp_path, "zarr3 raw"), create=True).result()[...] = VALUES
    kvstore = gpustore.KvStore.open(f"file://{tmp_path}/|ocdbt:a/").result()
    found = kvstore.locate_many(["c/0/0", "zarr.json", "c/9/9"])
    found.raise_first()
    with open(found.path[0], "rb") as file:
        data = file.read()[found.offset[0] :][: found.nbytes[0]]
    assert data == kvstore["c/0/0"]
    assert found.nbytes[0] == 20 * 30 * 2
    assert "/d/" in found.path[0]
    assert found.generation[2] == gpustore.kvstores.columns.ABSENT


def test_older_versions_of_an_array_are_read(tmp_path):
    url = f"file://{tmp_path}/|ocdbt:"
    store = gpustore.open(f"{url}a/|zarr3:", create=True, dtype="uint8", shape=[4]).result()
    kvstore = gpustore.KvStore.open(url).result()
    dumped = []
    for i in range(1, 4):
        store[...] = i
        dumped.append(gpustore.ocdbt.dump(kvstore.base).result()["versions"][-1])
    for i, version in enumerate(dumped, 1):
        generation = version["generation_number"]
        time = np.datetime64(version["commit_time"], "ns")
        for spelled in (f"v{generation}", f"{time}Z"):
            old = gpustore.open(f"{url}@{spelled}/a/|zarr3:").result()
            assert old.read().result().tolist() == [i] * 4
            with pytest.raises(ValueError, match="Destination does not support writing"):
                old[...] = 9
    assert store.read().result().tolist() == [3] * 4


def test_format_in_a_database_is_found(tmp_path):
    url = f"file://{tmp_path}/|ocdbt:"
    gpustore.open(f"{url}|zarr3:", create=True, dtype="uint8", shape=[4]).result()[...] = 7
    for spelled in (url, f"{tmp_path}", f"file://{tmp_path}/|auto:"):
        assert gpustore.open(spelled).result().read().result().tolist() == [7] * 4


def test_missing_data_files_are_errors_and_no_fill_values(tmp_path):
    url = f"file://{tmp_path}/|ocdbt:|zarr3:"
    store = gpustore.open(url, create=True, dtype="uint8", shape=[400]).result()
    before = set((tmp_path / "d").iterdir())
    store[...] = 7
    for file in set((tmp_path / "d").iterdir()) - before:
        data = file.read_bytes()
        file.write_bytes(data[:-1])
        with pytest.raises(gpustore.CorruptChunkError, match="Requested byte range"):
            store.read().result()
        file.unlink()
        with pytest.raises(gpustore.CorruptChunkError, match="the data file does not exist"):
            store.read().result()
        file.write_bytes(data)
    assert store.read().result().tolist() == [7] * 400


def test_explanation_counts_bytes_straight_to_the_device(tmp_path):
    url = f"file://{tmp_path}/|ocdbt:|zarr3:"
    layout = gpustore.ChunkLayout(chunk_shape=[256, 256])
    store = gpustore.open(
        url, create=True, dtype="uint8", shape=[512, 512], chunk_layout=layout
    ).result()
    store[...] = np.arange(512, dtype="uint16").astype("uint8")
    with emulated() as device:
        there = gpustore.open(url, device=device.name).result()
        explanation = there.explain()
        before = gpustore.statistics.snapshot().get("bytes_direct", 0)
        there.read().result()
        assert gpustore.statistics.snapshot()["bytes_direct"] - before == 512 * 512
        assert explanation.counts["bytes_direct"] == (0, 512 * 512)
        assert "straight to the device" in str(explanation)
        del there
