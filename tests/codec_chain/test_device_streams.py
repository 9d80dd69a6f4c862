"""zstd, zlib, gzip, lz4, crc32c and chains of them on a device, against the host.

Emulated, nvcomp's part is done by the host's libraries; see tests/emulator.
"""

import gzip
import io
import re
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.codecs.contract import make_payload, stage
from tests.device_memory import require_kernels
from tests.device_values import decode_on
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.matrix import share

pytestmark = pytest.mark.matrix

NBYTES = 6000
VERSIONS = {"zstd": "v3", "gzip": "v3", "zlib": "v2", "lz4": "v2", "crc32c": "v3"}


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    require_kernels(EmulatedDevice())


def codec_of(name, **options):
    return stage(name, VERSIONS[name], **options)


def decode(device, codec, encoded, nbytes, *, exact=True, **options):
    def record(batch, device):
        codec.decode_device(batch, device, nbytes, exact=exact)

    return decode_on(device, record, encoded, **options)


@pytest.mark.parametrize("name", VERSIONS)
@settings(max_examples=share(60))
@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(1, 200_000)), min_size=1, max_size=4),
    kind=st.sampled_from(["steps", "noise", "zeros"]),
    order=st.sampled_from(ORDERS),
    offset=st.sampled_from([0, 1, 2, 7]),
)
def test_what_the_host_writes_is_decoded(name, sizes, kind, order, offset):
    codec = codec_of(name)
    payloads = [make_payload(nbytes, kind, i) for i, nbytes in enumerate(sizes)]
    encoded = [bytes(codec.encode(payload)) for payload in payloads]
    device = EmulatedDevice(order, seed=1)
    if name != "zlib":
        found = decode(device, codec, encoded, max(sizes), exact=False, offset=offset)
        assert (found.fallbacks, found.failed) == ({}, {})
        assert [found.values[row] for row in range(len(sizes))] == payloads
    found = decode(device, codec, [encoded[0]] * 3, sizes[0], offset=offset)
    device.close()
    assert (found.fallbacks, found.failed) == ({}, {})
    assert list(found.values.values()) == [payloads[0]] * 3


@pytest.mark.parametrize("name", VERSIONS)
def test_launches_do_not_grow_with_the_values(device, name):
    codec = codec_of(name)
    payload = make_payload(NBYTES, "steps")
    launches = []
    for count in (1, 40):
        found = decode(device, codec, [bytes(codec.encode(payload))] * count, NBYTES, offset=1)
        assert list(found.values.values()) == [payload] * count
        launches.append(found.launches)
    assert launches[0] == launches[1] <= 5


