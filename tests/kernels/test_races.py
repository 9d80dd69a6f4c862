"""One small launch of each kernel whose threads share memory or streams, for ThreadSanitizer.

``python -m tests.kernels.sanitized thread -q tests/kernels/test_races.py``: there each CUDA thread
is a thread of its own, so that data must be small. Without the sanitizer it only compares results.
"""

import google_crc32c
import numpy as np
import pytest

from gpustore.backends.downsampling import Downsampling
from gpustore.backends.host.downsample import downsample
from gpustore.device.kernels.block import (
    bit_shuffle_launches,
    bit_unshuffle_launches,
    shuffle_launches,
    stream_launches,
    unshuffle_launches,
)
from gpustore.device.kernels.launch import (
    Listed,
    cast_launches,
    copy_launches,
    fill_launches,
    indexed_launches,
)
from gpustore.device.kernels.run import Rows
from tests.kernels import (
    execution,
    shuffled,
    test_crc32c,
    test_downsample,
    test_element,
    test_lz,
    test_pattern,
    test_select,
    test_value,
)
from tests.matrix import each

pytestmark = [execution.needs_compiler, pytest.mark.parametrize("order", ["forward", "shuffled"])]

RNG = np.random.default_rng(0)


def rows(src, dst):
    return Rows(
        [execution.address(src)],
        [execution.address(dst)],
        np.array(dst.shape)[:, None],
        src.strides,
        dst.strides,
    )


@each("dtype", ["u1", "u2", "u4", "u8", "V16"])
def test_tiles(dtype, order):
    src = RNG.integers(0, 256, (35, 66 * np.dtype(dtype).itemsize), np.uint8).view(dtype).T
    dst = np.zeros(src.shape, dtype)
    (launch,) = copy_launches(rows(src, dst), src.itemsize)
    assert "copy_tiled" in launch.expression
    execution.run([launch], order)
    assert dst.tobytes() == src.tobytes()


@pytest.mark.parametrize(("source", "target"), [("u1", "f4"), ("f8", "f2")])
def test_tiles_that_are_converted(source, target, order):
    src = RNG.integers(0, 99, (35, 66)).astype(source).T
    dst = np.zeros(src.shape, target)
    (launch,) = cast_launches(rows(src, dst), src.dtype, dst.dtype)
    assert "cast_tiled" in launch.expression
    execution.run([launch], order)
    assert (dst == src).all()


def test_strided_items(order):
    src = RNG.integers(0, 256, (40, 60), np.uint8)[:, ::2]
    dst = np.zeros(src.shape, "u1")
    wide = np.zeros(src.shape, "f4")
    listed = np.zeros(src.shape, "u1")
    execution.run(copy_launches(rows(src, dst), 1), order)
    execution.run(cast_launches(rows(src, wide), src.dtype, wide.dtype), order)
    offsets = [np.arange(40) * 60], [np.arange(40) * 30]
    columns = Rows([execution.address(src)], [execution.address(listed)], [[30]], [2], [1])
    execution.run(indexed_launches(columns, [Listed([40], *offsets)], 1), order)
    assert (dst == src).all()
    assert (wide == src).all()
    assert (listed == src).all()
    small = np.zeros((20, 15), "u1")
    for method in ("mean", "mode", "gaussian"):
        job = Downsampling(method, (2, 2), (0, 0))
        test_downsample.reduced(src, job, small, order)
        expected = np.zeros_like(small)
        downsample(src, job, expected)
        assert (small == expected).all()
    execution.run(fill_launches([execution.address(dst)], [[1200]], [1], b"x"), order)
    assert (dst == ord("x")).all()


def test_byte_ranges(order):
    src = RNG.integers(0, 256, 3000, np.uint8)
    dst = np.zeros(3000, np.uint8)
    starts = np.array([0, 7, 1000, 1001, 2500])
    sizes = np.diff([*starts, 3000])
    launches = stream_launches(
        execution.address(src) + starts, execution.address(dst) + starts, sizes
    )
    execution.run(launches, order)
    assert (dst == src).all()


