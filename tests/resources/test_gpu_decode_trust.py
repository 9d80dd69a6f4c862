"""Tests of ``gpu_decode_trust``: what it means, and what it does to reads into a device."""

import pickle

import numpy as np
import pytest

import gpustore
from gpustore.device.guard import EMPTY_STREAMS
from gpustore.errors import MetadataError
from gpustore.kvstores.file import FileKvStore
from tests.emulator import codecs
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}

ELEMENTS = np.arange(1200, dtype="u4") % 7


def blosc(cname):
    configuration = {"cname": cname, "clevel": 5, "shuffle": "noshuffle", "blocksize": 0}
    return {"name": "blosc", "configuration": configuration}


@pytest.mark.parametrize("word", ["auto", "verified", "never"])
def test_it_stays_as_written(word):
    context = gpustore.Context({"gpu_decode_trust": word})
    for resource in (
        context["gpu_decode_trust"],
        pickle.loads(pickle.dumps(context))["gpu_decode_trust"],
    ):
        assert resource.value == resource.to_json() == word


@pytest.mark.parametrize("json", ["", "Never", "always", None, 0, True, {}])
def test_other_values_are_refused(json):
    with pytest.raises(MetadataError, match=r'Expected one of "auto", "verified", "never"'):
        gpustore.Context({"gpu_decode_trust#a": "auto", "gpu_decode_trust": {"a": json}})


def create(path, codecs):
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs]
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{path}",
        "metadata": {
            "shape": [1200],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [200]}},
            "data_type": "uint32",
            "codecs": codecs,
        },
    }
    store = gpustore.open(spec, create=True).result()
    store[...] = ELEMENTS


def read(path, device, trust):
    """Read an array; also return [device, host] chunks decoded and the reason for the host."""
    context = gpustore.Context({"gpu_decode_trust": trust})
    store = gpustore.open(f"file://{path}", device=device.name, context=context).result()
    before = gpustore.statistics.snapshot()
    found = on_host(device, store.read().result())
    after = gpustore.statistics.snapshot()
    counts = [
        after.get(name, 0) - before.get(name, 0)
        for name in ("chunks_decoded_device", "host_fallbacks")
    ]
    reader = store._driver.reader
    reason = reader.backend.unsupported_reason(reader.chain)
    assert reason is None or reason in str(store.explain())
    return found, counts, reason


ON_DEVICE, ON_HOST = [6, 0], [0, 6]

# Codecs in the order of encoding, then where chunks are decoded if values are trusted, are trusted
# behind checksums only, or come from an untrusted store.
CHAINS = {
    "zstd": ([ZSTD], ON_DEVICE, ON_HOST, ON_HOST),
    "zstd-crc32c": ([ZSTD, CRC], ON_DEVICE, ON_DEVICE, ON_HOST),
    "gzip-crc32c": ([GZIP, CRC], ON_DEVICE, ON_DEVICE, ON_HOST),
    # The checksum is of what zstd decodes to: too late.
    "crc32c-zstd": ([CRC, ZSTD], ON_DEVICE, ON_HOST, ON_HOST),
    "crc32c": ([CRC], ON_DEVICE, ON_DEVICE, ON_DEVICE),
    "blosc-lz4": ([blosc("lz4")], ON_DEVICE, ON_DEVICE, ON_DEVICE),
    "blosc-blosclz": ([blosc("blosclz")], ON_DEVICE, ON_DEVICE, ON_DEVICE),
    "blosc-zstd": ([blosc("zstd")], ON_DEVICE, ON_HOST, ON_HOST),
    "blosc-zlib-crc32c": ([blosc("zlib"), CRC], ON_DEVICE, ON_DEVICE, ON_HOST),
}


