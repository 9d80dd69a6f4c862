"""Sharded arrays between gpustore, TensorStore and zarr-python, read and written in parts."""

import numpy as np
import pytest
import tensorstore as ts
import zarr

import gpustore
from tests.matrix import each

SHAPE, SHARD, FILL = (47, 65), [20, 30], 7


def shards(inner, codecs=("bytes",), **options):
    configuration = {"chunk_shape": inner, "codecs": list(codecs), **options}
    return {"name": "sharding_indexed", "configuration": configuration}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": order}}


CHAINS = {
    "raw": [shards([5, 6])],
    "index at start": [shards([5, 6], index_location="start")],
    "index without checksum": [shards([5, 6], index_codecs=["bytes"])],
    "gzip": [shards([5, 6], ["bytes", "gzip"])],
    "zstd, crc32c": [shards([5, 6], ["bytes", "zstd", "crc32c"])],
    "transposed inside": [shards([5, 6], [transpose(1, 0), "bytes", "zstd"])],
    "transposed outside": [transpose(1, 0), shards([6, 5])],
    "transposed twice": [transpose(1, 0), shards([6, 5], [transpose(1, 0), "bytes"])],
    "nested": [shards([10, 30], [shards([5, 6], ["bytes", "zstd"])])],
    "nested, transposed, at start": [
        shards([10, 30], [transpose(1, 0), shards([6, 5], index_location="start")])
    ],
    "one inner chunk": [shards([20, 30])],
}

# zarr-python 3.1.6 compares the inner chunks with the shard before the transpose.
NOT_FOR_ZARR = ("transposed outside", "transposed twice")

SELECTIONS = [np.s_[3:9, ::-1], np.s_[::3, 1:50:7], np.s_[46, :], np.s_[5, 5], np.s_[20:40, 30:60]]
PARTS = [np.s_[4:22, 3:40], np.s_[::5, ::4], np.s_[46, 64], np.s_[20:40, 0:30]]


def spec(folder, chain):
    metadata = {
        "shape": list(SHAPE),
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
        "codecs": CHAINS[chain],
        "fill_value": FILL,
    }
    kvstore = {"driver": "file", "path": f"{folder}/"}
    return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


def values():
    array = np.random.default_rng(0).integers(0, 1000, SHAPE).astype(np.uint16)
    array[10:15, 6:12] = FILL  # One inner chunk
    array[20:40, 30:60] = FILL  # One shard
    return array


@pytest.mark.matrix
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    ("writer", "reader"),
    [(ts, gpustore), (gpustore, ts), (gpustore, gpustore)],
    ids=["from tensorstore", "to tensorstore", "alone"],
)
def test_shards_are_exchanged_whole_and_in_parts(tmp_path, chain, writer, reader):
    expected = values()
    writer.open(spec(tmp_path, chain), create=True).result().write(expected).result()
    store = reader.open(
        {k: v for k, v in spec(tmp_path, chain).items() if k != "metadata"}
    ).result()
    assert np.array_equal(store.read().result(), expected)
    for selection in SELECTIONS:
        assert np.array_equal(store[selection].read().result(), expected[selection])
    rng = np.random.default_rng(1)
    for part in PARTS:
        new = rng.integers(0, 9, np.shape(expected[part])).astype(np.uint16)
        store[part].write(new).result()
        expected[part] = new
    again = writer.open(spec(tmp_path, chain), open=True).result()
    assert np.array_equal(again.read().result(), expected)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize("chain", [name for name in CHAINS if name not in NOT_FOR_ZARR])
def test_zarr_python_reads_shards_and_writes_them(tmp_path, chain):
    expected = values()
    store = gpustore.open(spec(tmp_path, chain), create=True).result()
    store.write(expected).result()
    array = zarr.open_array(tmp_path, mode="r+")
    assert np.array_equal(array[...], expected)
    # It writes inner chunks in Morton order.
    array[3:30, 5:50] = expected[3:30, 5:50] = 5
    assert np.array_equal(store.read().result(), expected)


@each("chain", CHAINS)
def test_metadata_are_those_of_tensorstore(chain):
    written = []
    for library in (ts, gpustore):
        context = library.Context()
        json = spec("x", chain) | {"kvstore": "memory://a/"}
        opened = library.open(json, create=True, context=context).result()
        document = library.KvStore.open("memory://a/", context=context).result()["zarr.json"]
        written.append((document, opened.chunk_layout.to_json(), opened.spec().to_json()))
    assert written[0] == written[1]


