"""One submission: what it asks of a device, and how it ends where values or memory fail it."""

import numpy as np
import pytest
import zstandard

from gpustore.backends.device import staging_buffer
from gpustore.backends.device.placement import Places
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.backends.device.submission import (
    DECODED,
    ENCODED,
    FAILED,
    MISSING,
    Piece,
    Submission,
)
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.errors import DeviceError, LimitError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.statistics import STATISTICS
from tests.device_memory import bench_of
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler

pytestmark = [needs_compiler, pytest.mark.matrix]

ITEMS = 400
NBYTES = 2 * ITEMS
FILL = np.uint16(9)

CODECS = {
    "raw": [],
    "zstd": [("zstd", {"level": 1, "checksum": False})],
    "gzip": [("gzip", {"level": 1})],
    "crc32c": [("crc32c", {})],
}


def chain_of(name):
    named = [("bytes", {"endian": "little"}), *CODECS[name]]
    return resolve_v3([NamedConfiguration(*one) for one in named], dtype("uint16"), (ITEMS,))


def chunk(seed):
    return (np.random.default_rng(seed).integers(0, 7, ITEMS)).astype("<u2").tobytes()


class Setting:
    """A device, a buffer, and room for some chunks one after the other."""

    def __init__(self, device, bench):
        self.device = device
        self.bench = bench
        self.buffer = StagingBuffer(device)
        self.relieved = 0

    def submission(self, name, values, *, decoded=False, room=100_000, pieces=1):
        """A submission of values in so many pieces."""
        n = len(values)
        self.buffer.resize(room)
        self.buffer.clear()
        self.out = self.bench.put(b"\x5a" * n * NBYTES)
        ready = [self.device.record(self.bench.stream)]
        self.reported = {}
        submission = Submission(self.device, self.buffer, FILL, ready, self.relieve)
        chain = chain_of(name)
        for rows in np.array_split(np.arange(n), pieces):
            submission.pieces.append(self.piece(chain, rows, values, decoded=decoded))
        return submission

    def piece(self, chain, rows, values, *, decoded):
        n = len(rows)
        places = Places(
            np.arange(n + 1),
            np.zeros(n, np.int64),
            self.out + rows * NBYTES,
            np.full((1, n), ITEMS),
            (2,),
            (2,),
            np.dtype("u2"),
        )
        start, nbytes = np.zeros((2, n), np.int64)
        state = np.full(n, DECODED if decoded else ENCODED, np.uint8)
        for i, value in enumerate(values[row] for row in rows):
            if value is None:
                state[i] = MISSING
                continue
            start[i], nbytes[i] = self.buffer.reserve(len(value)), len(value)
            self.buffer.view(start[i], nbytes[i])[:] = value

        def report(missing, errors):
            self.reported.update((int(rows[i]), error) for i, error in errors.items())

        return Piece(chain, places, start, nbytes, state, report)

    def relieve(self, lacking):
        self.relieved += 1

    def found(self, count):
        """What is in the room, chunk by chunk."""
        data = self.bench.get(self.out, count * NBYTES)
        return [data[i * NBYTES : (i + 1) * NBYTES] for i in range(count)]


def complete(submission):
    """Rows that are left to the host, by their number in all pieces, with their values."""
    submission.begin()
    left = {}
    first = np.cumsum([0, *map(len, submission.pieces)])
    numbers = {id(piece): lo for piece, lo in zip(submission.pieces, first, strict=False)}
    for one in submission.finish():
        lo = int(numbers[id(one.piece)])
        left.update(
            (lo + row, value) for row, value in zip(one.rows.tolist(), one.values, strict=True)
        )
    return left


@pytest.fixture(params=ORDERS)
def setting(request, monkeypatch):
    monkeypatch.setattr(staging_buffer, "_SMALLEST_NBYTES", 1)
    device = EmulatedDevice(request.param, seed=2)
    with bench_of(device) as bench:
        setting = Setting(device, bench)
        yield setting
        setting.buffer.free()
    device.close()


MISSING_CHUNK = FILL.tobytes() * ITEMS
UNTOUCHED = b"\x5a" * NBYTES


