"""The neuroglancer_precomputed driver: volumes, metadata and errors as TensorStore's."""

import itertools
import json
from functools import partial

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from tests.drivers import parity
from tests.drivers.parity import check, files
from tests.matrix import each
from tests.on_device import emulated, on_host

VOLUME = {"type": "image", "data_type": "uint16", "num_channels": 2}
SCALE = {
    **{"size": [7, 5, 4], "chunk_size": [3, 2, 2], "encoding": "raw", "resolution": [4, 4, 40]},
    **{"voxel_offset": [10, -5, 0], "sharding": None},
}


def spec_of(path, volume=None, scale=None, **more):
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{path}/", "file_io_sync": False},
        **more,
    }
    if volume is not None:
        spec["multiscale_metadata"] = volume
    if scale is not None:
        spec["scale_metadata"] = scale
    return spec


def made(library, path, volume=(), scale=(), **more):
    spec = spec_of(path, {**VOLUME, **dict(volume)}, {**SCALE, **dict(scale)}, **more)
    return library.open(spec, create=True).result()


def opened(library, path, **more):
    return library.open(spec_of(path, **more)).result()


def values(store):
    """Elements that differ from their neighbours, none of them 0."""
    numbers = np.arange(store.size) % 251 + 1
    return numbers.reshape(store.shape).astype(store.dtype.numpy_dtype)


def segmentation(*block):
    return {"encoding": "compressed_segmentation", "compressed_segmentation_block_size": block}


ENCODINGS = {
    **{f"raw {t}": ({"data_type": t}, {}) for t in ("uint8", "int8", "uint16", "int16")},
    **{f"raw {t}": ({"data_type": t}, {}) for t in ("uint32", "int32", "uint64", "float32")},
    "segmentation uint32": ({"data_type": "uint32"}, segmentation(2, 2, 2)),
    "segmentation uint64": ({"data_type": "uint64"}, segmentation(8, 4, 2)),
    "segmentation of one block": ({"data_type": "uint64"}, segmentation(3, 2, 2)),
    "png": ({"data_type": "uint8"}, {"encoding": "png"}),
    "png of one channel": ({"data_type": "uint8", "num_channels": 1}, {"encoding": "png"}),
    "png RGB": ({"data_type": "uint8", "num_channels": 3}, {"encoding": "png", "png_level": 3}),
    "png RGBA": ({"data_type": "uint8", "num_channels": 4}, {"encoding": "png"}),
    "png uint16": ({"num_channels": 1}, {"encoding": "png"}),
    **{f"png uint16 of {n}": ({"num_channels": n}, {"encoding": "png"}) for n in (2, 3, 4)},
    "jpeg": ({"data_type": "uint8", "num_channels": 1}, {"encoding": "jpeg"}),
    "jpeg RGB": (
        {"data_type": "uint8", "num_channels": 3},
        {"encoding": "jpeg", "jpeg_quality": 95},
    ),
}


@pytest.mark.matrix("costly")
@each("name", ENCODINGS)
def test_each_library_reads_what_the_other_writes(name, tmp_path):
    volume, scale = ENCODINGS[name]
    stored = []
    for writer, reader in (parity.LIBRARIES, parity.LIBRARIES[::-1]):
        path = tmp_path / writer.__name__
        store = made(writer, path, volume, scale)
        data = values(store)
        store[...] = data
        found = opened(reader, path)
        elements = found.read().result()
        assert np.array_equal(elements, store.read().result())
        if "jpeg" not in name:
            assert np.array_equal(elements, data)
        part = found[15:10:-2, -4:-1, 1, 0].read().result()
        assert np.array_equal(part, elements[5:0:-2, 1:4, 1, 0])
        shown = parity.without_context(store.spec().to_json())
        shown.pop("kvstore")
        blocks = files(path)
        if "png" in name or "jpeg" in name:
            blocks = dict.fromkeys(blocks)
        facts = store.schema.to_json(), str(store.dimension_units), store.fill_value
        stored.append((shown, facts, json.loads((path / "info").read_text()), blocks))
    stored[0][3].pop("info"), stored[1][3].pop("info")
    assert stored[0] == stored[1]


