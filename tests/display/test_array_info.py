"""``store.info``: facts about opened arrays."""

import json
from dataclasses import replace

import numpy as np
import pytest

import gpustore
from gpustore.display import array_info
from tests.kvstores.http.http_server import HttpServer
from tests.on_device import emulated


def created(url, **properties):
    return gpustore.open(url, create=True, device="cpu", **properties).result()


def test_facts_on_one_screen(tmp_path):
    store = created(
        f"file://{tmp_path}/a/|zarr3:",
        dtype="uint16",
        shape=[4, 6],
        chunks=[2, 3],
        shards=[2, 6],
        dims=["y", None],
        units=["4nm", None],
        codec="zstd",
        fill_value=3,
        attributes={"title": "x", "scale": 2},
    )
    store[0] = 1
    nbytes = (tmp_path / "a/c/0/0").stat().st_size
    host = "native core" if gpustore.native_core().in_use else "host"
    lines = [" ".join(line.split()) for line in repr(store.info).split("\n")]
    assert lines[0] == store.url
    for line in (
        "format Zarr v3",
        "shape 4 x 6 (y, 1)",
        "units y: 4 nm",
        "type uint16",
        "decoded size 48 B",
        "chunk 2 x 3",
        "shard 2 x 6",
        "fill value 3",
        f"shards stored 1 of 2, {nbytes} B, ratio {24 / nbytes:.2f}",
        "attributes 2: title, scale",
        "read on cpu",
        f"decoded by {host} (zstd)",
        f"encoded by {host} (zstd)",
    ):
        assert line in lines


def test_json_has_all_attributes(tmp_path):
    store = created(f"file://{tmp_path}/|zarr2:", dtype="float32", shape=[3], fill_value=np.nan)
    found = json.loads(json.dumps(store.info.to_json(), allow_nan=False))
    assert found["format"] == "Zarr v2"
    assert found["kvstore"] == {"driver": "file", "path": f"{tmp_path}/"}
    assert (found["shape"], found["fill_value"], found["attributes"]) == ([3], "nan", {})


def test_near_values_are_counted_and_others_on_demand(tmp_path, monkeypatch):
    store = created(f"file://{tmp_path}/|zarr3:", dtype="uint8", shape=[9], chunks=[1])
    store[2:5] = 1
    assert (store.info.values_stored, store.info.values_possible) == (3, 9)
    monkeypatch.setattr(array_info, "_CHEAP", 8)
    assert (store.info.values_stored, store.info.stored_nbytes) == (None, None)
    assert "unknown, of 9: info_complete() lists their keys" in repr(store.info)
    assert store.info_complete().values_stored == 3


def test_values_on_a_web_server_cannot_be_counted(tmp_path):
    created(f"file://{tmp_path}/|zarr3:", dtype="uint8", shape=[9])
    with HttpServer({"zarr.json": (tmp_path / "zarr.json").read_bytes()}) as server:
        store = gpustore.open(f"{server.url}/|zarr3:", device="cpu").result()
        assert store.info_complete().uncounted == "the kvstore cannot list"


def test_a_part_is_described_without_its_values():
    store = created("memory://a/|zarr3:", dtype="uint8", shape=[9, 9], chunks=[4, 9])
    part = store[3:6].info
    assert (part.shape, part.chunk, part.values_possible) == ((3, 9), (4, 9), 2)
    assert part.uncounted == "this is a part of the array"


def test_arrays_without_chunks_have_no_decoders():
    info = gpustore.array([[1, 2, 3]]).info
    assert (info.shape, info.chunk, info.shard) == ((1, 3), (1, 3), None)
    assert (info.decoding, info.encoding, info.gpu, info.attributes) == (None,) * 4
    assert "codecs         none" in repr(info)


