"""Zip archives: opening one with 100 000 members, and reading many of them."""

import zipfile

import pytest

COUNT = 100_000
VALUE = bytes(range(256)) * 4


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Make an archive as zarr-python's ZipStore makes it: everything stored."""
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(COUNT):
            archive.writestr(zipfile.ZipInfo(name(i)), VALUE)
    return path


def name(i):
    return f"a/c/{i // 1000}/{i % 1000}"


def opened(peer, path):
    """Open the archive and return what reads a member. Nothing is left of an earlier opening."""
    if peer.name in ("gpustore", "tensorstore"):
        spec = {"driver": "zip", "base": {"driver": "file", "path": str(path)}}
        context = peer.module.Context({"data_copy_concurrency": {"limit": peer.threads}})
        store = peer.module.KvStore.open(spec, context=context).result()
        return store.__getitem__
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    store = sync(peer.module.storage.ZipStore.open(path, mode="r"))
    prototype = default_buffer_prototype()
    return lambda key: sync(store.get(key, prototype)).to_bytes()


@pytest.fixture
def zip_peer(peer):
    """One of the peers that differ in this."""
    if peer.name not in ("gpustore", "tensorstore", "zarr"):
        pytest.skip("reads archives as zarr-python does")
    return peer


@pytest.mark.parametrize("members", [COUNT])
def test_open_archive(measure, zip_peer, members, archive):
    """Open the archive and read one member."""
    value = measure(lambda: opened(zip_peer, archive)(name(members // 2)), nbytes=0, rounds=10)
    assert value == VALUE


@pytest.mark.parametrize("members", [1000])
def test_read_members(measure, zip_peer, members, archive):
    """Read members one after the other."""
    read = opened(zip_peer, archive)
    names = [name(i * 97) for i in range(members)]
    values = measure(lambda: [read(key) for key in names], nbytes=members * len(VALUE))
    assert values == [VALUE] * members