SHARDINGS = [
    {
        **{"@type": "neuroglancer_uint64_sharded_v1", "hash": hash_, "preshift_bits": preshift},
        **{"minishard_bits": minishard, "shard_bits": shard},
        **{"minishard_index_encoding": index, "data_encoding": data},
    }
    for hash_, preshift, minishard, shard, index, data in itertools.product(
        ["identity", "murmurhash3_x86_128"],
        [0, 2],
        [0, 1, 3],
        [0, 2],
        ["raw", "gzip"],
        ["raw", "gzip"],
    )
]


@pytest.mark.matrix
@each("sharding", SHARDINGS)
def test_shards(sharding, tmp_path):
    layouts = []
    for writer, reader in (parity.LIBRARIES, parity.LIBRARIES[::-1]):
        path = tmp_path / writer.__name__
        store = made(writer, path, {"num_channels": 1}, {"sharding": sharding})
        data = values(store)
        store[...] = data
        other = opened(reader, path)
        assert np.array_equal(other.read().result(), data)
        # Parts of chunks, and all of some.
        other[12:15, -3:-1, 1] = data[2:5, 2:4, 1] = 0
        other[10:13, -5:-3, 0:2] = data[:3, :2, :2] = 0
        for library in parity.LIBRARIES:
            assert np.array_equal(opened(library, path).read().result(), data)
        layouts.append((store.chunk_layout.to_json(), sorted(files(path))))
        # TensorStore 0.1.86 leaves some chunks where all are deleted.
        opened(gpustore, path)[...] = 0
        assert sorted(files(path)) == ["info"]
        assert not opened(ts, path).read().result().any()
    assert layouts[0] == layouts[1]


METADATA = {
    "base": ({}, {}, {}),
    "segmentation": ({"type": "segmentation"}, {}, {}),
    "no channels": ({"num_channels": 0}, {}, {}),
    "float64": ({"data_type": "float64"}, {}, {}),
    "int64": ({"data_type": "int64"}, {}, {}),
    "key": ({}, {"key": "a/b"}, {}),
    "key above": ({}, {"key": "../b"}, {}),
    "half": ({}, {"resolution": [0.5, 4.25, 1e7]}, {}),
    "two dimensions": ({}, {"size": [7, 5]}, {}),
    "negative": ({}, {"size": [-1, 5, 4]}, {}),
    "chunks of none": ({}, {"chunk_size": [0, 2, 2]}, {}),
    "large chunks": ({}, {"chunk_size": [64, 64, 64]}, {}),
    "offset alone": ({}, {"size": None}, {}),
    "no encoding": ({}, {"encoding": None}, {}),
    "other encoding": ({}, {"encoding": "compresso"}, {}),
    "quality of raw": ({}, {"jpeg_quality": 3}, {}),
    "quality 101": ({"data_type": "uint8"}, {"encoding": "jpeg", "jpeg_quality": 101}, {}),
    "jpeg of uint16": ({}, {"encoding": "jpeg"}, {}),
    "jpeg of 2 channels": ({"data_type": "uint8"}, {"encoding": "jpeg"}, {}),
    "png of uint32": ({"data_type": "uint32"}, {"encoding": "png"}, {}),
    "segmentation of uint16": ({}, segmentation(8, 8, 8), {}),
    "blocks of raw": ({}, {"compressed_segmentation_block_size": [8, 8, 8]}, {}),
    "other hash": ({}, {"sharding": {**SHARDINGS[0], "hash": "md5"}}, {}),
    "too many bits": ({}, {"sharding": {**SHARDINGS[0], "minishard_bits": 61}}, {}),
    "other scheme": ({}, {"sharding": {**SHARDINGS[0], "@type": "x"}}, {}),
    "scale 0": ({}, {}, {"scale_index": 0}),
    "scale 1": ({}, {}, {"scale_index": 1}),
    "more of a volume": ({"foo": 1}, {}, {}),
    "unknown member": ({}, {}, {"foo": 1}),
    "metadata": ({}, {}, {"metadata": {}}),
}


