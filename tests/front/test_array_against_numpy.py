"""A store that lives long: writes, resizes and reopenings against a model of every stored chunk.

``test_model`` tries many kinds of arrays for a few steps; here one array is used for many, through
transposed, translated, reversed and strided views, and the model knows the chunks byte by byte:
what is elided, what lies beyond the edge, and what a shrunk array leaves there. At the end
TensorStore reads what was written.
"""

import array
import asyncio
from math import prod

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import gpustore
from gpustore.errors import MismatchError
from tests.matrix import each, share

FORMATS = ("zarr2 C", "zarr2 F", "zarr3 raw", "zarr3 gzip", "zarr3 big")


def spec_of(form, shape, chunks, dtype, fill, separator, *, keep_fill):
    """The JSON of an array to be created."""
    spec = {"kvstore": "memory://a/", "store_data_equal_to_fill_value": keep_fill}
    name, variant = form.split()
    if name == "zarr2":
        metadata = {
            "shape": shape,
            "chunks": chunks,
            "dtype": np.dtype(dtype).newbyteorder(">" if variant == "F" else "<").str,
            "fill_value": fill,
            "order": variant,
            "compressor": {"id": "zlib", "level": 1} if variant == "F" else None,
            "dimension_separator": separator,
        }
        return {**spec, "driver": "zarr2", "metadata": metadata}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if variant == "big":
        codecs[0]["configuration"]["endian"] = "big"
    if variant == "gzip":
        codecs += [{"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}]
    metadata = {
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "data_type": dtype,
        "fill_value": fill,
        "codecs": codecs,
    }
    return {**spec, "driver": "zarr3", "metadata": metadata}


class Model:
    """All stored chunks of an array, whole, by cell."""

    def __init__(self, shape, chunks, fill, *, keep_fill):
        self.shape, self.chunks, self.fill, self.keep_fill = list(shape), chunks, fill, keep_fill
        self.stored = {}

    def array(self):
        result = np.full(self.shape, self.fill)
        for cell, chunk in self.stored.items():
            box = tuple(
                slice(i * c, min((i + 1) * c, n))
                for i, c, n in zip(cell, self.chunks, self.shape, strict=True)
            )
            result[box] = chunk[tuple(slice(0, b.stop - b.start) for b in box)]
        return result

    def write(self, positions, values):
        """Set the elements with these C-order indices."""
        if not positions.size:
            return
        indices = np.stack(np.unravel_index(positions.reshape(-1), self.shape), -1)
        values = values.reshape(-1)
        cells = indices // self.chunks
        for cell in {tuple(row) for row in cells.tolist()}:
            mine = (cells == cell).all(-1)
            inside = [
                min(c, n - i * c) for i, c, n in zip(cell, self.chunks, self.shape, strict=True)
            ]
            chunk = self.stored.get(cell)
            if chunk is None or mine.sum() == prod(inside):
                chunk = np.full(self.chunks, self.fill)
            chunk = chunk.copy()
            chunk[tuple((indices[mine] % self.chunks).T)] = values[mine]
            self.stored[cell] = chunk
            if not self.keep_fill and chunk.tobytes() == np.full_like(chunk, self.fill).tobytes():
                del self.stored[cell]

    def resize(self, shape):
        self.shape = list(shape)
        self.stored = {
            cell: chunk
            for cell, chunk in self.stored.items()
            if all(i * c < n for i, c, n in zip(cell, self.chunks, shape, strict=True))
        }


class ArrayMachine(RuleBasedStateMachine):
    """One array in memory, through gpustore and in the model."""

    @initialize(
        data=st.data(),
        form=st.sampled_from(FORMATS),
        dtype=st.sampled_from(["uint16", "int32", "float64"]),
        rank=st.integers(1, 3),
        separator=st.sampled_from("./"),
        keep_fill=st.booleans(),
    )
    def create(self, data, form, dtype, rank, separator, keep_fill):
        shape = [data.draw(st.integers(1, 8)) for _ in range(rank)]
        chunks = [data.draw(st.integers(1, 4)) for _ in range(rank)]
        fill = data.draw(st.sampled_from([0, 3]))
        self.context = gpustore.Context()
        spec = spec_of(form, shape, chunks, dtype, fill, separator, keep_fill=keep_fill)
        self.keep_fill = keep_fill
        self.store = gpustore.open(spec, create=True, context=self.context).result()
        self.model = Model(shape, chunks, np.array(fill, dtype), keep_fill=keep_fill)
        self.random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def selection(self, data):
        """A view of the store, and the C-order indices of its elements in the model."""
        shape = self.model.shape
        positions = np.arange(prod(shape)).reshape(shape)
        store = self.store
        axes = data.draw(st.permutations(range(len(shape))))
        store, positions = store.transpose(axes), positions.transpose(axes)
        ours, theirs = [], []
        for size in positions.shape:
            kind = data.draw(st.sampled_from(["all", "slice", "slice", "reverse", "integer"]))
            low = data.draw(st.integers(0, max(size - 1, 0)))
            high = data.draw(st.integers(low, size))
            step = data.draw(st.integers(1, 3))
            if kind == "integer" and size:
                ours.append(low)
                theirs.append(low)
            elif kind == "reverse" and high > low:
                ours.append(slice(high - 1, low - 1 if low else None, -step))
                theirs.append(ours[-1])
            else:
                ours.append(slice(None) if kind == "all" else slice(low, high, step))
                theirs.append(ours[-1])
        store, positions = store[tuple(ours)], positions[(*theirs, ...)]
        if data.draw(st.booleans()):
            origin = [data.draw(st.integers(-9, 9)) for _ in range(store.rank)]
            store = store.translate_to[origin]
        return store, positions

    @rule(data=st.data(), values=st.sampled_from(["random", "fill", "row", "scalar"]))
    def write(self, data, values):
        view, positions = self.selection(data)
        dtype = self.model.fill.dtype
        shape = {"row": positions.shape[-1:], "random": positions.shape}.get(values, ())
        source = self.random.integers(0, 5, shape).astype(dtype)
        if values == "fill":
            source = self.model.fill
        if source.ndim and data.draw(st.booleans()):
            source = np.asfortranarray(source).astype(dtype.newbyteorder(">"))
        view.write(source).result()
        self.model.write(positions, np.broadcast_to(source, positions.shape).astype(dtype))

    @rule(data=st.data(), order=st.sampled_from("CF"))
    def read(self, data, order):
        view, positions = self.selection(data)
        expected = self.model.array().reshape(-1)[positions]
        found = view.read(order=order).result()
        assert found.flags.c_contiguous if order == "C" else found.flags.f_contiguous
        assert np.array_equal(found, expected)
        out = np.zeros((*positions.shape, 2), expected.dtype)[..., 1]
        assert view.read(out=out).result() is out
        assert np.array_equal(out, expected)

    @rule(data=st.data())
    def resize(self, data):
        shape = [data.draw(st.integers(0, 9)) for _ in self.model.shape]
        self.store = self.store.resize(exclusive_max=shape).result()
        self.model.resize(shape)

    @rule()
    def reopen(self):
        url = self.store.url
        keep = {"store_data_equal_to_fill_value": self.keep_fill}
        spec = {**gpustore.Spec(url).to_json(), **keep}
        self.store = gpustore.open(spec, context=self.context).result()

    @invariant()
    def stored_chunks_are_those_of_the_model(self):
        if not hasattr(self, "store"):
            return
        assert self.store.shape == tuple(self.model.shape)
        keys = [key.decode() for key in self.store.kvstore.list().result()]
        chunks = [key for key in keys if key not in (".zarray", "zarr.json")]
        assert len(chunks) == len(self.model.stored)

    def teardown(self):
        if not hasattr(self, "store"):
            return
        expected = self.model.array()
        assert np.array_equal(self.store.read().result(), expected)
        kvstore, context = self.store.kvstore, ts.Context()
        theirs = ts.KvStore.open("memory://a/", context=context).result()
        for key in kvstore.list().result():
            theirs.write(key, kvstore.read(key).result().value).result()
        driver = self.store.spec().to_json()["driver"]
        spec = {"driver": driver, "kvstore": "memory://a/"}
        if driver == "zarr":
            encoding = self.store.spec().to_json()["metadata"].get("dimension_separator", ".")
            spec["metadata"] = {"dimension_separator": encoding}
        store = ts.open(spec, context=context).result()
        assert np.array_equal(store.read().result(), expected)


TestArrayMachine = pytest.mark.matrix(ArrayMachine.TestCase)
TestArrayMachine.settings = settings(
    max_examples=share(150),
    stateful_step_count=15,
    suppress_health_check=list(HealthCheck),
)


# ---- reading into memory of the caller


def opened(shape=(3, 4), dtype="uint8", driver="zarr3"):
    """A small store and what it holds."""
    url = f"memory://a|{driver}:"
    store = gpustore.open(url, create=True, dtype=dtype, shape=shape).result()
    model = (np.arange(prod(shape)) % 120).astype(store.dtype.array_dtype).reshape(shape)
    store.write(model).result()
    return store, model


class DLPack:
    """Offers nothing but DLPack."""

    def __init__(self, array_):
        self.kept = array_

    def __dlpack__(self, **keywords):
        return self.kept.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.kept.__dlpack_device__()


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(12, "u1"),
        bytearray(12),
        memoryview(bytearray(12)),
        array.array("B", bytes(12)),
        DLPack(np.zeros(12, "u1")),
        np.zeros(36, "u1")[::-3],
    ],
    ids=lambda value: type(value).__name__,
)
def test_out_is_filled_and_returned(out):
    store, model = opened((12,))
    assert store.read(out=out).result() is out
    found = out.kept if isinstance(out, DLPack) else out
    assert np.array_equal(np.asarray(found), model)


