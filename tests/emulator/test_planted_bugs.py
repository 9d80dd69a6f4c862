"""Mistakes that go unnoticed on a fast or lucky GPU are always noticed on the emulated device.

One small pipeline, as ``docs/design/003-device.md`` describes it, right and with one thing wrong.
Under lazy streams each mistake is noticed at once, by a breach or because bytes are wrong.
"""

import gc
import os

import numpy as np
import pytest
import zstandard

from gpustore.device.protocol import CodecBatch, Spans
from gpustore.errors import DeviceError
from tests.device_memory import Bench, fill_runs
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS, Breach
from tests.kernels.execution import needs_compiler
from tests.streams import CODECS, encode, smooth

pytestmark = pytest.mark.long
"""Ten seconds: a stage of its own in .ci/run."""

CHUNKS = 8
NBYTES = 3000
BUFFER_NBYTES = 16 << 10

VALUES = [
    np.random.default_rng(i).integers(0, 9, NBYTES, np.uint8).tobytes() for i in range(CHUNKS)
]
ENCODED = [zstandard.ZstdCompressor().compress(value) for value in VALUES]


class StagingBuffer:
    """Pinned memory, device memory of the same size, and the event behind its last use."""

    def __init__(self, device, stream):
        self.pinned = device.allocate_pinned(BUFFER_NBYTES)
        self.arena = device.allocate(BUFFER_NBYTES, stream)
        self.event = None


def read(device, bug=""):
    """Decode all values into one array of the caller's; returns what is in it at the end."""
    copying, decoding, caller = device.stream(), device.stream(), device.stream()
    out = device.empty((CHUNKS, NBYTES), np.dtype("u1"), "C", caller)
    device.fill(out.address, 0, CHUNKS * NBYTES, caller)
    if bug != "caller's stream is not waited for":
        device.wait(decoding, device.record(caller))
    buffers = [StagingBuffer(device, copying) for _ in range(2)]
    for chunk, encoded in enumerate(ENCODED):
        buffer = buffers[chunk % 2]
        if buffer.event is not None and bug != "buffer is reused too early":
            settle(device, buffer, bug)
        decode(device, buffer, copying, decoding, encoded, out.address + chunk * NBYTES, bug)
    target = device.allocate_pinned(CHUNKS * NBYTES)
    if bug != "final event is not waited for":
        device.wait(caller, device.record(decoding))
    address = out.address
    if bug == "array is dropped too early":
        del out
        gc.collect()
    device.download(address, target, 0, CHUNKS * NBYTES, caller)
    device.synchronize(device.record(caller))
    found = bytes(target.view)
    device.free_pinned(target)
    for buffer in buffers:
        settle(device, buffer, bug)
        device.free(buffer.arena, copying)
        device.free_pinned(buffer.pinned)
    return found


def settle(device, buffer, bug):
    """Wait for the last use of a buffer, and look at what came back."""
    if bug != "result is read before its copy has run":
        device.synchronize(buffer.event)
    sizes, statuses = CodecBatch.results(np.asarray(buffer.pinned.view)[-12:])
    assert (sizes.tolist(), statuses.tolist()) == ([NBYTES], [0])


def decode(device, buffer, copying, decoding, encoded, address, bug):
    """One value from a buffer to its place; leaves an event behind in the buffer."""
    table_start = 8192
    src = Spans.contiguous(buffer.arena.address, [len(encoded)])
    dst = Spans.contiguous(address, [NBYTES])
    columns = CodecBatch.columns(src, dst).tobytes()
    buffer.pinned.view[: len(encoded)] = encoded
    buffer.pinned.view[table_start : table_start + 32] = columns
    device.upload(buffer.pinned, 0, buffer.arena.address, table_start + 32, copying)
    if bug == "buffer is written while its copy is on its way":
        buffer.pinned.view[: len(encoded)] = bytes(len(encoded))
    if bug != "event of the copy is not waited for":
        device.wait(decoding, device.record(copying))
    temp_nbytes = device.decompress_temp_nbytes("zstd", 1, NBYTES, NBYTES)
    temp = device.allocate(temp_nbytes, decoding)
    if bug == "memory is used after it was freed":
        device.free(temp, decoding)
    batch = CodecBatch(
        "zstd",
        src,
        dst,
        table=buffer.arena.address + table_start,
        result=buffer.arena.address + BUFFER_NBYTES - 16,
        temp=temp.address,
        temp_nbytes=temp_nbytes,
    )
    device.decompress(batch, decoding)
    if bug == "memory is freed on the wrong stream":
        device.free(temp, copying)
    elif bug != "memory is never freed":
        device.free(temp, decoding)
    if bug == "memory is freed twice":
        device.free(temp, decoding)
    device.download(batch.result, buffer.pinned, BUFFER_NBYTES - 12, 12, decoding)
    buffer.event = device.record(decoding)


