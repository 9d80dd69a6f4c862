"""Zip archives in kvstores of all kinds, and of all kinds, also read into an emulated device."""

import bz2
import io
import itertools
import json
import lzma
import struct
import zipfile
import zlib

import numpy as np
import pytest
import tensorstore
import zstandard

import gpustore
from gpustore.backends.device import direct_read
from gpustore.errors import UnsupportedError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.http.pool import POOL
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import HttpServer
from tests.kvstores.zip.archive import central, patched
from tests.matrix import each
from tests.on_device import emulated, on_host

SOON = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "2ms"}
BASES = ["file", "memory", "ocdbt", "zip", "s3", "gcs"]
DATA = np.random.default_rng(0).integers(0, 1000, (6, 50, 70)).astype("<u2")
METADATA = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": list(DATA.shape),
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 50, 70]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 7,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
MEMBERS = {"a/zarr.json": json.dumps(METADATA).encode()}
MEMBERS |= {f"a/c/{i}/0/0": DATA[i].tobytes() for i in range(len(DATA))}


def deflate(data):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS = {
    0: bytes,
    8: deflate,
    12: bz2.compress,
    93: zstandard.ZstdCompressor().compress,
    95: lzma.compress,
}


def packed(
    members,
    *,
    method=0,
    extra=b"",
    comment=b"",
    descriptors=False,
    zip64=False,
    archive_comment=b"",
):
    """An archive, byte by byte; without limits of a library."""
    data, directory = b"", b""
    for name, value in members.items():
        encoded = ENCODERS[method](value)
        name, offset = name.encode(), len(data)
        sizes = len(encoded), len(value)
        crc = zlib.crc32(value)
        small = (2**32 - 1, 2**32 - 1) if zip64 else sizes
        both = struct.pack("<2H2Q", 1, 16, *sizes[::-1]) if zip64 else b""
        flags = 8 if descriptors else 0
        start = (63, flags, method, 0x6C21, 0x5C21)
        known = (0, 0, 0) if descriptors and not zip64 else (crc, *small)
        data += struct.pack("<4s5H3I2H", b"PK\3\4", *start, *known, len(name), len(both + extra))
        data += name + both + extra + encoded
        if descriptors:
            data += struct.pack("<4sI2Q" if zip64 else "<4s3I", b"PK\7\x08", crc, *sizes)
        if zip64:
            both = struct.pack("<2H3Q", 1, 24, *sizes[::-1], offset)
        directory += struct.pack(
            *("<4s6H3I5H2I", b"PK\1\2", 3 << 8 | 63, *start, crc, *small, len(name)),
            *(len(both + extra), len(comment), 0, 0, 0o100644 << 16),
            2**32 - 1 if zip64 else offset,
        )
        directory += name + both + extra + comment
    end = b""
    if zip64:
        end = struct.pack(
            *("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, len(members), len(members)),
            *(len(directory), len(data)),
        ) + struct.pack("<4sIQI", b"PK\6\7", 0, len(data + directory), 1)
    count, large = len(members), 2**32 - 1
    numbers = (65535, 65535, large, large) if zip64 else (count, count, len(directory), len(data))
    end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *numbers, len(archive_comment))
    return data + directory + end + archive_comment


FORMS = {
    "stored": {},
    "deflate": {"method": 8},
    "bzip2": {"method": 12},
    "zstd": {"method": 93},
    "xz": {"method": 95},
    "zip64": {"zip64": True},
    "zip64-deflate": {"zip64": True, "method": 8},
    "descriptors": {"descriptors": True},
    "zip64-descriptors": {"descriptors": True, "zip64": True, "method": 8},
    "extra": {"extra": struct.pack("<2H", 0xABCD, 300) + bytes(300), "comment": b"member"},
    "comments": {"comment": b"PK\5\6 PK\1\2" * 9, "archive_comment": b"PK\1\2 about it" * 20},
}
UNKNOWN = {"zipfile": ("zstd", "xz"), "tensorstore": ("descriptors",)}
"""Forms that others cannot read: TensorStore wants sizes in front of the data, too."""


def values_by(library, path):
    """All members, by key."""
    if library == "zipfile":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    store = {"gpustore": gpustore, "tensorstore": tensorstore}[library].KvStore
    opened = store.open(f"file://{path}|zip:").result()
    return {key.decode(): opened[key] for key in opened.list().result()}


