"""Opening an array that is there."""

import pytest

from benchmarks.formats import FORMATS

RAW = [f for f in FORMATS if f.codec == "raw" and f.chunk[1] == 128]


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open(measure, peer, stored_format, stored, volume):
    path = stored(stored_format)
    handles = measure(
        lambda: [peer.open(path, stored_format) for _ in range(20)], nbytes=0, rounds=10
    )
    assert all(tuple(handle.shape) == volume.shape for handle in handles)
