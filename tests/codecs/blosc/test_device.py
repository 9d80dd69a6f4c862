"""Blosc decoded on a device: every code, shuffle, element and block size, whole and damaged.

Emulated, nvcomp's part is done by the host's libraries; see tests/emulator.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codecs.blosc.test_columns import CNAMES, frame_of, frames
from tests.codecs.contract import make_payload, stage
from tests.device_memory import require_kernels
from tests.device_values import decode_on
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.matrix import each

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.matrix]


@pytest.fixture(scope="module")
def kernels():
    require_kernels(EmulatedDevice())


def decode(device, encoded, decoded_max, *, exact=True, **options):
    blosc = stage("blosc", "v2")

    def record(batch, device):
        blosc.decode_device(batch, device, decoded_max, exact=exact)

    return decode_on(device, record, encoded, **options)


@given(
    made=st.lists(frames, min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
    offset=st.sampled_from([0, 1, 2, 7]),
)
def test_encodings_of_numcodecs_are_decoded(made, order, offset):
    device = EmulatedDevice(order, seed=1)
    longest = max(len(data) for _, data in made)
    encoded = [frame for frame, _ in made]
    found = decode(device, encoded, longest, exact=False, offset=offset)
    device.close()
    assert (found.fallbacks, found.failed) == ({}, {})
    assert [found.values[row] for row in range(len(made))] == [data for _, data in made]


@pytest.mark.parametrize("cname", [*CNAMES, "snappy"])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_one_batch_on_every_device(device, cname, shuffle):
    require_kernels(device)
    made = [
        frame_of(cname, shuffle, typesize, 20_000 + 7 * typesize, 4096, 5, "steps")
        for typesize in (1, 2, 3, 4, 8, 16, 20)
    ]
    made.append(frame_of(cname, shuffle, 4, 9000, 0, 5, "noise"))
    found = decode(device, [frame for frame, _ in made], 1 << 16, exact=False)
    assert (found.fallbacks, found.failed) == ({}, {})
    assert [found.values[row] for row in range(len(made))] == [data for _, data in made]


def test_launches_do_not_grow_with_frames_and_blocks(device):
    require_kernels(device)
    frame, data = frame_of("zlib", 1, 4, 40_000, 4096, 5, "steps")
    launches = []
    for count in (1, 30):
        found = decode(device, [frame] * count, len(data))
        assert list(found.values.values()) == [data] * count
        launches.append(found.launches)
    assert launches[0] == launches[1] <= 6


def test_stored_frames_are_not_copied(device):
    frame, data = frame_of("lz4", 1, 4, 5000, 0, 0, "noise")
    found = decode(device, [frame, frame], len(data))
    assert found.values == {0: data, 1: data}
    assert found.launches == 0


def damages(frame):
    """Nine kinds of damage, by name; each at several places."""
    middle, end = len(frame) // 2, len(frame)

    def changed(position, value):
        return frame[:position] + bytes([value]) + frame[position + 1 :]

    yield "empty", b""
    for cut in (1, 15, 16, 20, middle, end - 1):
        yield f"cut to {cut}", frame[:cut]
    yield "longer", frame + b"\0"
    for bit in range(8):
        yield f"version, bit {bit}", changed(0, frame[0] ^ 1 << bit)
        yield f"flags, bit {bit}", changed(2, frame[2] ^ 1 << bit)
    for value in (0, 1, 17, 255):
        yield f"typesize {value}", changed(3, value)
    for position in range(4, 16):
        yield f"sizes, byte {position}", changed(position, frame[position] ^ 0x55)
    for position in range(16, min(end, 32)):
        yield f"offset or length, byte {position}", changed(position, frame[position] ^ 0x81)
    for position in range(middle, end, max(1, end // 16)):
        yield f"stream, byte {position}", changed(position, frame[position] ^ 0xFF)
    yield "another's bytes", frame[:16] + make_payload(end - 16, "noise", 3)


@each("cname", [*CNAMES, "snappy"])
@each("shuffle", [0, 1, 2])
def test_damage_is_refused_or_fails_or_decodes_as_on_the_host(cname, shuffle):
    frame, data = frame_of(cname, shuffle, 4, 6000, 2048, 5, "steps")
    named = [(name, value) for name, value in damages(frame) if value != frame]
    values = [frame, *(value for _, value in named), frame]
    device = EmulatedDevice("random", seed=2)
    found = decode(device, values, len(data))
    device.close()
    last = len(values) - 1
    assert found.values[0] == found.values[last] == data
    blosc = stage("blosc", "v2")
    for row, (name, value) in enumerate(named, 1):
        if row in found.values:
            # No checksum: what decodes may be other bytes, but the same on host and device.
            assert bytes(blosc.decode(value, len(data), exact=True)) == found.values[row], name
    headers = [row for row, (name, _) in enumerate(named, 1) if name.startswith(("cut", "longer"))]
    assert set(headers) <= set(found.fallbacks)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    made=frames,
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=5),
    order=st.sampled_from(ORDERS),
)
def test_changed_frames_never_reach_beyond_their_bounds(made, changes, order):
    frame, data = made
    damaged = bytearray(frame)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    device = EmulatedDevice(order, seed=3)
    found = decode(device, [frame, bytes(damaged), frame], len(data))
    device.close()
    assert found.values[0] == found.values[2] == data
    assert set(found.fallbacks) | set(found.failed) <= {1}
    if 1 in found.values:
        assert len(found.values[1]) == len(data)


def test_codecs_without_device_code_are_refused(device):
    frame, data = frame_of("zstd", 1, 4, 5000, 0, 5, "steps")
    unseen = decode(device, [frame], len(data), seen=False)
    assert unseen.fallbacks == {0: "blosc: its headers are not in host memory"}
    wrong = decode(device, [frame], len(data) + 1)
    assert wrong.fallbacks == {0: "blosc: does not decode to 5001 bytes"}