def readers(form):
    return [name for name in ("gpustore", *UNKNOWN) if form not in UNKNOWN.get(name, ())]


@each("form", FORMS)
def test_every_form_is_read_by_all_and_into_a_device(tmp_path, monkeypatch, form):
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})
    path = tmp_path / "x.zip"
    path.write_bytes(packed(MEMBERS, **FORMS[form]))
    for library in readers(form):
        assert values_by(library, path) == MEMBERS
    with emulated() as device:
        array = gpustore.open(f"file://{path}|zip:a|zarr3:", device=device.name).result()
        for part in (np.s_[...], np.s_[1:5, 10:14, ::3], np.s_[...]):
            read = array[part].read()
            assert np.array_equal(on_host(device, read.result()), DATA[part])
        is_stored = not FORMS[form].get("method")
        assert read.statistics["bytes_direct"] == (DATA.nbytes if is_stored else 0)
        del array, read


@each("form", FORMS)
def test_every_form_is_rewritten_and_read_by_all(tmp_path, form):
    path = tmp_path / "x.zip"
    data = packed(MEMBERS, **FORMS[form])
    path.write_bytes(data)
    store = KvStore.open(f"file://{path}|zip:").result()
    store["new"] = b"1"
    del store["a/c/0/0/0"]
    wanted = {key: value for key, value in MEMBERS.items() if key != "a/c/0/0/0"} | {"new": b"1"}
    for library in readers(form):
        assert values_by(library, path) == wanted
    after = path.read_bytes()
    again = zipfile.ZipFile(io.BytesIO(after))
    before = zipfile.ZipFile(io.BytesIO(data))
    assert again.comment == before.comment
    for info in before.infolist():
        if info.filename in wanted:
            found = again.getinfo(info.filename)
            assert found.extra.startswith(info.extra) or "zip64" in form
            assert found.comment == info.comment
            assert (found.date_time, found.external_attr) == (info.date_time, info.external_attr)
            nbytes = 30 + len(info.filename) + info.compress_size
            old = data[info.header_offset :][:nbytes]
            assert after[found.header_offset :][:nbytes] == old


def test_undecodable_members_are_kept_with_their_extra_fields():
    """Encrypted, of an unknown method, a symbolic link, a directory, names that are no keys."""
    names = ["encrypted", "unknown", "link", "dir/", "up/../x", "plain"]
    members = {name: b"contents of " + name.encode() * 20 for name in names}
    members["dir/"] = b""
    extra = struct.pack("<2H4s", 0x7875, 4, b"unix")
    data = packed(members, extra=extra, comment=b"about it", descriptors=True)
    for row, at, layout, value in [
        *((0, 8, "H", 9), (1, 10, "H", 77), (2, 38, "I", 0o120777 << 16)),
        (3, 38, "I", 0o40755 << 16 | 16),
    ]:
        data = patched(data, central(data, row) + at, layout, value)
    before = zipfile.ZipFile(io.BytesIO(data)).infolist()
    store = KvStore.open("memory://x.zip|zip:").result()
    store.base[""] = data
    for step in range(3):
        store[f"new{step}"] = b"1" * step
        del store["plain"]
    columns = store.read_many(ReadRequest(["encrypted", "unknown", "link"]))
    assert isinstance(columns.error[0], UnsupportedError)
    assert isinstance(columns.error[1], UnsupportedError)
    assert bytes(columns.value[2]) == members["link"]
    found = store.base[""]
    after = {info.filename: info for info in zipfile.ZipFile(io.BytesIO(found)).infolist()}
    assert list(after) == [*names[:5], "new0", "new1", "new2"]
    for one, following in itertools.pairwise(before):
        other = after[one.filename]
        nbytes = following.header_offset - one.header_offset  # Its descriptor, too.
        assert found[other.header_offset :][:nbytes] == data[one.header_offset :][:nbytes]
        assert other.extra.startswith(one.extra)
        fields = ("comment", "flag_bits", "compress_type", "external_attr", "create_system", "CRC")
        for field in (*fields, "date_time", "extract_version", "file_size"):
            assert getattr(one, field) == getattr(other, field), field


# --------------------------------------------------------------------------- bases


@pytest.fixture(scope="module", autouse=True)
def connections():
    """Closed in the end; else whatever module comes next would be told."""
    yield
    POOL.close()