BUGS = (
    "buffer is reused too early",
    "event of the copy is not waited for",
    "memory is freed on the wrong stream",
    "final event is not waited for",
    "result is read before its copy has run",
    "buffer is written while its copy is on its way",
    "memory is used after it was freed",
    "memory is freed twice",
    "memory is never freed",
    "caller's stream is not waited for",
    "array is dropped too early",
)


def outcome(order, bug="", seed=0):
    """What gave a mistake away; None if nothing did."""
    device = EmulatedDevice(order, seed=seed)
    noticed = None
    try:
        if read(device, bug) != b"".join(VALUES):
            noticed = "wrong bytes"
    except (Breach, AssertionError) as error:
        noticed = error
    try:
        gc.collect()
        device.close()
    except Breach as error:
        noticed = noticed or error
    return noticed


@pytest.mark.parametrize("order", ORDERS)
def test_the_right_pipeline_is_right_in_every_order(order):
    for seed in range(20 if order == "random" else 1):
        assert outcome(order, seed=seed) is None


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_noticed_under_lazy_streams(bug):
    assert outcome("lazy", bug) is not None


# Kernels find their data through descriptors, so the emulator does not know what they will touch:
# here it is the order alone, and poison, that gives mistakes away.


def fill_by_kernel(device, bug):
    """A table, uploaded on one stream, read by a kernel on another; the bytes it wrote."""
    copying, computing = device.stream(), device.stream()
    pinned = device.allocate_pinned(8192)
    table = device.allocate(4096, copying)
    out = device.allocate(4096, computing)
    runs, blocks = fill_runs([out.address], 4096, 1)
    pinned.view[: runs.nbytes] = runs.tobytes()
    device.upload(pinned, 0, table.address, runs.nbytes, copying)
    if bug == "final event is not waited for":
        device.wait(copying, device.record(computing))  # But not behind the kernel.
    device.wait(computing, device.record(copying))
    kernel = device.kernel("fill", "gs::fill_strided<gs::u8, 1>")
    arguments = [np.uint64(table.address), np.uint32(1), np.array([7], np.uint8)]
    device.launch(kernel, blocks, arguments, computing)
    if bug == "memory is freed on the wrong stream":
        device.free(out, copying)
        out = None
    if bug != "final event is not waited for":
        device.wait(copying, device.record(computing))
    found = None
    if out is not None:
        device.download(out.address, pinned, 4096, 4096, copying)
        device.synchronize(device.record(copying))
        found = bytes(pinned.view[4096:])
        device.free(out, copying)
    device.synchronize(device.record(computing))
    device.free(table, copying)
    device.synchronize(device.record(copying))
    device.free_pinned(pinned)
    device.close()
    return found


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_that_is_waited_for_is_right_in_every_order(order):
    for seed in range(10):
        assert fill_by_kernel(EmulatedDevice(order, seed=seed), "") == b"\7" * 4096


@needs_compiler
def test_a_kernel_that_is_not_waited_for_has_written_nothing():
    found = fill_by_kernel(EmulatedDevice("lazy"), "final event is not waited for")
    assert found != b"\7" * 4096


@needs_compiler
def test_a_kernel_that_writes_to_freed_memory_is_noticed():
    with pytest.raises(Breach, match="freed"):
        fill_by_kernel(EmulatedDevice("early_frees"), "memory is freed on the wrong stream")


# --------------------------------------------------------------------------- single rules


@pytest.fixture
def broken():
    """A device whose close is expected to complain."""
    return EmulatedDevice()


def test_pinned_memory_is_not_freed_under_a_copy(broken):
    stream = broken.stream()
    memory = broken.allocate(100, stream)
    pinned = broken.allocate_pinned(100)
    broken.upload(pinned, 0, memory.address, 100, stream)
    with pytest.raises(Breach, match="freed before upload"):
        broken.free_pinned(pinned)


