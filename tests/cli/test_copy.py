"""``gpustore copy``: what it makes, as gpustore, TensorStore and zarr-python read it."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from gpustore.cli.main import main
from tests.kvstores.http.http_server import HttpServer

SHAPE = (9, 14, 5)
CHUNK = [4, 5, 2]


def create(path, driver, metadata):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return tensorstore.open({**spec, "metadata": metadata}, create=True).result()


def metadata2(dtype="<u2", shape=SHAPE, chunks=CHUNK, **members):
    members = {"compressor": None, "fill_value": 0, **members}
    return {"shape": list(shape), "chunks": list(chunks), "dtype": dtype, **members}


def metadata3(dtype="uint16", shape=SHAPE, chunks=CHUNK, codecs=(), **members):
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
    members = {"chunk_grid": grid, "codecs": list(codecs), **members}
    return {"shape": list(shape), "data_type": dtype, **members}


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def sharded(*codecs, chunk=(2, 5, 1), location="end"):
    return codec(
        "sharding_indexed",
        chunk_shape=list(chunk),
        codecs=list(codecs),
        index_location=location,
    )


BLOSC2 = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}
BIG = codec("bytes", endian="big")
LITTLE = codec("bytes", endian="little")
CRC = {"name": "crc32c"}

SOURCES = {
    "v2 blosc": ("zarr", metadata2(compressor=BLOSC2)),
    "v2 big F bz2": (
        "zarr",
        metadata2(">u2", order="F", compressor={"id": "bz2", "level": 1}, dimension_separator="/"),
    ),
    "v2 zlib no fill": (
        "zarr",
        metadata2(compressor={"id": "zlib", "level": 1}, fill_value=None),
    ),
    "v3 raw": ("zarr3", metadata3(codecs=[LITTLE])),
    "v3 transposed gzip": (
        "zarr3",
        metadata3(
            codecs=[codec("transpose", order=[2, 0, 1]), BIG, codec("gzip", level=1)],
            chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
            fill_value=7,
        ),
    ),
    "v3 shards": (
        "zarr3",
        metadata3(codecs=[sharded(LITTLE, codec("zstd", level=1), CRC, location="start")]),
    ),
}
OPTIONS = {
    "as it is": "",
    "to v2": "--zarr-format 2",
    "to v3": "--zarr-format 3",
    "chunks": "--chunks 3,14,4",
    "v2 blosc chunks": "--zarr-format 2 --codec blosc-zstd:2 --chunks 100,3,1",
    "v2 gzip": "--zarr-format 2 --codec gzip:1",
    "shards": "--zarr-format 3 --chunks 2,3,5 --shards 6,9,5 --codec zstd --checksum",
    "shards of the same chunks": "--zarr-format 3 --shards 8,10,4",
    "none": "--codec none",
    "blosc, little memory": "--codec blosc:1 --memory 1",
}


def values(shape=SHAPE, dtype=np.uint16):
    """Elements, some chunks of which hold only zero."""
    array = np.random.default_rng(0).integers(0, 1 << 16, shape).astype(dtype)
    array[:4, :5, :2] = 0
    return array


def read_by_all(path):
    """The array as each library reads it, without being told anything but where it is."""
    driver = "zarr" if (path / ".zarray").exists() else "zarr3"
    kvstore = {"driver": "file", "path": f"{path}/"}
    return {
        "gpustore": gpustore.open(str(path)).result().read().result(),
        "tensorstore": tensorstore.open({"driver": driver, "kvstore": kvstore}).result()[...],
        "zarr": zarr.open_array(str(path), mode="r")[...],
    }


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for number, (driver, metadata) in enumerate(SOURCES.values()):
        create(folder / str(number), driver, metadata)[...] = values()
    return {name: folder / str(number) for number, name in enumerate(SOURCES)}


@pytest.fixture
def copied(gpustore_command, tmp_path):
    """Copies without complaint; gives the path of the copy and what was printed."""

    def copy(source, options=""):
        path = tmp_path / "copy"
        code, out, err = gpustore_command("copy", source, path, *options.split())
        assert (code, err) == (0, "")
        return path, out

    return copy


def stored_nbytes(path):
    files = (p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json")
    return sum(p.stat().st_size for p in files if p.name != ".zarray")


# --------------------------------------------------------------------------- what is copied


@pytest.mark.matrix
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_copy_holds_the_same_elements(copied, sources, source, options):
    gpustore.statistics.reset()
    path, _ = copied(sources[source], OPTIONS[options])
    # Each value was written once: no chunk was begun by one region and finished by another.
    assert gpustore.statistics["bytes_stored"] == stored_nbytes(path)
    for library, found in read_by_all(path).items():
        np.testing.assert_array_equal(found, values(), library, strict=library == "gpustore")
    spec = gpustore.open(str(path)).result().spec().to_json()
    if "v2" in options or "v3" in options or "shards" in options:
        assert spec["metadata"]["zarr_format"] == (2 if "v2" in options else 3)


@pytest.mark.parametrize("source", SOURCES)
def test_without_options_metadata_stay_as_they_are(copied, sources, source):
    path, _ = copied(sources[source])
    before, after = (gpustore.open(str(p)).result() for p in (sources[source], path))
    assert after.spec().to_json()["metadata"] == before.spec().to_json()["metadata"]


def test_options_determine_the_target(copied, sources):
    path, _ = copied(sources["v3 shards"], "--chunks 2,3,5 --shards 6,9,5 --codec gzip:2")
    found = json.loads((path / "zarr.json").read_text())
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [6, 9, 5]
    (sharding,) = found["codecs"]
    assert sharding["configuration"]["chunk_shape"] == [2, 3, 5]
    assert sharding["configuration"]["index_location"] == "start"
    names = [one["name"] for one in sharding["configuration"]["codecs"]]
    assert names == ["bytes", "gzip", "crc32c"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--chunks 2,5,1", ["bytes", "zstd", "crc32c"]),
        ("--chunks 2,5,1 --no-checksum", ["bytes", "zstd"]),
        ("--chunks 2,5,1 --codec none", ["bytes", "crc32c"]),
    ],
)
def test_chunks_without_shards_take_them_away(copied, sources, options, expected):
    path, _ = copied(sources["v3 shards"], options)
    found = json.loads((path / "zarr.json").read_text())
    assert [one["name"] for one in found["codecs"]] == expected


def test_each_chunk_is_decoded_once_if_there_is_memory(copied, sources):
    gpustore.statistics.reset()
    copied(sources["v2 blosc"], "--chunks 3,7,5")
    assert gpustore.statistics["bytes_fetched"] == stored_nbytes(sources["v2 blosc"])


FLOATS = np.array([0.5, -0.0, np.inf, np.nan, 3])
DTYPES = {
    "bool": np.array([True, False, True, False, True]),
    "int8": np.arange(-2, 3, dtype="i1"),
    "uint64": np.arange(5, dtype="u8") << np.uint64(60),
    "float16": FLOATS.astype("f2"),
    "float64": FLOATS,
    "bfloat16": FLOATS.astype(ml_dtypes.bfloat16),
    "complex64": FLOATS.astype("c8"),
    "complex128": np.array([1 + 2j, -0.0, 3j, 4, 5]),
    "int4": np.arange(-2, 3).astype(ml_dtypes.int4),
    "float8_e4m3fn": FLOATS.astype(ml_dtypes.float8_e4m3fn),
}


def make_with_gpustore(path, zarr_format, array, chunk, fill, dtype):
    store = gpustore.open(
        f"file://{path}/|zarr{zarr_format}:",
        create=True,
        dtype=dtype,
        shape=array.shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=chunk),
        fill_value=fill,
    ).result()
    store.write(array).result()


def bits(array):
    """The bytes of an array; libraries differ in the four bits that an int4 has no use for."""
    array = np.asarray(array)
    return (array.astype("i1") if array.dtype == ml_dtypes.int4 else array).tobytes()


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_data_type_and_fill_value_go_from_format_to_format(copied, tmp_path, before, after, dtype):
    array = DTYPES[dtype]
    make_with_gpustore(tmp_path / "a", before, array, [2], array[1], dtype)
    path, _ = copied(tmp_path / "a", f"--zarr-format {after}")
    found = gpustore.open(str(path)).result()
    assert found.dtype.name == dtype
    assert bits(found.fill_value) == bits(array[1])
    assert bits(found.read().result()) == bits(array)
    kvstore = {"driver": "file", "path": f"{path}/"}
    peer = tensorstore.open({"driver": f"zarr{after}", "kvstore": kvstore}).result()
    assert bits(peer.fill_value) == bits(array[1])
    assert bits(peer.read().result()) == bits(array)


def test_a_data_type_that_only_some_read_in_zarr2_is_said(copied, tmp_path):
    make_with_gpustore(tmp_path / "a", 3, DTYPES["int4"], [2], 1, "int4")
    _, out = copied(tmp_path / "a", "--zarr-format 2")
    assert "note: int4 is no data type of the Zarr v2 specification" in out
    make_with_gpustore(tmp_path / "b", 3, DTYPES["complex64"], [2], 1, "complex64")
    _, out = copied(tmp_path / "b", "--zarr-format 2 --overwrite")
    assert "note:" not in out


def test_the_bits_of_a_nan_stay(copied, tmp_path):
    nan = "0x7fc12345"
    store = create(tmp_path / "a", "zarr3", metadata3("float32", [6], [2], fill_value=nan))
    store[:2] = 1
    path, _ = copied(tmp_path / "a")
    assert json.loads((path / "zarr.json").read_text())["fill_value"] == nan
    assert len(list(path.rglob("*"))) == 3  # zarr.json, c, c/0
    bits = gpustore.open(str(path)).result().read().result().view("u4")
    assert [hex(n) for n in bits[2:]] == [nan] * 4


@pytest.mark.parametrize("options", ["", "--zarr-format 3", "--chunks 3,3,3"])
@pytest.mark.parametrize("fill", [0, 5])
def test_an_array_of_fill_values_stays_empty(copied, tmp_path, options, fill):
    create(tmp_path / "a", "zarr", metadata2(fill_value=fill))
    path, _ = copied(tmp_path / "a", options)
    assert [p.name for p in path.iterdir()] in ([".zarray"], ["zarr.json"])
    np.testing.assert_array_equal(read_by_all(path)["gpustore"], np.full(SHAPE, fill))


@pytest.mark.matrix
@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize(("before", "array"), [("zarr", metadata2), ("zarr3", metadata3)])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
def test_a_single_value_and_no_value(copied, tmp_path, before, array, after, shape):
    value = np.full(shape, 9, "u2")
    create(tmp_path / "a", before, array(shape=shape, chunks=[2] * len(shape))).write(
        value
    ).result()
    path, out = copied(tmp_path / "a", f"--zarr-format {after}")
    assert "Copied" in out
    for found in read_by_all(path).values():
        np.testing.assert_array_equal(found, value)


def test_many_small_chunks(copied, tmp_path):
    array = np.arange(6000, dtype="u4")
    make_with_gpustore(tmp_path / "a", 3, array, [10], 0, "uint32")
    path, _ = copied(tmp_path / "a", "--chunks 7 --shards 1400")
    np.testing.assert_array_equal(read_by_all(path)["zarr"], array)


# --------------------------------------------------------------------------- what goes with it

NAMED = metadata3(
    dimension_names=["z", "y", None],
    attributes={"dimension_units": ["4 nm", None, None], "author": "Ünal", "list": [1, {}]},
    codecs=[LITTLE, CRC],
)


def test_one_extent_is_that_of_all_dimensions(sources, copied):
    path, _ = copied(sources["v2 blosc"], "--zarr-format 3 --chunks 2 --shards 4")
    store = gpustore.open(path).result()
    assert (store.chunks, store.shards) == ((2, 2, 2), (4, 4, 4))


def test_names_units_and_attributes_stay_in_zarr3(copied, tmp_path):
    create(tmp_path / "a", "zarr3", NAMED)
    path, out = copied(tmp_path / "a", "--chunks 2,2,2")
    assert "note:" not in out
    found = json.loads((path / "zarr.json").read_text())
    assert {name: found[name] for name in ("dimension_names", "attributes")} == {
        name: NAMED[name] for name in ("dimension_names", "attributes")
    }
    store = gpustore.open(str(path)).result()
    assert store.domain.labels == ("z", "y", "")
    assert store.dimension_units[0] == gpustore.Unit("4 nm")


def test_properties_that_zarr2_lacks_are_named(copied, tmp_path):
    create(tmp_path / "a", "zarr3", NAMED)
    path, out = copied(tmp_path / "a", "--zarr-format 2")
    assert dict(zarr.open_array(str(path), mode="r").attrs) == NAMED["attributes"]
    notes = [line for line in out.split("\n") if line.startswith("note: ")]
    assert [next(w for w in ("checksums", "names", "units") if w in note) for note in notes] == [
        "checksums",
        "units",
        "names",
    ]


def test_quiet_prints_nothing(gpustore_command, tmp_path):
    create(tmp_path / "a", "zarr3", NAMED)
    found = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--zarr-format", 2, "--quiet")
    assert found == (0, "", "")


@pytest.mark.parametrize("after", [2, 3])
def test_attributes_of_zarr2(copied, tmp_path, after):
    create(tmp_path / "a", "zarr", metadata2())
    text = '{"b":  [1.50, "ä"], "a": null}'
    (tmp_path / "a" / ".zattrs").write_text(text)
    path, _ = copied(tmp_path / "a", f"--zarr-format {after}")
    assert dict(zarr.open_array(str(path), mode="r").attrs) == json.loads(text)
    if after == 2:
        assert (path / ".zattrs").read_text() == text


def test_notes_about_shards_and_codecs(copied, tmp_path, sources):
    _, out = copied(sources["v3 shards"], "--zarr-format 2")
    assert "note: Zarr v2 has no shards" in out
    _, out = copied(sources["v2 big F bz2"], "--zarr-format 3 --overwrite")
    assert "note: Zarr v3 has no codec bz2: zstd takes its place" in out
    _, out = copied(sources["v2 big F bz2"], "--zarr-format 3 --codec gzip --overwrite")
    assert "note:" not in out
    nested = metadata3(codecs=[sharded(sharded(LITTLE, chunk=(1, 5, 1)))])
    create(tmp_path / "nested", "zarr3", nested)
    _, out = copied(tmp_path / "nested", "--chunks 2,5,1 --shards 4,5,2 --overwrite")
    assert "note: shards in shards and codecs around shards are not kept" in out


FILTERS = {
    "shuffle": ("<u2", [{"id": "shuffle", "elementsize": 2}], {"id": "zlib", "level": 1}),
    "delta": (">i4", [{"id": "delta", "dtype": ">i4", "astype": ">i4"}], None),
    "of elements, of bytes": (
        "<f8",
        [
            {"id": "quantize", "digits": 12, "dtype": "<f8", "astype": "<f8"},
            {"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"},
            {"id": "shuffle", "elementsize": 4},
            {"id": "crc32"},
        ],
        {"id": "zstd", "level": 2},
    ),
    "scaled": (
        "<f4",
        [
            {
                "id": "fixedscaleoffset",
                "offset": 0,
                "scale": 1,
                "dtype": "<f4",
                "astype": "<i4",
            }
        ],
        {"id": "lz4", "acceleration": 1},
    ),
    "in the place of the compressor": ("<u2", [], {"id": "adler32"}),
    "rounded": ("<f4", [{"id": "bitround", "keepbits": 20}], {"id": "bz2", "level": 1}),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shuffle", "--codec zstd:1"),
        ("delta", ""),
        ("of elements, of bytes", ""),
        ("scaled", "--chunks 3,14,5"),
        ("in the place of the compressor", ""),
        ("rounded", "--codec none"),
    ],
)
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_filters_go_from_format_to_format(gpustore_command, tmp_path, name, options):
    dtype, filters, compressor = FILTERS[name]
    metadata = metadata2(dtype, chunks=[9, 7, 5], filters=filters, compressor=compressor)
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path / 'a'}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    array = values(dtype=np.dtype(dtype))
    store[...] = array
    options = options.split()
    for source, target, version in [("a", "b", 3), ("b", "c", 2)]:
        code, out, err = gpustore_command(
            "copy", tmp_path / source, tmp_path / target, "--zarr-format", version, *options
        )
        assert (code, err) == (0, "")
        assert "kept" not in out
        copy = gpustore.open(str(tmp_path / target)).result()
        np.testing.assert_array_equal(copy.read().result(), array)
        theirs = zarr.open_array(tmp_path / target, mode="r")
        np.testing.assert_array_equal(theirs[...], array)

    def ids(path):
        stored = json.loads((tmp_path / path / ".zarray").read_text())
        last = stored["compressor"]
        named = [*(stored["filters"] or ()), *([last] if last else ())]
        compressors = ("zlib", "gzip", "lz4", "bz2", "zstd")
        return [one["id"] for one in named if one["id"] not in compressors]

    kept = [one["id"] for one in filters] or ["adler32"]
    assert ids("c") == kept
    stored = json.loads((tmp_path / "b" / "zarr.json").read_text())
    names = [codec["name"] for codec in stored["codecs"]]
    assert [n.removeprefix("numcodecs.") for n in names if n.startswith("numcodecs.")] == kept


def test_filters_that_the_other_format_cannot_say_are_named(copied, tmp_path):
    # Of the bits of floats; and of elements, behind one of bytes.
    delta = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
    for number, filters in enumerate([[delta], [{"id": "shuffle", "elementsize": 4}, delta]]):
        metadata = metadata2("<f4", filters=filters)
        path = tmp_path / str(number)
        spec = {"driver": "zarr", "kvstore": f"file://{path}/", "metadata": metadata}
        gpustore.open(spec, create=True).result()[...] = values(dtype=np.float32)
        copy, out = copied(path, "--zarr-format 3 --overwrite")
        names = ", ".join(one["id"] for one in filters)
        assert f"note: Zarr v3 cannot filter these elements so: {names} is not kept" in out
        np.testing.assert_array_equal(read_by_all(copy)["tensorstore"], values(dtype=np.float32))
    cast = codec("cast_value", data_type="int32", rounding="nearest-even")
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/3/"}
    metadata = metadata3("float32", codecs=[cast, LITTLE])
    gpustore.open({**spec, "metadata": metadata}, create=True).result()[...] = 5
    _, out = copied(tmp_path / "3", "--zarr-format 2 --overwrite")
    assert "note: Zarr v2 has no codec cast_value: elements are stored without" in out


def test_notes_about_memory(copied, tmp_path):
    zeros = metadata3(shape=(1024, 4096), chunks=(1024, 16), codecs=[LITTLE])
    create(tmp_path / "a", "zarr3", zeros)
    _, out = copied(tmp_path / "a", "--chunks 16,4096 --memory 1")
    assert "note: chunks of the source are decoded 8.0 times on average; more --memory" in out
    _, out = copied(tmp_path / "a", "--chunks 1024,4096 --memory 1 --overwrite")
    assert "note: one chunk of the target takes 8.39 MB, more than --memory allows (1.05 MB)" in out


def test_the_report_describes_the_copy(copied, sources):
    path, out = copied(sources["v3 raw"], "--shards 8,10,4 --codec zstd")
    lines = [" ".join(line.split()) for line in out.split("\n")]
    assert f"Copied {sources['v3 raw']} to {path}" in lines
    for line in ("format Zarr v3", "shape 9 x 14 x 5", "chunk 4 x 5 x 2", "shard 8 x 10 x 4"):
        assert line in lines
    stored = stored_nbytes(path)
    assert f"stored size {stored / 1000:.2f} kB, ratio {630 * 2 / stored:.2f}" in lines
    assert "\x1b" not in out


def test_a_terminal_shows_a_bar(gpustore_command, sources, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    _, out, err = gpustore_command("copy", sources["v3 raw"], tmp_path / "b.zarr")
    assert "1.3/1.3 kB" in err
    assert "1.3/1.3 kB" not in out


# --------------------------------------------------------------------------- the place


def test_overwrite_replaces_an_array_of_either_format(copied, sources):
    copied(sources["v2 blosc"], "--chunks 1,1,1")
    path, _ = copied(sources["v3 raw"], "--overwrite")
    assert not (path / ".zarray").exists()
    assert (path / "zarr.json").exists()
    assert stored_nbytes(path) == stored_nbytes(sources["v3 raw"])


def test_urls_say_the_format(gpustore_command, sources, tmp_path):
    source, target = f"file://{sources['v3 raw']}/|zarr3:", f"file://{tmp_path}/b/|zarr2:"
    assert gpustore_command("copy", source, target)[0] == 0
    np.testing.assert_array_equal(read_by_all(tmp_path / "b")["zarr"], values())


def folder_of(kind, path):
    """Make what lies where the copy should go."""
    if kind == "file":
        path.write_text("mine")
        return
    path.mkdir()
    contents = {
        "array": ("zarr.json", json.dumps({"zarr_format": 3, "node_type": "array"})),
        "group": ("zarr.json", json.dumps({"zarr_format": 3, "node_type": "group"})),
        "group of v2": (".zgroup", '{"zarr_format": 2}'),
        "broken": ("zarr.json", "{"),
        "other": ("thesis.tex", "mine"),
    }
    name, text = contents[kind]
    (path / name).write_text(text)


PLACES = [
    ("file", "", "is a file"),
    ("file", "--overwrite", "is a file"),
    ("array", "", "exists already: add --overwrite"),
    *(
        (kind, options, "holds other things than an array")
        for kind in ("group", "group of v2", "broken", "other")
        for options in ("", "--overwrite")
    ),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "options", "text"), PLACES)
def test_contents_of_the_target_are_safe(gpustore_command, sources, tmp_path, kind, options, text):
    path = tmp_path / "b"
    folder_of(kind, path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    code, out, err = gpustore_command("copy", sources["v3 raw"], path, *options.split())
    assert (code, out) == (1, "")
    assert err.startswith(f"gpustore: error: {path} ")
    assert text in err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("place", ["x.zip|zip:", "x|ocdbt:"])
def test_contents_of_archives_and_databases_are_safe(gpustore_command, sources, tmp_path, place):
    url = f"{tmp_path}/{place}"
    store = gpustore.KvStore.open(url).result()
    store["b/thesis.tex"] = b"mine"
    store["g/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    for target in (url, f"{url}b", f"{url}g"):
        for options in ([], ["--overwrite"]):
            code, _, err = gpustore_command("copy", sources["v3 raw"], target, *options)
            assert (code, "holds other things than an array" in err) == (1, True)
    assert store.list().result() == [b"b/thesis.tex", b"g/zarr.json"]
    assert gpustore_command("copy", sources["v3 raw"], f"{url}a")[0] == 0
    code, _, err = gpustore_command("copy", sources["v3 raw"], f"{url}a")
    assert (code, "exists already: add --overwrite" in err) == (1, True)
    assert gpustore_command("copy", sources["v3 raw"], f"{url}a", "--overwrite")[0] == 0
    assert store["b/thesis.tex"] == b"mine"


def test_a_place_that_does_not_stay_is_refused_at_once(gpustore_command, sources, tmp_path):
    gpustore.open_group(tmp_path / "g", create=True).result()
    for source in (sources["v3 raw"], tmp_path / "g"):
        for target in ("memory://a", "memory://a.zip|zip:b"):
            code, out, err = gpustore_command("copy", source, target)
            assert (code, out) == (1, "")
            assert "would end with this command: name a target that stays" in err


@pytest.mark.parametrize("where", ["same", "inside", "around", "through a link"])
def test_the_source_is_safe(gpustore_command, tmp_path, where):
    source = tmp_path / "folder" / "a"
    make_with_gpustore(source, 3, values(), CHUNK, 0, "uint16")
    target = {
        "same": tmp_path / "folder" / ".." / "folder" / "a",
        "inside": source / "b",
        "around": tmp_path / "folder",
        "through a link": tmp_path / "link",
    }[where]
    if where == "through a link":
        target.symlink_to(source)
    code, _, err = gpustore_command("copy", source, target, "--overwrite")
    assert code == 1
    assert "overlaps the source" in err
    np.testing.assert_array_equal(read_by_all(source)["gpustore"], values())


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("source", "target", "overlaps"),
    [
        ("a.zip", "a.zip|zip:", True),
        ("a.zip|zip:b", "a.zip|zip:", True),
        ("a.zip|zip:b", "a.zip|zip:b/c", True),
        ("a.zip|zip:b", "a.zip|zip:bc", False),
        ("db", "db|ocdbt:", True),
        ("db|ocdbt:@v3/", "db|ocdbt:new", False),
        ("db|ocdbt:x.zip", "db|ocdbt:x.zip|zip:", True),
        ("folder/a.zip", "folder", True),
        ("folder/a.zip", "other", False),
        ("folder", "folder/b.zip|zip:", True),
        ("folder", "other.zip|zip:", False),
    ],
)  # fmt: skip
def test_the_source_is_safe_in_archives_and_databases(
    gpustore_command, tmp_path, monkeypatch, source, target, overlaps
):
    monkeypatch.chdir(tmp_path)
    chain = {"a.zip": "|zip:", "db": "|ocdbt:", "db|ocdbt:x.zip": "|zip:", "folder/a.zip": "|zip:"}
    url = f"{source}{chain.get(source, '')}|zarr3:".replace("@v3/", "")
    store = gpustore.open(url, create=True, dtype="uint8", shape=[4]).result()
    store[...] = 7
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, _, err = gpustore_command("copy", "--quiet", "--overwrite", source, target)
    assert (code, "overlaps the source" in err) == (int(overlaps), overlaps)
    assert gpustore.open(source).result().read().result().tolist() == [7] * 4
    if overlaps:
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_place_that_is_only_read_is_refused_at_once(gpustore_command, tmp_path):
    make_with_gpustore(tmp_path / "a", 3, values(), CHUNK, 0, "uint16")
    with HttpServer() as server:
        code, _, err = gpustore_command("copy", tmp_path / "a", f"{server.url}/b")
        assert (code, server.requests) == (1, [])
    assert 'cannot be written: kvstore "http" is only read' in err


ERRORS = [
    ("--chunks 4,4", 1, "--chunks has 2 extents, but the array has 3 dimensions"),
    ("--shards 4,5", 1, "--shards has 2 extents"),
    ("--shards 6,5,2", 1, "shards of 6 x 5 x 2 are not whole multiples of chunks of 4 x 5 x 2"),
    ("--zarr-format 2 --shards 8,5,2", 1, "Zarr v2 has no shards"),
    ("--zarr-format 2 --checksum", 1, "Zarr v2 has no checksums"),
    ("--codec gzip:12", 1, "12"),
    ("--codec lzma", 2, "--codec: expected none, zstd, gzip, blosc"),
    ("--chunks 4,x,2", 2, "--chunks: expected whole numbers from 1"),
    ("--chunks 4,0,2", 2, "--chunks: expected whole numbers from 1"),
    ("--zarr-format 4", 2, "--zarr-format"),
    ("--memory 0", 2, "--memory"),
    ("--chunks 2000000,2000000,2000000", 1, "bytes"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("options", "code", "text"), ERRORS, ids=[e[0] for e in ERRORS])
def test_wrong_options_change_nothing(gpustore_command, sources, tmp_path, options, code, text):
    """Neither is a target begun, nor the old one deleted."""
    make_with_gpustore(tmp_path / "b", 3, values(), CHUNK, 0, "uint16")
    found = gpustore_command(
        "copy", sources["v3 raw"], tmp_path / "b", "--overwrite", *options.split()
    )
    assert found[0] == code
    assert found[1] == ""
    assert found[2].startswith("gpustore: error: ")
    assert found[2].count("\n") == 1
    assert text in found[2]
    np.testing.assert_array_equal(read_by_all(tmp_path / "b")["gpustore"], values())


def test_a_url_that_contradicts(gpustore_command, sources, tmp_path):
    target = f"file://{tmp_path}/b/|zarr2:"
    code, _, err = gpustore_command("copy", sources["v3 raw"], target, "--zarr-format", 3)
    assert code == 1
    assert "--zarr-format 3 contradicts the target's URL, which says 2" in err


def test_only_zarr_arrays(gpustore_command, sources, tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    json_url = f"file://{tmp_path}/x.json|json:"
    code, _, err = gpustore_command("copy", json_url, tmp_path / "b")
    assert (code, "only Zarr arrays can be copied" in err) == (1, True)
    code, _, err = gpustore_command("copy", sources["v3 raw"], f"file://{tmp_path}/y.json|json:")
    assert (code, "only Zarr arrays can be made" in err) == (1, True)
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_place_that_cannot_be_written(gpustore_command, sources, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, out, err = gpustore_command("copy", sources["v3 raw"], tmp_path / "file" / "b")
    assert (code, out) == (1, "")
    assert str(tmp_path / "file") in err


def test_broken_attributes_are_not_passed_on(gpustore_command, tmp_path):
    create(tmp_path / "a", "zarr", metadata2())
    (tmp_path / "a" / ".zattrs").write_text("[1]")
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--zarr-format", 3)
    assert code == 1
    assert ".zattrs is not a JSON object" in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("options", [[], ["--quiet"]], ids=["", "quiet"])
def test_a_damaged_chunk_stops_the_copy_and_is_named(gpustore_command, tmp_path, options):
    source, target = tmp_path / "a", tmp_path / "b"
    array = np.arange(1, 4097, dtype="u2").reshape(64, 64)
    create(source, "zarr3", metadata3(shape=(64, 64), chunks=(8, 8), codecs=[LITTLE, CRC]))[...] = (
        array
    )
    chunk = source / "c" / "5" / "3"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"!")
    code, _, err = gpustore_command("copy", source, target, *options)
    assert code == 1
    assert "c/5/3" in err
    assert f"{target} opens and its chunks are whole" in err
    found = read_by_all(target)["zarr"]
    assert ((found == array) | (found == 0)).all()
    chunk.unlink()
    assert gpustore_command("copy", source, target, "--overwrite", "--quiet")[0] == 0
    array[40:48, 24:32] = 0
    np.testing.assert_array_equal(read_by_all(target)["tensorstore"], array)


def test_copy_does_not_need_rich_to_be_quiet(sources, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    arguments = ["copy", str(sources["v3 raw"]), str(tmp_path / "b")]
    assert main(arguments) == 1
    assert main([*arguments, "--quiet"]) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "chunk"),
    [
        ([], (None, None)),
        (["--chunks", "4,4"], (4, 4)),
        (["--codec", "zstd"], (None, None)),
        (["--checksum"], (None, None)),
        (["--zarr-format", "2"], (6, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("shards", [False, True])
def test_from_chunks_that_differ(gpustore_command, tmp_path, options, chunk, shards):
    inline = {"kind": "inline", "chunk_shapes": [[2, 6, 4], [[2, 2], 3]]}
    metadata = {
        "shape": [11, 6],
        "data_type": "uint16",
        "chunk_grid": {"name": "rectilinear", "configuration": inline},
        "codecs": [sharded(LITTLE, chunk=(2, 1))] if shards else [LITTLE],
    }
    if shards and chunk == (6, 3):
        chunk = (2, 1)
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    source = gpustore.open(spec, create=True).result()
    values = np.arange(66, dtype="u2").reshape(11, 6)
    source.write(values).result()
    code, out, _ = gpustore_command("copy", tmp_path / "a", tmp_path / "b", *options)
    assert code == 0
    copied = gpustore.open(f"file://{tmp_path}/b/").result()
    np.testing.assert_array_equal(copied.read().result(), values)
    assert ("note: Zarr v2 has chunks of one size only" in out) == ("2" in options)
    if chunk == (None, None):
        assert copied.chunk_layout.read_chunk.shape == source.chunk_layout.read_chunk.shape
    assert copied.chunk_layout.write_chunk.shape == chunk


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["ustring", "string"])
@pytest.mark.parametrize(("driver", "version"), [("zarr", 2), ("zarr3", 3)])
@pytest.mark.parametrize("target", [2, 3])
def test_strings_are_copied(tmp_path, gpustore_command, kind, driver, version, target):
    source = tmp_path / "source"
    texts = np.array([["é" * (i % 4) + str(i * j) for j in range(3)] for i in range(10)], object)
    fill = "né" if kind == "ustring" else b"\xff\0"
    if kind == "string":
        texts = np.array([[text.encode() for text in row] for row in texts], object)
    store = gpustore.open(
        f"file://{source}/|{ {'zarr': 'zarr2'}.get(driver, driver) }:",
        create=True,
        dtype=kind,
        shape=[10, 3],
        fill_value=fill,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[4, 3]),
    ).result()
    texts[4:8] = fill
    store[...] = texts
    options = [[], ["--codec", "zstd:2"], ["--codec", "blosc"], ["--chunks", "3,2"]]
    if target == 3:
        options.append(["--chunks", "2,3", "--shards", "4,3"])
    for number, option in enumerate(options):
        path = tmp_path / f"target{number}"
        code, out, err = gpustore_command("copy", source, path, "--zarr-format", target, *option)
        assert code == 0, err
        assert "takes its place" not in out + err
        assert "not kept" not in out + err
        copied = gpustore.open(f"file://{path}/").result()
        assert copied.dtype.name == kind
        assert copied.fill_value.item() == fill
        assert np.array_equal(copied.read().result(), texts)
        assert np.array_equal(zarr.open_array(path, mode="r")[...].astype(object), texts)
    code, out, _ = gpustore_command("info", source)
    assert code == 0
    assert "not known: elements have any length" in out
    assert f"vlen-{'utf8' if kind == 'ustring' else 'bytes'}" in out
    assert version == store.spec().to_json()["metadata"].get("zarr_format", 3)