def same(function, tmp_path):
    """Check that both libraries return the same, or raise errors of the same kind."""
    ours, theirs = parity.both(function, tmp_path)
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
    else:
        assert set(theirs[0]) <= set(ours[0])


def described(store):
    facts = parity.description(store)
    return {**facts, "files": None}


def without_none(given):
    return {name: value for name, value in given.items() if value is not None or name == "sharding"}


@each("name", METADATA)
def test_metadata(name, tmp_path):
    volume, scale, more = METADATA[name]

    def run(library, root):
        given = without_none({**VOLUME, **volume}), without_none({**SCALE, **scale})
        store = library.open(spec_of(root / "a", *given, **more), create=True).result()
        return [described(store), json.loads((root / "a/info").read_text())]

    same(run, tmp_path)


def codec(**members):
    json = {"driver": "neuroglancer_precomputed", **members}
    return lambda library: library.CodecSpec(json)


KEYWORDS = {
    "fill value": {"fill_value": 0},
    "units": {"dimension_units": ["4nm", None, "40nm", None]},
    "other units": {"dimension_units": ["5nm", None, None, None]},
    "um": {"dimension_units": ["4um", None, None, None]},
    "unit of channels": {"dimension_units": [None, None, None, "1nm"]},
    "codec": {"codec": codec(encoding="raw")},
    "other codec": {"codec": codec(encoding="png")},
    "codec of zarr": {"codec": lambda library: library.CodecSpec({"driver": "zarr3"})},
    "order": {"chunk_layout": lambda library: library.ChunkLayout(inner_order=[0, 1, 2, 3])},
    "chunks": {"chunk_layout": lambda library: library.ChunkLayout(read_chunk_shape=[2, 2, 2, 2])},
    "labels": {"domain": lambda library: library.IndexDomain(labels=["a", "b", "c", "d"])},
    "domain": {
        "domain": lambda library: library.IndexDomain(
            inclusive_min=[10, -5, 0, 0], shape=[7, 5, 4, 2]
        )
    },
    "other domain": {"domain": lambda library: library.IndexDomain(shape=[7, 5, 4, 2])},
    "other type": {"dtype": "int8"},
    "float64": {"dtype": "float64"},
    "rank": {"rank": 4},
    "rank 3": {"rank": 3},
}


@each("name", KEYWORDS)
@each("created", [True, False])
def test_keywords(name, created, tmp_path):
    def run(library, root):
        given = {n: v(library) if callable(v) else v for n, v in KEYWORDS[name].items()}
        if created:
            spec = spec_of(root / "a", VOLUME, SCALE)
            store = library.open(spec, create=True, **given).result()
        else:
            made(library, root / "a")
            store = library.open(spec_of(root / "a"), **given).result()
        return [described(store), json.loads((root / "a/info").read_text())]

    same(run, tmp_path)


COARSE = {**SCALE, "resolution": [8, 8, 40], "size": [4, 3, 4], "voxel_offset": [5, -3, 0]}
SCALES = {
    "second": ({}, COARSE),
    "second by number": ({"scale_index": 1}, COARSE),
    "first again": ({"scale_index": 0}, COARSE),
    "third": ({"scale_index": 2}, COARSE),
    "same resolution": ({}, {**COARSE, "resolution": [4, 4, 40]}),
    "same resolution, other key": ({}, {**COARSE, "resolution": [4, 4, 40], "key": "x"}),
    "same key": ({}, {**COARSE, "key": "4_4_40"}),
    "other channels": ({"multiscale_metadata": {"num_channels": 3}}, COARSE),
    "other type": ({"multiscale_metadata": {"data_type": "uint8"}}, COARSE),
}