def test_a_table_that_was_not_uploaded_is_noticed(broken):
    bench = Bench(broken)
    src = bench.put_streams([ENCODED[0]])
    dst = Spans.contiguous(bench.allocate(NBYTES), [NBYTES])
    batch = CodecBatch(
        "lz4",
        src,
        dst,
        table=bench.put(bytes(32)),
        result=bench.allocate(12),
        temp=0,
        temp_nbytes=0,
    )
    broken.decompress(batch, bench.stream)
    with pytest.raises(Breach, match="table on the device"):
        bench.wait()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"src_offset": 2}, "no multiple of 4"),
        ({"room": NBYTES + 1}, "not in device memory"),
        ({"overlap": True}, "destinations overlap"),
    ],
    ids=["alignment", "room", "overlap"],
)
def test_arguments_that_nvcomp_does_not_allow_are_noticed(broken, changed, message):
    bench = Bench(broken)
    src = bench.put_streams([ENCODED[0]] * 2, offset=changed.get("src_offset", 0))
    start = bench.allocate(2 * NBYTES)
    step = NBYTES - 1 if changed.get("overlap") else NBYTES
    dst = Spans(
        np.array([start, start + step], np.uint64),
        np.array([NBYTES, changed.get("room", NBYTES)], np.uint64),
    )
    with pytest.raises(Breach, match=message):
        bench.run_codec("decompress", "deflate", src, dst)


def test_too_little_scratch_memory_is_noticed(broken):
    bench = Bench(broken)
    src = bench.put_streams([ENCODED[0]])
    dst = Spans.contiguous(bench.allocate(NBYTES), [NBYTES])
    table, result = bench.put(CodecBatch.columns(src, dst).tobytes()), bench.allocate(12)
    batch = CodecBatch("zstd", src, dst, table, result, temp=bench.allocate(64), temp_nbytes=64)
    with pytest.raises(Breach, match="scratch memory"):
        broken.decompress(batch, bench.stream)


@needs_compiler
def test_a_kernel_that_writes_beyond_its_memory_is_noticed(broken):
    bench = Bench(broken)
    runs, blocks = fill_runs([bench.allocate(1000)], 1001, 1)
    arguments = [np.uint64(bench.put(runs.tobytes())), np.uint32(1), np.array([7], np.uint8)]
    kernel = broken.kernel("fill", "gs::fill_strided<gs::u8, 1>")
    broken.launch(kernel, blocks, arguments, bench.stream)
    with pytest.raises(Breach, match="byte 1000 was written, behind an allocation of 1000"):
        bench.wait()


