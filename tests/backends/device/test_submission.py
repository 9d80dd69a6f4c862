"""One submission: what it asks of a device, and how it ends where values or memory fail it."""

import numpy as np
import pytest
import zstandard

from gpustore.backends.device import staging_buffer
from gpustore.backends.device import submission as submission_module
from gpustore.backends.device.placement import Places
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.backends.device.submission import Submission
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype
from gpustore.errors import CorruptChunkError, DeviceError, LimitError
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
        self.shrunk = 0

    def submission(self, name, values, **options):
        n = len(values)
        self.out = self.bench.put(b"\x5a" * n * NBYTES)
        places = Places(
            np.arange(n + 1),
            np.zeros(n, np.int64),
            self.out + np.arange(n) * NBYTES,
            np.full((1, n), ITEMS),
            (2,),
            (2,),
            np.dtype("u2"),
        )
        ready = [self.device.record(self.bench.stream)]
        self.chain = chain_of(name)
        return Submission(
            self.device,
            self.buffer,
            None,
            places,
            values,
            self.chain,
            FILL,
            ready,
            self.shrink,
            **options,
        )

    def shrink(self):
        self.shrunk += 1

    def found(self, count):
        """What is in the room, chunk by chunk."""
        data = self.bench.get(self.out, count * NBYTES)
        return [data[i * NBYTES : (i + 1) * NBYTES] for i in range(count)]


@pytest.fixture(params=ORDERS)
def setting(request, monkeypatch):
    monkeypatch.setattr(staging_buffer, "_SMALLEST_NBYTES", 1)
    device = EmulatedDevice(request.param, seed=2)
    with bench_of(device) as bench:
        setting = Setting(device, bench)
        yield setting
        setting.buffer.free()
    device.close()


MISSING = FILL.tobytes() * ITEMS
UNTOUCHED = b"\x5a" * NBYTES


def counted(act):
    before = STATISTICS.snapshot()
    result = act()
    after = STATISTICS.snapshot()
    return result, {name: after[name] - before.get(name, 0) for name in after}


@pytest.mark.parametrize("name", CODECS)
def test_values_missing_ones_and_errors(setting, name):
    chunks = [chunk(i) for i in range(5)]
    values = [chain_of(name).encode(one) for one in chunks]
    values[1], values[3] = None, values[3][:-1]
    errors, counts = counted(setting.submission(name, values).complete)
    assert list(errors) == [3]
    assert isinstance(errors[3], CorruptChunkError)
    assert setting.found(5) == [chunks[0], MISSING, chunks[2], UNTOUCHED, chunks[4]]
    assert counts["waits"] == counts["copies"] - (name != "raw") == 1
    assert counts.get("chunks_decoded_device", 0) == (0 if name == "raw" else 3)


def test_it_begins_without_waiting_and_asks_for_one_copy_each_way(setting):
    launches = []
    for count in (3, 40):
        values = [chain_of("zstd").encode(chunk(i)) for i in range(count)]
        submission = setting.submission("zstd", values)
        before = setting.device.counts.copy()
        submission.begin()
        asked = setting.device.counts - before
        assert asked["synchronize"] == 0
        assert (asked["upload"], asked["download"], asked["decompress"]) == (1, 1, 1)
        launches.append(asked["launch"])
        assert submission.finish() == {}
        assert (setting.device.counts - before)["synchronize"] == 1
        assert setting.found(count) == [chunk(i) for i in range(count)]
        setting.buffer.arena.reset()
    assert launches[0] == launches[1]


def test_values_in_the_staging_buffer_stay_where_they_are(setting):
    setting.buffer.resize(100_000)
    values = []
    for i in range(3):
        encoded = chain_of("gzip").encode(chunk(i))
        view = setting.buffer.arena.take(len(encoded))
        view[:] = encoded
        values.append(view)
    submission = setting.submission("gzip", values)
    before = setting.device.counts["upload_nbytes"]
    assert submission.complete() == {}
    uploaded = setting.device.counts["upload_nbytes"] - before
    assert sum(map(len, values)) < uploaded < sum(map(len, values)) + 3 * 256 + 200
    assert setting.found(3) == [chunk(i) for i in range(3)]