@pytest.mark.parametrize(
    ("out", "kind"),
    [
        (np.zeros((4, 3), "u1"), MismatchError),
        (np.zeros((3, 4), "i1"), MismatchError),
        (np.zeros((3, 4)), MismatchError),
        (bytearray(12), MismatchError),
        (memoryview(bytes(12)).cast("B", (3, 4)), TypeError),
        ([[0] * 4] * 3, TypeError),
        ("text", TypeError),
    ],
    ids=["shape", "dtype", "float", "rank", "read-only", "list", "str"],
)
def test_wrong_out_is_refused_at_once(out, kind):
    store, _ = opened()
    with pytest.raises(kind):
        store.read(out=out)


def test_other_orders_than_c_and_f_are_refused():
    store, model = opened()
    assert store.read(order="F").result().flags.f_contiguous
    assert np.array_equal(store.T.read(order="F").result(), model.T)
    for wrong in ("A", "K", "c", None):
        with pytest.raises((TypeError, ValueError), match="order"):
            store.read(order=wrong)


def test_everything_can_be_awaited():
    store, model = opened()

    async def work():
        await store[0].write(9)
        futures = store[1].write(8)
        await futures.copy
        await futures.commit
        reads = [store[i].read() for i in range(3)]
        rows = await asyncio.gather(*(asyncio.ensure_future(_wait(r)) for r in reads))
        resized = await store.resize(exclusive_max=[4, 4])
        again = await resized.resolve()
        return rows, again.shape

    rows, shape = asyncio.run(work())
    assert np.array_equal(rows, [[9] * 4, [8] * 4, model[2]])
    assert shape == (4, 4)


