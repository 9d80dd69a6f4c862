"""Volumes read by gpustore and by others, in turns; each result compared before it counts.

gpustore has the setting that the sweep found best. On the emulated device bytes are compared and
calls counted, and nothing is timed.
"""

import functools
import gc
import itertools
import shutil
import time

import numpy as np

import gpustore
from benchmarks.gpu import stage, stored
from benchmarks.gpu.access import FULL, TINY, boxes
from benchmarks.gpu.dataset import load
from benchmarks.gpu.read_plan import cells
from benchmarks.gpu.reader import readers
from benchmarks.gpu.recording_device import RecordingDevice, opened
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.stream_batch import StreamBatch
from benchmarks.gpu.timing import milliseconds

COUNTED = (
    "launches", "copies", "waits", "host_fallbacks", "few_stream_reads", "missing_decoder_reads",
    "retries", "chunks_decoded_device", "bytes_fetched", "bytes_to_device",
    "bytes_direct", "direct_fallbacks",
)  # fmt: skip


class Cell:
    """One access to one array, by all readers.

    Parameters
    ----------
    findings : Findings
    target : CudaTarget or EmulatedTarget
    name : str
        Of format and access.
    volume : Volume
    access : str
    parts : list of tuple of slice
        What is read.
    """

    def __init__(self, findings, target, name, volume, access, parts):
        self.findings, self.target, self.name = findings, target, name
        self.access, self.parts = access, parts
        found = [volume.part(part) for part in parts]
        self.expected = found[0] if len(found) == 1 else np.stack(found)
        self.nbytes = volume.nbytes if access == "whole" else self.expected.nbytes

    def _read(self, reader, handle):
        if self.access == "crops":
            return [reader.read_crops(handle, self.parts)]
        return [reader.read(handle, part) for part in self.parts]

    def once(self, reader, handle, *, first):
        """One read: a row of the report."""
        target = self.target
        measured = not target.is_emulated
        row = {"nbytes": self.nbytes, "boxes": len(self.parts)}
        with reader.use():
            handle = handle()
            if first and measured:
                target.forget()
                before = target.used_nbytes()
            gpustore.statistics.reset()
            if measured:
                gc.collect()
            target.wait()
            cpu, begin = time.process_time(), time.perf_counter()
            arrays = self._read(reader, handle)
            target.wait()
            seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
            if measured:
                row |= {"seconds": seconds, "cpu_s": cpu_s}
                if first:
                    row["device_nbytes"] = target.used_nbytes() - before
        if reader.name == "gpustore":
            counted = gpustore.statistics.snapshot()
            row |= {key: counted.get(key, 0) for key in COUNTED}
        row["equal"] = target.equal(arrays, self.expected)
        return row

    def measured(self, reader, handle, number):
        """The row of a round, None if it cannot be had; it may be from an earlier process."""
        name = f"{self.name} / {reader.name} / {number}"
        if self.findings.begin(name, 30):
            self.findings.attempt(name, lambda: self.once(reader, handle, first=not number))
            self.findings.leave_if_lost(self.target, name)
        row = self.findings.known.get(name, {})
        return row if row.get("equal") else None

    def compare(self, some, handles, scale):
        """All readers: once each to see that they are right, then in turns."""
        spent = {}
        # gpustore last: to measure memory, each read before gives back what is kept for it.
        for reader in reversed(some):
            if self.findings.seconds_left() < 4:
                return
            row = self.measured(reader, handles[reader.name], 0)
            if row:
                spent[reader.name] = 0.0
        for number in range(1, scale.rounds + 1):
            for reader in some:
                if self.findings.seconds_left() < 4:
                    return
                if spent.get(reader.name, scale.budget_s) < scale.budget_s:
                    row = self.measured(reader, handles[reader.name], number)
                    spent[reader.name] += row["seconds"] if row else scale.budget_s


def opener(reader, path, array_format):
    """Opens on first use: an error in opening is one of the reader's cells."""
    found = []

    def handle():
        if not found:
            found.append(reader.open(path, array_format))
        return found[0]

    return handle


