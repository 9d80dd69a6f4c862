"""read_many: the same elements as single reads, with each chunk fetched and decoded once."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import (
    CorruptChunkError,
    LimitError,
    MetadataError,
    MismatchError,
    NotFoundError,
    OutOfBoundsError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.index_space import IndexTransform
from gpustore.pipelines import fetch as fetch_module
from gpustore.pipelines import read_many as module
from gpustore.pipelines.read_many import read_many
from gpustore.pipelines.write import write
from gpustore.planning import copy_plan, crop_plan
from gpustore.planning.crop_plan import check_starts
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each
from tests.pipelines.arrays import BYTES, GZIP, make_array, memory, put, whole

ZLIB = {"id": "zlib", "level": 1}


def spec_of(form, shape, chunks, dtype):
    """The JSON of an array to be created; a shard has two inner chunks along each dimension."""
    name, variant = form.split()
    spec = {"driver": name, "kvstore": "memory://"}
    if name == "zarr2":
        metadata = {
            "shape": shape,
            "chunks": chunks,
            "dtype": np.dtype(dtype).newbyteorder(">" if variant == "F" else "<").str,
            "order": variant[0],
            "compressor": ZLIB if variant == "C-zlib" else None,
        }
        return {**spec, "metadata": metadata}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if variant == "big":
        codecs[0]["configuration"]["endian"] = "big"
    if variant in ("gzip", "shard"):
        codecs.append({"name": "gzip", "configuration": {"level": 1}})
    if variant.startswith("shard"):
        inner = {"chunk_shape": chunks, "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
        chunks = [2 * size for size in chunks]
    if variant == "transpose":
        order = list(range(len(shape)))[::-1]
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    metadata = {"shape": shape, "chunk_grid": grid, "data_type": dtype, "codecs": codecs}
    return {**spec, "metadata": metadata}


FORMS = [
    "zarr2 C",
    "zarr2 C-zlib",
    "zarr2 F",
    "zarr3 raw",
    "zarr3 gzip",
    "zarr3 big",
    "zarr3 transpose",
    "zarr3 shard",
    "zarr3 shard-raw",
]


@st.composite
def views(draw):
    """A store with numbered elements, partly unwritten, and a view of it."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 12)) for _ in range(rank)]
    chunks = [draw(st.integers(1, 5)) for _ in range(rank)]
    dtype = draw(st.sampled_from(["uint8", "int16", "float32", "complex64"]))
    spec = spec_of(draw(st.sampled_from(FORMS)), shape, chunks, dtype)
    store = gpustore.open(spec, create=True).result()
    model = np.arange(1, math.prod(shape) + 1).reshape(shape).astype(dtype)
    written = slice(draw(st.integers(0, shape[0] - 1)), None)
    store[written] = model[written]
    view = store
    for d in range(rank):
        kind = draw(st.sampled_from(["all", "all", "strided", "integer"]))
        at = tuple([slice(None)] * (view.rank - rank + d))
        if kind == "strided":
            step = draw(st.sampled_from([-3, -2, -1, 2, 3]))
            view = view[(*at, slice(None, None, step), ...)]
        elif kind == "integer":
            view = view[(*at, draw(st.integers(0, shape[d] - 1)), ...)]
    if view.rank and draw(st.booleans()):
        view = view.transpose(draw(st.permutations(range(view.rank))))
    if view.rank and draw(st.booleans()):
        view = view.translate_by[[draw(st.integers(-5, 5)) for _ in range(view.rank)]]
    if draw(st.integers(0, 3)) == 0:
        view = view[np.newaxis]
    if rank > 1 and draw(st.integers(0, 4)) == 0:
        falls = draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        view = store[diagonal(min(shape), falls)]
    return view


def diagonal(size, falls):
    """A view of rank 1 that rises or falls along each dimension of an array."""
    maps = [{"offset": size - 1, "stride": -1} if fall else {} for fall in falls]
    output = [gpustore.OutputIndexMap(input_dimension=0, **one) for one in maps]
    return IndexTransform(input_shape=[size], output=output)


