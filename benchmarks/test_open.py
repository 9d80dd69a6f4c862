"""Opening arrays that are there, and creating new ones."""

import itertools
import json

import pytest

from benchmarks.formats import FORMATS
from benchmarks.peers import TensorStorePeer

RAW = [f for f in FORMATS if f.codec == "raw" and f.chunk[1] == 128]
ENCODED = [f for f in FORMATS if f.codec in ("blosc", "zstd") and f.chunk[1] == 32]
COUNT = 200
SHAPE = (64, 512, 512)


@pytest.fixture
def arrays(tmp_path, stored):
    """Make folders of arrays without chunks, which differ in their shape and in `members`."""

    def make(stored_format, members=lambda number: {}):
        name = ".zarray" if stored_format.version == 2 else "zarr.json"
        document = json.loads((stored(stored_format) / name).read_bytes())
        paths = []
        for number in range(COUNT):
            paths.append(tmp_path / str(number))
            paths[-1].mkdir()
            shape = [number + 1, *document["shape"][1:]]
            text = json.dumps({**document, "shape": shape, **members(number)})
            (paths[-1] / name).write_text(text)
        return paths

    return make


def check_shapes(handles):
    assert [handle.shape[0] for handle in handles] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open_again(measure, peer, stored_format, stored, volume):
    """One array, 20 times: libraries may remember it."""
    path = stored(stored_format)
    handles = measure(
        lambda: [peer.open(path, stored_format) for _ in range(20)], nbytes=0, rounds=10
    )
    assert all(tuple(handle.shape) == volume.shape for handle in handles)


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open_never_seen(measure, peer, stored_format, arrays):
    """200 arrays of one data set, each once a round: more than are remembered."""
    paths = arrays(stored_format)
    check_shapes(
        measure(lambda: [peer.open(path, stored_format) for path in paths], nbytes=0, rounds=10)
    )


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open_all_different(measure, peer, stored_format, arrays):
    """200 arrays that differ in fill values and attributes too."""
    attributes = "attributes" if stored_format.version == 3 else "note"
    paths = arrays(stored_format, lambda n: {"fill_value": n, attributes: {"number": n}})
    check_shapes(
        measure(lambda: [peer.open(path, stored_format) for path in paths], nbytes=0, rounds=10)
    )


@pytest.mark.parametrize("stored_format", RAW, ids=str)
def test_open_many(measure, peer, stored_format, arrays):
    """200 arrays of one data set, all under way before the first is waited for."""
    paths = arrays(stored_format)
    check_shapes(measure(lambda: peer.open_many(paths, stored_format), nbytes=0, rounds=10))


@pytest.mark.parametrize("created_format", ENCODED, ids=str)
def test_create(measure, peer, created_format, tmp_path):
    """20 arrays, none of which was there."""
    number = itertools.count()

    def new_folder():
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return ([folder / str(i) for i in range(20)],), {}

    def create(paths):
        return [peer.create(path, created_format, SHAPE) for path in paths]

    handles = measure(create, nbytes=0, setup=new_folder, rounds=10)
    assert all(tuple(handle.shape) == SHAPE for handle in handles)


@pytest.mark.parametrize("created_format", ENCODED, ids=str)
@pytest.mark.parametrize("sync", [False, True], ids=["unsynced", "fsync"])
def test_create_anew(measure, peer, created_format, sync, tmp_path):
    """One array, 20 times in place of itself."""
    if sync and not isinstance(peer, TensorStorePeer):
        pytest.skip("cannot call fsync")
    path = tmp_path / "array"
    peer.create(path, created_format, SHAPE)
    handles = measure(
        lambda: [peer.create_anew(path, created_format, SHAPE, sync=sync) for _ in range(20)],
        nbytes=0,
        rounds=10,
    )
    assert all(tuple(handle.shape) == SHAPE for handle in handles)
