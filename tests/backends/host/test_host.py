"""The host backend against NumPy: scatter, gather, and which memory it takes."""

import array
import ctypes
import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.base import Chunks, Layer, Overlay
from gpustore.backends.host import BACKEND
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, LimitError, MismatchError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.chunk_plan import plan_chunks
from gpustore.runtime.limits import Limits
from tests.matrix import each, share

DTYPES = [
    *("|u1", "|b1", ">u2", "<i2", ">f4", "<i4", ">i8", "<f8", "<c8", ">c16"),
    np.dtype(ml_dtypes.bfloat16),
]


@st.composite
def memories(draw, shape, dtype):
    """An array of this shape somewhere in a larger one: any order, gaps, negative strides."""
    axes = draw(st.permutations(range(len(shape))))
    index, base, flips = [], [], []
    for d in axes:
        start, step = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        stop = start + step * shape[d]
        base.append(stop + draw(st.integers(0, 2)))
        index.append(slice(start, stop, step))
        flips.append(slice(None, None, draw(st.sampled_from([1, -1]))))
    whole = np.zeros(base, dtype)
    view = whole[(*index, ...)][(*flips, ...)].transpose(np.argsort(axes))
    assert view.shape == tuple(shape)
    return whole, view


@st.composite
def cases(draw):
    """A random array, its chunks and a selection of it: (model, chain, transform, selected)."""
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    stored = np.dtype(draw(st.sampled_from(DTYPES)))
    order = draw(st.permutations(range(rank)))
    strides, nbytes = [0] * rank, stored.itemsize
    for d in order:
        strides[d] = nbytes
        nbytes *= chunks[d]
    layout = ChunkBytes(stored, chunks, tuple(strides), nbytes)
    stages = ()
    if draw(st.booleans()):
        named = [NamedConfiguration("bytes", {"endian": "little"}), NamedConfiguration("crc32c")]
        stages = resolve_v3(named, DataType("uint8"), chunks).stages
    index = []
    for size in shape:
        low = draw(st.integers(0, size - 1))
        high = draw(st.integers(low + 1, size))
        if draw(st.booleans()):
            index.append(slice(low, high, draw(st.sampled_from([1, 2, 3]))))
        else:
            index.append(slice(high - 1, low - 1 if low else None, -1))
    axes = draw(st.permutations(range(rank)))
    seed = draw(st.integers(0, 2**31))
    raw = np.random.default_rng(seed).integers(0, 256, size=int(np.prod(shape)) * stored.itemsize)
    if stored.kind == "b":
        raw &= 1
    model = raw.astype("u1").view(stored.newbyteorder("=")).reshape(shape)
    transform = IndexTransform(IndexDomain(shape=shape))[(*index, ...)].transpose(axes)
    return model, CodecChain(layout, stages, {}), transform, (index, axes)


def select(model, selection):
    index, axes = selection
    return model[(*index, ...)].transpose(axes)


def window_of(model, chain, transform, memory):
    layout = chain.layout
    rank = len(model.shape)
    form = ChunkFormat(layout.strides, "", "/", (1,) * rank, rank)
    grid = ChunkGrid(model.shape, layout.shape)
    ((_, plan),) = plan_chunks(transform, grid, lambda _: form, memory.strides, 10**6)
    return plan.window(0, len(plan))


def cells(window):
    return [tuple(int(column[i]) for column in window.cells) for i in range(len(window))]


def stored_chunk(model, chain, cell, fill):
    """One chunk as it is stored, the cells beyond the edge filled with `fill`."""
    layout = chain.layout
    chunk = np.full(layout.nbytes, 0, "u1")
    view = np.ndarray(layout.shape, layout.dtype, chunk, 0, layout.strides)
    view[...] = fill
    part = model[
        (*(slice(i * c, (i + 1) * c) for i, c in zip(cell, layout.shape, strict=True)), ...)
    ]
    view[(*map(slice, part.shape), ...)] = part
    return bytes(chain.encode(chunk.data))


def decoded(chain, value):
    layout = chain.layout
    raw = np.frombuffer(chain.decode(value), "u1").copy()
    return np.ndarray(layout.shape, layout.dtype, raw, 0, layout.strides)


def same(a, b):
    """Bit for bit, whatever the byte order."""
    native = a.dtype.newbyteorder("=")
    return a.astype(native).tobytes() == b.astype(native).tobytes()