@each("name", SCALES)
@each("mode", [{"create": True}, {"create": True, "open": True}])
def test_further_scales(name, mode, tmp_path):
    more, scale = SCALES[name]

    def run(library, root):
        made(library, root / "a")
        store = library.open({**spec_of(root / "a", None, scale), **more}, **mode).result()
        facts = described(store)
        return [facts, json.loads((root / "a/info").read_text())]

    same(run, tmp_path)


@each(
    "more",
    [
        {},
        {"scale_index": 0},
        {"scale_index": 1},
        {"scale_index": 2},
        *({"scale_metadata": {n: v}} for n, v in COARSE.items() if n != "voxel_offset"),
        {"scale_metadata": {"key": "8_8_40"}},
        {"scale_metadata": {"key": "none"}},
        {"scale_metadata": {"resolution": [1, 2, 3]}},
        {"scale_index": 1, "scale_metadata": {"key": "4_4_40"}},
        {"scale_metadata": {"chunk_size": [2, 2, 2]}},
        {"multiscale_metadata": {"type": "segmentation"}},
        {"multiscale_metadata": {"num_channels": 1}},
        {"multiscale_metadata": {"data_type": "uint8"}},
    ],
)
def test_scales_are_selected(more, tmp_path):
    def run(library, root):
        made(library, root / "a")
        library.open(spec_of(root / "a", None, COARSE), create=True).result()
        return described(library.open({**spec_of(root / "a"), **more}).result())

    same(run, tmp_path)


def test_scales_have_elements_of_their_own(tmp_path):
    fine = made(gpustore, tmp_path)
    fine[...] = 1
    coarse = gpustore.open(spec_of(tmp_path, None, COARSE), create=True).result()
    coarse[...] = 2
    for library in parity.LIBRARIES:
        assert (opened(library, tmp_path).read().result() == 1).all()
        assert (opened(library, tmp_path, scale_index=1).read().result() == 2).all()


SPECS = [
    {},
    {"scale_index": 1},
    {"multiscale_metadata": {"data_type": "uint8", "num_channels": 3}},
    {"scale_metadata": {"size": [7, 5, 4]}},
    {"scale_metadata": {"resolution": [4, 4, 40], "chunk_size": [2, 3, 4]}},
    {"scale_metadata": {"chunk_size": [2, 3, 4], "sharding": None, "encoding": "png"}},
    {"scale_metadata": segmentation(8, 8, 8)},
    {"scale_metadata": {"sharding": SHARDINGS[1]}},
    {"dtype": "uint16"},
]


@each("members", SPECS)
def test_specs(members, tmp_path):
    def run(library, root):
        spec = library.Spec({**spec_of(root / "a"), **members})
        names = ("rank", "dtype", "domain", "codec", "fill_value", "dimension_units")
        found = {name: parity.outcome(partial(getattr, spec, name)) for name in names}
        return [found, spec.to_json()]

    same(run, tmp_path)


@each(
    "asked",
    [{}, {"size": None}, {"chunk_size": None}, {"sharding": {"hash": "murmurhash3_x86_128"}}],
)
def test_the_chunk_layout_of_a_spec_has_the_shards(asked):
    scale = {"size": [4096, 512, 64], "chunk_size": [64, 64, 64], "resolution": [8, 8, 8]}
    sharding = {**SHARDINGS[0], "preshift_bits": 5, "minishard_bits": 2, "shard_bits": 20}
    sharding |= {"hash": "identity", **asked.get("sharding", {})}
    scale = {**scale, **asked, "sharding": sharding, "encoding": "raw"}
    spec = {
        "driver": "neuroglancer_precomputed",
        "multiscale_metadata": {"num_channels": 2, "data_type": "uint8"},
        "scale_metadata": {name: value for name, value in scale.items() if value is not None},
    }
    layouts = [library.Spec(spec).chunk_layout.to_json() for library in parity.LIBRARIES]
    assert layouts[0] == layouts[1]
    assert any(layouts[0]["write_chunk"]["shape"][:3]) == (not asked)


