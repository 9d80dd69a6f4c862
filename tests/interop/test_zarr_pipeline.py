"""zarr-python with gpustore's codec pipeline, compared with its own pipeline cell by cell.

Each cell is a layout of an array and a selection that is read or written. What one pipeline writes
both read, and both leave the same keys.
"""

import asyncio
import importlib.util
import logging
import pickle
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpustore
from gpustore.backends import selection
from gpustore.resources.device import DEVICES, parse_device
from tests.matrix import each
from tests.on_device import emulated, on_host

zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")

from numcodecs import Delta, Zstd  # noqa: E402
from zarr.buffer import gpu  # noqa: E402
from zarr.codecs import (  # noqa: E402
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from gpustore.interop.zarr import CodecPipeline  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

OURS = "gpustore.interop.zarr.CodecPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"

SHAPE = (23, 17)

V3 = {"zarr_format": 3}
V2 = {"zarr_format": 2}

LAYOUTS = {
    "raw": {**V3, "compressors": None},
    "zstd": {**V3, "compressors": ZstdCodec()},
    "blosc": {**V3, "dtype": "f4", "compressors": BloscCodec(), "fill_value": np.nan},
    "gzip": {**V3, "dtype": "u1", "compressors": GzipCodec(), "fill_value": 3},
    "big endian": {**V3, "serializer": BytesCodec(endian="big")},
    "crc32c": {**V3, "compressors": [ZstdCodec(), Crc32cCodec()]},
    "transposed": {**V3, "filters": TransposeCodec(order=(1, 0))},
    "flat keys": {**V3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots": {**V3, "chunk_key_encoding": {"name": "default", "separator": "."}},
    "empty chunks": {**V3, "config": {"write_empty_chunks": True}},
    "Fortran": {**V3, "config": {"order": "F"}},
    "one chunk": {**V3, "chunks": SHAPE},
    "small chunks": {**V3, "chunks": (1, 17), "dtype": "c16"},
    "booleans": {**V3, "dtype": "bool", "fill_value": True},
    "shards": {**V3, "chunks": (2, 3), "shards": (8, 9)},
    "raw shards": {**V3, "chunks": (4, 3), "shards": (12, 6), "compressors": None},
    "shards in shards": {
        **V3,
        "chunks": (8, 12),
        "compressors": None,
        "serializer": ShardingCodec(chunk_shape=(4, 6), codecs=[ShardingCodec(chunk_shape=(2, 3))]),
    },
    "v2": V2,
    "v2 raw": {**V2, "compressors": None, "dtype": ">i2"},
    "v2 Fortran": {**V2, "order": "F", "dtype": "f8", "fill_value": -1.5},
    "v2 slashes": {**V2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "v2 filters": {**V2, "filters": [Delta("<i4")], "compressors": Zstd(level=1), "dtype": "<i4"},
}


READS = {
    "all": lambda a: a[:],
    "slices": lambda a: a[3:20, 4:9],
    "inside a chunk": lambda a: a[8:10, 6:8],
    "steps": lambda a: a[1:22:3, ::5],
    "long steps": lambda a: a[::9, 2:],
    "integer": lambda a: a[5],
    "negative": lambda a: a[-4:, -1],
    "element": lambda a: a[22, 16],
    "ellipsis": lambda a: a[..., 3],
    "empty": lambda a: a[4:4],
    "arrays": lambda a: a.oindex[[1, 5, 20], [0, 3, 4, 16]],
    "unordered arrays": lambda a: a.oindex[[20, 1, 5, 1], :],
    "descending": lambda a: a.oindex[np.arange(22, 0, -2), 3:15],
    "array and integer": lambda a: a.oindex[[2, 21], 7],
    "integer and array": lambda a: a.oindex[9, [11, 3]],
    "boolean": lambda a: a.oindex[np.arange(23) % 3 == 0, 2:16:7],
    "points": lambda a: a.vindex[[0, 7, 7, 22], [1, 1, 9, 16]],
    "unordered points": lambda a: a.vindex[[22, 0, 9], [4, 16, 0]],
    "points in rows": lambda a: a.vindex[[[22, 0], [9, 3]], [[4, 16], [0, 3]]],
    "mask": lambda a: a.vindex[np.add.outer(np.arange(23), np.arange(17)) % 7 == 0],
    "blocks": lambda a: a.blocks[0],
}


def numbers(dtype, *shape):
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) * 7 % 101).astype(dtype)


WRITES = {
    "all": lambda a: a.__setitem__(slice(None), numbers(a.dtype, *SHAPE)),
    "fill value": lambda a: a.__setitem__(slice(0, 16), a.fill_value),
    "part": lambda a: a.__setitem__(np.s_[3:20, 4:9], numbers(a.dtype, 17, 5)),
    "edge": lambda a: a.__setitem__(np.s_[16:, 12:], numbers(a.dtype, 7, 5)),
    "steps": lambda a: a.__setitem__(np.s_[1:22:3, ::5], numbers(a.dtype, 7, 4)),
    "row": lambda a: a.__setitem__(5, numbers(a.dtype, 17)),
    "column": lambda a: a.__setitem__(np.s_[:, 3], numbers(a.dtype, 23)),
    "scalar": lambda a: a.__setitem__(np.s_[2:9], 1),
    "element": lambda a: a.__setitem__((22, 16), 1),
    "arrays": lambda a: a.oindex.__setitem__(([9, 1, 20], [0, 16]), numbers(a.dtype, 3, 2)),
    "array and integer": lambda a: a.oindex.__setitem__(([2, 21], 7), numbers(a.dtype, 2)),
    "boolean": lambda a: a.oindex.__setitem__((np.arange(23) % 3 == 0, slice(2, 9)), 1),
    "points": lambda a: a.vindex.__setitem__(([22, 0, 9], [4, 16, 0]), numbers(a.dtype, 3)),
    "mask": lambda a: a.vindex.__setitem__(np.add.outer(*map(np.arange, SHAPE)) % 7 == 0, 1),
    "blocks": lambda a: a.blocks.__setitem__((0, 0), 1),
}


def with_pipeline(pipeline, call, *arguments, **options):
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        return call(*arguments, **options)


@pytest.fixture
def left(caplog):
    """Give what was left to zarr-python's own pipeline, and forget it."""
    caplog.set_level(logging.DEBUG, "gpustore.interop.zarr.pipeline")

    def messages():
        found = [r.getMessage() for r in caplog.records if r.name.startswith("gpustore")]
        caplog.clear()
        return found

    return messages


def made(store, path, layout):
    given = {"shape": SHAPE, "chunks": (8, 6), "dtype": "i4", **LAYOUTS.get(layout, {})}
    return with_pipeline(path, zarr.create_array, store, name="a/x", **given)


def opened(store, path, layout=None):
    with zarr.config.set({"array.order": "F" if layout == "Fortran" else "C"}):
        return with_pipeline(path, zarr.open_array, store, path="a/x")


def stored(array):
    """Keys below an array."""

    async def keys():
        return sorted([key async for key in array.store.list_prefix("a/x/")])

    return asyncio.run(keys())


@pytest.mark.matrix
@each("layout", LAYOUTS)
def test_selections_read_the_same(layout, tmp_path, left):
    theirs = made(tmp_path, THEIRS, layout)
    theirs[:19] = numbers(theirs.dtype, 19, 17)
    ours = opened(tmp_path, OURS, layout)
    assert isinstance(ours.async_array.codec_pipeline, CodecPipeline)
    for name, read in READS.items():
        expected, found = read(theirs), read(ours)
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert found.dtype == expected.dtype
        if name == "all":
            assert found.flags.f_contiguous == expected.flags.f_contiguous
    assert left() == []


@pytest.mark.matrix
@each("layout", LAYOUTS)
def test_selections_are_written_the_same(layout, tmp_path, left):
    ours, theirs = made(tmp_path / "a", OURS, layout), made(tmp_path / "b", THEIRS, layout)
    again = opened(tmp_path / "a", THEIRS)
    for name, write in WRITES.items():
        write(ours)
        write(theirs)
        np.testing.assert_array_equal(ours[:], theirs[:], err_msg=name)
    for write in reversed(WRITES.values()):
        write(ours)
        write(theirs)
    np.testing.assert_array_equal(ours[:], theirs[:])
    np.testing.assert_array_equal(again[:], theirs[:])
    assert stored(ours) == stored(theirs)
    assert left() == []


STORES = {
    "memory": lambda path: zarr.storage.MemoryStore(),
    "zip": lambda path: zarr.storage.ZipStore(path / "x.zip", mode="a"),
}
if importlib.util.find_spec("obstore") is not None:
    from obstore.store import MemoryStore

    STORES["object"] = lambda path: zarr.storage.ObjectStore(MemoryStore())


@pytest.mark.matrix
@each("layout", ["zstd", "shards", "raw shards", "v2"])
@each("kind", STORES)
def test_other_stores_of_zarr_python(kind, layout, tmp_path, left):
    store = STORES[kind](tmp_path)
    ours = made(store, OURS, layout)
    ours[:] = numbers(ours.dtype, *SHAPE)
    theirs = opened(store, THEIRS)
    np.testing.assert_array_equal(theirs[:], numbers(ours.dtype, *SHAPE))
    if kind != "zip":  # A second value of a name makes zipfile warn.
        ours[3:11, 2:] = 1
    for name, read in READS.items():
        np.testing.assert_array_equal(read(ours), read(theirs), err_msg=name)
    assert left() == []


@each(
    "target",
    [lambda path: zarr.storage.ZipStore(path.with_suffix(".zip"), mode="a"), str, lambda _: {}],
    ids=["zip", "local", "memory"],
)
def test_copies_to_other_stores_leave_the_event_loop_to_those_who_read(target, tmp_path, left):
    """Many chunks are read while the target is opened, all of them in the loop of zarr-python."""
    origin = zarr.storage.ZipStore(tmp_path / "a.zip", mode="a")
    values = numbers("u1", 100, 10)
    with zarr.config.set({"codec_pipeline.path": OURS}):
        source = zarr.create_array(origin, shape=values.shape, chunks=(10, 10), dtype="u1")
        source[:] = values
        copy = zarr.from_array(target(tmp_path / "c"), data=source, chunks=(1, 10))
        np.testing.assert_array_equal(copy[:], values)
    assert left() == []


@each("rank", [0, 1, 3])
@each("zarr_format", [2, 3])
def test_other_ranks(rank, zarr_format, tmp_path, left):
    shape, chunks = (5, 7, 4)[:rank], (2, 3, 4)[:rank]
    options = {"shape": shape, "chunks": chunks, "dtype": "i8", "zarr_format": zarr_format}
    ours = with_pipeline(OURS, zarr.create_array, tmp_path, **options)
    assert ours[...] == 0 if rank == 0 else (ours[...] == 0).all()
    values = numbers("i8", *shape)
    ours[...] = values
    theirs = with_pipeline(THEIRS, zarr.open_array, tmp_path)
    np.testing.assert_array_equal(theirs[...], values)
    np.testing.assert_array_equal(ours[...], values)
    assert left() == []


def test_other_pipelines_and_programs_may_change_chunks_meanwhile(tmp_path):
    ours = made(tmp_path, OURS, "shards")
    theirs, again = opened(tmp_path, THEIRS), opened(tmp_path, OURS)
    for value in range(1, 5):
        for writer in (ours, theirs, again):
            writer[value : value + 9, 3:7] = value
            for reader in (ours, theirs, again):
                assert (reader[value : value + 9, 3:7] == value).all()


@pytest.mark.matrix("costly")
@each("layout", ["zstd", "shards", "v2"])
def test_an_array_that_is_resized(layout, tmp_path, left):
    arrays = made(tmp_path / "a", OURS, layout), made(tmp_path / "b", THEIRS, layout)
    for array in arrays:
        array[:] = 1
        array.resize((30, 20))
        array[23:] = 2
        if layout != "shards":  # zarr-python keeps what lies beyond the edge of a shard.
            array.resize((12, 20))
            array[8:] = 3  # A chunk at the new edge, which is complete.
        array.resize((30, 25))
        array.append(np.full((2, 25), 4, "i4"))
    np.testing.assert_array_equal(arrays[0][:], arrays[1][:])
    np.testing.assert_array_equal(opened(tmp_path / "a", THEIRS)[:], arrays[1][:])
    assert stored(arrays[0]) == stored(arrays[1])
    assert left() == []


class Tuned(ZstdCodec):
    """A codec of another class, which may do otherwise."""


LEFT = {
    "codecs": {"dtype": "i4", "compressors": Tuned()},
    "strings": {"dtype": str},
    "fixed strings": {"dtype": "U4"},
    "records": {"dtype": [("a", "i4"), ("b", "f8")], "zarr_format": 2},
    "times": {"dtype": "M8[s]", "zarr_format": 2},
}


@each("kind", LEFT)
def test_what_is_not_known_is_left_to_zarr_python(kind, tmp_path):
    options = {"shape": 6, "chunks": 2, "zarr_format": 3, **LEFT[kind]}
    ours = with_pipeline(OURS, zarr.create_array, tmp_path, **options)
    ours[1:4] = np.zeros(3, ours.dtype)
    assert len(ours[:]) == 6
    reason = ours.async_array.codec_pipeline.reason
    assert ("class Tuned" if kind == "codecs" else "not one of numbers") in reason


class Subclass(zarr.storage.MemoryStore):
    """A store that may do otherwise than its base class."""


def test_other_classes_of_stores_are_left_to_zarr_python():
    ours = made(Subclass(), OURS, "zstd")
    ours[:] = 5
    assert (ours[:] == 5).all()
    assert "class Subclass are not known" in ours.async_array.codec_pipeline.reason


def test_zarr_python_has_the_last_word_on_damaged_chunks(tmp_path, left):
    ours = made(tmp_path, OURS, "crc32c")
    ours[:] = 5
    path = tmp_path / "a/x/c/0/0"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="checksum do not match") as caught:
        ours[:]
    assert isinstance(caught.value.__context__, gpustore.CorruptChunkError)
    assert len(left()) == 1


