"""Reading: everything, random crops, one element."""

import numpy as np
import pytest

from benchmarks.conftest import random_boxes


def test_full_read(measure, peer, read_format, stored, volume):
    if peer.name == "zarrs" and read_format.version == 2 and read_format.layout == "F":
        pytest.skip("zarrs 0.2 refuses Zarr v2 in F order")
    handle = peer.open(stored(read_format), read_format)
    result = measure(lambda: peer.read(handle, ...), nbytes=volume.nbytes)
    assert np.array_equal(result, volume)


def test_crop_reads(measure, peer, read_format, stored, volume):
    if peer.name == "zarrs" and read_format.version == 2 and read_format.layout == "F":
        pytest.skip("zarrs 0.2 refuses Zarr v2 in F order")
    handle = peer.open(stored(read_format), read_format)
    boxes = random_boxes(volume.shape, (16, 64, 64), 20)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: [peer.read(handle, box) for box in boxes],
        nbytes=sum(crop.nbytes for crop in expected),
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


def test_single_element_reads(measure, peer, array_format, stored, volume):
    handle = peer.open(stored(array_format), array_format)
    points = [tuple(s.start for s in box) for box in random_boxes(volume.shape, (1, 1, 1), 50)]
    result = measure(
        lambda: [peer.read(handle, point) for point in points],
        nbytes=len(points) * volume.itemsize,
    )
    assert [int(value) for value in result] == [int(volume[point]) for point in points]
