"""Nothing outside an array is touched, and nothing but a regular file is taken for a chunk."""

import json
import os
import socket

import numpy as np
import pytest

import gpustore
from gpustore.errors import GpustoreError, InvalidKeyError, MetadataError, StoreIOError
from tests.matrix import each
from tests.reliability.array_on_disk import chunk_key, create, metadata, values

NAMES = ("zarr2 zstd", "zarr3 bytes", "zarr3 zstd crc32c")


def everything_below(path):
    """Names, sizes and times of all there is."""
    return sorted(
        (os.path.join(directory, name), status.st_size, status.st_mtime_ns, status.st_mode)
        for directory, directories, files in os.walk(path)
        for name in [*directories, *files]
        for status in [os.lstat(os.path.join(directory, name))]
    )


# --------------------------------------------------------------------------- keys

ESCAPES = {
    "file url": "file://{root}/a/../secret/|zarr3:",
    "percent-encoded": "file://{root}/a/%2e%2e/secret/|zarr3:",
    "percent-encoded slashes": "file://{root}/a%2F..%2Fsecret/|zarr3:",
    "half encoded": "file://{root}/a/.%2E/secret/|zarr3:",
    "capital": "file://{root}/a/%2E%2E/secret/|zarr3:",
    "dot": "file://{root}/a/./b/|zarr3:",
    "empty part": "file://{root}/a//b/|zarr3:",
    "NUL": "file://{root}/a%00b/|zarr3:",
    "in the driver": "file://{root}/a/|zarr3:../secret/",
    "in the driver, encoded": "file://{root}/a/|zarr3:%2e%2e/secret/",
    "in the driver, deeper": "file://{root}/a/|zarr3:x/../../secret/",
    "json path": {"kvstore": {"driver": "file", "path": "{root}/a/../secret/"}},
    "json path, NUL": {"kvstore": {"driver": "file", "path": "{root}/a\0b/"}},
    "json path, dot": {"kvstore": {"driver": "file", "path": "{root}/./a/"}},
    "json member path": {"kvstore": "file://{root}/a/", "path": "../secret/"},
    "json member path, inner": {"kvstore": "file://{root}/a/", "path": "x/../../secret/"},
    "json member path, NUL": {"kvstore": "file://{root}/a/", "path": "x\0"},
    "surrogate": {"kvstore": {"driver": "file", "path": "{root}/\ud800/"}},
    "metadata key": {
        "driver": "zarr2",
        "kvstore": "file://{root}/a/",
        "metadata_key": "../secret/zarr.json",
    },
    "absolute metadata key": {
        "driver": "zarr2",
        "kvstore": "file://{root}/a/",
        "metadata_key": "/etc/passwd",
    },
}


def _filled(value, root):
    if isinstance(value, dict):
        return {name: _filled(member, root) for name, member in value.items()}
    return value.replace("{root}", str(root))


@each("name", ESCAPES)
@each("mode", ["open", "create"])
def test_path_that_leaves_is_refused_before_any_io(tmp_path, name, mode):
    create("zarr3 bytes", f"file://{tmp_path}/secret/")[...] = values()
    os.mkdir(tmp_path / "a")
    before = everything_below(tmp_path)
    spec = _filled(ESCAPES[name], tmp_path)
    if isinstance(spec, dict):
        spec = {"driver": "zarr3", **spec}
    keywords = {"dtype": "uint16", "shape": [4]} if mode == "create" else {}
    with pytest.raises(InvalidKeyError):
        gpustore.open(spec, create=mode == "create" or None, **keywords).result()
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("path", ["/etc/", "//etc//", "/etc"])
def test_an_absolute_path_in_the_driver_begins_at_its_root(tmp_path, path):
    """The rule of Zarr v2 for logical paths: slashes around and between are one or none."""
    url = f"file://{tmp_path}/a/|zarr3:{path}"
    gpustore.open(url, create=True, dtype="uint16", shape=[4]).result()
    assert (tmp_path / "a" / "etc" / "zarr.json").is_file()


@each("name", NAMES)
@each("key", ["../b", "a/../../b", "/etc/hostname", "x/./y", "a\0", "c/0.__lock"])
def test_kvstore_of_an_array_stays_in_it(tmp_path, name, key):
    store = create(name, f"file://{tmp_path}/a/")
    (tmp_path / "b").write_bytes(b"secret")
    before = everything_below(tmp_path)
    for operation in (
        lambda: store.kvstore.read(key).result(),
        lambda: store.kvstore.write(key, b"1").result(),
        lambda: store.kvstore.write(key, None).result(),
        lambda: store.kvstore[key],
    ):
        with pytest.raises(InvalidKeyError):
            operation()
    assert everything_below(tmp_path) == before


def test_path_of_a_kvstore_cannot_be_moved_out(tmp_path):
    store = create("zarr3 bytes", f"file://{tmp_path}/a/")
    (tmp_path / "b").write_bytes(b"secret")
    for kvstore in (store.kvstore, store.kvstore.spec()):
        for path in (f"{tmp_path}/a/../", f"{tmp_path}/a\0/", f"{tmp_path}/\ud800/"):
            with pytest.raises(InvalidKeyError):
                kvstore.path = path
    for part in ("../", "x/../../", "/etc/"):
        with pytest.raises(InvalidKeyError):
            store.kvstore.spec() / part
        with pytest.raises(InvalidKeyError):
            (store.kvstore / part)["b"]
        with pytest.raises(InvalidKeyError):
            gpustore.open({"driver": "zarr3"}, kvstore=store.kvstore / part).result()