def test_a_read_only_store_stays_so(tmp_path):
    made(tmp_path, OURS, "zstd")[:] = 5
    ours = with_pipeline(OURS, zarr.open_array, tmp_path, path="a/x", mode="r")
    assert (ours[:] == 5).all()
    with pytest.raises(ValueError, match="read-only"):
        ours[:] = 6


def test_a_store_that_is_moved(tmp_path, left):
    store = zarr.storage.LocalStore(tmp_path / "a")
    ours = made(store, OURS, "zstd")
    ours[:] = 5
    asyncio.run(store.move(tmp_path / "b"))
    ours[:3] = 6
    assert ours[:].sum() == 5 * 23 * 17 + 3 * 17
    assert not (tmp_path / "a").exists()
    assert left() == []


def test_arrays_pickle(tmp_path):
    ours = made(tmp_path, OURS, "zstd")
    ours[:] = numbers("i4", *SHAPE)
    again = pickle.loads(pickle.dumps(ours))
    assert isinstance(again.async_array.codec_pipeline, CodecPipeline)
    np.testing.assert_array_equal(again[:], ours[:])


@each("kind", ["local", *STORES])
def test_arrays_within_a_loop_of_the_caller(kind, tmp_path, left):
    make = STORES.get(kind, zarr.storage.LocalStore)

    async def run():
        store = make(tmp_path)
        made = await zarr.api.asynchronous.create(shape=(6, 5), chunks=(2, 3), store=store)
        await made.setitem(slice(1, 5), 7)
        parts = await asyncio.gather(*(made.getitem(i) for i in range(6)))
        return np.array(parts)

    values = with_pipeline(OURS, lambda: asyncio.run(run()))
    np.testing.assert_array_equal(values[1:5], np.full((4, 5), 7))
    assert values.sum() == 140
    assert left() == []