def scatter(window, values, chain, fill, memory):
    """Give values to a sink; the errors that it reports."""
    reported = []

    def check(keys, missing, errors):
        assert keys is window.keys
        assert missing == values.count(None)
        reported.append(errors)

    sink = BACKEND.sink([Chunks(chain, len(window), len(window))], fill, [memory], Limits(), check)
    with sink.part(chain, rows=len(window)) as part:
        part.scatter(window, values)
    (errors,) = reported
    return errors


@pytest.mark.matrix
@given(cases(), st.data())
def test_scatter_places_what_numpy_selects(case, data):
    model, chain, transform, selection = case
    expected = select(model, selection)
    whole, view = data.draw(memories(expected.shape, model.dtype))
    memory = BACKEND.destination(view, expected.shape, model.dtype)
    window = window_of(model, chain, transform, memory)
    fill = np.ones((), model.dtype)
    missing = set(data.draw(st.sets(st.sampled_from(cells(window) or [None]))))
    values = [
        None if cell in missing else stored_chunk(model, chain, cell, fill)
        for cell in cells(window)
    ]
    assert scatter(window, values, chain, fill, memory) == {}
    present = model.copy()
    for cell in missing - {None}:
        index = (slice(i * c, (i + 1) * c) for i, c in zip(cell, chain.layout.shape, strict=True))
        present[(*index, ...)] = fill
    reference = np.zeros_like(whole)
    same_view = np.ndarray(
        view.shape,
        view.dtype,
        reference.reshape(-1).view("u1"),
        view.ctypes.data - whole.ctypes.data if view.size else 0,
        view.strides,
    )
    same_view[...] = select(present, selection)
    assert reference.tobytes() == whole.tobytes(), "nothing beside the destination is touched"


@pytest.mark.matrix
@settings(max_examples=share(300))
@given(cases(), st.data())
def test_gather_lays_the_source_over_the_chunks(case, data):
    model, chain, transform, selection = case
    fill = np.ones((), model.dtype)
    _, source = data.draw(memories(select(model, selection).shape, model.dtype))
    source[...] = select(model, selection)
    memory = BACKEND.source(source, transform.domain, model.dtype)
    window = window_of(model, chain, transform, memory)
    before = np.zeros_like(model)
    exists = data.draw(st.booleans())
    present = [
        stored_chunk(before, chain, cell, fill) if exists and not whole else None
        for cell, whole in zip(cells(window), window.whole, strict=True)
    ]
    values = BACKEND.gather(
        [Overlay([Layer(window, memory)], present)], chain, fill, Limits(), keep_fill=True
    )
    after = before.copy() if exists else np.full_like(before, fill)
    index, axes = selection
    after[(*index, ...)] = source.transpose(np.argsort(axes)) if axes else source
    for cell, value in zip(cells(window), values, strict=True):
        expected = decoded(chain, stored_chunk(after, chain, cell, fill))
        assert same(decoded(chain, value), expected), "elements, and fill beyond the edge"


FILLS = {
    "f2": [0.0, -0.0, np.nan, 1.5],
    "f4": [0.0, -0.0, np.nan],
    "f8": [0.0, -0.0, np.nan, np.inf],
    "c8": [0j, complex(0.0, -0.0), complex(np.nan, 0)],
    "c16": [0j, complex(-0.0, 0.0)],
    "u1": [0, 255],
    "i2": [0, -1, 256],
    "i4": [0, 1],
    "u8": [0, 2**63],
    "b1": [False, True],
}


@each("endian", "<>")
@each("name", FILLS)
def test_only_chunks_that_equal_the_fill_bit_for_bit_are_elided(name, endian):
    native = np.dtype(name)
    stored = native.newbyteorder(endian)
    layout = ChunkBytes.contiguous(stored, (2, 3))
    chain = CodecChain(layout, (), {})
    transform = IndexTransform(IndexDomain(shape=[2, 3]))
    candidates = [np.array(value, native) for value in FILLS[name]]
    if native.kind == "f":
        other_nan = np.array(np.nan, native)
        other_nan.reshape(1).view("u1")[0 if np.little_endian else -1] ^= 1
        candidates.append(other_nan)
    for fill in candidates:
        for value in candidates:
            for odd in (False, True):
                source = np.full((2, 3), value)
                if odd:
                    source[1, 2] = candidates[0]
                memory = BACKEND.source(source, transform.domain, native)
                window = window_of(source, chain, transform, memory)
                equal = source.tobytes() == np.full((2, 3), fill).tobytes()
                for keep in (False, True):
                    layers = [Layer(window, memory)]
                    [found] = BACKEND.gather(
                        [Overlay(layers, [None])], chain, fill, Limits(), keep_fill=keep
                    )
                    assert (found is None) == (equal and not keep)
                    if found is not None:
                        assert bytes(found) == source.astype(stored).tobytes()