@pytest.fixture(params=BASES)
def base(request, tmp_path, monkeypatch):
    """JSON of the key that is to hold an archive."""
    kind = request.param
    if kind == "s3":
        server = request.getfixturevalue("s3")
        server.values.clear()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
        json = {"driver": "s3", "bucket": "bucket", "endpoint": server.url}
        return {**json, "aws_region": "us-east-1", "s3_request_retries": SOON, "path": "in/x.zip"}
    if kind == "gcs":
        server = request.getfixturevalue("gcs")
        server.values.clear()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        json = {"driver": "gcs", "bucket": "bucket", "gcs_request_retries": SOON}
        return {**json, "path": "in/x.zip"}
    if kind == "memory":
        return {"driver": "memory", "path": "in/x.zip"}
    path = {"file": "", "ocdbt": "db/", "zip": "y.zip"}[kind]
    inner = {"driver": "file", "path": f"{tmp_path}/{path}"}
    if kind == "file":
        return {**inner, "path": f"{tmp_path}/x.zip"}
    return {"driver": kind, "base": inner, "path": "in/x.zip"}


def test_archives_in_any_kvstore_are_written_and_read(base):
    context = gpustore.Context()
    spec = {"driver": "zip", "base": base, "compression": "deflate"}
    store = KvStore.open(spec, context=context).result()
    assert store.list().result() == []
    model = {}
    for step in range(4):
        some = {f"k{step}": b"%d" % step * 300, "shared": bytes([step]) * 100_000}
        for key, value in some.items():
            store[key] = value
        model |= some
    del store["k1"], model["k1"]
    generation = store.read("k2").result().stamp.generation
    assert store.write("k2", b"new", if_equal=generation).result().generation
    assert not store.write("k2", b"no", if_equal=generation).result().generation
    model["k2"] = b"new"
    assert store.driver.delete_range("k3", "k4") == 1
    del model["k3"]
    again = KvStore.open({**spec, "data_copy_concurrency": {"limit": 2}}, context=context).result()
    for one in (store, again):
        assert {key.decode(): one[key] for key in one.list().result()} == model
        assert one.read("shared", byte_range=slice(5, 9)).result().value == b"\3" * 4
    with zipfile.ZipFile(io.BytesIO(store.base[""])) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == model
    folder = {**base, "path": base["path"].rpartition("/")[0] + "/"}
    assert KvStore.open(folder, context=context).result().list().result()[-1:] == [b"x.zip"]


@pytest.mark.parametrize("how", ["stored", "deflate"])
def test_arrays_in_any_kvstore_are_read_into_a_device(base, how):
    context = gpustore.Context()
    outer = KvStore.open(base, context=context).result()
    outer[""] = packed(MEMBERS, **FORMS[how])
    with emulated() as device:
        spec = {"driver": "zarr3", "kvstore": {"driver": "zip", "base": base, "path": "a/"}}
        array = gpustore.open(spec, context=context, device=device.name).result()
        for part in (np.s_[...], np.s_[1:5, 10:14, ::3]):
            assert np.array_equal(on_host(device, array[part].read().result()), DATA[part])
        del array


def test_arrays_on_a_server_are_read_into_a_device():
    with HttpServer({"x.zip": packed(MEMBERS)}) as server, emulated() as device:
        url = f"{server.url}/x.zip|zip:a|zarr3:"
        array = gpustore.open(url, device=device.name).result()
        assert np.array_equal(on_host(device, array.read().result()), DATA)
        theirs = tensorstore.open(url).result()
        assert np.array_equal(theirs.read().result(), DATA)
        del array


@pytest.mark.parametrize("chain", ["|ocdbt:in/x.zip|zip:", "|zip:in/x.zip|zip:"])
def test_chains_are_exchanged_with_tensorstore(tmp_path, chain):
    url = f"file://{tmp_path}/{'db/' if 'ocdbt' in chain else 'y.zip'}{chain}"
    stores = [KvStore.open(url).result(), tensorstore.KvStore.open(url).result()]
    model = {}
    for step in range(8):
        key = f"k{step % 3}"
        model[key] = b"%d" % step * 500
        stores[step % 2][key] = model[key]
        for store in stores:
            assert {key.decode(): store[key] for key in store.list().result()} == model
