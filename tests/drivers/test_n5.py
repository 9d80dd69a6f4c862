"""The n5 driver: arrays, metadata and errors as TensorStore's, in both directions."""

import gzip
import json
import struct
from functools import partial

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.metadata.n5 import DATA_TYPES
from tests.drivers import parity
from tests.drivers.parity import check, files
from tests.matrix import each
from tests.on_device import emulated, on_host

RAW = {"type": "raw"}
BASE = {"dimensions": [5, 7], "blockSize": [2, 3], "dataType": "uint16", "compression": RAW}
created = partial(parity.created, "n5")


def blosc(cname, shuffle=1, **more):
    return {"type": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, **more}


COMPRESSIONS = {
    "raw": RAW,
    "gzip": {"type": "gzip"},
    "gzip 0": {"type": "gzip", "level": 0},
    "gzip 9": {"type": "gzip", "level": 9.0},
    "zlib": {"type": "gzip", "level": 3, "useZlib": True},
    "bzip2": {"type": "bzip2"},
    "bzip2 1": {"type": "bzip2", "blockSize": 1},
    "xz": {"type": "xz"},
    "xz 0": {"type": "xz", "preset": 0},
    "zstd": {"type": "zstd"},
    "zstd -5": {"type": "zstd", "level": -5},
    **{cname: blosc(cname) for cname in ("blosclz", "lz4", "lz4hc", "snappy", "zlib ", "zstd ")},
    "lz4 bits": blosc("lz4", 2),
    "lz4 whole": blosc("lz4", 0, blocksize=64),
}
for _value in COMPRESSIONS.values():
    if "cname" in _value:
        _value["cname"] = _value["cname"].strip()


def values(shape, dtype):
    """Elements whose bytes all differ."""
    count = int(np.prod(shape))
    return (np.arange(1, count + 1) * 257).astype(dtype).reshape(shape)


def opened(library, path, **metadata):
    kvstore = {"driver": "file", "path": f"{path}/", "file_io_sync": False}
    spec = {"driver": "n5", "kvstore": kvstore}
    if metadata:
        return library.open({**spec, "metadata": metadata}, create=True).result()
    return library.open(spec).result()


@pytest.mark.matrix
@each("dtype", DATA_TYPES)
@each("compression", COMPRESSIONS)
@each("rank", [1, 3])
def test_each_library_reads_what_the_other_writes(dtype, compression, rank, tmp_path):
    shape, block = (13, 6, 5)[:rank], (4, 6, 2)[:rank]
    metadata = {"dimensions": shape, "blockSize": block, "dataType": dtype}
    data = values(shape, dtype)
    for writer, reader in (parity.LIBRARIES, parity.LIBRARIES[::-1]):
        path = tmp_path / writer.__name__
        compressed = {**metadata, "compression": COMPRESSIONS[compression]}
        opened(writer, path, **compressed)[...] = data
        found = opened(reader, path)
        assert np.array_equal(found.read().result(), data)
        part = (slice(11, 2, -3),) + (slice(1, 4),) * (rank - 1)
        assert np.array_equal(found[part].read().result(), data[part])
        found[1:6] = data[:5]
        again = opened(writer, path).read().result()
        assert np.array_equal(again, np.concatenate([data[:1], data[:5], data[6:]]))
    one, other = (files(tmp_path / library.__name__) for library in parity.LIBRARIES)
    assert one.keys() == other.keys()
    assert one["attributes.json"] == other["attributes.json"]


