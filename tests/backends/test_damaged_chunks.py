"""Damaged chunks on their way through a device: right bytes or the error of the host, by key.

Thousands of changed, cut and mixed-up values of every codec, each between whole ones. What a device
must not do with them is found by the emulated one: bytes used outside of allocations, guards that
were written, steps of other rows that went wrong. Under the address sanitizer (stage of .ci/run)
the kernels themselves may not touch a byte outside either.
"""

import random
import struct

import numpy as np
import pytest

import gpustore
from gpustore.backends.base import Chunks
from gpustore.errors import GpustoreError
from gpustore.index_space import IndexTransform
from tests.device_values import decode_on
from tests.emulator import host_build
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host
from tests.reliability import array_on_disk
from tests.streams import CODECS

pytestmark = [needs_compiler, pytest.mark.matrix]

COUNT, COUNT_ALONE = (500, 200) if host_build.SANITIZER else (72, 24)
"""Mutants of each format."""

CHUNK = 1500
NBYTES = 2 * CHUNK

_BLOCKS = {"id": "blosc", "clevel": 5, "blocksize": 600}
FORMATS = {
    **array_on_disk.FORMATS,
    "zarr2 blosc blocks blosclz": ("zarr2", {**_BLOCKS, "cname": "blosclz", "shuffle": 1}),
    "zarr2 blosc blocks zlib": ("zarr2", {**_BLOCKS, "cname": "zlib", "shuffle": 2}),
    "zarr2 blosc blocks zstd": ("zarr2", {**_BLOCKS, "cname": "zstd", "shuffle": 1}),
    "zarr2 shuffle zlib": ("zarr2", {"id": "zlib", "level": 1}),
    "zarr2 blosc blocks lz4": ("zarr2", {**_BLOCKS, "cname": "lz4", "shuffle": 0}),
    "zarr2 filters lz4": ("zarr2", {**_BLOCKS, "cname": "lz4", "shuffle": 1}),
}
NAMES = [
    name
    for name in FORMATS
    if name not in array_on_disk.RAW and name not in array_on_disk.SMALL_ALONE
]

CHECKSUMMED = {*array_on_disk.CHECKSUMMED, "zarr2 shuffle zlib"}

HOST_ALONE = ("zarr2 bz2", "zarr2 lzma", "zarr3 zstd checksum")
"""Decoded by the host, damaged or not."""

DEFLATED = [name for name in NAMES if "gzip" in name or "zlib" in name]
"""Where a Deflate stream ended is not told: a value may end twice with its checksum."""


NO_LZ4 = tuple(codec for codec in CODECS if codec != "lz4")
"""As a device has them whose library is without LZ4: the package's own kernel decodes it."""


def metadata(name, chunks):
    driver, codec = FORMATS[name]
    base = "zarr2 zlib" if driver == "zarr2" else "zarr3 gzip"
    made = array_on_disk.metadata(base, shape=(chunks * CHUNK,), chunk=(CHUNK,))
    if driver == "zarr2":
        made["metadata"]["compressor"] = codec
        if "shuffle" in name:
            made["metadata"]["filters"] = [{"id": "shuffle", "elementsize": 2}]
        if "filters" in name:
            scaled = {"id": "fixedscaleoffset", "scale": 1, "offset": 0, "dtype": "<u2"}
            sums = {"id": "delta", "dtype": "<u4"}
            made["metadata"]["filters"] = [{**scaled, "astype": "<u4"}, sums]
    else:
        made["metadata"]["codecs"][1:] = codec
    return made


def opened(name, device, chunks, kvstore="memory://"):
    spec = {**metadata(name, chunks), "kvstore": kvstore}
    return gpustore.open(spec, create=True, open=True, device=device.name).result()