def test_decoded_values_are_placed_alone(setting):
    submission = setting.submission("zstd", [chunk(0), None, chunk(1)], decoded=True)
    before = setting.device.counts["decompress"]
    assert submission.complete() == {}
    assert setting.device.counts["decompress"] == before
    assert setting.found(3) == [chunk(0), MISSING, chunk(1)]


def test_streams_that_fail_are_decoded_by_the_host(setting):
    values = [chain_of("zstd").encode(chunk(i)) for i in range(6)]
    values[4] = values[4][:20] + bytes(30) + values[4][50:]
    setting.device.faults.statuses = {(0, 1): 12}
    setting.device.faults.sizes = {(0, 3): 17}
    submission = setting.submission("zstd", values)
    errors, counts = counted(submission.complete)
    assert list(errors) == [4]
    assert counts["host_fallbacks"] == 2
    assert counts["retries"] == 3
    found = setting.found(6)
    assert [found[i] for i in (0, 1, 2, 3, 5)] == [chunk(i) for i in (0, 1, 2, 3, 5)]


def test_more_values_for_the_host_than_a_staging_buffer_holds_decoded(setting):
    """Refused, because the host compares their checksums; they compress to almost nothing."""
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    chunks = [bytes([i, 0]) * ITEMS for i in range(30)]
    values = [compressor.compress(one) for one in chunks]
    submission = setting.submission("zstd", values)
    errors, counts = counted(submission.complete)
    assert errors == {}
    assert counts["host_fallbacks"] == 30
    assert setting.buffer.nbytes < 30 * NBYTES
    assert counts["waits"] > 2
    assert setting.found(30) == chunks


def test_tables_without_room_behind_the_values_get_memory_of_their_own(setting, monkeypatch):
    monkeypatch.setattr(submission_module, "_TABLES_PER_ROW_NBYTES", 0)
    values = [chain_of("gzip").encode(chunk(i)) for i in range(8)]
    submission = setting.submission("gzip", values)
    before = setting.device.counts.copy()
    assert submission.complete() == {}
    asked = setting.device.counts - before
    assert (asked["upload"], asked["allocate_pinned"], asked["free_pinned"]) == (2, 2, 1)
    assert setting.found(8) == [chunk(i) for i in range(8)]


@pytest.mark.parametrize("name", CODECS)
def test_little_memory_halves_it(setting, name):
    values = [chain_of(name).encode(chunk(i)) for i in range(7)]
    values[2], values[5] = None, b"?"
    submission = setting.submission(name, values)
    number = setting.device.counts["allocations"]
    # The staging buffer of all; then that of the first half, and so on.
    setting.device.faults.allocations = {number, number + 1}
    errors = submission.complete()
    assert list(errors) == [5]
    assert isinstance(errors[5], CorruptChunkError)
    assert setting.shrunk == 2
    found = setting.found(7)
    assert found[2] == MISSING
    assert found[5] == UNTOUCHED
    assert [found[i] for i in (0, 1, 3, 4, 6)] == [chunk(i) for i in (0, 1, 3, 4, 6)]


def test_chunks_that_do_not_fit_one_by_one_are_an_error_each(setting):
    values = [chain_of("zstd").encode(chunk(i)) for i in range(3)]
    submission = setting.submission("zstd", values)
    number = setting.device.counts["allocations"]
    setting.device.faults.allocations = set(range(number, number + 1000))
    errors = submission.complete()
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
    assert setting.device._memory.live_nbytes - live == setting.buffer.nbytes
    assert submission.finish() == {}


def test_a_failure_while_it_begins_is_raised_and_cleaned_up(setting):
    values = [chain_of("gzip").encode(chunk(i)) for i in range(4)]
    live = setting.device._memory.live_nbytes
    number = setting.device.counts["launch"]
    setting.device.faults.failing = {("launch", number): False}
    submission = setting.submission("gzip", values)
    with pytest.raises(DeviceError, match="injected"):
        submission.complete()
    setting.buffer.arena.reset()
    left = setting.device._memory.live_nbytes - live - setting.buffer.nbytes
    assert left == len(values) * NBYTES  # The room for the chunks.
    assert setting.submission("gzip", values).complete() == {}
    assert setting.found(4) == [chunk(i) for i in range(4)]