METADATA = {
    "base": {},
    "axes": {"axes": ["x", "y"]},
    "one axis": {"axes": ["x", ""]},
    "no names": {"axes": ["", ""]},
    "axes twice": {"axes": ["x", "x"]},
    "axes of another rank": {"axes": ["x"]},
    "units": {"units": ["nm", ""]},
    "units and resolution": {"units": ["nm", "um"], "resolution": [4, 0.5]},
    "resolution": {"resolution": [1, 2]},
    "units null": {"units": None},
    "a unit null": {"units": [None, "nm"]},
    "resolution of text": {"resolution": ["a", 1]},
    "bool": {"dataType": "bool"},
    "float16": {"dataType": "float16"},
    "no type": {"dataType": "nope"},
    "blocks of another rank": {"blockSize": [2]},
    "blocks of none": {"blockSize": [2, 0]},
    "blocks of 2 TiB": {"blockSize": [2**20, 2**20]},
    "negative": {"dimensions": [-1, 2]},
    "rank 0": {"dimensions": [], "blockSize": []},
    "floats": {"dimensions": [5.0, 7]},
    "attributes": {"foo": {"a": [1, None]}, "n5": "2.0.0"},
    "compression null": {"compression": None},
    "compression text": {"compression": "raw"},
    "no type of compression": {"compression": {}},
    "lz4": {"compression": {"type": "lz4"}},
    "zstd 23": {"compression": {"type": "zstd", "level": 23}},
    "gzip 10": {"compression": {"type": "gzip", "level": 10}},
    "gzip and more": {"compression": {"type": "gzip", "foo": 1}},
    "bzip2 0": {"compression": {"type": "bzip2", "blockSize": 0}},
    "xz 10": {"compression": {"type": "xz", "preset": 10}},
    "no cname": {"compression": {"type": "blosc"}},
    "other cname": {"compression": blosc("nope")},
    "shuffle -1": {"compression": blosc("lz4", -1)},
    "shuffle 3": {"compression": blosc("lz4", 3)},
    "blocksize -1": {"compression": blosc("lz4", 1, blocksize=-1)},
}


@each("name", METADATA)
def test_metadata(name, tmp_path):
    check(created({**BASE, **METADATA[name]}, {}), tmp_path)


@each("missing", BASE)
def test_missing_members(missing, tmp_path):
    metadata = {name: value for name, value in BASE.items() if name != missing}
    check(created(metadata, {}), tmp_path)


def codec(compression):
    return lambda library: library.CodecSpec({"driver": "n5", "compression": compression})


def layout(**constraints):
    return lambda library: library.ChunkLayout(**constraints)


def domain(**bounds):
    return lambda library: library.IndexDomain(**bounds)


KEYWORDS = {
    "fill value": {"fill_value": 0},
    "units": {"dimension_units": ["4nm", None]},
    "unit of the second": {"dimension_units": [None, "5um"]},
    "codec": {"codec": codec({"type": "gzip", "level": 2})},
    "codec of zarr": {"codec": lambda library: library.CodecSpec({"driver": "zarr3"})},
    "order": {"chunk_layout": layout(inner_order=[0, 1])},
    "soft order": {"chunk_layout": layout(inner_order_soft_constraint=[0, 1])},
    "origin": {"chunk_layout": layout(grid_origin=[1, 0])},
    "chunks": {"chunk_layout": layout(chunk_shape=[3, 3])},
    "elements": {"chunk_layout": layout(chunk_elements=10)},
    "chunks of the codec": {
        "chunk_layout": lambda library: library.ChunkLayout(
            codec_chunk=library.ChunkLayout.Grid(shape=[1, 1])
        )
    },
    "labels": {"domain": domain(shape=[5, 7], labels=["x", "y"])},
    "other origin": {"domain": domain(inclusive_min=[1, 0], shape=[5, 7])},
    "other type": {"dtype": "int8"},
    "bool": {"dtype": "bool"},
    "shape": {"shape": [5, 7]},
    "rank": {"rank": 2},
}


def check_kinds(function, tmp_path):
    """Check that both libraries return the same, or raise errors of the same kind."""
    ours, theirs = parity.both(function, tmp_path)
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
    else:
        assert set(theirs[0]) <= set(ours[0])


@each("name", KEYWORDS)
@each("given", [(), ("dimensions", "dataType"), tuple(BASE)])
def test_keywords_of_new_arrays(name, given, tmp_path):
    """TensorStore names contradictions when it creates; its spec shows labels in one place."""
    metadata = {member: BASE[member] for member in given}

    def run(library, root):
        found = created(metadata, KEYWORDS[name])(library, root)
        return found if name != "labels" else found["files"]

    check_kinds(run, tmp_path)