@pytest.mark.parametrize("separator", ["..", "/../", "", "\\", "\0", "//", "a"])
def test_separator_cannot_make_keys_that_leave(tmp_path, separator):
    """Chunk keys are made of digits and a separator that metadata choose from two."""
    for name in NAMES:
        spec = {**metadata(name), "kvstore": f"file://{tmp_path}/a/"}
        if spec["driver"] == "zarr2":
            spec["metadata"]["dimension_separator"] = separator
        else:
            encoding = {"name": "default", "configuration": {"separator": separator}}
            spec["metadata"]["chunk_key_encoding"] = encoding
        with pytest.raises(MetadataError):
            gpustore.open(spec, create=True).result()
    assert everything_below(tmp_path) == []


# --------------------------------------------------------------------------- odd files


def make_odd(kind, path, outside):
    """Put something that is no regular file at `path`."""
    if kind == "directory":
        path.mkdir()
        (path / "x").write_bytes(b"1")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)  # The name of a socket must be short.
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path.name)
        finally:
            os.fchdir(here)
            os.close(here)
    elif kind == "link out":
        path.symlink_to(outside)
    elif kind == "relative link out":
        path.symlink_to(os.path.relpath(outside, path.parent))
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path)


KINDS = (
    *("directory", "fifo", "socket", "link out", "relative link out", "link to a device"),
    "link to itself",
)


@each("name", NAMES)
@each("kind", KINDS)
def test_odd_file_in_place_of_a_chunk(tmp_path, name, kind):
    store = create(name, f"file://{tmp_path}/a/")
    store[...] = values()
    path = tmp_path / "a" / chunk_key(name, 1, 0)
    outside = tmp_path / "outside"
    os.rename(path, outside)
    make_odd(kind, path, outside)
    secret = outside.read_bytes()
    for operation in (
        lambda: store[17, 3].read().result(),
        lambda: store[16:, :16].read().result(),
        lambda: store.read().result(),
        lambda: store[17, 3:5].write(1).result(),
    ):
        with pytest.raises(StoreIOError) as caught:
            operation()
        assert caught.value.key == str(path)
        assert str(path) in str(caught.value)
    assert np.array_equal(store[:16].read().result(), values()[:16])
    # A whole write puts a new file there, and never writes through a link.
    if kind == "directory":
        with pytest.raises(StoreIOError) as caught:
            store[16:, :16] = 5
        assert caught.value.key == str(path)
    else:
        store[16:, :16] = 5
        assert (store[16:, :16].read().result() == 5).all()
        assert not path.is_symlink()
    assert outside.read_bytes() == secret


@pytest.mark.parametrize("name", NAMES)
def test_directory_of_chunks_that_is_a_link_out(tmp_path, name):
    store = create(name, f"file://{tmp_path}/a/")
    store[...] = values()
    if name.startswith("zarr2"):
        linked = tmp_path / "a"
        target = tmp_path / "elsewhere"
        os.rename(linked, target)
        os.mkdir(linked)
        for file in target.iterdir():
            (linked / file.name).symlink_to(file)
    else:
        linked = tmp_path / "a" / "c" / "1"
        target = tmp_path / "elsewhere"
        os.rename(linked, target)
        linked.symlink_to(target)
    before = everything_below(target)
    with pytest.raises(StoreIOError, match="leads out of the store"):
        store[20].read().result()
    with pytest.raises(StoreIOError):
        store[20, 4:6] = 1
    assert everything_below(target) == before


def test_links_inside_and_a_root_that_is_a_link_are_followed(tmp_path):
    store = create("zarr3 zstd crc32c", f"file://{tmp_path}/a/")
    store[...] = values()
    chunk = tmp_path / "a" / "c" / "1" / "0"
    os.rename(chunk, tmp_path / "a" / "moved")
    chunk.symlink_to("../../moved")
    assert np.array_equal(store.read().result(), values())
    (tmp_path / "link").symlink_to("a")
    linked = gpustore.open(str(tmp_path / "link")).result()
    assert np.array_equal(linked.read().result(), values())
    with pytest.raises(GpustoreError):
        gpustore.open(f"file://{tmp_path}/nothing/|zarr3:").result()


def test_file_in_place_of_the_array_or_of_a_directory(tmp_path):
    (tmp_path / "file").write_bytes(json.dumps(metadata("zarr3 bytes")).encode())
    for spec in (str(tmp_path / "file"), f"file://{tmp_path}/file/|zarr3:"):
        with pytest.raises(GpustoreError) as caught:
            gpustore.open(spec).result()
        assert str(tmp_path / "file") in str(caught.value)
    with pytest.raises(StoreIOError) as caught:
        create("zarr3 bytes", f"file://{tmp_path}/file/")
    assert str(tmp_path / "file") in str(caught.value)
    store = create("zarr3 bytes", f"file://{tmp_path}/a/")
    (tmp_path / "a" / "c").write_bytes(b"no directory")
    with pytest.raises(StoreIOError) as caught:
        store[...] = values()
    assert caught.value.key.startswith(f"{tmp_path}/a/c")
