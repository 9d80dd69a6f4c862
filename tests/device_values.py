"""Values decoded by what codecs record on a device, for tests."""

import numpy as np

from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.protocol import Spans
from tests.device_memory import bench_of

MARGIN = 64
"""Poisoned bytes between values: no decoder may need them."""


class Decoded:
    """Result of a decoding: bytes by row, reasons for fallbacks and failed rows, launches."""

    def __init__(self, values, fallbacks, failed, launches):
        self.values = values
        self.fallbacks = fallbacks
        self.failed = failed
        self.launches = launches


def decode_on(device, record, encoded, *, offset=0, seen=True, apart=False):
    """Decode values with the steps that ``record(commands, device)`` records.

    Parameters
    ----------
    offset : int
        How far values lie behind a multiple of 16.
    seen : bool
        Whether the host has the encoded bytes too.
    apart : bool
        Whether each value has device memory of its own, so that not even a neighbour can be read.
    """
    with bench_of(device) as bench:
        pitch = [-(-(len(value) + MARGIN) // 16) * 16 for value in encoded]
        starts = (np.cumsum(pitch) - pitch + offset).astype(np.uint64)
        values_nbytes = sum(pitch) + 16
        pinned = device.allocate_pinned(values_nbytes)
        arena = bench.allocate(values_nbytes)
        for start, value in zip(starts.tolist(), encoded, strict=True):
            pinned.view[start : start + len(value)] = bytes(value)
        sizes = np.array([len(value) for value in encoded], np.uint64)
        spans = Spans(starts + np.uint64(arena), sizes)
        if apart:
            own = [bench.put(value, offset=offset) for value in encoded]
            spans = Spans(np.array(own, np.uint64), sizes)
        rows = 100 + np.arange(len(encoded))
        data = np.frombuffer(pinned.view, np.uint8)
        columns = EncodedColumns(data, starts.astype(np.int64), sizes.astype(np.int64))
        commands = CommandList(device, bench.stream, rows, spans, columns if seen else None)
        record(commands, device)
        found = _run(bench, commands, pinned, arena, values_nbytes)
        device.free_pinned(pinned)
        return found


def _run(bench, commands, pinned, arena, values_nbytes):
    device, stream = bench.device, bench.stream
    results = -(-commands.table_nbytes // 16) * 16
    tables = bench.allocate(results + commands.result_nbytes + 16)
    host = device.allocate_pinned(results + commands.result_nbytes + 16)
    commands.write_tables(host.view[: commands.table_nbytes])
    device.upload(pinned, 0, arena, values_nbytes, stream)
    if commands.table_nbytes:
        device.upload(host, 0, tables, commands.table_nbytes, stream)
    commands.run(tables, tables + results)
    if commands.result_nbytes:
        device.download(tables + results, host, results, commands.result_nbytes, stream)
    values = {}
    for row, address, nbytes in zip(
        commands.rows.tolist(),
        commands.values.address.tolist(),
        commands.values.nbytes.tolist(),
        strict=True,
    ):
        values[row - 100] = bench.get(address, nbytes)
    bench.wait()
    commands.release()
    bench.wait()
    failed = commands.failures(host.view[results : results + commands.result_nbytes])
    device.free_pinned(host)
    fallbacks = {row - 100: reason for row, reason in commands.fallbacks.items()}
    failed = {row - 100: reason for row, reason in failed.items()}
    good = {row: value for row, value in values.items() if row not in failed}
    assert not {*good, *failed} & {*fallbacks}
    return Decoded(good, fallbacks, failed, commands.launches)