STORED = {
    **{**BASE, "axes": ["x", ""], "units": ["nm", "um"], "resolution": [2, 3]},
    "foo": {"a": 1, "b": 2},
}
ASKED = [
    *({name: value} for name, value in STORED.items()),
    *({"dimensions": [5, 8]}, {"axes": ["x", "y"]}, {"blockSize": [2, 4]}, {"dataType": "int8"}),
    *({"compression": {"type": "gzip"}}, {"units": ["nm", "nm"]}, {"resolution": [1, 2]}),
    *({"foo": {"a": 1}}, {"bar": 3}, {"blockSize": [2, 4, 5]}),
]


def reopened(metadata, keywords):
    def run(library, root):
        opened(library, root / "a", **STORED)
        spec = {"driver": "n5", "kvstore": f"file://{root}/a"}
        given = {name: v(library) if callable(v) else v for name, v in keywords.items()}
        constraints = {"metadata": metadata} if metadata else {}
        return library.open({**spec, **constraints}, **given).result().domain

    return run


@each("metadata", ASKED)
def test_constraints_on_stored_metadata(metadata, tmp_path):
    check(reopened(metadata, {}), tmp_path)


@each("name", [*KEYWORDS, "equal units", "other units"])
def test_keywords_of_stored_arrays(name, tmp_path):
    units = {"equal units": ["2nm", "3um"], "other units": ["3nm", None]}
    keywords = {"dimension_units": units[name]} if name in units else KEYWORDS[name]
    check_kinds(reopened({}, keywords), tmp_path)


DOCUMENTS = {
    "no JSON": "{",
    "no object": "[]",
    "group": '{"n5": "2.0.0"}',
    **{f"no {name}": json.dumps({n: v for n, v in BASE.items() if n != name}) for name in BASE},
    "lz4": json.dumps({**BASE, "compression": {"type": "lz4", "blockSize": 65536}}),
    "complete": json.dumps(STORED),
    "of Java": json.dumps({**BASE, "compression": {"type": "gzip", "level": -1}}),
}


@each("name", DOCUMENTS)
def test_stored_documents(name, tmp_path):
    def run(library, root):
        (root / "a").mkdir()
        (root / "a/attributes.json").write_text(DOCUMENTS[name])
        return parity.description(opened(library, root / "a"))

    check(run, tmp_path)


@each("metadata", [BASE, STORED, {"dataType": "int8", "axes": ["x", "y"], "units": ["nm", ""]}, {}])
def test_specs(metadata, tmp_path):
    def run(library, root):
        spec = library.Spec({"driver": "n5", "kvstore": f"file://{root}/a", "metadata": metadata})
        names = ("rank", "dtype", "domain", "chunk_layout", "codec", "fill_value", "schema")
        found = {name: parity.outcome(partial(getattr, spec, name)) for name in names}
        found["units"] = parity.outcome(lambda: spec.dimension_units)
        found["json"] = spec.to_json()
        return found

    check(run, tmp_path)


@each("members", [{"field": "a"}, {"open_as_void": True}, {"metadata_key": "a"}, {"foo": 1}])
def test_members_of_other_drivers_are_refused(members, tmp_path):
    check(lambda library, root: library.Spec({"driver": "n5", **members}), tmp_path)


@each("url", ["|n5:", "|n5:b", "|n5:b/c/", "|n5:b?x", "|n5:b#x"])
def test_urls(url, tmp_path):
    def run(library, root):
        spec = library.Spec(f"file://{root}/a/{url}")
        return spec.to_json(), spec.url

    check(run, tmp_path)


@each(
    "spec",
    [{"driver": "n5"}, {"driver": "n5", "compression": blosc("lz4")}, {"driver": "n5", "x": 1}],
)
def test_codec_specs(spec, tmp_path):
    check(lambda library, root: library.CodecSpec(spec), tmp_path)


def test_zeros_are_not_stored(tmp_path):
    def run(library, root):
        found = []
        store = opened(library, root / "a", **BASE)
        for index, value in ((..., 0), (..., 3), ((slice(2), slice(3)), 0), ((4, 6), 0)):
            store[index] = value
            found.append(sorted(files(root)))
        kept = library.open(
            {**store.spec().to_json(), "store_data_equal_to_fill_value": True}
        ).result()
        kept[...] = 0
        return found, sorted(files(root))

    check(run, tmp_path)


