"""Many crops at once: 1 000 crops of one shape, in random order, all at once.

TensorStore reads them as Futures of one ``Batch``, gpustore with ``read_many`` and, to compare, as
Futures of its own ``Batch``, zarr-python and zarrs one after the other. Only ``read_many`` returns
one array: the others have not stacked theirs, so nothing is measured that a user of them would not
need as well.
"""

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


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_1000_crops(measure, peer, array_format, extent, stored, volume):
    handle = peer.open(stored(array_format), array_format)
    boxes = random_boxes(volume.shape, extent, 1000)
    expected = [volume[box] for box in boxes]
    result = measure(
        lambda: read_crops(peer, handle, boxes),
        nbytes=sum(crop.nbytes for crop in expected),
        rounds=3,
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
        rounds=3,
    )
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