@pytest.mark.matrix
@given(data=st.data(), view=views())
def test_crops_are_those_that_single_reads_give(data, view):
    extent, starts = [], []
    count = data.draw(st.integers(0, 12))
    for low, high in zip(view.domain.inclusive_min, view.domain.exclusive_max, strict=True):
        extent.append(data.draw(st.integers(0 if high - low > 3 else 1, high - low)))
        last = high - extent[-1]
        starts.append(data.draw(st.lists(st.integers(low, last), min_size=count, max_size=count)))
    starts = np.array(starts, int).reshape(view.rank, count).T
    order = data.draw(st.sampled_from("CF"))
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of one chunk, and as large as they are allowed to be.
        patch.setattr(crop_plan, "REGION_NS", data.draw(st.sampled_from([0, 10**9])))
        patch.setattr(module, "BLOCK_NBYTES", data.draw(st.sampled_from([64, 1000, 10**6])))
        patch.setattr(module, "ELEMENTWISE", data.draw(st.sampled_from([0, 8, 10**6])))
        # Windows, groups of blocks and fetches of one chunk, of some, and of all; many tasks.
        patch.setattr(copy_plan, "WINDOW_CHUNKS", data.draw(st.sampled_from([1, 3, 10**6])))
        patch.setattr(module, "BATCH_NBYTES", data.draw(st.sampled_from([1, 200, 10**6])))
        patch.setattr(fetch_module, "BATCH_NBYTES", data.draw(st.sampled_from([1, 200, 10**6])))
        if data.draw(st.booleans()):
            patch.setattr(module, "QUICK_S", 0)
            patch.setattr(module, "SPLIT_S", 1e-12)
            patch.setattr(module, "SMALL_ROWS", 0)
        found = view.read_many(starts, extent, order=order).result()
    expected = np.empty((count, *extent), view.dtype.numpy_dtype)
    for i, start in enumerate(starts.tolist()):
        index = tuple(slice(at, at + size) for at, size in zip(start, extent, strict=True))
        expected[i, ...] = view[index].read().result()
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous


@pytest.mark.parametrize("order", "CF")
def test_out_is_filled(order):
    store = gpustore.array(np.arange(60).reshape(6, 10))
    chunked = gpustore.open(spec_of("zarr3 gzip", [6, 10], [4, 3], "int64"), create=True).result()
    chunked[...] = np.arange(60).reshape(6, 10)
    starts = [[0, 0], [2, 5], [1, 1]]
    for one in (store, chunked):
        expected = one.read_many(starts, (4, 5)).result()
        records = np.zeros((3, 4, 5), [("a", "u1"), ("x", "i8")])
        for out in (
            np.zeros((3, 4, 5), int, order=order),
            records["x"],
            np.zeros((6, 4, 10), int)[::-2, :, ::2],
        ):
            assert one.read_many(starts, (4, 5), out=out).result() is out
            assert np.array_equal(out, expected)
        assert not records["a"].any()
        for out in (np.zeros((3, 4, 4), int), np.zeros((3, 4, 5), "i4")):
            with pytest.raises(MismatchError, match="out has"):
                one.read_many(starts, (4, 5), out=out)


def test_crops_of_one_element_go_to_arrays_of_any_alignment():
    store = gpustore.open(spec_of("zarr3 raw", [9], [4], "int32"), create=True).result()
    store[...] = np.arange(9, dtype="i4")
    records = np.zeros(5, [("a", "u1"), ("x", "i4")])
    store[3].read_many(np.empty((5, 0), int), (), out=records["x"]).result()
    assert records["x"].tolist() == [3] * 5
    store.read_many([[8], [0], [8], [1], [2]], (1,), out=records["x"][:, None]).result()
    assert records["x"].tolist() == [8, 0, 8, 1, 2]


# ---- each chunk once


class CountingStore(FaultyKvStore):
    """Remembers every key and byte range read."""

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.reads = []
        self.threads = set()

    def read_many(self, request):
        starts = request.start or [None] * len(request.keys)
        self.reads += zip(request.keys, starts, strict=True)
        self.threads.add(threading.get_ident())
        return super().read_many(request)


class CountingChain(CodecChain):
    """Remembers how often it decoded a chunk."""

    __slots__ = ("decoded",)

    def __init__(self, chain):
        super().__init__(chain.layout, chain.stages, None, inner_order=chain.inner_order)
        self.decoded = 0
        self.all_legal = False  # The native core would not count.

    def decode(self, encoded, out=None):
        self.decoded += 1
        return super().decode(encoded, out)


