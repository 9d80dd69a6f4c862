"""Each of gpustore's kernels alone, as a share of the rate at which the device copies.

A share counts all bytes that are read and written, of the kernel and of the copy.
"""

import numcodecs.blosc
import numpy as np

from benchmarks.gpu.stream import encode, make_data
from benchmarks.gpu.stream_batch import StreamBatch
from benchmarks.gpu.timing import milliseconds, rate
from gpustore.codec_chain.device_values import cast_conversions, convert, sum_values
from gpustore.device.encoding_list import EncodingList
from gpustore.device.kernels.block import (
    bit_shuffle_launches,
    bit_unshuffle_launches,
    shuffle_launches,
    stream_launches,
    unshuffle_launches,
)
from gpustore.device.kernels.downsample import Blocks, downsample_launches
from gpustore.device.kernels.launch import (
    Listed,
    cast_launches,
    copy_launches,
    fill_launches,
    indexed_launches,
)
from gpustore.device.kernels.run import Rows
from gpustore.device.kernels.value import Side, value_runs
from gpustore.device.protocol import Spans

KIB, MIB = 1 << 10, 1 << 20

_U2, _F4 = np.dtype("<u2"), np.dtype("<f4")

FEW_BYTES = ("guard", "replace_damaged", "select")
"""Families of kernels that touch a few bytes of each stream: their rate says nothing."""


class Chunks:
    """Chunks in two places on a device, one of them for results.

    Attributes
    ----------
    count, nbytes : int
        Number of chunks, and bytes of each: a power of two.
    src, dst : ndarray of int64, shape (count,)
        Addresses.
    """

    def __init__(self, target):
        device = self.device = target.device
        self.count, self.nbytes = (4, 4 * KIB) if target.is_emulated else (1024, MIB)
        self.total = self.count * self.nbytes
        self.stream = device.stream()
        self._memory = [
            device.allocate(nbytes, self.stream) for nbytes in (self.total, 2 * self.total)
        ]
        starts = np.arange(self.count) * self.nbytes
        self.src = self._memory[0].address + starts
        self.dst = self._memory[1].address + 2 * starts
        device.fill(int(self.src[0]), 0, self.total, self.stream)

    def commands(self):
        spans = Spans(self.src.astype(np.uint64), np.full(self.count, self.nbytes, np.uint64))
        return EncodingList(self.device, self.stream, np.arange(self.count), spans)

    def rows(self, extent, src_stride, dst_stride):
        count = np.repeat(np.array(extent)[:, None], self.count, axis=1)
        return Rows(self.src, self.dst, count, src_stride, dst_stride)

    def close(self):
        self.device.synchronize(self.device.record(self.stream))
        for memory in self._memory:
            self.device.free(memory, self.stream)


def _launched(launches):
    return lambda commands: commands.launch_tables(launches)


def _summed(name):
    def record(commands):
        commands.checksum(name, commands.values, np.zeros(len(commands), np.uint32))

    return record


def _converted(count):
    def record(commands):
        steps = cast_conversions(_U2, _F4)
        assert not isinstance(steps, str)
        convert(commands, Side.of(_U2), Side.of(_F4), count, steps, None, "probe")

    return record


def _unpacked(chunks):
    def record(commands):
        elements = np.full(chunks.count, chunks.nbytes)
        runs, each, blocks = value_runs(chunks.src, chunks.dst, elements)
        confirmed = commands.confirmations(each, "padding")
        numbers = map(np.uint32, (1, 1, 0, 0, 0, 0))
        table = commands.table(runs)
        arguments = [table, np.uint32(len(runs)), *numbers, confirmed]
        commands.launch("value", "gs::unpack_bits", blocks, arguments)

    return record


def _matched(commands):
    commands.match(b"\0\0")  # As all bytes are: whole pieces are read.


