"""Legal values that a device cannot decode: the host does, each is counted, the others stay there.

Several members of gzip, a header with a name; zstd with a checksum, a frame of unknown size,
several frames, skippable ones; a dictionary nobody has. In chunks, in shards, among usual values.
"""

import gzip
import io
import zlib

import google_crc32c
import numpy as np
import pytest
import zstandard

import gpustore
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = [needs_compiler, pytest.mark.long]
"""Five seconds: a stage of its own in .ci/run."""

SHAPE, CHUNK = (40, 30), (8, 10)
ELEMENTS = np.random.default_rng(0).integers(0, 9, SHAPE).cumsum(axis=1).astype("<u2")


def gzip_named(data):
    file = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=file) as out:
        out.write(data)
    return file.getvalue()


def zstd(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def zstd_unsized(data):
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


def skippable(nbytes):
    return b"\x5a\x2a\x4d\x18" + nbytes.to_bytes(4, "little") + bytes(nbytes)


ODD = {
    "gzip": {
        "two members": lambda data: gzip.compress(data[:70]) + gzip.compress(data[70:]),
        "an empty member behind": lambda data: gzip.compress(data) + gzip.compress(b""),
        "an empty member before": lambda data: gzip.compress(b"") + gzip.compress(data),
        "a member a byte": lambda data: b"".join(gzip.compress(bytes([byte])) for byte in data),
        "a name": gzip_named,
    },
    "zstd": {
        "a checksum": lambda data: zstd(data, write_checksum=True),
        "no content size": zstd_unsized,
        "two frames": lambda data: zstd(data[:70]) + zstd(data[70:]),
        "frames of unknown size": lambda data: zstd_unsized(data[:3]) + zstd_unsized(data[3:]),
        "an empty frame behind": lambda data: zstd(data) + zstd(b""),
        "a skippable frame before": lambda data: skippable(9) + zstd(data),
        "a skippable frame behind": lambda data: zstd(data) + skippable(0),
    },
}
CASES = [(codec, case) for codec, cases in ODD.items() for case in cases]
OPTIONS = {"level": 1}


def metadata_of(codec, form):
    if form == "v2":
        return {
            "shape": list(SHAPE),
            "chunks": list(CHUNK),
            "dtype": "<u2",
            "compressor": {"id": codec, **OPTIONS},
        }
    options = OPTIONS | ({"checksum": False} if codec == "zstd" else {})
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": codec, "configuration": options},
    ]
    grid = list(CHUNK)
    if form == "sharded":
        index = [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "crc32c"},
        ]
        sharding = {"chunk_shape": list(CHUNK), "codecs": codecs, "index_codecs": index}
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        grid = [16, 30]
    return {
        "shape": list(SHAPE),
        "data_type": "uint16",
        "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
    }


def create(path, codec, form, encode, odd):
    """An array on disk whose chunks in `odd` (row, column) were made by `encode`."""
    driver = "zarr" if form == "v2" else "zarr3"
    spec = {
        "driver": driver,
        "kvstore": f"file://{path}",
        "metadata": metadata_of(codec, form),
    }
    host = gpustore.open(spec, create=True).result()
    host[...] = ELEMENTS
    chunks = {(i, j): chunk_of(i, j).tobytes() for i, j in odd}
    if form != "sharded":
        for (i, j), data in chunks.items():
            name = f"{i}.{j}" if form == "v2" else f"c/{i}/{j}"
            (path / name).write_bytes(encode(data))
        return host
    for row in {i // 2 for i, _ in odd}:
        shard = path / f"c/{row}/0"
        shard.write_bytes(reshard(shard.read_bytes(), row, chunks, encode))
    return host


def reshard(value, row, chunks, encode):
    """The same shard of 2 x 3 chunks with some encoded anew."""
    index = np.frombuffer(value[-100:-4], "<u8").reshape(6, 2)
    parts, table = [], []
    at = 0
    for number, (offset, nbytes) in enumerate(index.tolist()):
        place = (2 * row + number // 3, number % 3)
        if offset == 2**64 - 1:
            table.append((offset, nbytes))
            continue
        part = value[offset : offset + nbytes]
        if place in chunks:
            part = encode(chunks[place])
        parts.append(part)
        table.append((at, len(part)))
        at += len(part)
    data = np.array(table, "<u8").tobytes()
    return b"".join(parts) + data + google_crc32c.value(data).to_bytes(4, "little")


def chunk_of(i, j):
    rows, columns = CHUNK
    return ELEMENTS[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]


@pytest.mark.parametrize("form", ["v2", "v3", "sharded"])
@pytest.mark.parametrize(("codec", "case"), CASES, ids=lambda case: case)
def test_the_host_decodes_odd_values_and_the_device_the_others(tmp_path, codec, case, form):
    odd = [(0, 0), (1, 2), (4, 1)]
    host = create(tmp_path, codec, form, ODD[codec][case], odd)
    assert np.array_equal(host.read().result(), ELEMENTS)
    with emulated(ORDERS[len(case) % 3], seed=1) as device:
        there = gpustore.open(f"file://{tmp_path}", device=device.name).result()
        before = gpustore.statistics.snapshot()
        found = there.read().result()
        after = gpustore.statistics.snapshot()
        counts = {name: after[name] - before.get(name, 0) for name in after}
        assert np.array_equal(on_host(device, found), ELEMENTS)
        assert counts["host_fallbacks"] == 3
        assert counts["chunks_decoded_device"] == 12
        part = there[33:, 12:5:-1].read().result()
        assert np.array_equal(on_host(device, part), ELEMENTS[33:, 12:5:-1])
        del found, part, there


def with_dictionary(codec):
    words = ELEMENTS.tobytes()[:400]
    if codec == "zlib":

        def encode(data):
            compressor = zlib.compressobj(zdict=words)
            return compressor.compress(data) + compressor.flush()

        return encode
    samples = [chunk_of(i % 5, i % 3).tobytes()[i:] for i in range(60)]
    dictionary = zstandard.train_dictionary(2000, samples)
    return zstandard.ZstdCompressor(dict_data=dictionary).compress


@pytest.mark.parametrize("codec", ["zstd", "zlib"])
def test_a_dictionary_that_nobody_has_is_the_hosts_error_by_key(tmp_path, codec):
    host = create(tmp_path, codec, "v2", with_dictionary(codec), [(2, 1)])
    errors = []
    with emulated() as device:
        there = gpustore.open(f"file://{tmp_path}", device=device.name).result()
        for store in (host, there):
            with pytest.raises(gpustore.GpustoreError) as caught:
                store.read().result()
            assert caught.value.key == f"{tmp_path}/2.1"
            errors.append((type(caught.value), str(caught.value)))
            del caught  # Its frames hold arrays.
        found = there[:16].read().result()
        assert np.array_equal(on_host(device, found), ELEMENTS[:16])
        del found, there, store
    assert errors[0] == errors[1]
