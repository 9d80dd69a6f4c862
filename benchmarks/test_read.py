"""Reading: everything, random crops, planes and strides, one element."""

import numpy as np
import pytest

from benchmarks.conftest import random_boxes
from benchmarks.retaining import RetainingPeer

SELECTIONS = {
    "plane0": [np.s_[k] for k in range(5, 256, 50)],
    "plane1": [np.s_[:, k] for k in range(5, 256, 50)],
    "plane2": [np.s_[..., k] for k in range(5, 256, 50)],
    "step4": [np.s_[::4]],
    "step4-all": [np.s_[::4, ::4, ::4]],
}
"""Planes across each dimension, and every fourth plane or element."""


def open_stored(peer, array_format, stored):
    if peer.name == "zarrs" and array_format.version == 2 and array_format.layout == "F":
        pytest.skip("zarrs 0.2 refuses Zarr v2 in F order")
    return peer.open(stored(array_format), array_format)


def test_full_read(measure, peer, read_format, stored, volume):
    handle = open_stored(peer, read_format, stored)
    result = measure(lambda: peer.read(handle, ...), nbytes=volume.nbytes)
    assert np.array_equal(result, volume)


def test_retained_full_read(measure, peer, plane_format, stored, volume, monkeypatch):
    """The whole array, beside a TensorStore whose allocator keeps the memory that it freed."""
    if peer.name not in ("gpustore", "tensorstore"):
        pytest.skip("only TensorStore is run so")
    path = stored(plane_format)
    if peer.name == "gpustore":
        handle = peer.open(path, plane_format)
        result = measure(lambda: peer.read(handle, ...), nbytes=volume.nbytes)
    else:
        with RetainingPeer(path, plane_format, peer.threads, monkeypatch) as retaining:
            measure(retaining.read, nbytes=volume.nbytes)
            result = retaining.result()
    assert np.array_equal(result, volume)


def test_crop_reads(measure, peer, read_format, stored, volume):
    handle = open_stored(peer, read_format, stored)
    boxes = random_boxes(volume.shape, (16, 64, 64), 20)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: [peer.read(handle, box) for box in boxes],
        nbytes=sum(crop.nbytes for crop in expected),
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("selection", SELECTIONS)
def test_plane_reads(measure, peer, selection, plane_format, stored, volume):
    handle = peer.open(stored(plane_format), plane_format)
    indices = SELECTIONS[selection]
    expected = [volume[index] for index in indices]
    result = measure(
        lambda: [peer.read(handle, index) for index in indices],
        nbytes=sum(part.nbytes for part in expected),
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