@pytest.mark.parametrize("name", CHAINS)
def test_who_decodes(tmp_path, monkeypatch, name):
    codecs, trusted, verified, untrusted = CHAINS[name]
    create(tmp_path, codecs)
    with emulated() as device:
        for trust, expected in (("auto", trusted), ("verified", verified), ("never", ON_HOST)):
            found, counts, reason = read(tmp_path, device, trust)
            assert np.array_equal(found, ELEMENTS)
            assert counts == expected, trust
            assert (reason is None) == (expected == ON_DEVICE)
            assert reason is None or trust in reason
        # The http driver has is_trusted = False, too.
        monkeypatch.setattr(FileKvStore, "is_trusted", False)
        found, counts, reason = read(tmp_path, device, "auto")
        assert np.array_equal(found, ELEMENTS)
        assert counts == untrusted
        assert (reason is None) == (untrusted == ON_DEVICE)
        assert reason is None or "the store is not trusted" in reason


def test_frames_of_another_code_than_the_metadata_say_are_not_trusted_either(tmp_path):
    """Blosc frames name their compressor themselves."""
    create(tmp_path / "zstd", [blosc("zstd")])
    create(tmp_path / "lz4", [blosc("lz4")])
    for number in range(0, 6, 2):
        frame = (tmp_path / "zstd" / "c" / str(number)).read_bytes()
        (tmp_path / "lz4" / "c" / str(number)).write_bytes(frame)
    with emulated() as device:
        for trust, expected in (("auto", [6, 0]), ("verified", [3, 3])):
            found, counts, reason = read(tmp_path / "lz4", device, trust)
            assert np.array_equal(found, ELEMENTS)
            assert counts == expected
            assert reason is None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name",
    [
        "zstd-crc32c",
        pytest.param("gzip-crc32c", marks=pytest.mark.long),
        pytest.param("blosc-zlib-crc32c", marks=pytest.mark.long),
    ],
)
def test_what_a_checksum_shows_to_be_damaged_never_reaches_a_decoder(
    tmp_path, monkeypatch, name, order
):
    create(tmp_path, CHAINS[name][0])
    path = tmp_path / "c" / "2"
    value = path.read_bytes()
    # Where no header is, so that nothing else is wrong with it.
    damaged = value[:-20] + bytes([value[-20] ^ 0x10]) + value[-19:]
    path.write_bytes(damaged)
    reached = []
    decompress = codecs.decompress

    def noted(codec, encoded, capacity):
        reached.append((codec, encoded))
        return decompress(codec, encoded, capacity)

    monkeypatch.setattr(codecs, "decompress", noted)
    for trust in ("auto", "verified"):
        with emulated(order, seed=3) as device:
            device.decoders()  # The self-test decodes streams of its own.
            reached.clear()
            with pytest.raises(gpustore.CorruptChunkError, match=r"c/2.*Digest mismatch"):
                read(tmp_path, device, trust)
            assert device.decompressed == [len(reached)]
        kept = [stream.startswith(EMPTY_STREAMS[codec]) for codec, stream in reached]
        assert sum(kept) == len(reached) // 6
        assert not any(damaged[-24:-12] in stream for _, stream in reached)
        reached.clear()
    path.write_bytes(value)
    with emulated(order, seed=3) as device:
        read(tmp_path, device, "auto")
    assert not any(stream.startswith(EMPTY_STREAMS[codec]) for codec, stream in reached)


def test_a_store_shows_it_where_it_says_something(tmp_path):
    create(tmp_path, [ZSTD])
    for trust, shown in (("auto", False), ("never", True)):
        context = gpustore.Context({"gpu_decode_trust": trust})
        store = gpustore.open(f"file://{tmp_path}", context=context).result()
        assert ("gpu_decode_trust" in str(store.spec(unbind_context=True))) == shown
        again = pickle.loads(pickle.dumps(store))
        assert again._driver.resources["gpu_decode_trust"].value == trust
    spec = gpustore.Spec({"driver": "zarr3", "gpu_decode_trust": "verified"})
    assert spec.to_json()["gpu_decode_trust"] == "verified"