def test_shards_that_the_volume_cuts_off_have_whole_chunks_in_a_spec():
    """As in the layout of the open volume; TensorStore's spec has a shape that it does not."""
    scale = {"size": [100, 70, 9], "chunk_size": [16, 16, 8], "resolution": [1, 1, 1]}
    sharding = {**SHARDINGS[0], "preshift_bits": 9, "minishard_bits": 2, "shard_bits": 2}
    scale |= {"sharding": sharding | {"hash": "identity"}, "encoding": "raw"}
    json = {"driver": "neuroglancer_precomputed", "kvstore": "memory://", "scale_metadata": scale}
    json["multiscale_metadata"] = {"num_channels": 1, "data_type": "uint8"}
    for library in parity.LIBRARIES:
        layout = library.open(json, create=True).result().chunk_layout
        assert layout.write_chunk.shape == (112, 80, 16, 1)
    assert (
        gpustore.Spec(json).chunk_layout == gpustore.open(json, create=True).result().chunk_layout
    )


@each(
    "url", ["neuroglancer-precomputed:", "neuroglancer-precomputed:a", "neuroglancer_precomputed:"]
)
def test_urls(url, tmp_path):
    def run(library, root):
        spec = library.Spec(f"file://{root}/a/|{url}")
        return spec.to_json()["kvstore"], spec.url

    check(run, tmp_path)


def test_a_directory_is_detected(tmp_path):
    made(ts, tmp_path)[...] = 3
    store = gpustore.open(tmp_path).result()
    assert store.spec().to_json()["driver"] == "neuroglancer_precomputed"
    assert (store.read().result() == 3).all()
    again = gpustore.open(store.url).result()
    assert again.domain == store.domain


def test_bounds_are_fixed(tmp_path):
    def run(library, root):
        return made(library, root / "a").resize(exclusive_max=[8, 5, 4, 2]).result()

    same(run, tmp_path)


DAMAGE = {
    "raw": ({}, {}, [b"", bytes(11), bytes(49)]),
    "segmentation": (
        {"data_type": "uint32", "num_channels": 1},
        segmentation(2, 2, 2),
        [b"", b"\1", b"\1\0\0\0", b"\xff\0\0\0" + bytes(40), b"\1\0\0\0" + b"\xff" * 60],
    ),
    "png": (
        {"data_type": "uint8", "num_channels": 1},
        {"encoding": "png"},
        [b"", b"\x89PNG", bytes(60)],
    ),
    "jpeg": (
        {"data_type": "uint8", "num_channels": 1},
        {"encoding": "jpeg"},
        [b"", b"\xff\xd8\xff"],
    ),
}