def test_resizing(tmp_path):
    def run(library, root):
        store = opened(library, root / "a", **STORED)
        store[...] = values((5, 7), "uint16")
        smaller = store.resize(exclusive_max=[2, 5]).result()
        found = [sorted(files(root)), smaller.read().result().tolist()]
        larger = smaller.resize(exclusive_max=[4, 7]).result()
        found += [larger.read().result().tolist(), (root / "a/attributes.json").read_text()]
        return found, store.resolve().result().domain

    check(run, tmp_path)


def test_changed_attributes_are_of_the_same_array_and_another_block_size_is_not(tmp_path):
    path = tmp_path / "attributes.json"
    store = opened(gpustore, tmp_path, **STORED)
    path.write_text(json.dumps({**STORED, "axes": ["a", "b"], "bar": 1, "dimensions": [6, 7]}))
    assert store.resolve().result().shape == (6, 7)
    path.write_text(json.dumps({**STORED, "blockSize": [3, 3]}))
    with pytest.raises(gpustore.MismatchError, match="Updated N5 metadata"):
        store.resolve().result()


# --------------------------------------------------------------------------- blocks


def block(shape, elements, mode=0, compress=bytes):
    header = struct.pack(f">HH{len(shape)}I", mode, len(shape), *shape)
    return header + compress(elements.T.astype(elements.dtype.newbyteorder(">")).tobytes())


@each("name", ["raw", "gzip", "zlib", "lz4", "zstd", "xz", "bzip2"])
def test_blocks_cut_off_at_the_edges(name, tmp_path):
    """As Java's writers make them: TensorStore writes whole blocks, and reads both."""
    compression = COMPRESSIONS[name]
    data = values((5, 7), "uint16")
    for i in range(0, 5, 2):
        for j in range(0, 7, 3):
            part = data[i : i + 2, j : j + 3]
            sizes = {"dimensions": part.shape, "blockSize": part.shape}
            small = opened(ts, tmp_path / "small", **{**BASE, **sizes, "compression": compression})
            small[...] = part
            path = tmp_path / f"a/{i // 2}/{j // 3}"
            path.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "small/0/0").rename(path)
            (tmp_path / "small/attributes.json").unlink()
    document = json.dumps({**BASE, "compression": compression})
    (tmp_path / "a/attributes.json").write_text(document)
    for library in parity.LIBRARIES:
        assert np.array_equal(opened(library, tmp_path / "a").read().result(), data)
    ours = opened(gpustore, tmp_path / "a")
    assert np.array_equal(ours[4:, 5:].read().result(), data[4:, 5:])
    larger = ours.resize(exclusive_max=[6, 9]).result()
    assert np.array_equal(larger.read().result(), np.pad(data, ((0, 1), (0, 2))))
    larger[4, 6] = 1
    theirs = opened(ts, tmp_path / "a").read().result()
    assert np.array_equal(theirs, larger.read().result())
    assert theirs[4, 6] == 1


ELEMENTS = values((2, 3), "uint16")
BLOCKS = {
    "empty": b"",
    "short header": b"\0\0",
    "varlength": block((2, 3), ELEMENTS, mode=1),
    "mode 2": block((2, 3), ELEMENTS, mode=2),
    "rank 3": block((2, 3, 1), ELEMENTS.reshape(2, 3, 1)),
    "too large": block((3, 3), values((3, 3), "uint16")),
    "much too large": block((2**32 - 1, 2**32 - 1), ELEMENTS),
    "truncated": block((2, 3), ELEMENTS)[:-1],
    "too long": block((2, 3), ELEMENTS) + b"\0",
    "at the edge": block((1, 2), ELEMENTS[:1, :2]),
    "at the edge, truncated": block((1, 2), ELEMENTS[:1, :2])[:-1],
    "at the edge, too long": block((1, 2), ELEMENTS[:1, :2]) + b"\0",
    "no elements": block((0, 3), ELEMENTS[:0]),
    "whole": block((2, 3), ELEMENTS),
}


