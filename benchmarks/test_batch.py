"""Many crops at once: 1 000 crops of one shape, in random order, all at once.

TensorStore reads them as Futures of one ``Batch``, gpustore with ``read_many`` and, to compare, as
Futures of its own ``Batch``, zarr-python and zarrs one after the other. Only ``read_many`` returns
one array: the others have not stacked theirs, so nothing is measured that a user of them would not
need as well.

Then operations begun one by one and all waited for at last, without a batch: 200 reads of crops
that overlap, and 100 writes of rows that share chunks.
"""

import itertools

import numpy as np
import pytest

from benchmarks.conftest import random_boxes

EXTENTS = [(16, 64, 64), (32, 32, 32), (8, 8, 8)]


def read_crops(peer, handle, boxes):
    """The crops, as the peer reads many of them fastest."""
    if peer.name == "gpustore":
        starts = [[part.start for part in box] for box in boxes]
        return handle.read_many(starts, [part.stop - part.start for part in boxes[0]]).result()
    if peer.name == "tensorstore":
        return read_batch(peer, handle, boxes)
    return [peer.read(handle, box) for box in boxes]


def read_batch(peer, handle, boxes):
    with peer.module.Batch() as batch:
        futures = [handle[box].read(batch=batch) for box in boxes]
    return [future.result() for future in futures]


def with_futures(peer):
    """Skip a peer whose reads and writes end before they return."""
    if not hasattr(getattr(peer, "module", None), "Future"):
        pytest.skip("has no Futures")


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_1000_crops(measure, peer, array_format, extent, stored, volume):
    handle = peer.open(stored(array_format), array_format)
    boxes = random_boxes(volume.shape, extent, 1000)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: read_crops(peer, handle, boxes),
        nbytes=sum(crop.nbytes for crop in expected),
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


def test_batch_of_1000_crops(measure, peer, array_format, stored, volume):
    if not hasattr(getattr(peer, "module", None), "Batch"):
        pytest.skip("has no Batch")
    handle = peer.open(stored(array_format), array_format)
    boxes = random_boxes(volume.shape, (16, 64, 64), 1000)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: read_batch(peer, handle, boxes),
        nbytes=sum(crop.nbytes for crop in expected),
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_200_crops_as_futures(measure, peer, array_format, extent, stored, volume):
    with_futures(peer)
    handle = peer.open(stored(array_format), array_format)
    boxes = random_boxes(volume.shape, extent, 200)
    expected = [volume[box] for box in boxes]

    def read():
        futures = [handle[box].read() for box in boxes]
        return [future.result() for future in futures]

    result = measure(read, nbytes=sum(crop.nbytes for crop in expected))
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))


def test_100_rows_written_as_futures(measure, peer, array_format, volume, tmp_path):
    with_futures(peer)
    number = itertools.count()
    values = volume[:32, :128, :128]
    rows = [np.s_[i % 32, 7 * i % 128] for i in range(100)]

    def new_array():
        path = tmp_path / str(next(number))
        handle = peer.create(path, array_format, values.shape)
        peer.write(handle, np.ones_like(values))
        return (handle,), {}

    def write(handle):
        futures = [handle[row].write(values[row]) for row in rows]
        for future in futures:
            future.result()
        return handle

    handle = measure(write, nbytes=100 * values[rows[0]].nbytes, setup=new_array)
    expected = np.ones_like(values)
    for row in rows:
        expected[row] = values[row]
    assert np.array_equal(peer.read(handle, ...), expected)