def test_codecs_that_the_native_core_lacks_are_those_of_the_host():
    compressor = {"id": "bz2", "level": 1}
    store = created(
        {"driver": "zarr2", "kvstore": "memory://c/", "metadata": {"compressor": compressor}},
        dtype="uint8",
        shape=[3],
    )
    assert store.info.decoding["native"] is store.info.encoding["native"] is False
    assert dict(store.info.facts())["decoded by"] == "host (bz2)"


def test_attributes_that_cannot_be_read_do_no_harm(tmp_path):
    created(f"file://{tmp_path}/|zarr2:", dtype="uint8", shape=[3])
    (tmp_path / ".zattrs").write_text("[1]")
    info = gpustore.open(str(tmp_path), device="cpu").result().info
    assert info.attributes is None
    assert "attributes     unreadable: " in repr(info)


def test_a_gpu_is_named_where_there_is_one_or_on_demand():
    info = created("memory://b/|zarr3:", dtype="uint8", shape=[9], codec="zstd").info
    assert "on a GPU" in dict(info.facts(gpu=True))
    assert "on a GPU" not in dict(info.facts(gpu=False))
    assert ("on a GPU" in dict(info.facts())) == (not info.gpu["missing"])


def test_info_of_an_array_on_a_device(tmp_path):
    metadata = {"shape": [5], "dtype": "<f4", "chunks": [2], "compressor": {"id": "zlib"}}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    with emulated() as device:
        there = gpustore.open(spec, create=True, device=device.name).result()
        info = there.info
        assert info.gpu is None
        assert info.decoding["codecs"] == [{"codec": "zlib", "decoder": "nvcomp"}]
        assert info.decoding["library"] == "emulated library"
        assert info.decoding["shortcoming"] is None
        del there


def test_info_tells_which_decoder_of_a_device_fails(tmp_path):
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/b/", "metadata": {"shape": [5]}}
    spec["metadata"] |= {"dtype": "<f4", "chunks": [2], "compressor": {"id": "zlib"}}
    with emulated() as device:
        device.test_faults.statuses[3, 0] = 12
        there = gpustore.open(spec, create=True, device=device.name).result()
        with pytest.warns(gpustore.DeviceWarning, match="deflate: status 12"):
            info = there.info
        texts = dict(info.facts())
        del there
    assert info.decoding["reason"].startswith("deflate: emulated library fails its self-test")
    assert texts["decoded by"].startswith("the host: deflate: ")
    assert texts["library"] == "emulated library"
    assert texts["missing"] == info.decoding["shortcoming"]
    assert texts["missing"].endswith("the host decodes deflate")


def test_stored_values_of_other_formats_are_counted_without_their_metadata(tmp_path):
    compression = {"type": "gzip", "level": 3}
    metadata = {"dimensions": [4], "blockSize": [2], "dataType": "int8", "compression": compression}
    n5 = {"driver": "n5", "metadata": metadata}
    scale = {"size": [4, 1, 1], "chunk_size": [2, 1, 1], "encoding": "raw", "resolution": [1, 1, 1]}
    volume = {"type": "image", "data_type": "int8", "num_channels": 1}
    volumes = {"multiscale_metadata": volume, "scale_metadata": scale}
    precomputed = {"driver": "neuroglancer_precomputed", **volumes}
    for spec, codec in ((n5, "gzip (level 3, useZlib false)"), (precomputed, "raw")):
        spec["kvstore"] = f"file://{tmp_path}/{spec['driver']}/"
        store = gpustore.open(spec, create=True).result()
        store.write(1).result()
        facts = dict(store.info.facts())
        assert facts["codecs"] == codec
        assert facts["chunks stored"].startswith("2 of 2, ")


def test_shards_that_are_no_boxes_are_counted_without_their_possible_number(tmp_path):
    store = gpustore.create_array(f"{tmp_path}/a|zarr3:", shape=[4], dtype="int8").result()
    info = replace(store.info, values_stored=3, values_possible=1)
    assert dict(info.facts())["chunks stored"].startswith("3")
    assert "of" not in dict(info.facts())["chunks stored"]