def counted(form, shape, chunks, dtype="uint16"):
    """A ChunkedArray of numbered elements that counts, and those elements."""
    store = gpustore.open(spec_of(form, shape, chunks, dtype), create=True).result()
    model = np.arange(1, math.prod(shape) + 1, dtype=dtype).reshape(shape)
    store[...] = model
    array = store._driver.array
    counting = CountingStore(array.store)
    return replace(array, store=counting, chain=CountingChain(array.chain)), model


@each("dense", [False, True])
@each("form", ["zarr3 gzip", "zarr3 shard", "zarr3 shard-raw", "zarr2 F"])
def test_each_chunk_is_fetched_and_decoded_once(form, dense, monkeypatch):
    # As many tasks as there may be.
    monkeypatch.setattr(module, "QUICK_S", 0)
    monkeypatch.setattr(module, "SPLIT_S", 1e-9)
    array, model = counted(form, (512, 640), (128, 128))
    monkeypatch.setattr(crop_plan, "REGION_NS", 10**9 if dense else 0)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, (500, 500), (200, 2)) // 2
    STATISTICS.reset()
    found = read_many(array, whole(array), starts, (12, 140)).result()
    for crop, (y, x) in zip(found, starts, strict=True):
        assert np.array_equal(crop, model[y : y + 12, x : x + 140])
    touched = {
        (i, j)
        for y, x in starts.tolist()
        for i in (y // 128, (y + 11) // 128)
        for j in range(x // 128, (x + 139) // 128 + 1)
    }
    assert STATISTICS["reads"] == 1
    assert STATISTICS["chunks_planned"] == len(touched)
    assert len(array.store.reads) == len(set(array.store.reads))
    keys = [key for key, _ in array.store.reads]
    if "shard" in form:
        indices = [key for key, start in array.store.reads if start is not None and start < 0]
        assert sorted(indices) == sorted({f"c/{i // 2}/{j // 2}" for i, j in touched})
    else:
        assert len(keys) == len(touched)
    if "raw" not in form and form != "zarr2 F":
        assert array.chain.decoded == len(touched)


def test_only_the_span_that_is_wanted_is_read_of_a_raw_chunk():
    array, model = counted("zarr3 raw", (1024, 1024), (512, 1024))
    STATISTICS.reset()
    found = read_many(array, whole(array), [[7, 5], [9, 1000], [600, 3]], (2, 3)).result()
    for crop, (y, x) in zip(found, [(7, 5), (9, 1000), (600, 3)], strict=True):
        assert np.array_equal(crop, model[y : y + 2, x : x + 3])
    assert STATISTICS["bytes_fetched"] < 6 * 2048  # Of 2 MiB.


@each("form", ["zarr3 raw", "zarr3 transpose", "zarr3 shard-raw", "zarr2 C"])
@each("falls", [[False, True], [True, False], [True, True]])
def test_a_diagonal_that_falls_along_one_dimension_needs_the_whole_box(form, falls):
    store = gpustore.open(spec_of(form, [15, 15], [6, 5], "uint16"), create=True).result()
    values = np.arange(1, 226, dtype="u2").reshape(15, 15)
    store[...] = values
    view = store[diagonal(15, falls)]
    rows, columns = (np.arange(15)[:: -1 if fall else 1] for fall in falls)
    expected = values[rows, columns]
    crops = view.read_many([[0], [9], [3]], (6,)).result()
    np.testing.assert_array_equal(crops, [expected[:6], expected[9:], expected[3:9]])
    with gpustore.Batch() as batch:
        reads = [view.read(batch=batch), view[2:9].read(batch=batch)]
    np.testing.assert_array_equal(reads[0].result(), expected)
    np.testing.assert_array_equal(reads[1].result(), expected[2:9])


def test_tasks_share_the_work_and_no_key():
    array, model = counted("zarr3 gzip", (1024, 1024), (128, 256))
    starts = np.stack(np.mgrid[0:1024:8, 0:1024:64], -1).reshape(-1, 2)
    found = read_many(array, whole(array), starts, (8, 64)).result()
    rows = found.reshape(128, 16, 8, 64).swapaxes(1, 2).reshape(1024, 1024)
    assert np.array_equal(rows, model)
    assert len(array.store.reads) == 32


# ---- what goes wrong


def test_starts_outside_the_domain_name_row_and_dimension():
    store = gpustore.open(spec_of("zarr3 raw", [10, 20], [4, 4], "uint8"), create=True).result()
    view = store[2:8, ::-1]
    for starts, shape, text in (
        ([[2, -19], [5, -19]], (4, 1), r"\[5, 9\) of dimension 0, from row 1 .* \[2, 8\)"),
        ([[2, -19], [1, -19]], (4, 1), r"\[1, 5\) of dimension 0, from row 1 .* \[2, 8\)"),
        ([[2, 1]], (1, 1), r"\[1, 2\) of dimension 1, from row 0 .* \[-19, 1\)"),
        ([[2, -19]], (7, 1), r"\[2, 9\) of dimension 0, from row 0"),
        ([[2, -19]], (1 << 62, 1), "of dimension 0, from row 0"),
        (np.array([[2**64 - 1, 0]], np.uint64), (1, 1), r"\[18446744073709551615, "),
        ([[-(2**63), -19]], (1, 1), "-9223372036854775808, "),
    ):
        with pytest.raises(OutOfBoundsError, match=text):
            view.read_many(starts, shape)
    with pytest.raises(OutOfBoundsError, match="dimension 1, from row 0"):
        store.read_many([[0, 20]], (1, 1))  # Its bound is implicit; the array's holds.
    assert view.read_many([[8, 1]], (0, 0)).result().shape == (1, 0, 0)


def test_starts_and_shape_must_be_rows_of_integers():
    store = gpustore.open(spec_of("zarr3 raw", [10, 20], [4, 4], "uint8"), create=True).result()
    for starts in (np.zeros((3, 2)), [["a", "b"]], [[2**70, 0]], [[True, False]], "ab"):
        with pytest.raises(TypeError, match="expected starts to be integers"):
            store.read_many(starts, (1, 1))
    for starts in ([0, 0], [[0, 0, 0]], [[[0, 0]]], np.zeros((2, 0), int)):
        with pytest.raises(MismatchError, match=r"expected starts of shape \(n, 2\)"):
            store.read_many(starts, (1, 1))
    for shape in (3, (1.5, 2), None, "ab"):
        with pytest.raises(TypeError, match="expected shape to be 2 integers"):
            store.read_many([[0, 0]], shape)
    for shape in ((1,), (1, 2, 3), (1, -1)):
        with pytest.raises(MismatchError, match="expected shape to be 2 sizes"):
            store.read_many([[0, 0]], shape)
    with pytest.raises(TypeError, match="`order` must be"):
        store.read_many([[0, 0]], (1, 1), order="K")
    assert store.read_many([], (3, 4)).result().shape == (0, 3, 4)
    assert store.read_many(np.empty((0, 2), int), (3, 4)).result().shape == (0, 3, 4)
    assert store.read_many(np.zeros((2, 2), np.uint8), np.array([1, 1])).result().size == 2


def test_what_cannot_be_done_says_so():
    store = gpustore.open(spec_of("zarr3 raw", [10, 20], [4, 4], "uint8"), create=True).result()
    for one in (store, gpustore.array(np.zeros((10, 20)))):
        with pytest.raises(UnsupportedError, match="before it was indexed"):
            one[[1, 3]].read_many([[0, 0]], (1, 1))
    json = gpustore.open({"driver": "json", "kvstore": "memory://a"}).result()
    with pytest.raises(UnsupportedError, match="read it once"):
        json.read_many(np.empty((1, 0), int), ())
    spec = {**spec_of("zarr3 raw", [10], [4], "uint8"), "kvstore": "memory://b/"}
    writable = gpustore.open(spec, create=True, read=False, write=True).result()
    with pytest.raises(MetadataError, match="does not support reading"):
        writable.read_many([[0]], (1,))


def test_limits_hold_before_memory_is_taken():
    array = make_array((1000, 1000), (10, 10), limits=Limits(chunks_per_request=1000))
    with pytest.raises(LimitError, match="chunks_per_request of 1000"):
        read_many(array, whole(array), np.zeros((11, 2), int), (100, 100))
    starts = np.full((251, 2), 5)  # At least one region each, in truth four.
    with pytest.raises(LimitError, match="1004 regions"):
        read_many(array, whole(array), starts, (10, 10))
    assert read_many(array, whole(array), starts[:250], (10, 10)).result().shape == (250, 10, 10)
    huge = make_array((1 << 40,), (1 << 29,))
    with pytest.raises(LimitError, match="does not fit the memory"):
        read_many(huge, whole(huge), np.zeros((1 << 10, 1), int), (1 << 36,))
    array = make_array((1 << 61, 1 << 61), (1, 1))
    starts = np.array([[0, 0], [(1 << 61) - 1, (1 << 61) - 1], [0, 0], [5, 1 << 60]])
    assert not read_many(array, whole(array), starts, (1, 1)).result().any()


def test_missing_chunks_are_an_error_if_asked_for():
    array = make_array((8, 8), (4, 4), codecs=(BYTES, GZIP), fill_missing=False)
    write(array, whole(array)[:4], np.full((4, 8), 5, "u2")).result()
    assert read_many(array, whole(array), [[0, 3]], (4, 4)).result().max() == 5
    with pytest.raises(NotFoundError, match=r"chunk \{1, 0\} stored at .* is missing") as info:
        read_many(array, whole(array), [[0, 3], [3, 2]], (4, 4)).result()
    assert info.value.key == "c/1/0"


@pytest.mark.parametrize("dense", [False, True])
def test_errors_name_the_key(dense, monkeypatch):
    monkeypatch.setattr(crop_plan, "REGION_NS", 10**9 if dense else 0)
    array = make_array((8, 8), (4, 4), codecs=(BYTES, GZIP))
    write(array, whole(array), np.arange(1, 65, dtype="u2").reshape(8, 8)).result()
    starts = [[0, 0], [4, 4], [2, 2]]
    put(array, "c/1/1", b"junk")
    with pytest.raises(CorruptChunkError, match="c/1/1") as info:
        read_many(array, whole(array), starts, (4, 4)).result()
    assert info.value.key == "c/1/1"
    array.store.rules.append(Rule(Fault.ERROR, key="c/0/1"))
    with pytest.raises(StoreIOError, match="c/0/1"):
        read_many(array, whole(array), starts, (4, 4)).result()
    put(array, "c/1/1", None)
    found = read_many(array, whole(array), starts, (4, 4)).result()
    assert found[1].max() == 0
    assert found[0].max() == 28


def test_a_shard_replaced_meanwhile_is_read_again():
    class Replacing(CountingStore):
        replacement = None

        def read_many(self, request):
            columns = super().read_many(request)
            if self.replacement is not None and request.start is not None:
                value, self.replacement = self.replacement, None
                put(array, "c/0", value)
            return columns

    def sharded(values):
        spec = spec_of("zarr3 shard", [8], [4], "uint16")
        store = gpustore.open(spec, create=True).result()
        store[...] = np.array(values, "u2")
        return store._driver.array

    other = sharded(range(100, 108))
    changed = other.store.read_many(gpustore.kvstores.base.ReadRequest(["c/0"])).value[0]
    array = sharded(range(8))
    array = replace(array, store=Replacing(array.store))
    array.store.replacement = bytes(changed)
    STATISTICS.reset()
    found = read_many(array, whole(array), [[0], [3], [5]], (3,)).result()
    assert found.tolist() == [[100, 101, 102], [103, 104, 105], [105, 106, 107]]
    assert STATISTICS["retries"] == 1


def test_a_small_read_runs_on_whoever_asks():
    base = memory()
    array = make_array((8,), (4,), store=CountingStore(base))
    write(array, whole(array), np.arange(8, dtype="u2")).result()
    future = read_many(array, whole(array), [[1], [3]], (4,))
    array.store.threads.clear()
    assert future.result().tolist() == [[1, 2, 3, 4], [3, 4, 5, 6]]
    assert array.store.threads == {threading.get_ident()}


def test_check_starts_keeps_the_starts_it_is_given():
    starts = np.array([[1], [2]], np.uint16)
    found = check_starts(whole(make_array((8,), (4,))), starts, (3,), (8,))
    assert found.dtype == np.int64
    assert found.tolist() == [[1], [2]]