def chunk_of(seed):
    """Elements that compress, some of them as they are."""
    generator = np.random.default_rng(seed)
    elements = generator.integers(-2, 3, CHUNK).cumsum() + 1000
    elements[CHUNK // 3 : CHUNK // 2] = generator.integers(0, 1 << 16, CHUNK // 2 - CHUNK // 3)
    elements[-300:] = 7
    return elements.astype("<u2").tobytes()


def mutants(encoded, other, seed, count):
    """Values made of two whole ones by damage of many kinds."""
    choose = random.Random(seed)
    extremes = [0, 1, 0x7F, 0x80, 0xFF]
    words = [0, 1, -1, 2**31 - 1, -(2**31), len(encoded), len(encoded) + 1, NBYTES, NBYTES + 1]
    for number in range(count):
        value = bytearray(encoded)
        # Headers, and the blocks and lengths behind them, are hit more often than the rest.
        place = choose.randrange(choose.choice([4, 20, 60, len(value), len(value)]))
        kind = number % 10
        if kind == 0:
            value[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            value[place] = choose.choice(extremes)
        elif kind == 2:
            for _ in range(choose.randrange(2, 6)):
                value[choose.randrange(len(value))] = choose.randrange(256)
        elif kind == 3:
            del value[len(value) - choose.choice([1, 2, 4, 8, place + 1]) :]
        elif kind == 4:
            del value[place : place + choose.choice([1, 4, 40])]
        elif kind == 5:
            value[place:place] = choose.randbytes(choose.choice([1, 4, 40]))
        elif kind == 6:
            value[place : place + 4] = struct.pack("<i", choose.choice(words))
        elif kind == 7:
            value = value[:place] + other[choose.choice([place, choose.randrange(len(other))]) :]
        elif kind == 8:
            value += choose.choice([b"\0", bytes(9), choose.randbytes(5), other, encoded[-8:]])
        else:
            end = choose.randrange(len(value))
            value[place:end] = value[:1] * max(0, end - place)
        yield bytes(value)


def check(name, count, order="lazy", seed=0, decodes=NO_LZ4):
    """Read so many mutants of one format in one submission."""
    with emulated(order, seed=seed, decodes=decodes) as device:
        rows = count + 3
        store = opened(name, device, rows)
        reader = store._driver.reader
        chain = reader.chain
        whole = [chunk_of(seed), chunk_of(seed + 1)]
        encoded = [bytes(chain.encode(chunk)) for chunk in whole]
        values = [encoded[0], *mutants(*encoded, seed, count), None, encoded[1]]
        memory = reader.backend.empty((rows * CHUNK,), reader.dtype, "C")
        ((_, plan),) = reader.plans(IndexTransform(store.domain), memory.strides)
        window = plan.window(0, rows)
        errors = {}

        def collect(keys, missing, found):
            # Not the errors themselves: their frames keep the array.
            errors.update((row, (type(error), str(error))) for row, error in found.items())

        before = gpustore.statistics.snapshot()
        chunks = [Chunks(chain, rows, rows)]
        sink = reader.backend.sink(chunks, reader.fill_value, [memory], reader.limits, collect)

        def give(sink=sink):
            with sink.part(chain, rows=rows) as part:
                part.scatter(window, values)

        sink.run(reader.executor, [give], lambda: None).result()
        after = gpustore.statistics.snapshot()
        found = on_host(device, memory.array).tobytes()
        del memory, reader, store, sink, give
    outcomes = {"right": 0, "error": 0}
    for counter in ("chunks_decoded_device", "retries"):
        outcomes[counter] = after.get(counter, 0) - before.get(counter, 0)
    for row, value in enumerate(values):
        decoded = found[row * NBYTES : (row + 1) * NBYTES]
        expected = bytes(NBYTES) if value is None else decode(chain, value)
        if row in errors:
            # The host decides, so the words are its own.
            assert isinstance(expected, GpustoreError), (row, value)
            assert errors[row] == (type(expected), str(expected))
            outcomes["error"] += 1
        elif isinstance(expected, GpustoreError):
            assert name in DEFLATED, (row, value, str(expected))
            assert decoded == whole[0], (row, value)
        else:
            assert decoded == expected, (row, value)
            outcomes["right"] += 1
    assert not {0, rows - 2, rows - 1} & {*errors}
    return outcomes


def decode(chain, value):
    try:
        return bytes(chain.decode(value))
    except GpustoreError as error:
        return error


def check_outcomes(name, outcomes, count):
    """Damage was noticed by all who should: the host before, the device, the host behind it."""
    assert outcomes["error"] > count // 3
    assert outcomes["right"] >= 3
    if name in HOST_ALONE:
        assert outcomes["chunks_decoded_device"] == 0
    else:
        assert outcomes["chunks_decoded_device"] >= 2
        assert outcomes["retries"] >= 1


@pytest.mark.parametrize("name", NAMES)
def test_damage_gives_right_bytes_or_the_error_of_the_host(name):
    outcomes = check(name, COUNT, ORDERS[NAMES.index(name) % 3])
    check_outcomes(name, outcomes, COUNT)


DAMAGES = {
    "empty": lambda value: b"",
    "cut": lambda value: value[: len(value) // 2],
    "last byte missing": lambda value: value[:-1],
    "last byte changed": lambda value: value[:-1] + bytes([value[-1] ^ 0x80]),
    "first byte changed": lambda value: bytes([value[0] ^ 1]) + value[1:],
    "changed within": lambda value: value[:400] + bytes(64) + value[464:],
    "something behind": lambda value: value + b"\0\1",
}
NOT_NOTICED = ("last byte changed", "changed within")
"""Where nothing is compared with what was decoded."""


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_of_damage_is_the_error_of_the_host_and_names_the_key(tmp_path, name):
    url = f"file://{tmp_path}/a/"
    elements = np.frombuffer(b"".join(map(chunk_of, range(4))), "<u2")
    with emulated() as device:
        there = opened(name, device, 4, url)
        there[...] = elements
        host = gpustore.open(url, device="cpu").result()
        path = tmp_path / "a" / ("1" if FORMATS[name][0] == "zarr2" else "c/1")
        value = path.read_bytes()
        for damage, change in DAMAGES.items():
            path.write_bytes(change(value))
            expected, found = outcome(host), outcome(there, device)
            assert found == expected, damage
            is_error = isinstance(expected[0], type)
            assert is_error or (damage in NOT_NOTICED and name not in CHECKSUMMED)
            if is_error:
                assert expected[0] is gpustore.CorruptChunkError
                assert expected[2] == str(path)
            part = on_host(device, there[2 * CHUNK :].read().result())
            assert np.array_equal(part, elements[2 * CHUNK :])


def outcome(store, device=None):
    """The elements of a store, or kind, text and key of the error."""
    try:
        found = store.read().result()
    except GpustoreError as error:
        return type(error), str(error), error.key
    return [found.tobytes() if device is None else on_host(device, found).tobytes()]


def check_alone(name, count, seed):
    """Decode so many mutants of one format, each in memory of its own, step by step."""
    device = EmulatedDevice("random", seed=seed, decodes=NO_LZ4)
    with emulated() as other:
        chain = opened(name, other, 1)._driver.array.chain
    whole = [chunk_of(seed), chunk_of(seed + 1)]
    encoded = [bytes(chain.encode(chunk)) for chunk in whole]
    values = [encoded[0], *mutants(*encoded, seed, count), encoded[1]]
    found = decode_on(device, chain.decode_device, values, offset=seed % 4, apart=True)
    device.close()
    assert (found.values[0], found.values[len(values) - 1]) == tuple(whole)
    for row, decoded in found.values.items():
        expected = decode(chain, values[row])
        if isinstance(expected, GpustoreError) and name in DEFLATED:
            expected = whole[0]
        assert decoded == expected, (row, values[row])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HOST_ALONE])
def test_damaged_values_are_never_left(name):
    check_alone(name, COUNT_ALONE, NAMES.index(name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_mutants(name):
    for seed in range(3):
        decodes = CODECS if seed == 1 else NO_LZ4
        outcomes = check(name, 1500, ORDERS[seed], 100 * seed + 7, decodes)
        check_outcomes(name, outcomes, 1500)