@each("typesize", [2, 8, 16, 3, 70])
@each("kind", shuffled.SHUFFLES)
def test_shuffled_blocks(kind, typesize, order):
    plain = RNG.integers(0, 256, 136 * typesize + 1, np.uint8)
    src = shuffled.SHUFFLES[kind](plain, typesize)
    dst = np.zeros_like(plain)
    plan = {"byte": unshuffle_launches, "bit": bit_unshuffle_launches}[kind]
    launches = plan([execution.address(src)], [execution.address(dst)], [len(src)], typesize)
    execution.run(launches, order)
    assert (dst == plain).all()
    again = np.zeros_like(src)
    plan = {"byte": shuffle_launches, "bit": bit_shuffle_launches}[kind]
    launches = plan([execution.address(dst)], [execution.address(again)], [len(src)], typesize)
    execution.run(launches, order)
    assert (again == src).all()


def test_segments_of_a_pattern(order):
    piece = test_pattern.repeated(b"abc", 9001)
    assert test_pattern.equal_segments([piece], b"abc", order) == [3]
    piece[[3, 9000]] = 0
    assert test_pattern.equal_segments([piece], b"abc", order) == [1]


def test_segments_of_a_checksum(order):
    data = RNG.integers(0, 256, 9001, np.uint8)
    found = test_crc32c.checksums([data[1:]], order, segment_nbytes=4200)
    assert found == [google_crc32c.value(data[1:].tobytes())]


@pytest.mark.parametrize("codec", test_lz.ENCODERS)
def test_streams_of_one_block(codec, order):
    data = [b"abc" * 60 + bytes(range(40)) + b"abc" * 30, bytes(400), b"xy" * 200]
    streams = [test_lz.ENCODERS[codec](part) for part in data]
    sizes = [len(part) for part in data]
    assert test_lz.decode(codec, streams, sizes, order)[0] == data


def test_entries_are_added_up(order):
    counts = np.arange(300, dtype=np.uint64) % np.uint64(3)
    test_select.check(np.arange(299, 20, -1), counts, counts, 0, order)


def test_values_that_fail_and_sums(order):
    one = test_value.stage("cast_value", "v3", "i2", data_type="int32")
    elements = np.arange(1500, dtype="i4")
    assert not test_value.run(one, elements, order=order)[1].any()
    elements[[3, 40, 1400]] = 1 << 20
    assert test_value.run(one, elements, order=order)[1].all()
    for dtype in ("u2", "f4"):
        array = np.arange(1100).astype(dtype)
        found, failed = test_value.summed([array, array[:5]], order)
        assert not failed.any()
        assert found == [np.cumsum(a, dtype=dtype).tobytes() for a in (array, array[:5])]


def test_bits_of_elements(order):
    data = np.ones(5000, "u1")
    assert test_element.legal([data[1:]], 0xFE, order, segment_nbytes=4200) == [2]
    data[[0, 17, 4999]] = 0xFF
    assert test_element.legal([data[1:]], 0xFE, order, segment_nbytes=4200) == [0]
    test_element.launch("clear_bits", [data[1:]], 0xF0, order, 4200)
    records = np.ones(5000, "u1")
    records[[2, 4998]] = 0xFF
    assert test_element.legal([records[1:]], b"\xfe\0", order, segment_nbytes=4200) == [2]
    assert test_element.legal([records[1:]], b"\0\xfe", order, segment_nbytes=4200) == [0]
    test_element.launch("clear_records", [records[1:]], b"\0\xf0", order, 4200)
    assert np.flatnonzero(records != 1).tolist() == [2, 4998]
    assert np.flatnonzero(data != 1).tolist() == [0, 17, 4999]
    assert data[[0, 17, 4999]].tolist() == [0xFF, 0x0F, 0x0F]