async def _wait(future):
    return await future


@each("driver", ["zarr2", "zarr3"])
@each("shape", [(0,), (3, 0), (0, 0, 2), ()])
def test_empty_and_zero_dimensional_arrays(driver, shape):
    store, model = opened(shape, "int16", driver)
    assert np.array_equal(store.read().result(), model)
    assert store.read().result().shape == shape
    out = np.zeros(shape, "i2")
    assert store.read(out=out).result() is out
    store[...] = 5
    assert np.array_equal(store.read().result(), np.full(shape, 5, "i2"))
    chunks = [key for key in store.kvstore.list().result() if b"zarr" not in key]
    assert len(chunks) == (shape == ())
    if shape:
        grown = store.resize(exclusive_max=[2] * len(shape)).result()
        assert grown.read().result().tolist() == np.zeros([2] * len(shape)).tolist()
    else:
        assert store[None, None].read().result().tolist() == [[5]]


def test_empty_selections_are_read_and_written():
    store, model = opened()
    assert store[1:1, 2:2].read().result().shape == (0, 0)
    store[1:1] = 7
    store[3:3, ::-1].write(np.zeros((0, 4), "u1")).result()
    assert np.array_equal(store.read().result(), model)


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_arrays_of_rank_32_are_transposed_and_reversed(driver):
    shape = (2, 1, 3) + (1,) * 28 + (2,)
    store, model = opened(shape, "uint8", driver)
    axes = tuple(reversed(range(32)))
    assert np.array_equal(store.transpose(axes).read().result(), model.transpose(axes))
    part = (slice(None, None, -1), 0, slice(2, 0, -1), ...)
    assert np.array_equal(store[part].read().result(), model[part])
    with pytest.raises(ValueError, match="32"):
        store[None]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("cname", ["lz4", "snappy"])