def counted(act):
    before = STATISTICS.snapshot()
    result = act()
    after = STATISTICS.snapshot()
    return result, {name: after[name] - before.get(name, 0) for name in after}


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("name", CODECS)
def test_values_and_missing_ones_are_placed_and_damaged_ones_left(setting, name, pieces):
    chunks = [chunk(i) for i in range(5)]
    values = [chain_of(name).encode(one) for one in chunks]
    values[1] = None
    expected = [chunks[0], MISSING_CHUNK, *chunks[2:]]
    damaged = {}
    if name != "raw":  # Lengths of these are looked at before.
        damaged[3] = values[3] = values[3][:-1]
        expected[3] = UNTOUCHED
    submission = setting.submission(name, values, pieces=pieces)
    left, counts = counted(lambda: complete(submission))
    assert left == damaged
    found = setting.found(5)
    # What was decoded in part may be there until the host's elements are.
    assert [found[i] for i in range(5) if i != 3] == [expected[i] for i in range(5) if i != 3]
    assert counts["waits"] == counts["copies"] - (name != "raw") == 1
    assert counts.get("chunks_decoded_device", 0) == (0 if name == "raw" else 3)


def test_it_begins_without_waiting_and_asks_for_one_copy_each_way(setting):
    launches = []
    for count in (3, 40):
        values = [chain_of("zstd").encode(chunk(i)) for i in range(count)]
        submission = setting.submission("zstd", values, pieces=3)
        before = setting.device.counts.copy()
        submission.begin()
        asked = setting.device.counts - before
        assert asked["synchronize"] == 0
        assert (asked["upload"], asked["download"], asked["decompress"]) == (1, 1, 1)
        launches.append(asked["launch"])
        assert submission.finish() == []
        assert (setting.device.counts - before)["synchronize"] == 1
        assert setting.found(count) == [chunk(i) for i in range(count)]
    assert launches[0] == launches[1]


def test_only_what_is_used_of_the_buffer_is_uploaded(setting):
    values = [chain_of("gzip").encode(chunk(i)) for i in range(3)]
    submission = setting.submission("gzip", values)
    before = setting.device.counts["upload_nbytes"]
    assert complete(submission) == {}
    uploaded = setting.device.counts["upload_nbytes"] - before
    assert sum(map(len, values)) < uploaded < sum(map(len, values)) + 3 * 256 + 200


def test_decoded_values_are_placed_alone(setting):
    submission = setting.submission("zstd", [chunk(0), None, chunk(1)], decoded=True)
    before = setting.device.counts["decompress"]
    assert complete(submission) == {}
    assert setting.device.counts["decompress"] == before
    assert setting.found(3) == [chunk(0), MISSING_CHUNK, chunk(1)]


def test_pieces_of_several_chains_share_a_submission(setting):
    """As in an array with chunks of several shapes."""
    chunks = [chunk(i) for i in range(4)]
    values = [chain_of("zstd" if i < 2 else "gzip").encode(one) for i, one in enumerate(chunks)]
    submission = setting.submission("zstd", values, pieces=2)
    submission.pieces[1].chain = chain_of("gzip")
    before = setting.device.counts.copy()
    assert complete(submission) == {}
    asked = setting.device.counts - before
    assert (asked["decompress"], asked["synchronize"]) == (2, 1)
    assert setting.found(4) == chunks


def test_streams_that_fail_are_left_to_the_host(setting):
    values = [chain_of("zstd").encode(chunk(i)) for i in range(6)]
    setting.device.faults.statuses = {(0, 1): 12}
    setting.device.faults.sizes = {(0, 3): 17}
    submission = setting.submission("zstd", values, pieces=2)
    left, counts = counted(lambda: complete(submission))
    assert left == {1: values[1], 3: values[3]}
    assert counts["retries"] == 2
    assert counts["chunks_decoded_device"] == 4
    found = setting.found(6)
    assert [found[i] for i in (0, 2, 4, 5)] == [chunk(i) for i in (0, 2, 4, 5)]


def test_what_a_codec_refuses_is_left_to_the_host_without_a_wait(setting):
    """The host compares checksums of zstd frames."""
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    values = [compressor.compress(bytes([i, 0]) * ITEMS) for i in range(30)]
    submission = setting.submission("zstd", values)
    left, counts = counted(lambda: complete(submission))
    assert left == dict(enumerate(values))
    assert not counts.get("waits")
    assert not counts.get("retries")