def damages(name, encoded):
    """Nine kinds of damage and more, by name."""
    middle, end = len(encoded) // 2, len(encoded)

    def changed(position):
        return encoded[:position] + bytes([encoded[position] ^ 0x5A]) + encoded[position + 1 :]

    yield "empty", b""
    for cut in (1, 4, 8, 9, 12, 20, middle, end - 5, end - 1):
        yield f"cut to {cut}", encoded[:cut]
    yield "one byte more", encoded + b"\0"
    yield "twice", encoded + encoded
    yield "another size", bytes(codec_of(name).encode(make_payload(NBYTES + 1, "steps")))
    yield "no bytes", bytes(codec_of(name).encode(b""))
    for position in range(min(24, end)):
        yield f"head, byte {position}", changed(position)
    for position in range(24, end, max(1, end // 40)):
        yield f"body, byte {position}", changed(position)
    for position in range(end - 9, end):
        yield f"tail, byte {position}", changed(position)
    yield "noise behind the head", encoded[:12] + make_payload(end - 12, "noise", 3)
    yield "zeros", bytes(end)


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("kind", ["steps", "noise"])
def test_damage_is_refused_or_fails_or_decodes_as_on_the_host(name, kind):
    codec = codec_of(name)
    payload = make_payload(NBYTES, kind)
    whole = bytes(codec.encode(payload))
    named = [(what, value) for what, value in damages(name, whole) if value != whole]
    values = [whole, *(value for _, value in named), whole]
    device = EmulatedDevice("random", seed=2)
    found = decode(device, codec, values, NBYTES)
    device.close()
    assert found.values[0] == found.values[len(values) - 1] == payload
    for row, (what, value) in enumerate(named, 1):
        if what == "twice" and name in ("zlib", "gzip"):
            # Where a stream ended is not told, and the value ends with its checksum.
            assert found.values[row] == payload
        elif row in found.values:
            assert bytes(codec.decode(value, NBYTES, exact=True)) == found.values[row], what
    lengths = ("empty", "another size", "no bytes")
    named_rows = {what: row for row, (what, _) in enumerate(named, 1)}
    fallbacks_or_failed = {**found.fallbacks, **found.failed}
    if name != "zlib":
        assert {named_rows[what] for what in lengths} <= set(found.fallbacks)
    assert {named_rows[what] for what in lengths} <= set(fallbacks_or_failed)


@pytest.mark.parametrize("name", VERSIONS)
@settings(max_examples=share(60))
@given(
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    cut=st.integers(-3, 30),
    nbytes=st.integers(1, 3000),
)
def test_changed_values_never_reach_beyond_their_bounds(name, changes, cut, nbytes):
    codec = codec_of(name)
    payload = make_payload(nbytes, "steps")
    whole = bytes(codec.encode(payload))
    damaged = bytearray(whole)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    damaged = bytes(damaged[: max(0, len(damaged) - cut)] if cut > 0 else damaged + bytes(-cut))
    device = EmulatedDevice("lazy")
    found = decode(device, codec, [whole, damaged, whole], nbytes)
    device.close()
    assert found.values[0] == found.values[2] == payload
    if 1 in found.values:
        assert bytes(codec.decode(damaged, nbytes, exact=True)) == found.values[1]


def zstd_of(payload, **options):
    return zstandard.ZstdCompressor(**options).compress(payload)


def zstd_unsized(payload):
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(payload) + compressor.flush()


def gzip_named(payload):
    file = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=file) as out:
        out.write(payload)
    return file.getvalue()


def with_dictionary(payload):
    compressor = zlib.compressobj(zdict=b"\1\2\3\4" * 8)
    return compressor.compress(payload) + compressor.flush()


HALF = make_payload(NBYTES // 2, "steps")
WHOLE = HALF + HALF

ODD = {
    "checksum": ("zstd", zstd_of(WHOLE, write_checksum=True), "checksum"),
    "no content size": ("zstd", zstd_unsized(WHOLE), "does not say how many bytes"),
    "two frames": ("zstd", zstd_of(HALF) + zstd_of(HALF), "something follows|does not hold"),
    "an empty frame behind": ("zstd", zstd_of(WHOLE) + zstd_of(b""), "something follows"),
    "a skippable frame": ("zstd", b"\x50\x2a\x4d\x18\0\0\0\0" + zstd_of(WHOLE), "begin with"),
    "two members": ("gzip", gzip.compress(HALF) + gzip.compress(HALF), "several members"),
    "an empty member behind": ("gzip", gzip.compress(WHOLE) + gzip.compress(b""), "several"),
    "a name": ("gzip", gzip_named(WHOLE), "has a name"),
    "an empty member before": ("gzip", gzip.compress(b"") + gzip.compress(WHOLE), None),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_values_are_left_to_the_host(device, case):
    name, encoded, reason = ODD[case]
    codec = codec_of(name)
    found = decode(device, codec, [encoded], NBYTES)
    assert found.values == {}
    assert bytes(codec.decode(encoded, NBYTES, exact=True)) == WHOLE
    if reason is None:
        assert list(found.failed) == [0]
    else:
        assert re.search(reason, found.fallbacks[0])


def test_a_zlib_stream_with_a_dictionary_is_refused(device):
    found = decode(device, codec_of("zlib"), [with_dictionary(WHOLE)], NBYTES)
    assert found.fallbacks == {0: "zlib: needs a preset dictionary"}


def test_zlib_of_unknown_size_is_refused(device):
    found = decode(device, codec_of("zlib"), [zlib.compress(WHOLE)], NBYTES, exact=False)
    assert found.fallbacks == {0: "zlib: does not say how many bytes it holds"}


@pytest.mark.parametrize("name", [name for name in VERSIONS if name != "crc32c"])
def test_what_the_host_has_not_seen_is_refused(device, name):
    codec = codec_of(name)
    found = decode(device, codec, [bytes(codec.encode(WHOLE))], NBYTES, seen=False)
    assert found.fallbacks == {0: f"{name}: its headers are not in host memory"}


def test_a_checksum_needs_no_bytes_on_the_host(device):
    codec = codec_of("crc32c")
    values = [bytes(codec.encode(WHOLE)), bytes(codec.encode(HALF + HALF[::-1]))]
    values.append(values[1][:100] + b"?" + values[1][101:])
    found = decode(device, codec, values, NBYTES, seen=False)
    assert found.values == {0: WHOLE, 1: HALF + HALF[::-1]}
    assert list(found.failed) == [2]


# --------------------------------------------------------------------------- chains

CHAINS = [
    [],
    ["crc32c"],
    ["zstd"],
    ["zstd", "crc32c"],
    ["crc32c", "zstd"],
    ["crc32c", "crc32c"],
    ["gzip", "crc32c"],
    ["blosc", "crc32c"],
    ["crc32c", "blosc"],
]


def chain_of(names, data_type="uint16"):
    configurations = {
        "zstd": {"level": 3, "checksum": False},
        "gzip": {"level": 6},
        "blosc": {
            "cname": "zstd",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 2,
            "blocksize": 0,
        },
    }
    codecs = [NamedConfiguration("bytes", {"endian": "little"})]
    codecs += [NamedConfiguration(name, configurations.get(name, {})) for name in names]
    return resolve_v3(codecs, dtype(data_type), (50, 60))


@pytest.mark.parametrize("names", CHAINS, ids="-".join)
def test_chains_are_decoded_stage_after_stage(device, names):
    chain = chain_of(names)
    payloads = [make_payload(NBYTES, "steps", i) for i in range(5)]
    encoded = [bytes(chain.encode(payload)) for payload in payloads]
    encoded[3] = encoded[3][:-1]
    found = decode_on(device, chain.decode_device, encoded, offset=1)
    assert chain.unsupported_reason(device) is None
    assert found.values == {row: payloads[row] for row in (0, 1, 2, 4)}
    assert sorted([*found.fallbacks, *found.failed]) == [3]


@pytest.mark.parametrize(
    "names", [["blosc", "zstd"], ["gzip", "gzip"], ["gzip", "zstd"]], ids="-".join
)
def test_headers_that_only_the_device_has_are_for_the_host(device, names):
    chain = chain_of(names)
    payload = make_payload(NBYTES, "steps")
    found = decode_on(device, chain.decode_device, [bytes(chain.encode(payload))])
    assert "not in host memory" in found.fallbacks[0]