def stages(target, path, array_format):
    """Of a second read of the whole, what the device does when."""
    device = RecordingDevice(target.device, target.clock())
    with opened(device) as name:
        store = gpustore.open(array_format.spec(path), device=name).result()
        store.read().result()
        device.begin()
        store.read().result()
        target.wait()
        found = stage.rows(device.stages())
    if target.is_emulated:
        for row in found.values():
            del row["ms"]
    return found


def nvcomp_alone(target, path, array_format, volume, scale, most_nbytes):
    """How fast the device decodes streams that are there, as many as a submission has."""
    values = stored.chunks_of_base(path, array_format, volume, scale)
    nbytes = volume.base.nbytes // len(values)
    codec, streams, sizes = stored.streams(array_format.codec, values, nbytes)
    if not streams:
        return {"cannot": f"no streams for nvcomp in {array_format.codec}"}
    expected = np.frombuffer(stored.decoded(codec, streams, sizes), np.uint8)
    # Whole repetitions of the base, or a part of one.
    total = min(most_nbytes, volume.nbytes) * expected.nbytes // volume.base.nbytes
    count = int(np.searchsorted(np.cumsum(sizes), total, side="right"))
    count = max(1, total // expected.nbytes * len(streams) or count)
    target.forget()
    batch = StreamBatch(target, codec, streams, sizes, count)
    try:
        taken = milliseconds(target, batch.stream, batch.decompress, rounds=scale.rounds)
        row = {"nbytes": batch.nbytes, "streams": count, "scratch_nbytes": batch.temp_nbytes}
        row["equal"] = batch.is_right() and target.equal([batch.array], expected[: batch.nbytes])
        return row if taken is None else row | {"seconds": taken / 1e3}
    finally:
        batch.close()


def ask(findings, target, some, place, found, setting):
    """All that is asked of one format."""
    array_format, accesses = found
    volume, scale, folder = place
    if f"{array_format} / done" in findings.known:
        return
    path = folder / f"{volume.name}-{array_format}"
    shutil.rmtree(path, ignore_errors=True)
    stored.write(path, array_format, volume, scale)
    nbytes, files = stored.encoded_nbytes(path)
    ratio = round(volume.nbytes / nbytes, 3)
    row = {"nbytes": volume.nbytes, "encoded_nbytes": nbytes, "ratio": ratio, "files": files}
    findings.note(f"{array_format}", row)
    handles = {reader.name: opener(reader, path, array_format) for reader in some}
    chunk = array_format.chunk_shape(volume.base.dtype, scale)
    for access in accesses:
        parts = boxes(access, volume, scale, chunk)
        cell = Cell(findings, target, f"{array_format} / {access}", volume, access, parts)
        able = []
        for reader in some:
            why = reader.cannot(array_format, access)
            if why:
                findings.note(f"{cell.name} / {reader.name} / 0", {"cannot": why})
            else:
                able.append(reader)
        cell.compare(able, handles, scale)
        if access != "whole" or findings.seconds_left() < 4:
            continue
        name = f"{array_format} / stages / gpustore / 0"
        if findings.begin(name, 30):
            findings.attempt(name, lambda: stages(target, path, array_format))
            findings.leave_if_lost(target, name)
        name = f"{array_format} / decode / nvcomp / 0"
        if array_format.sharded:
            findings.note(name, {"cannot": "the same streams as without shards"})
        elif findings.begin(name, 30):
            most = setting.submission_nbytes
            call = functools.partial(nvcomp_alone, target, path, array_format, volume, scale, most)
            findings.attempt(name, call)
            findings.leave_if_lost(target, name)
    findings.note(f"{array_format} / done", True)
    shutil.rmtree(path)


def run(findings, target, variant):
    scale, folder = TINY if target.is_emulated else FULL, findings.path.parent
    setting = Setting.read(folder)
    setting.apply()
    volume = load(variant.partition("-")[0], scale, folder)
    # A backend of its own, which has the setting.
    with opened(target.device) as name:
        target.name = name
        some, missing = readers(target, setting)
        for reader, why in missing.items():
            findings.note(f"missing / {reader}", why)
        try:
            left = iter(cells(variant))
            for found in left:
                if findings.seconds_left() < 6:
                    names = [str(other) for other, _ in itertools.chain([found], left)]
                    findings.note("left out", names)
                    break
                ask(findings, target, some, (volume, scale, folder), found, setting)
        finally:
            for reader in some:
                reader.close()