@each("name", DAMAGE)
def test_damaged_chunks(name, tmp_path):
    volume, scale, damaged = DAMAGE[name]
    store = made(gpustore, tmp_path, volume, scale)
    store[...] = values(store)
    place = tmp_path / "4_4_40/10-13_-5--3_0-2"
    whole = place.read_bytes()
    for value in (*damaged, whole[:-1], whole[: len(whole) // 2]):
        place.write_bytes(value)
        if name == "jpeg" and value == whole[:-1]:
            continue  # The end of the picture is there.
        with pytest.raises(gpustore.CorruptChunkError) as caught:
            store[10, -5, 0].read().result()
        assert caught.value.key.endswith("10-13_-5--3_0-2")


@each("encoding", ["png", "jpeg"])
def test_images_of_another_size_are_not_decoded(encoding, tmp_path):
    volume = {"data_type": "uint8", "num_channels": 1}
    large = made(ts, tmp_path / "large", volume, {"encoding": encoding, "chunk_size": [7, 5, 4]})
    large[...] = 1
    store = made(gpustore, tmp_path / "a", volume, {"encoding": encoding})
    (tmp_path / "a/4_4_40").mkdir()
    value = (tmp_path / "large/4_4_40/10-17_-5-0_0-4").read_bytes()
    (tmp_path / "a/4_4_40/10-13_-5--3_0-2").write_bytes(value)
    with pytest.raises(gpustore.CorruptChunkError, match="pixels"):
        store[10, -5, 0].read().result()


def test_damaged_shards(tmp_path):
    store = made(gpustore, tmp_path, {"num_channels": 1}, {"sharding": SHARDINGS[3]})
    store[...] = values(store)
    shard = tmp_path / "4_4_40/0.shard"
    whole = shard.read_bytes()
    begin, end = (16 + int(n) for n in np.frombuffer(whole[:16], "<u8"))
    assert end == len(whole)
    index = whole[begin:end]
    for value in (
        *(whole[:5], whole[:-9], b"\xff" * 8 + whole[8:], bytes(8) + whole[8:]),
        *(whole[:begin] + bytes(len(index)), whole[:begin] + index[:-1] + b"\xff"),
    ):
        shard.write_bytes(value)
        again = opened(gpustore, tmp_path)
        with pytest.raises(gpustore.GpustoreError) as caught:
            again.read().result()
        assert "0.shard" in str(caught.value)
        with pytest.raises(gpustore.GpustoreError, match=r"0\.shard"):
            again[10, -5, 0] = 1
    shard.write_bytes(whole)
    assert np.array_equal(opened(gpustore, tmp_path).read().result(), values(store))


@each("sharding", [None, SHARDINGS[1], SHARDINGS[-1]])
def test_devices_decode_raw_chunks_and_gzip(sharding, tmp_path):
    store = made(gpustore, tmp_path, {}, {"sharding": sharding})
    data = values(store)
    store[...] = data
    with emulated() as device:
        read = gpustore.open(store.spec(), device=device.name).result().read()
        assert np.array_equal(on_host(device, read.result()), data)
        assert not read.statistics["host_fallbacks"]
        del read


def test_many_crops_explanations_and_statistics(tmp_path):
    store = made(gpustore, tmp_path)
    data = values(store)
    store[10:16] = data[:6]
    starts = [[10, -5, 0, 0], [12, -4, 1, 1]]
    crops = store.read_many(starts, (3, 2, 2, 1)).result()
    assert np.array_equal(crops[1], data[2:5, 1:3, 1:3, 1:2])
    assert "chunks" in str(store.explain())
    assert store.storage_statistics(query_not_stored=True).result().not_stored is False


def test_transactions(tmp_path):
    store = made(gpustore, tmp_path)
    data = values(store)
    transaction = gpustore.Transaction()
    staged = store.with_transaction(transaction)
    staged[11:16, -4:] = data[1:6, 1:]
    assert np.array_equal(staged[11:16, -4:].read().result(), data[1:6, 1:])
    assert not store.read().result().any()
    transaction.commit_sync()
    found = opened(ts, tmp_path).read().result()
    assert np.array_equal(found[1:6, 1:], data[1:6, 1:])
    assert found.sum() == data[1:6, 1:].sum()


def test_copies_become_zarr(tmp_path):
    store = made(ts, tmp_path / "a", {"num_channels": 1})
    data = values(store)
    store[...] = data
    copy = gpustore.copy(spec_of(tmp_path / "a"), tmp_path / "a.zarr")
    assert np.array_equal(copy.read().result(), data)
    assert copy.domain.labels == ("x", "y", "z", "channel")
    assert [str(unit) for unit in copy.dimension_units] == ["4 nm", "4 nm", "40 nm", "None"]
    assert copy.chunks == (3, 2, 2, 1)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    store = made(gpustore, tmp_path, {"data_type": "uint8", "num_channels": 1}, {"encoding": "png"})
    store[...] = 1
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(gpustore.UnsupportedError, match=r"gpustore\[image\]"):
        store.read().result()