def test_parts_of_large_blosc_chunks(order, cname):
    metadata = {
        "chunks": [64, 50, 70],
        "compressor": {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": 1, "blocksize": 9000},
        "order": order,
        "dtype": ">u2",
    }
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    store = gpustore.open(spec, create=True, shape=[100, 60, 70]).result()
    rng = np.random.default_rng(0)
    model = rng.integers(0, 50, store.shape).cumsum(axis=1).astype("u2")
    store[...] = model
    for _ in range(200):
        index = []
        for size in store.shape:
            a, b = sorted(int(i) for i in rng.integers(0, size, 2))
            step = int(rng.choice([1, 2, -1]))
            whole = slice(a, b + 1, step) if step > 0 else slice(b, a - 1 if a else None, step)
            index.append(a if rng.random() < 0.3 else whole)
        found = store[tuple(index)].read().result()
        assert np.array_equal(found, model[tuple(index)]), index


@pytest.mark.parametrize(
    ("shape", "chunks", "order", "dtype"),
    [
        ((40, 70, 100), (32, 64, 64), "F", "<u2"),
        ((40, 70, 100), (32, 64, 64), "F", ">u2"),
        ((600, 90), (512, 64), "F", "|u1"),
        ((3, 9, 70, 40), (2, 8, 64, 32), "F", "<c16"),
        ((40, 70, 100), (32, 64, 64), "C", "<u2"),
    ],
)
def test_transposing_copies(shape, chunks, order, dtype):
    metadata = {"chunks": chunks, "compressor": None, "order": order, "dtype": dtype}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    store = gpustore.open(spec, create=True, shape=shape).result()
    rng = np.random.default_rng(0)
    model = rng.integers(0, 200, shape).astype(np.dtype(dtype).newbyteorder("="))
    store[...] = model
    for view, expected in (
        (store, model),
        (store.T, model.T),
        (store[::-1], model[::-1]),
        (store[..., 1::2], model[..., 1::2]),
        (store[..., 3:], model[..., 3:]),
    ):
        for result_order in "CF":
            found = view.read(order=result_order).result()
            assert np.array_equal(found, expected)
