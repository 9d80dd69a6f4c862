"""Spaces of origins and their division into blocks."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustore.loader.space import PatchSpace


@st.composite
def spaces(draw):
    rank = draw(st.integers(1, 3))
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 2, 4])] * rank))
    patch = tuple(step * draw(st.integers(1, 6)) for step in steps)
    shape = tuple(p + step * draw(st.integers(0, 20)) for p, step in zip(patch, steps, strict=True))
    chunks = draw(st.tuples(*[st.integers(1, 9)] * rank))
    return PatchSpace.of(shape, chunks, patch, steps, 2, inside=draw(st.booleans()))


@given(space=spaces(), window=st.integers(1, 5000))
def test_blocks_have_each_origin_once_and_begin_with_chunks(space, window):
    edges = space.blocks(window)
    for d, found in enumerate(edges):
        assert found[0] == 0
        assert found[-1] == space.counts[d]
        assert (np.diff(found) > 0).all()
        last = space.first[d] + space.steps[d] * (found[1:-1] - 1)
        # No chunk begins between the last origin of a block and the first of the next but there.
        assert ((last + space.steps[d]) // space.chunks[d] > last // space.chunks[d]).all()


@given(space=spaces(), inside=st.booleans())
def test_patches_are_inside_or_their_centres_are(space, inside):
    space = PatchSpace.of(
        space.shape, space.chunks, space.patch, space.steps, space.nbytes, inside=inside
    )
    for d, n in enumerate(space.shape):
        offset = 0 if inside else space.patch[d] // 2
        last_offset = space.patch[d] - 1 if inside else offset
        last = space.first[d] + (space.counts[d] - 1) * space.steps[d]
        assert space.first[d] + offset >= 0 > space.first[d] - space.steps[d] + offset
        assert last + last_offset < n <= last + last_offset + space.steps[d]


def test_blocks_of_an_eighth_decode_chunks_at_most_1_6_times():
    # The volume, chunks and patches of the measurements: 216 chunks of 64^3.
    space = PatchSpace.of((384,) * 3, (64,) * 3, (64,) * 3, (1,) * 3, 2, inside=True)
    edges = space.blocks(384**3 * 2 // 8)
    decoded = 0
    for block in itertools.product(*(itertools.pairwise(one.tolist()) for one in edges)):
        touched = [(hi - 1 + 63) // 64 - lo // 64 + 1 for lo, hi in block]
        decoded += np.prod(touched)
    assert decoded <= 1.6 * 216


@given(space=spaces(), sizes=st.tuples(*[st.integers(1, 12)] * 3))
def test_decodes_of_blocks_are_those_counted_one_by_one(space, sizes):
    for d, size in enumerate(sizes[: len(space.shape)]):
        chunk, last = space.chunks[d], space.first[d] + (space.counts[d] - 1) * space.steps[d]
        total = -(-space.shape[d] // chunk)
        decoded = 0
        for begin in range(0, max(1, last + 1), size * chunk):
            end = min(begin + size * chunk - 1, last) + space.patch[d] - 1
            decoded += min(end // chunk, total - 1) - begin // chunk + 1
        assert space._decodes(d, size) == decoded / total


def test_arrays_of_many_millions_of_chunks_are_divided():
    # A minute, where blocks are counted one by one.
    space = PatchSpace.of((10**9,), (100,), (64,), (1,), 2, inside=True)
    assert len(space.blocks(1 << 28)[0]) == 9
