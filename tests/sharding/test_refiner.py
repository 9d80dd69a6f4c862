"""Reading the needed bytes of a raw chunk gives the elements that reading it whole gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.backends.host import BACKEND
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.chunk_plan import plan_chunks
from gpustore.sharding.refiner import RawBytesRefiner
from tests.backends.host.test_host import scatter
from tests.matrix import share


@st.composite
def reads(draw):
    """A chunk layout and an affine transform into an array of such chunks."""
    rank = draw(st.integers(0, 3))
    chunks = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(rank))
    dtype = np.dtype(draw(st.sampled_from(["|u1", ">u2", "<i4", "<f8", ">c16"])))
    strides, nbytes = [0] * rank, dtype.itemsize
    for d in draw(st.permutations(range(rank))):
        strides[d] = nbytes
        nbytes *= chunks[d]
    domain_shape, maps = [], []
    for size in shape:
        kind = draw(st.sampled_from(["constant", "slice", "slice", "slice"]))
        first = draw(st.integers(0, size - 1))
        if kind == "constant":
            maps.append(OutputIndexMap(first))
            continue
        stride = draw(st.sampled_from([1, 1, -1, 2, -2, 5]))
        room = (size - 1 - first) // stride if stride > 0 else first // -stride
        domain_shape.append(draw(st.integers(1, room + 1)))
        dimension = len(domain_shape) - 1
        maps.append(OutputIndexMap(input_dimension=dimension, offset=first, stride=stride))
    transform = IndexTransform(IndexDomain(shape=domain_shape), maps)
    return ChunkBytes(dtype, chunks, tuple(strides), nbytes), shape, transform


def window_of(layout, shape, transform, strides):
    rank = len(shape)
    form = ChunkFormat(layout.strides, "", "/", (1,) * rank, rank)
    grid = ChunkGrid(shape, layout.shape)
    ((_, plan),) = plan_chunks(transform, grid, lambda _: form, strides, 10**6)
    return plan.window(0, len(plan))


@settings(max_examples=share(300))
@given(reads(), st.integers(0, 2**31))
def test_the_refined_read_equals_the_whole_read(read, seed):
    layout, shape, transform = read
    native = layout.dtype.newbyteorder("=")
    domain = tuple(transform.domain.shape)
    whole, refined = np.zeros(domain, native), np.zeros(domain, native)
    chain = CodecChain(layout, (), {})
    memory = BACKEND.destination(whole, domain, native)
    window = window_of(layout, shape, transform, memory.strides)
    random = np.random.default_rng(seed)
    values = [random.integers(0, 256, layout.nbytes, "u1").tobytes() for _ in window.keys]
    fill = np.zeros((), native)
    assert scatter(window, values, chain, fill, memory) == {}

    refiner = RawBytesRefiner(layout.nbytes, native.itemsize)
    assert refiner.probe(window) is None
    rows = refiner.refine(window, (), ())
    if rows is window:
        assert rows.byte_start is None
    else:
        assert len(rows.byte_start) == len(rows.byte_stop) == len(window)
        for start, stop in zip(rows.byte_start, rows.byte_stop, strict=True):
            assert 0 <= start < stop <= layout.nbytes
            assert 2 * (stop - start) <= layout.nbytes or (start, stop) == (0, layout.nbytes)
        values = [v[a:b] for v, a, b in zip(values, rows.byte_start, rows.byte_stop, strict=True)]
    memory = BACKEND.destination(refined, domain, native)
    assert scatter(rows, values, chain, fill, memory) == {}
    assert refined.tobytes() == whole.tobytes()


def refine(index, shape=(4, 6), chunks=(4, 6)):
    layout = ChunkBytes.contiguous(np.dtype("<u2"), chunks)
    transform = IndexTransform(IndexDomain(shape=shape))[index]
    strides = (0,) * transform.input_rank
    window = window_of(layout, shape, transform, strides)
    rows = RawBytesRefiner(layout.nbytes, 2).refine(window, (), ())
    return window, rows


@pytest.mark.parametrize(
    ("index", "span"),
    [
        (np.s_[0, 0], (0, 2)),
        (np.s_[3, 5], (46, 48)),
        (np.s_[1], (12, 24)),
        (np.s_[1:3, 2:4], (16, 32)),
        (np.s_[:2], (0, 24)),
        (np.s_[1, ::-2], (14, 24)),
    ],
)
def test_the_span_is_as_small_as_it_can_be(index, span):
    _, rows = refine(index)
    assert (rows.byte_start, rows.byte_stop) == ([span[0]], [span[1]])


@pytest.mark.parametrize("index", [np.s_[:], np.s_[:3], np.s_[:, 0], np.s_[::3]])
def test_a_span_of_more_than_half_is_left_alone(index):
    window, rows = refine(index)
    assert rows is window


def test_rows_that_are_whole_are_mixed_with_parts():
    window, rows = refine(np.s_[0:5], shape=(8, 6), chunks=(4, 6))
    assert list(window.whole) == [True, False]
    assert (rows.byte_start, rows.byte_stop) == ([0, 0], [48, 12])
    assert list(rows.src_start) == [0, 0]