@pytest.mark.parametrize("shape", [(8, 4), (1, 4)])
def test_chunks_that_elements_for_one_place_do_not_cover_are_filled(tmp_path, monkeypatch, shape):
    """As many elements as the chunk has, all for its first row: the others are filled."""
    metadata = {"shape": list(shape), "chunks": [4, 4], "dtype": "<u4", "compressor": None}
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}",
        "metadata": {**metadata, "fill_value": 7},
        "transform": {"input_shape": [4, 4], "output": [{"offset": 0}, {"input_dimension": 1}]},
    }
    store = gpustore.open(spec, create=True).result()
    array = np.arange(16, dtype="u4").reshape(4, 4)
    empty = np.empty
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", lambda *args, **named: _used(empty(*args, **named)))
        store.write(array).result()
    expected = np.full((4, 4), 7, "u4")
    expected[0] = array[-1]
    assert np.array_equal(np.fromfile(tmp_path / "0.0", "<u4").reshape(4, 4), expected)


def _used(array):
    """Memory that has had other contents."""
    if array.flags.c_contiguous and not array.dtype.hasobject:
        array.reshape(-1).view(np.uint8)[:] = 0xA5
    return array


def test_errors_are_reported_by_row_and_the_others_are_in_place():
    layout = ChunkBytes.contiguous(np.dtype("<u2"), (2,))
    chain = CodecChain(layout, (), {})
    transform = IndexTransform(IndexDomain(shape=[6]))
    out = np.zeros(6, "<u2")
    memory = BACKEND.destination(out, (6,), out.dtype)
    window = window_of(out, chain, transform, memory)
    values = [b"\1\0\2\0", b"\1\0\2", b"\5\0\6\0"]
    errors = scatter(window, values, chain, np.uint16(9), memory)
    assert list(errors) == [1]
    assert isinstance(errors[1], CorruptChunkError)
    assert out.tolist() == [1, 2, 0, 0, 5, 6]


def test_a_stored_chunk_that_does_not_decode_is_named_by_gather():
    chain = CodecChain(ChunkBytes.contiguous(np.dtype("<u2"), (2,)), (), {})
    transform = IndexTransform(IndexDomain(shape=[1]))
    memory = BACKEND.source(np.uint16([7]), transform.domain, np.dtype("u2"))
    window = window_of(np.zeros(2, "u2"), chain, transform, memory)
    layers = [Layer(window, memory)]
    with pytest.raises(CorruptChunkError, match='Error reading "0"') as caught:
        BACKEND.gather([Overlay(layers, [b"abc"])], chain, np.uint16(0), Limits(), keep_fill=False)
    assert caught.value.key == "0"


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (0, 0)])
def test_zero_sized_arrays_are_no_special_case(shape):
    for order in "CF":
        memory = BACKEND.empty(shape, np.dtype("f4"), order)
        assert memory.array.shape == shape
    assert BACKEND.destination(memory.array, shape, np.dtype("f4")).array is memory.array
    domain = IndexDomain(shape=shape)
    assert BACKEND.source(np.zeros(shape, "f4"), domain, np.dtype("f4")).array.size == 0
    assert BACKEND.source(1.5, domain, np.dtype("f4")).array.shape == shape


def test_new_arrays_have_the_order_asked_for():
    assert BACKEND.empty((2, 3), np.dtype("i4"), "C").array.flags.c_contiguous
    assert BACKEND.empty((2, 3), np.dtype("i4"), "F").array.flags.f_contiguous
    with pytest.raises(LimitError, match=r"does not fit the memory"):
        BACKEND.empty((2**40, 2**20), np.dtype("f8"), "C")


# ---- memory of others


class Interface:
    """Offers nothing but NumPy's array interface."""

    def __init__(self, array):
        self.kept = array
        self.__array_interface__ = array.__array_interface__


class DLPack:
    """Offers nothing but DLPack."""

    def __init__(self, array):
        self.kept = array

    def __dlpack__(self, **keywords):
        return self.kept.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.kept.__dlpack_device__()


