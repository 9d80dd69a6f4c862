"""Descriptors of byte ranges and shuffled blocks, replayed in NumPy, every access checked."""

import hypothesis.strategies as st
import numcodecs
import numpy as np
from hypothesis import given

from gpustore.device.kernels import instance
from gpustore.device.kernels.block import (
    bit_shuffle_launches,
    bit_unshuffle_launches,
    shuffle_launches,
    stream_launches,
    unshuffle_launches,
)
from tests.kernels import reference, shuffled
from tests.matrix import each

PLANS = {
    ("byte", True): shuffle_launches,
    ("byte", False): unshuffle_launches,
    ("bit", True): bit_shuffle_launches,
    ("bit", False): bit_unshuffle_launches,
}

SRC, DST = 3 << 40, 5 << 40
"""Addresses that no machine has."""


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from([1, 2, 3, 4, 8, 12, 16, 255])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(["byte", "bit"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_each_byte_of_shuffled_blocks_is_written_once(blocks, alignment, kind, forward, seed):
    rng = np.random.default_rng(seed)
    memory = reference.Memory()
    src, dst, plain = [], [], []
    at = 0
    for nbytes, typesize in blocks:
        data = rng.integers(0, 256, nbytes, np.uint8)
        encoded = shuffled.SHUFFLES[kind](data, typesize)
        data, encoded = (encoded, data) if forward else (data, encoded)
        plain.append(data)
        src.append(SRC + at)
        dst.append((np.zeros(nbytes, np.uint8), DST + at))
        memory.add(encoded, src[-1])
        memory.add(*dst[-1])
        at += nbytes + -(nbytes) % alignment
    plan = PLANS[kind, forward]
    launches = plan(src, [a for _, a in dst], [n for n, _ in blocks], [t for _, t in blocks])
    for launch in launches:
        assert launch.expression in instance.INSTANCES[launch.family]
    assert len({launch.expression for launch in launches}) == len(launches)
    reference.replay(launches, memory)
    for (got, _), expected in zip(dst, plain, strict=True):
        assert got.tobytes() == expected.tobytes()


@each("typesize", [1, 2, 3, 4, 7, 8, 12, 16, 100, 255])
@each(("kind", "shuffle"), [("byte", 1), ("bit", 2)])
@each("elements", [800, 801])
def test_the_reference_shuffles_as_blosc_does(elements, typesize, kind, shuffle):
    data = np.random.default_rng(typesize).integers(0, 4, typesize * elements, np.uint8)
    # One block of one zstd stream, which is never split.
    blosc = numcodecs.Blosc("zstd", 1, shuffle, blocksize=len(data))
    encoded = blosc.encode(data.view(f"V{typesize}"))
    assert encoded[3] == typesize
    start = int.from_bytes(encoded[16:20], "little")
    inner = bytes(numcodecs.Zstd().decode(encoded[start + 4 :]))
    if typesize == 1 and kind == "byte":
        assert inner == data.tobytes()
    assert inner == shuffled.SHUFFLES[kind](data, typesize).tobytes()


def test_empty_ranges_are_no_launch():
    assert stream_launches([SRC], [DST], [0]) == []
    assert unshuffle_launches([], [], [], 4) == []
    assert bit_unshuffle_launches([SRC, SRC], [DST, DST], [0, 0], 4) == []