def _reduced(chunks, method, across):
    """Reduce all chunks, as one plane of rows of `across` elements, to half along both."""
    rows = chunks.total // (2 * across)
    dims = [
        Blocks(rows // 2, 2, rows, 0, 2, 2 * across, across),
        Blocks(across // 2, 2, across, 0, 2, 2, 2),
    ]
    src, dst = int(chunks.src[0]), int(chunks.dst[0])
    return _launched(downsample_launches(src, dst, dims, (_U2, _U2), method))


def kernels(chunks):
    """Name, what records the launches, and bytes read and written for each byte of a chunk."""
    nbytes = chunks.nbytes
    elements = nbytes // 2
    across = 1 << (elements.bit_length() - 1) // 2
    down = elements // across
    line, plain = (2 * across, 2), (2,)
    whole = chunks.rows((elements,), plain, plain)
    transposed = chunks.rows((down, across), (2, 2 * down), line)
    places = np.random.default_rng(0).permutation(across) * 2
    listed = Listed(
        [across] * chunks.count, [places] * chunks.count, [np.arange(across) * 2] * chunks.count
    )
    lines = chunks.rows((down,), (2 * across,), (2 * across,))
    half = chunks.rows((down, across // 2), line, (across, 2))
    floats = chunks.rows((elements,), plain, (4,))
    found = [
        ("copy", _launched(copy_launches(whole, 2)), 2),
        ("copy of half of each row", _launched(copy_launches(half, 2)), 1),
        ("copy, other byte order", _launched(copy_launches(whole, 2, unit=2)), 2),
        ("copy, transposed", _launched(copy_launches(transposed, 2)), 2),
        ("copy by index array", _launched(indexed_launches(lines, [listed], 2)), 2),
        (
            "fill",
            _launched(fill_launches(chunks.dst, whole.count, plain, b"\1\2")),
            1,
        ),
        (
            "copy of streams",
            _launched(
                stream_launches(chunks.src + 1, chunks.dst + 3, [nbytes - 16] * chunks.count)
            ),
            2,
        ),
    ]
    for name, launches, sizes in (
        ("unshuffle", unshuffle_launches, (2, 4, 8)),
        ("bit unshuffle", bit_unshuffle_launches, (1, 2, 4)),
        ("shuffle", shuffle_launches, (2, 4)),
        ("bit shuffle", bit_shuffle_launches, (2, 4)),
    ):
        found += [
            (f"{name} {size}", _launched(launches(chunks.src, chunks.dst, nbytes, size)), 2)
            for size in sizes
        ]
    found += [(name, _summed(name), 1) for name in ("crc32c", "crc32", "adler32")]
    found += [
        ("comparison with a fill value", _matched, 1),
        ("check of bits", lambda commands: commands.check_bits(b"\xfe"), 1),
        ("clear of bits", lambda commands: commands.clear_bits(b"\xfe"), 2),
        ("check of records", lambda commands: commands.check_bits(b"\xfe\0\0"), 1),
        ("cast", _launched(cast_launches(floats, _U2, _F4)), 3),
        ("conversion of values", _converted(elements), 3),
        (
            "running sums",
            lambda commands: sum_values(commands, _U2, elements, 1, "probe"),
            2,
        ),
        ("unpacked bits", _unpacked(chunks), 1.125),
        ("means of 2 x 2", _reduced(chunks, "mean", across), 1.25),
        ("gaussian halves", _reduced(chunks, "gaussian", across), 1.25),
    ]
    return found


def alone(target, chunks, record):
    """Milliseconds of the launches that `record` records, and their number."""
    device, stream, commands = target.device, chunks.stream, chunks.commands()
    record(commands)
    tables, results = max(16, commands.table_nbytes), commands.result_nbytes
    start = -(-tables // 16) * 16
    pinned = device.allocate_pinned(tables)
    memory = device.allocate(start + max(16, results), stream)
    try:
        commands.write_tables(pinned.view[: commands.table_nbytes])
        device.upload(pinned, 0, memory.address, tables, stream)
        device.synchronize(device.record(stream))
        taken = milliseconds(
            target, stream, lambda: commands.run(memory.address, memory.address + start)
        )
        return taken, commands.launches
    finally:
        commands.release()
        device.synchronize(device.record(stream))
        device.free_pinned(pinned)
        device.free(memory, stream)


def _blosclz(decoded):
    """One stream, out of a frame of one block."""
    frame = numcodecs.blosc.compress(
        decoded, b"blosclz", 5, numcodecs.blosc.NOSHUFFLE, len(decoded), 1
    )
    size = int.from_bytes(frame[20:24], "little")
    assert len(frame) == 24 + size < len(decoded)
    return bytes(frame[24:])


def lz(target, name, stream, decoded, count):
    """Row of a decoder, each stream of which one warp decodes."""
    batch = StreamBatch(target, name, [stream], [len(decoded)], count)
    try:
        taken = milliseconds(target, batch.stream, lambda: batch.decode_by(f"gs::decode_{name}"))
        right = batch.is_right() and target.equal([batch.array], np.frombuffer(decoded, np.uint8))
        row = {"equal": right, "streams": count}
        return (
            row
            | {"ratio": round(batch.nbytes / batch.encoded_nbytes, 2)}
            | rate(batch.nbytes, taken)
        )
    finally:
        batch.close()


def run(findings, target, variant):
    del variant
    chunks = Chunks(target)
    copy_ms = None
    if not target.is_emulated:
        copy_ms = milliseconds(
            target,
            chunks.stream,
            lambda: target.copy_within(
                int(chunks.dst[0]), int(chunks.src[0]), chunks.total, chunks.stream
            ),
        )
        findings.note("device copy", rate(chunks.total, copy_ms))
    for name, record, moved in kernels(chunks):

        def measured(record=record, moved=moved):
            taken, launches = alone(target, chunks, record)
            row = {"launches": launches} | rate(moved * chunks.total, taken, "moved_GBs")
            return row if taken is None else row | {"share": round(moved * copy_ms / taken / 2, 3)}

        if findings.seconds_left() > 2 and findings.begin(name, 20):
            findings.attempt(name, measured)
            findings.leave_if_lost(target, name)
    chunks.close()
    nbytes, count = (KIB, 3) if target.is_emulated else (64 * KIB, 8192)
    decoded = bytes(make_data("labels_u4", nbytes))
    for name, stream in (("lz4", encode("lz4", decoded)), ("blosclz", _blosclz(decoded))):
        if findings.seconds_left() > 2 and findings.begin(name, 20):
            findings.attempt(
                name, lambda name=name, stream=stream: lz(target, name, stream, decoded, count)
            )
            findings.leave_if_lost(target, name)