@each(
    "layout",
    [
        {"read_chunk_shape": [5, 6], "write_chunk_shape": [20, 30]},
        {"read_chunk_shape": [5, 6], "write_chunk_shape": [20, 30], "inner_order": [1, 0]},
        {"write_chunk_shape": [20, 30], "read_chunk_elements": 30},
        {"read_chunk_shape": [5, 6]},
        {"chunk_aspect_ratio": [2, 1], "read_chunk_elements": 30, "write_chunk_elements": 1500},
    ],
)
@each("codecs", [None, ["gzip"], [shards([5, 6])], [{"name": "sharding_indexed"}]])
def test_layout_constraints_insert_sharding_as_tensorstore_does(layout, codecs):
    written = []
    for library in (ts, gpustore):
        context = library.Context()
        keywords = {"chunk_layout": library.ChunkLayout(**layout)}
        if codecs is not None:
            keywords["codec"] = library.CodecSpec({"driver": "zarr3", "codecs": codecs})
        try:
            library.open(
                "memory://a/|zarr3:",
                create=True,
                dtype="uint8",
                shape=[40, 60],
                context=context,
                **keywords,
            ).result()
        except ValueError:
            written.append("refused")
            continue
        written.append(library.KvStore.open("memory://a/", context=context).result()["zarr.json"])
    assert written[0] == written[1]


def test_inner_chunks_that_are_not_touched_are_copied_as_they_are_encoded(tmp_path):
    expected = values()
    store = gpustore.open(spec(tmp_path, "zstd, crc32c"), create=True).result()
    store.write(expected).result()
    before = (tmp_path / "c/0/0").read_bytes()
    store[0, 0] = 1
    after = (tmp_path / "c/0/0").read_bytes()
    # The first inner chunk is new; what follows it moves, and is otherwise the same.
    index = np.frombuffer(before[-4 - 16 * 20 : -4], "<u8").reshape(20, 2)
    moved = np.frombuffer(after[-4 - 16 * 20 : -4], "<u8").reshape(20, 2)
    for (old, n), (new, m) in zip(index[1:].tolist(), moved[1:].tolist(), strict=True):
        if n == 2**64 - 1:
            assert m == n
        else:
            assert after[new : new + m] == before[old : old + n]


def test_a_shard_of_fill_values_is_deleted(tmp_path):
    store = gpustore.open(spec(tmp_path, "raw"), create=True).result()
    store.write(values()).result()
    assert not (tmp_path / "c/1/1").exists()
    store[:20, :30] = FILL
    assert not (tmp_path / "c/0/0").exists()
    store[0, 0] = 1
    store[0, 0] = FILL
    assert not (tmp_path / "c/0/0").exists()


def damaged(name, shard):
    return {
        "empty": b"",
        "truncated": shard[:-1],
        "longer": shard + b"\0",
        "index bit": shard[:-20] + bytes([shard[-20] ^ 1]) + shard[-19:],
        "checksum": shard[:-1] + bytes([shard[-1] ^ 1]),
        "only an index": shard[-4 - 16 * 20 :],
    }[name]


@each("part", [np.s_[...], np.s_[0, 0]])
@each("damage", ["empty", "truncated", "longer", "index bit", "checksum", "only an index"])
def test_a_damaged_shard_is_an_error_that_names_the_key(tmp_path, damage, part):
    store = gpustore.open(spec(tmp_path, "zstd, crc32c"), create=True).result()
    store.write(values()).result()
    path = tmp_path / "c/0/0"
    path.write_bytes(damaged(damage, path.read_bytes()))
    for action in (lambda: store[part].read().result(), lambda: store[0, 0].write(3).result()):
        with pytest.raises(gpustore.CorruptChunkError, match="c/0/0") as caught:
            action()
        assert caught.value.key.endswith("c/0/0")


def test_sharding_of_more_levels_than_the_limit_is_refused():
    codecs = ["bytes"]
    for _ in range(5):
        codecs = [shards([1], codecs)]
    metadata = {"shape": [4], "data_type": "uint8", "codecs": codecs}
    json = {"driver": "zarr3", "kvstore": "memory://a", "metadata": metadata}
    with pytest.raises(gpustore.LimitError, match="nested_shardings"):
        gpustore.open(json, create=True).result()


def test_codecs_after_sharding_are_refused_by_name():
    metadata = {"shape": [4], "data_type": "uint8", "codecs": [shards([2]), "gzip"]}
    json = {"driver": "zarr3", "kvstore": "memory://a", "metadata": metadata}
    with pytest.raises(gpustore.UnsupportedError, match="apply to the entire shard"):
        gpustore.open(json, create=True).result()