@pytest.mark.parametrize("missing", [(), (2, 5)])
def test_the_buffer_grows_for_tables_without_room(setting, missing):
    values = [None if i in missing else chain_of("gzip").encode(chunk(i)) for i in range(8)]
    room = sum(len(value or b"") + 16 for value in values)
    setting.buffer.free()
    submission = setting.submission("gzip", values, room=room)
    before = setting.device.counts.copy()
    assert complete(submission) == {}
    asked = setting.device.counts - before
    assert asked["upload"] == 1
    assert asked["allocate_pinned"] == asked["free_pinned"] == 1
    assert setting.found(8) == [MISSING_CHUNK if i in missing else chunk(i) for i in range(8)]


@pytest.mark.parametrize("fits", [True, False], ids=["room for tables", "none"])
@pytest.mark.parametrize("name", CODECS)
def test_little_memory_splits_it(setting, name, fits):
    if fits and name in ("raw", "crc32c"):
        pytest.skip("takes no memory beside the buffer")
    values = [chain_of(name).encode(chunk(i)) for i in range(7)]
    values[2] = None
    damaged = {}
    if name != "raw":  # Lengths of these are looked at before.
        damaged[5] = values[5] = b"?"
    room = 100_000 if fits else sum(-(-len(value or b"") // 16) * 16 for value in values)
    setting.buffer.free()
    submission = setting.submission(name, values, room=room)
    number = setting.device.counts["allocations"]
    # Memory for scratch or tables of all; then that of the first half.
    setting.device.faults.allocations = {number, number + 1}
    assert complete(submission) == damaged
    assert setting.relieved == 2
    found = setting.found(7)
    assert found[2] == MISSING_CHUNK
    assert [found[i] for i in (0, 1, 3, 4, 6)] == [chunk(i) for i in (0, 1, 3, 4, 6)]


@pytest.mark.parametrize("operation", ["upload", "fill", "launch", "decompress", "download"])
@pytest.mark.parametrize("number", [0, 1])
def test_operations_that_lack_memory_are_asked_for_again(setting, operation, number):
    chunks = [chunk(i) for i in range(4)]
    submission = setting.submission("zstd", [chain_of("zstd").encode(one) for one in chunks])
    first = setting.device.counts[operation]
    setting.device.faults.lacking = {(operation, first + i) for i in range(number + 1)}
    left, counts = counted(lambda: complete(submission))
    assert left == {}
    assert "retries" not in {name for name, count in counts.items() if count}
    assert counts["chunks_decoded_device"] == 4
    assert setting.relieved == number + 1
    assert setting.found(4) == chunks


def test_chunks_that_do_not_fit_one_by_one_are_an_error_each(setting):
    values = [chain_of("zstd").encode(chunk(i)) for i in range(3)]
    submission = setting.submission("zstd", values)
    number = setting.device.counts["allocations"]
    setting.device.faults.allocations = set(range(number, number + 1000))
    assert complete(submission) == {}
    errors = submission.pieces[0].errors
    assert list(errors) == [0, 1, 2]
    for error in errors.values():
        assert isinstance(error, LimitError)
        assert f"A chunk of {NBYTES} bytes does not fit in the free memory" in str(error)
    setting.device.faults.allocations = set()


def test_what_is_given_up_has_ended_and_leaves_nothing(setting):
    values = [chain_of("gzip").encode(chunk(i)) for i in range(4)]
    submission = setting.submission("gzip", values)
    live = setting.device._memory.live_nbytes
    submission.begin()
    submission.give_up()
    submission.give_up()
    assert not [task for task in setting.buffer.stream.queue if "free" not in task.name]
    assert setting.device._memory.live_nbytes == live


def test_a_failure_while_it_begins_is_raised_and_cleaned_up(setting):
    values = [chain_of("gzip").encode(chunk(i)) for i in range(4)]
    number = setting.device.counts["launch"]
    setting.device.faults.failing = {("launch", number): False}
    submission = setting.submission("gzip", values)
    live = setting.device._memory.live_nbytes
    with pytest.raises(DeviceError, match="injected"):
        submission.begin()
    submission.give_up()
    assert setting.device._memory.live_nbytes == live
    assert complete(setting.submission("gzip", values)) == {}
    assert setting.found(4) == [chunk(i) for i in range(4)]


def test_rows_are_reported_by_their_numbers(setting):
    submission = setting.submission("zstd", [chunk(i) for i in range(4)], decoded=True)
    (piece,) = submission.pieces
    error = LimitError("no")
    piece.fail(2, error)
    taken = piece.take(np.array([1, 2]))
    assert taken.state.tolist() == [DECODED, FAILED]
    taken.report(0, taken.errors)
    assert setting.reported == {2: error}