@pytest.fixture
def gpu_buffer(monkeypatch):
    """Make buffers of zarr-python's class for GPUs in the memory of the emulated device."""
    with emulated() as device:
        number = int(device.name.partition(":")[2])
        monkeypatch.setitem(DEVICES, "cuda", DEVICES["emulated"])
        same = selection.select_backend(parse_device(device.name), device.allocator)
        monkeypatch.setitem(selection._backends, ("cuda", number, device.allocator), same)

        def make(shape, dtype):
            stream = device.caller_stream()
            array = device.empty(shape, dtype, "C", stream).array
            device.synchronize(device.record(stream))  # zarr-python reads in another thread.
            array.device = SimpleNamespace(id=number)
            buffer = object.__new__(gpu.NDBuffer)  # Its constructor asks for CuPy.
            buffer._data = array
            return buffer, lambda: on_host(device, array, stream)

        yield make


@each("layout", ["zstd", "shards", "blosc", "v2", "raw shards"])
def test_reads_into_the_memory_of_a_device(layout, tmp_path, left, gpu_buffer):
    ours = made(tmp_path, OURS, layout)
    ours[:] = values = numbers(ours.dtype, *SHAPE)
    for index in (np.s_[:], np.s_[3:20, 4:9], np.s_[1:22:3, 5]):
        buffer, elements = gpu_buffer(values[index].shape, ours.dtype)
        ours.get_basic_selection(index, out=buffer)
        np.testing.assert_array_equal(elements(), values[index])
    assert left() == []