def test_files_are_not_read_into_memory_in_use(broken, tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(4096))
    bench = Bench(broken)
    file = broken.open_file(path)
    address = -(-bench.allocate(8192) // 4096) * 4096
    with pytest.raises(Breach, match="before their allocation had run"):
        broken.read_file(file, 0, 4096, address)
    bench.wait()
    with pytest.raises(Breach, match="no multiple of 4096"):
        broken.read_file(file, 0, 4000, address)
    broken.fill(address, 0, 1, bench.stream)
    with pytest.raises(Breach, match="fill on stream 1 still uses its destination"):
        broken.read_file(file, 0, 4096, address)
    bench.wait()
    broken.read_file(file, 0, 4096, address)
    with pytest.raises(Breach, match="closed before"):
        broken.close_file(file)
    with pytest.raises(Breach, match="nobody has waited for the read of bytes"):
        broken.fill(address, 0, 1, bench.stream)


def test_files_that_nobody_closed_are_noticed(tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(4096))
    device = EmulatedDevice()
    file = device.open_file(path)
    with pytest.raises(Breach, match=r"not closed: .*values"):
        device.close()
    os.close(file.descriptor)


def test_work_that_nobody_waits_for_is_noticed(broken):
    bench = Bench(broken)
    broken.fill(bench.allocate(10), 0, 10, bench.stream)
    with pytest.raises(Breach, match="nobody waited for fill"):
        broken.close()


def test_a_breach_that_was_swallowed_is_told_at_the_end(broken):
    stream = broken.stream()
    memory = broken.allocate(10, stream)
    broken.free(memory, stream)
    with pytest.raises(Breach, match="freed twice"):
        broken.free(memory, stream)
    with pytest.raises(Breach, match="freed twice"):
        broken.close()


# --------------------------------------------------------------------------- faults


def test_injected_statuses_sizes_and_nonsense(broken):
    bench = Bench(broken)
    src = bench.put_streams(ENCODED[:4])
    dst = Spans.contiguous(bench.allocate(4 * NBYTES), [NBYTES] * 4)
    broken.faults.statuses = {(0, 0): 12}
    broken.faults.sizes = {(0, 1): NBYTES - 1}
    broken.faults.nonsense = {(0, 2)}
    found = bench.run_codec("decompress", "zstd", src, dst)
    assert found == ([NBYTES, NBYTES - 1, NBYTES, NBYTES], [12, 0, 0, 0])
    decoded = bench.get(int(dst.address[0]), 4 * NBYTES)
    same = [decoded[i * NBYTES : (i + 1) * NBYTES] == VALUES[i] for i in range(4)]
    assert same == [True, True, False, True]
    assert bench.run_codec("decompress", "zstd", src, dst) == ([NBYTES] * 4, [0] * 4)
    bench.close()
    broken.close()


def test_injected_overruns(broken):
    bench = Bench(broken)
    src = bench.put_streams(ENCODED[:2])
    start = bench.put(bytes(2 * NBYTES + 30))
    dst = Spans.contiguous(start + 10, [NBYTES, NBYTES])
    broken.faults.overruns = {(0, 0): 3, (0, 1): 20, (1, 0): -10}
    assert bench.run_codec("decompress", "zstd", src, dst) == ([NBYTES] * 2, [0] * 2)
    assert bench.get(start, 10) == bytes(10)
    changed = bytes(255 - byte for byte in VALUES[1][:3])
    assert bench.get(start + 10, 2 * NBYTES) == VALUES[0] + changed + VALUES[1][3:]
    assert bench.get(start + 10 + 2 * NBYTES, 20) == b"\xff" * 20
    bench.run_codec("decompress", "zstd", src, dst)
    assert bench.get(start, 10) == b"\xff" * 10
    bench.close()
    broken.close()


def test_injected_lack_of_memory(broken):
    broken.faults.allocations = {1}
    broken.faults.lacking = {("fill", 0)}
    bench = Bench(broken)
    address = bench.allocate(10)
    with pytest.raises(MemoryError):
        bench.allocate(10)
    bench.allocate(10)
    with pytest.raises(MemoryError, match="fill: injected"):
        broken.fill(address, 0, 10, bench.stream)
    broken.fill(address, 0, 10, bench.stream)
    bench.close()
    broken.close()


def test_injected_faults_of_files(broken, tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(8192))
    broken.faults.short_reads = {0: 100}
    broken.faults.failed_reads = {1}
    broken.faults.failed_opens = {1}
    ran = []
    broken.faults.meanwhile = ran.append
    bench = Bench(broken)
    address = -(-bench.allocate(8192) // 4096) * 4096
    bench.wait()
    file = broken.open_file(path)
    assert broken.read_file(file, 0, 4096, address).result() == 3996
    with pytest.raises(OSError, match="injected"):
        broken.read_file(file, 0, 4096, address).result()
    assert broken.read_file(file, 0, 4096, address).result() == 4096
    assert ran == [0, 1, 2]
    with pytest.raises(OSError, match="injected"):
        broken.open_file(path)
    broken.close_file(file)
    bench.close()
    broken.close()


def test_a_lost_device_says_so_from_then_on(broken):
    broken.faults.lost_at = 0
    bench = Bench(broken)
    src = bench.put_streams(ENCODED[:1])
    dst = Spans.contiguous(bench.allocate(NBYTES), [NBYTES])
    with pytest.raises(DeviceError, match="illegal memory access"):
        bench.run_codec("decompress", "zstd", src, dst)
    for ask in (broken.stream, broken.memory, lambda: bench.allocate(1)):
        with pytest.raises(DeviceError, match="illegal memory access"):
            ask()
    broken.close()


# --------------------------------------------------------------------------- damage


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_streams_never_decode_to_the_right_size(broken, codec):
    data = smooth(700)
    whole = encode(codec, data)
    bench = Bench(broken)
    src = bench.put_streams([whole[:length] for length in range(1, len(whole))] + [whole + b"junk"])
    dst = Spans.contiguous(bench.allocate(700 * len(src)), [700] * len(src))
    sizes, statuses = bench.run_codec("decompress", codec, src, dst)
    assert all(
        status or size != 700 for size, status in zip(sizes[:-1], statuses[:-1], strict=True)
    )
    if codec not in ("lz4", "snappy"):
        # Who decodes must check what lies behind the end of a stream: the device does not.
        assert (sizes[-1], statuses[-1]) == (700, 0)
    bench.close()
    broken.close()