def stored(value, compression):
    def run(library, root):
        store = opened(library, root / "a", **{**BASE, "compression": compression})
        (root / "a/0").mkdir()
        (root / "a/0/0").write_bytes(value)
        return store[:2, :3].read().result()

    return run


@each("name", BLOCKS)
def test_damaged_blocks(name, tmp_path):
    check_kinds(stored(BLOCKS[name], RAW), tmp_path)


@each("name", BLOCKS)
def test_damaged_compressed_blocks(name, tmp_path):
    value = BLOCKS[name]
    nbytes = 4 + 4 * int.from_bytes(value[2:4], "big")
    whole = value[:nbytes] + gzip.compress(value[nbytes:])
    for damaged in (whole, whole[:-1]):
        root = tmp_path / str(len(damaged))
        root.mkdir()
        check_kinds(stored(damaged, {"type": "gzip"}), root)


def test_a_block_that_decodes_to_much_more_is_not_decoded(tmp_path):
    compression = {"type": "gzip"}
    store = opened(gpustore, tmp_path, **{**BASE, "compression": compression})
    (tmp_path / "0").mkdir()
    header = block((2, 3), ELEMENTS)[:12]
    (tmp_path / "0/0").write_bytes(header + gzip.compress(bytes(1 << 22)))
    with pytest.raises(gpustore.CorruptChunkError) as caught:
        store[0, 0].read().result()
    assert caught.value.key.endswith("0/0")


# --------------------------------------------------------------------------- on a device


@each("name", ["raw", "gzip", "zlib", "lz4", "zstd", "lz4 bits", "bzip2"])
def test_devices_decode_whole_blocks(name, tmp_path):
    shape, size = (33, 20), (8, 16)
    data = values(shape, "uint32")
    metadata = {"dimensions": shape, "blockSize": size, "dataType": "uint32"}
    store = opened(gpustore, tmp_path, **metadata, compression=COMPRESSIONS[name])
    store[...] = data
    short = opened(
        ts,
        tmp_path / "b",
        **{**metadata, "blockSize": (1, 4), "dimensions": (1, 4)},
        compression=COMPRESSIONS[name],
    )
    short[...] = data[32:, 16:]
    (tmp_path / "b/0/0").rename(tmp_path / "4/1")
    with emulated() as device:
        read = gpustore.open(store.spec(), device=device.name).result().read()
        assert np.array_equal(on_host(device, read.result()), data)
        assert read.statistics["host_fallbacks"] == (10 if name == "bzip2" else 1)
        del read


def test_explain_tells_who_decodes(tmp_path):
    store = opened(gpustore, tmp_path, **{**BASE, "compression": COMPRESSIONS["gzip"]})
    assert "n5" in str(store.explain())


# --------------------------------------------------------------------------- around


def test_a_directory_is_detected(tmp_path):
    data = values((5, 7), "uint16")
    opened(ts, tmp_path / "x.n5", **BASE)[...] = data
    store = gpustore.open(tmp_path / "x.n5").result()
    assert store.spec().to_json()["driver"] == "n5"
    assert np.array_equal(store.read().result(), data)
    assert np.array_equal(gpustore.open(store.url).result().read().result(), data)


def test_attributes(tmp_path):
    store = opened(gpustore, tmp_path, **STORED)
    assert store.attrs.asdict() == {"foo": {"a": 1, "b": 2}}
    store.attrs["bar"] = 3
    del store.attrs["foo"]
    again = opened(gpustore, tmp_path)
    assert again.attrs.asdict() == store.attrs.asdict() == {"bar": 3}
    assert again.domain.labels == ("x", "")
    with pytest.raises(gpustore.MetadataError, match="is no attribute"):
        store.attrs["axes"] = 1
    assert "foo" not in store.spec().to_json()["metadata"]
    opened(ts, tmp_path)


