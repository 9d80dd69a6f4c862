"""Opening arrays that are there."""

import json

import pytest

from benchmarks.formats import FORMATS

RAW = [f for f in FORMATS if f.codec == "raw" and f.chunk[1] == 128]


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open(measure, peer, stored_format, stored, volume):
    """One array, 20 times: what opens it again may remember it."""
    path = stored(stored_format)
    handles = measure(
        lambda: [peer.open(path, stored_format) for _ in range(20)], nbytes=0, rounds=10
    )
    assert all(tuple(handle.shape) == volume.shape for handle in handles)


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open_many(measure, peer, stored_format, stored, volume, tmp_path):
    """200 arrays of different shapes, each once a round: more than are remembered."""
    name = ".zarray" if stored_format.version == 2 else "zarr.json"
    document = json.loads((stored(stored_format) / name).read_bytes())
    paths = []
    for i in range(200):
        paths.append(tmp_path / str(i))
        paths[-1].mkdir()
        shape = [i + 1, *document["shape"][1:]]
        (paths[-1] / name).write_text(json.dumps({**document, "shape": shape}))
    handles = measure(lambda: [peer.open(path, stored_format) for path in paths], nbytes=0)
    assert [handle.shape[0] for handle in handles] == list(range(1, 201))