WRAPPERS = {
    "ndarray": lambda a: a,
    "memoryview": memoryview,
    "interface": Interface,
    "dlpack": DLPack,
    "array.array": lambda a: array.array("f", a.tolist()),
    "ctypes": lambda a: (ctypes.c_float * len(a))(*a),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_destinations_of_many_kinds_are_filled(name):
    out = WRAPPERS[name](np.zeros(4, "f4"))
    memory = BACKEND.destination(out, (4,), np.dtype("f4"))
    memory.array[...] = [1, 2, 3, 4]
    found = out.kept if hasattr(out, "kept") else out
    assert list(found) == [1, 2, 3, 4]


def test_a_bytearray_is_an_array_of_uint8():
    out = bytearray(3)
    BACKEND.destination(out, (3,), np.dtype("u1")).array[...] = 7
    assert out == b"\7\7\7"


def read_only(a):
    a.flags.writeable = False
    return a


@each(
    ("out", "kind", "text"),
    [
        (np.zeros((2, 3), "f4"), MismatchError, "out has shape (2, 3), expected (3, 2)"),
        (np.zeros(6, "f4"), MismatchError, "out has shape (6,), expected (3, 2)"),
        (np.zeros((3, 2)), MismatchError, "out has dtype float64, expected float32"),
        (np.zeros((3, 2), ">f4"), MismatchError, "out has dtype >f4, expected float32"),
        (read_only(np.zeros((3, 2), "f4")), TypeError, "out is read-only"),
        (memoryview(bytes(24)).cast("f", (3, 2)), TypeError, "out is read-only"),
        ([[0, 0]] * 3, TypeError, "out must be a NumPy array or offer the buffer protocol"),
        (None, TypeError, "got NoneType"),
        (np.float32(0), MismatchError, "out has shape ()"),
    ],
)
def test_wrong_destinations_are_refused(out, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        BACKEND.destination(out, (3, 2), np.dtype("f4"))


class OnDevice:
    __cuda_array_interface__ = ()


def test_device_memory_is_refused_by_name():
    with pytest.raises(TypeError, match="device='cuda'"):
        BACKEND.destination(OnDevice(), (1,), np.dtype("f4"))
    with pytest.raises(TypeError, match="device='cuda'"):
        BACKEND.source(OnDevice(), IndexDomain(shape=[1]), np.dtype("f4"))


@pytest.mark.parametrize(
    ("source", "shape", "expected"),
    [
        (5, (2,), [5, 5]),
        ([1, 2], (3, 2), [[1, 2]] * 3),
        (np.array([[1], [2]], "u1"), (2, 2), [[1, 1], [2, 2]]),
        (np.array([[[1, 2]]], "i1"), (2,), [1, 2]),
        (True, (1,), [1]),
        ("3", (1,), [3]),
    ],
)
def test_sources_are_broadcast_and_cast(source, shape, expected):
    memory = BACKEND.source(source, IndexDomain(shape=shape), np.dtype("i4"))
    assert memory.array.dtype == np.int32
    assert memory.array.tolist() == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ([1, 2, 3], "source dimension 0 [0, 3) mismatch with target dimension 1 [5, 7)"),
        ([[1, 2]] * 3, "source dimension 0 [0, 3) mismatch with target dimension 0 [0, 2)"),
        ([[[1, 2]] * 2] * 2, "source dimension 0 [0, 2) has no target dimension"),
        ([], "source dimension 0 [0, 0) mismatch with target dimension 1 [5, 7)"),
    ],
)
def test_sources_that_do_not_fit_are_refused(source, text):
    domain = IndexDomain(inclusive_min=[0, 5], shape=[2, 2])
    with pytest.raises(MismatchError) as caught:
        BACKEND.source(source, domain, np.dtype("i4"))
    assert str(caught.value) == f"Error aligning dimensions: {text}"


@pytest.mark.parametrize("source", [np.zeros(2), np.zeros(2, "u8"), np.array(["1", "2"])], ids=str)
def test_unsafe_casts_are_refused(source):
    with pytest.raises(TypeError, match="according to the rule 'safe'"):
        BACKEND.source(source, IndexDomain(shape=[2]), np.dtype("i4"))


@pytest.mark.parametrize("blocksize", [70_000, 100_000])
def test_part_of_a_blosc_chunk_that_does_not_begin_with_a_line(blocksize):
    """Lines are copied apart only if whole ones were decoded."""
    shape = (32, 128, 100)  # Lines of 8 KiB.
    compressor = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0, "blocksize": blocksize}
    members = {"shape": list(shape), "chunks": list(shape), "dtype": "<u2", "order": "F"}
    store = gpustore.open(
        {
            "driver": "zarr2",
            "kvstore": "memory://",
            "metadata": {**members, "compressor": compressor},
        },
        create=True,
    ).result()
    written = (np.arange(math.prod(shape)).reshape(shape) // 7).astype("u2")
    store[...] = written
    for start in range(0, 70, 3):
        part = np.s_[:, :, start : start + 30]
        assert np.array_equal(store[part].read().result(), written[part])