@each(
    ("codec", "compression"),
    [
        ("none", RAW),
        ("zstd:5", {"type": "zstd", "level": 5}),
        ("gzip:3", {"type": "gzip", "level": 3, "useZlib": False}),
        ("blosc-zstd:2", {**blosc("zstd", 2), "clevel": 2, "blocksize": 0}),
        ({"type": "xz"}, {"type": "xz", "preset": 6}),
    ],
)
def test_arrays_of_short_words(codec, compression):
    data = values((5, 7), "uint8")
    words = {"chunks": 3, "dims": ("y", "x"), "units": ("1um", "2um"), "attributes": {"a": 1}}
    store = gpustore.create_array("memory://|n5:", data=data, codec=codec, **words).result()
    assert store.spec().to_json()["metadata"] == {
        **{"dimensions": [5, 7], "blockSize": [3, 3], "dataType": "uint8", "axes": ["y", "x"]},
        **{"units": ["um", "um"], "resolution": [1, 2], "compression": compression, "a": 1},
    }
    assert np.array_equal(store.read().result(), data)


def test_copies_become_zarr(tmp_path):
    data = values((5, 7), "uint16")
    opened(ts, tmp_path / "x.n5", **{**STORED, "axes": ["x", "y"]})[...] = data
    made = gpustore.copy(tmp_path / "x.n5", tmp_path / "x.zarr")
    assert np.array_equal(made.read().result(), data)
    assert made.domain.labels == ("x", "y")
    assert [str(unit) for unit in made.dimension_units] == ["2 nm", "3 um"]
    assert made.chunks == (2, 3)
    assert made.attrs["foo"] == {"a": 1, "b": 2}
    assert made.spec().to_json()["driver"] == "zarr3"


@each("name", ["raw", "gzip", "zstd", "lz4"])
@each("content", ["encoded", "decoded"])
def test_blocks_in_the_cache_of_a_device(name, content, tmp_path):
    """Headers of encoded ones are compared there: their bytes are no longer in host memory."""
    data = values((33, 20), "uint32")
    metadata = {"dimensions": [33, 20], "blockSize": [8, 16], "dataType": "uint32"}
    store = opened(gpustore, tmp_path, **metadata, compression=COMPRESSIONS[name])
    store[...] = data
    spec = {**store.spec().to_json(), "recheck_cached_data": False}
    with emulated() as device:
        pool = {"device_cache_pool": {"total_bytes_limit": 1 << 24, "content": content}}
        found = gpustore.open(spec, context=pool, device=device.name).result()
        for fetched in (10, 0):
            read = found.read()
            assert np.array_equal(on_host(device, read.result()), data)
            assert read.statistics["host_fallbacks"] == 0
            assert read.statistics["key_reads"] == fetched
            del read
        del found


@pytest.mark.skipif(not gpustore.native_core().in_use, reason="the native core was not compiled")
@each("name", ["raw", "gzip", "zlib", "zstd", "lz4", "blosclz"])
def test_the_native_core_reads_and_writes_blocks(name, tmp_path, monkeypatch):
    """It writes what Python writes, and leaves blocks cut off at the edge to Python."""
    data = values((33, 20), "uint32")
    metadata = {"dimensions": [33, 20], "blockSize": [8, 16], "dataType": "uint32"}
    compression = COMPRESSIONS[name]
    store = opened(gpustore, tmp_path / "a", **metadata, compression=compression)
    assert store._driver.array.native is not None
    assert store._driver.array.writes_files_natively or name == "zlib"
    store[...] = data
    stored = files(tmp_path / "a")
    small = {"dimensions": [1, 4], "blockSize": [1, 4], "dataType": "uint32"}
    short = opened(ts, tmp_path / "b", **small, compression=compression)
    short[...] = data[32:, 16:]
    (tmp_path / "b/0/0").rename(tmp_path / "a/4/1")
    assert np.array_equal(store.read().result(), data)
    assert np.array_equal(store[30:, 10:].read().result(), data[30:, 10:])
    assert np.array_equal(opened(ts, tmp_path / "a").read().result(), data)
    array = store._driver.array
    for cell, value in stored.items():
        if cell != "attributes.json":
            elements = bytes(array.chain.decode(value))
            assert bytes(array.chain.encode(elements)) == value