def test_chunks_decoded_on_the_host_for_a_device_are_a_warning(tmp_path, gpu_buffer):
    ours = with_pipeline(
        OURS, zarr.create_array, tmp_path, shape=6, chunks=2, dtype="i4", compressors=Tuned()
    )
    buffer, _ = gpu_buffer((6,), "i4")
    with (
        pytest.warns(gpustore.DeviceWarning, match=r"on the host, not on the GPU: .* class Tuned"),
        pytest.raises(AttributeError),  # It would be CuPy that copies the elements.
    ):
        ours.get_basic_selection(np.s_[:], out=buffer)


def test_xarray_writes_and_reads(tmp_path, left):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    values = xarray.Dataset(
        {"t": (("y", "x"), numbers("f4", 30, 20)), "name": (("y",), np.full(30, "a"))},
        {"x": np.linspace(0, 1, 20)},
    )
    encoding = {"t": {"chunks": (8, 7)}}
    with_pipeline(OURS, values.to_zarr, tmp_path / "a", encoding=encoding, consolidated=False)
    with_pipeline(OURS, values.to_zarr, tmp_path / "a", append_dim="y", consolidated=False)
    with_pipeline(THEIRS, values.to_zarr, tmp_path / "b", encoding=encoding, consolidated=False)
    with_pipeline(THEIRS, values.to_zarr, tmp_path / "b", append_dim="y", consolidated=False)
    for path in (OURS, THEIRS):
        found = [
            with_pipeline(path, xarray.open_zarr(tmp_path / name, consolidated=False).load)
            for name in "ab"
        ]
        xarray.testing.assert_identical(*found)
    assert all("not one of numbers" in message for message in left())


def test_a_table_is_read_by_rows(tmp_path, left):
    """Compressed sparse rows, as anndata stores them: many ranges of long vectors."""
    random = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(random.integers(0, 9, 200))])
    group = with_pipeline(OURS, zarr.open_group, tmp_path, mode="w")
    for name, dtype in (("data", "f4"), ("indices", "i4")):
        group.create_array(name, data=random.integers(0, 99, ends[-1]).astype(dtype), chunks=64)
    for path in (OURS, THEIRS):
        again = with_pipeline(path, lambda: zarr.open_group(tmp_path)["data"])
        whole = again[:]
        for row in random.integers(0, 200, 20):
            found = again[ends[row] : ends[row + 1]]
            np.testing.assert_array_equal(found, whole[ends[row] : ends[row + 1]])
    assert left() == []


def test_the_configuration_says_it_before_anything_is_imported():
    """The entry point of the package leads zarr-python to the class."""
    text = (Path(gpustore.__file__).parents[1] / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["zarr.codec_pipeline"]
    assert points == {"gpustore": "gpustore.interop.zarr:CodecPipeline"}
    assert zarr.registry.fully_qualified_name(CodecPipeline) == OURS
