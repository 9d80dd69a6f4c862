"""Sub-batches of values, recorded and run on the emulated device and on a GPU."""

import gc
import weakref

import google_crc32c
import numcodecs
import numpy as np
import pytest

from gpustore.device.command_list import UNWRITTEN, CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.kernels.block import stream_launches
from gpustore.device.kernels.launch import Listed, indexed_launches
from gpustore.device.kernels.run import Rows
from gpustore.device.own_kernels import can_decompress
from gpustore.device.protocol import Spans
from tests.device_memory import bench_of, fill_runs, require_kernels
from tests.device_values import decode_on
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.kernels import test_value
from tests.streams import encode, smooth

pytestmark = pytest.mark.matrix

NBYTES = 3000


@pytest.fixture
def bench(device):
    with bench_of(device) as bench:
        yield bench


class Recorded:
    """Does what the backend does around a command list: one upload, one download."""

    def __init__(self, bench, encoded, rows=None):
        self.bench = bench
        starts = Spans.contiguous(0, [len(value) for value in encoded], 16)
        self.values_nbytes = -(-(int(starts.address[-1]) + len(encoded[-1])) // 16) * 16
        self.pinned = bench.device.allocate_pinned(1 << 20)
        self.arena = bench.allocate(1 << 20)
        for start, value in zip(starts.address.tolist(), encoded, strict=True):
            self.pinned.view[start : start + len(value)] = value
        self.commands = CommandList(
            bench.device,
            bench.stream,
            np.arange(len(encoded)) if rows is None else np.asarray(rows),
            Spans(starts.address + np.uint64(self.arena), starts.nbytes),
            EncodedColumns(
                np.frombuffer(self.pinned.view, np.uint8),
                starts.address.astype(np.int64),
                starts.nbytes.astype(np.int64),
            ),
        )

    def failures(self):
        """Run the list and tell what failed."""
        commands, device, stream = self.commands, self.bench.device, self.bench.stream
        tables = self.values_nbytes
        results = tables + -(-commands.table_nbytes // 16) * 16
        commands.write_tables(self.pinned.view[tables : tables + commands.table_nbytes])
        device.upload(self.pinned, 0, self.arena, tables + commands.table_nbytes, stream)
        commands.run(self.arena + tables, self.arena + results)
        if commands.result_nbytes:
            device.download(
                self.arena + results, self.pinned, results, commands.result_nbytes, stream
            )
        commands.release()
        self.bench.wait()
        found = commands.failures(self.pinned.view[results : results + commands.result_nbytes])
        device.free_pinned(self.pinned)
        return found


def decoded_spans(bench, count):
    return Spans.contiguous(bench.allocate(count * NBYTES), [NBYTES] * count)


def checksummed(data):
    return data + google_crc32c.value(data).to_bytes(4, "little")


def record_chain(recorded, codec, dst):
    """What the codecs of a chain ``[..., codec, crc32c]`` record."""
    require_kernels(recorded.bench.device)
    commands = recorded.commands
    expected = np.array([int.from_bytes(value[-4:], "little") for value in commands.encoded], "u4")
    commands.narrow(0, 4)
    commands.checksum("crc32c", commands.values, expected)
    commands.decompress(codec, commands.values, dst)
    commands.values, commands.encoded = dst, None


def test_checksums_and_streams_are_checked_and_decoded_together(bench):
    values = [smooth(NBYTES, i) for i in range(5)]
    recorded = Recorded(bench, [checksummed(encode("zstd", value)) for value in values])
    dst = decoded_spans(bench, 5)
    record_chain(recorded, "zstd", dst)
    assert recorded.commands.launches == 3
    assert recorded.failures() == {}
    assert bench.get(int(dst.address[0]), 5 * NBYTES) == b"".join(values)
    assert recorded.commands.values is dst


def test_failures_are_told_by_row_and_with_the_first_reason(bench):
    encoded = [checksummed(encode("lz4", smooth(NBYTES, i))) for i in range(4)]
    encoded[1] = checksummed(encode("lz4", smooth(NBYTES + 1)))
    encoded[2] = checksummed(encode("lz4", smooth(NBYTES - 1)))
    encoded[3] = encoded[3][:-1] + bytes([encoded[3][-1] ^ 1])
    recorded = Recorded(bench, encoded, rows=[10, 20, 30, 40])
    record_chain(recorded, "lz4", decoded_spans(bench, 4))
    failed = recorded.failures()
    assert sorted(failed) == [20, 30, 40]
    assert failed[20].startswith("lz4: cannot be decompressed")
    assert failed[30] == f"lz4: decodes to {NBYTES - 1} bytes, expected {NBYTES}"
    assert failed[40].startswith("crc32c: checksum is 0x")


def test_streams_of_one_row_fail_as_that_row(bench):
    parts = [encode("lz4", smooth(100, i)) for i in range(6)]
    parts[3] = parts[3][:-5]
    recorded = Recorded(bench, [b"".join(parts)], rows=[7])
    start = int(recorded.commands.values.address[0])
    src = Spans.contiguous(start, [len(part) for part in parts])
    dst = Spans.contiguous(bench.allocate(600), [100] * 6)
    recorded.commands.decompress("lz4", src, dst, np.full(6, 7))
    assert list(recorded.failures()) == [7]


def test_values_fall_back_to_the_host(bench):
    values = [smooth(NBYTES, i) for i in range(4)]
    recorded = Recorded(bench, [encode("zstd", value) for value in values], rows=[3, 5, 7, 9])
    commands = recorded.commands
    commands.fall_back({})
    commands.fall_back({0: "two frames", 2: "a dictionary"})
    assert commands.fallbacks == {3: "two frames", 7: "a dictionary"}
    assert commands.rows.tolist() == [5, 9]
    assert len(commands) == len(commands.values) == len(commands.encoded) == 2
    dst = decoded_spans(bench, 2)
    commands.decompress("zstd", commands.values, dst)
    assert recorded.failures() == {}
    assert bench.get(int(dst.address[0]), 2 * NBYTES) == values[1] + values[3]


def test_a_batch_without_values_asks_for_nothing(bench):
    recorded = Recorded(bench, [b"x"])
    recorded.commands.fall_back({0: "odd"})
    nothing = Spans.contiguous(0, [])
    recorded.commands.decompress("zstd", recorded.commands.values, nothing)
    recorded.commands.checksum("crc32c", recorded.commands.values, np.zeros(0, "u4"))
    recorded.commands.launch("fill", "gs::fill_strided<gs::u8, 1>", 0, [])
    assert (
        recorded.commands.launches,
        recorded.commands.table_nbytes,
        recorded.commands.result_nbytes,
    ) == (
        0,
        0,
        0,
    )
    assert recorded.failures() == {}


@pytest.mark.parametrize("room_nbytes", [0, 100, 1 << 12])
def test_tables_are_made_where_they_are_uploaded_from_as_far_as_they_fit(bench, room_nbytes):
    room = np.full(1 << 12, 0xEE, np.uint8)
    none = Spans.contiguous(0, [])
    commands = CommandList(
        bench.device, bench.stream, np.zeros(0, np.int64), none, room=room[:room_nbytes]
    )
    expected = b""
    for number, nbytes in enumerate([40, 17, 200, 8]):
        table, memory = commands.reserve_table(nbytes)
        assert np.shares_memory(memory, room) == (table.offset + nbytes <= room_nbytes)
        commands.table(np.full(3, number, "<u4"))
        memory[:] = number + 10  # Tables may be written late.
        expected = expected.ljust(table.offset, b"x") + bytes([number + 10]) * nbytes
        expected = expected.ljust(-(-len(expected) // 16) * 16, b"x")
        expected += np.full(3, number, "<u4").tobytes()
    for into in (np.zeros(1 << 12, np.uint8), room):
        commands.write_tables(into[: commands.table_nbytes].data)
        found = into[: commands.table_nbytes].tobytes()
        assert len(found) == len(expected)
        assert all(one == other for one, other in zip(found, expected) if other != ord("x"))


def test_a_list_does_not_refer_to_itself():
    """What it holds is freed with it, not when garbage is collected."""
    with bench_of(EmulatedDevice()) as bench:
        recorded = Recorded(bench, [checksummed(encode("zstd", smooth(NBYTES)))])
        commands, room = recorded.commands, np.zeros(1 << 12, np.uint8)
        dst = decoded_spans(bench, 1)
        commands.guard(int(dst.address[0]), dst, commands.rows[:0])
        commands.checksum("crc32c", commands.values, np.zeros(1, "u4"))
        commands.decompress("zstd", commands.values, dst)
        commands.upload(recorded.pinned, 0, int(dst.address[0]), 16)
        commands.download(int(dst.address[0]), recorded.pinned, 0, 16)
        commands.check_bits(b"\0")
        commands.table(room)
        gone = weakref.ref(room)
        gc.disable()
        try:
            del commands, recorded.commands, room
            assert gone() is None
        finally:
            gc.enable()
        bench.device.free_pinned(recorded.pinned)


def blosclz(data):
    """The only stream of a Blosc frame of one block."""
    encoded = numcodecs.Blosc("blosclz", 9, 0, blocksize=len(data)).encode(data)
    start = int.from_bytes(encoded[16:20], "little")
    length = int.from_bytes(encoded[start : start + 4], "little")
    assert length < len(data)
    return encoded[start + 4 : start + 4 + length]


@pytest.mark.parametrize("codec", ["lz4", "blosclz"])
@pytest.mark.parametrize("order", ORDERS)
def test_kernels_decode_what_the_device_has_no_codec_for(order, codec):
    device = EmulatedDevice(order, decodes=())
    require_kernels(device)
    values = [bytes(range(64)) * (NBYTES // 64) + bytes(NBYTES % 64), bytes(NBYTES)] * 6
    encoded = [blosclz(v) if codec == "blosclz" else encode("lz4", v) for v in values]
    encoded[4] = encoded[4][:-3]
    with bench_of(device) as bench:
        recorded = Recorded(bench, encoded)
        assert can_decompress(bench.device, codec)
        assert not can_decompress(bench.device, "zstd")
        dst = decoded_spans(bench, len(values))
        recorded.commands.decompress(codec, recorded.commands.values, dst)
        assert recorded.commands.launches == 1
        assert recorded.failures() == {4: f"{codec}: cannot be decompressed (12)"}
        found = bench.get(int(dst.address[0]), len(values) * NBYTES)
    parts = [found[i * NBYTES : (i + 1) * NBYTES] for i in range(len(values))]
    assert [part for i, part in enumerate(parts) if i != 4] == values[:4] + values[5:]
    device.close()


@pytest.mark.parametrize("nbytes", [0, 1, 65_535, 65_536, 200_001])
def test_checksums_of_any_length_are_computed_in_one_launch(bench, nbytes):
    require_kernels(bench.device)
    pieces = [smooth(nbytes, 1), b"123456789", smooth(100, 2)]
    recorded = Recorded(bench, pieces)
    expected = np.array([google_crc32c.value(piece) for piece in pieces], "u4")
    recorded.commands.checksum(
        "crc32c", recorded.commands.values, expected ^ np.array([0, 0, 1], "u4")
    )
    assert recorded.commands.launches == 1
    assert list(recorded.failures()) == [2]


def test_launches_with_tables_are_recorded_with_them(bench):
    require_kernels(bench.device)
    pieces = [smooth(nbytes, nbytes) for nbytes in (5, 1000, 70_000)]
    recorded = Recorded(bench, pieces)
    dst = Spans.contiguous(bench.allocate(80_000), recorded.commands.values.nbytes.tolist(), 3)
    values = recorded.commands.values
    recorded.commands.launch_tables(stream_launches(values.address, dst.address, dst.nbytes))
    assert recorded.failures() == {}
    for start, piece in zip(dst.address.tolist(), pieces, strict=True):
        assert bench.get(start, len(piece)) == piece


def test_launches_share_the_offsets_of_listed_elements(bench):
    require_kernels(bench.device)
    data = np.arange(5000, dtype="<u2")
    picks = [np.array([7, 7, 4000, 0, 123]), np.array([1, 4999])]
    recorded = Recorded(bench, [data.tobytes()] * 2)
    start = bench.put(bytes(20))
    rows = Rows(
        src=recorded.commands.values.address.astype(np.int64),
        dst=np.array([start, start + 10 + 1]),  # The second at an odd address: another launch.
        count=np.zeros((0, 2), np.int64),
        src_stride=(),
        dst_stride=(),
    )
    listed = Listed([5, 2], [2 * p for p in picks], [2 * np.arange(5), 2 * np.arange(2)])
    launches = indexed_launches(rows, [listed], 2)
    assert len(launches) == 2
    before = recorded.commands.table_nbytes
    recorded.commands.launch_tables(launches)
    tables = sum(-(-one.table.nbytes // 16) * 16 for one in launches)
    assert recorded.commands.table_nbytes - before == tables + launches[0].offsets.nbytes
    assert recorded.failures() == {}
    found = bench.get(start, 15)
    assert found[:10] == data[picks[0]].tobytes()
    assert found[11:] == data[picks[1]].tobytes()


def test_launches_do_not_grow_with_the_values(bench):
    counts = []
    for count in (1, 50):
        recorded = Recorded(bench, [checksummed(encode("lz4", smooth(NBYTES, 1)))] * count)
        record_chain(recorded, "lz4", decoded_spans(bench, count))
        counts.append(recorded.commands.launches)
        assert recorded.failures() == {}
    assert counts == [2, 2]


def test_kernels_get_the_addresses_of_tables_and_results(bench):
    require_kernels(bench.device)
    recorded = Recorded(bench, [b"unused"])
    commands = recorded.commands
    seen = []
    out = commands.scratch(100)
    commands.table(np.arange(3, dtype=np.uint8))  # Of odd length: the next one is aligned.
    runs, blocks = fill_runs([out], 100, 1)
    table = commands.table(runs)
    untouched = commands.result(
        5, lambda found: seen.append(found.tolist()) or [(4, "never written")]
    )
    arguments = [table, np.uint32(1), np.array([9], np.uint8)]
    commands.launch("fill", "gs::fill_strided<gs::u8, 1>", blocks, arguments)
    copied = bench.device.allocate_pinned(100)

    assert table.offset % 16 == untouched.offset % 16 == 0
    tables = recorded.values_nbytes
    commands.write_tables(recorded.pinned.view[tables : tables + commands.table_nbytes])
    bench.device.upload(
        recorded.pinned, 0, recorded.arena, tables + commands.table_nbytes, bench.stream
    )
    commands.run(recorded.arena + tables, recorded.arena + 4096)
    bench.device.download(out, copied, 0, 100, bench.stream)
    bench.device.download(recorded.arena + 4096, recorded.pinned, 4096, 5, bench.stream)
    commands.release()
    commands.release()
    bench.wait()
    assert bytes(copied.view) == b"\x09" * 100
    assert commands.failures(recorded.pinned.view[4096:4101]) == {4: "never written"}
    assert seen == [[UNWRITTEN] * 5]
    bench.device.free_pinned(copied)
    bench.device.free_pinned(recorded.pinned)


def test_what_was_never_written_is_no_success(bench):
    """A codec call that does nothing at all must not look like one that decoded everything."""
    recorded = Recorded(bench, [encode("lz4", smooth(NBYTES))])
    commands = recorded.commands
    commands.decompress("lz4", commands.values, decoded_spans(bench, 1))
    commands.checksum("crc32c", commands.values, np.zeros(1, "u4"))
    unwritten = np.full(commands.result_nbytes, UNWRITTEN, np.uint8)
    assert commands.failures(unwritten.data) == {0: "lz4: unknown status (-1)"}
    bench.device.free_pinned(recorded.pinned)


def test_too_little_memory_for_scratch_is_a_memory_error(bench):
    recorded = Recorded(bench, [encode("zstd", smooth(NBYTES))])
    too_many = bench.device.memory().total_nbytes
    with pytest.raises(MemoryError):
        recorded.commands.scratch(too_many + 1)
    recorded.commands.release()
    bench.device.free_pinned(recorded.pinned)


def test_illegal_bits_fail_their_row_or_are_cleared(bench):
    require_kernels(bench.device)
    values = [np.ones(n, np.uint8) for n in (1, 65_536, 70_001, 200_000)]
    values[0][0] = 2
    values[2][70_000] = 0x81
    recorded = Recorded(bench, [value.tobytes() for value in values], rows=[7, 8, 9, 3])
    recorded.commands.check_bits(b"\xfe")
    assert recorded.failures() == dict.fromkeys((7, 9), "an element is not legal")

    recorded = Recorded(bench, [value.tobytes() for value in values])
    recorded.commands.clear_bits(b"\xf0")
    recorded.commands.check_bits(b"\xfc")
    assert recorded.failures() == {}

    # Values of a record or many; the third byte of each is a bool, the first has four bits.
    values = [np.full(n, 0xF1, np.uint8) for n in (3, 65_538, 70_002, 200_001)]
    for value in values:
        value[2::3] = 1
    values[1][65_537] = 2
    values[3][2] = 0x80
    recorded = Recorded(bench, [value.tobytes() for value in values], rows=[7, 8, 9, 3])
    recorded.commands.check_bits(b"\0\0\xfe")
    recorded.commands.clear_bits(b"\xf0\0\0")
    recorded.commands.check_bits(b"\xf0\0\0")
    assert recorded.failures() == dict.fromkeys((8, 3), "an element is not legal")
    recorded = Recorded(bench, [value.tobytes() for value in values])
    recorded.commands.check_bits(b"\0\xf0\0")
    assert sorted(recorded.failures()) == [0, 1, 2, 3]


SCALED = {"dtype": "<f4", "astype": "<i2", "scale": 10, "offset": 3}
VALUES = {
    "astype f4 f8": ("astype", "filter", "<f4", {"encode_dtype": "<f8", "decode_dtype": "<f4"}),
    "astype f8 f4": ("astype", "filter", "<f8", {"encode_dtype": ">f4", "decode_dtype": "<f8"}),
    "astype f2 f4": ("astype", "filter", "<f2", {"encode_dtype": "<f4", "decode_dtype": "<f2"}),
    "astype f4 u8": ("astype", "filter", ">f4", {"encode_dtype": "<u8", "decode_dtype": ">f4"}),
    "scaled i2": ("fixedscaleoffset", "filter", "<f4", SCALED),
    "scaled u1": ("fixedscaleoffset", "filter", "<f4", {**SCALED, "astype": "|u1"}),
    "scaled f4": ("fixedscaleoffset", "filter", "<f4", {**SCALED, "astype": "<f4"}),
    "scaled f2": ("fixedscaleoffset", "filter", "<f2", {**SCALED, "dtype": "<f2", "astype": "<f2"}),
    "single": ("scale_offset", "v3", "<f4", {"scale": 0.1, "offset": -3.5}),
    "integers": ("scale_offset", "v3", "<i8", {"scale": 3, "offset": -7}),
    "wrapped": ("cast_value", "v3", "<u2", {"data_type": "int64", "out_of_range": "wrap"}),
    "clamped": ("cast_value", "v3", "<i4", {"data_type": "float32", "out_of_range": "clamp"}),
    "delta i4": ("delta", "filter", "<i4", {"dtype": "<i4", "astype": "<i2"}),
    "delta f4": ("delta", "filter", "<f4", {"dtype": "<f4"}),
    "delta f8": ("delta", "filter", "<f8", {"dtype": "<f8", "astype": "<f4"}),
}
"""Codecs of values: arithmetic that a compiler for a GPU must leave as it is."""


@pytest.mark.parametrize("name", VALUES)
def test_numbers_are_those_of_the_host(device, name):
    require_kernels(device)
    codec, variant, dtype, options = VALUES[name]
    stage = test_value.stage(codec, variant, dtype, **options)
    elements = test_value.numbers(stage.encoded)
    if codec == "delta" and stage.encoded.kind == "f":
        elements = elements[np.isfinite(elements)]  # Denormal ones, ties and overflow.
        elements = elements[np.abs(elements) < 1e30]
    expected, legal = test_value.decoded_by_host(stage, elements)
    found = decode_on(
        device,
        lambda commands, device: stage.decode_device(commands, device, len(expected), exact=True),
        [elements[legal].tobytes()],
        seen=False,
    )
    assert (found.fallbacks, found.failed) == ({}, {})
    assert found.values[0] == expected
