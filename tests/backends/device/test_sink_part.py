"""Parts of a read that begin reads of files straight into the device, and how these end."""

import os
import threading

import numpy as np
import pytest

import gpustore
from gpustore.backends.base import Chunks
from gpustore.backends.device import direct_read
from gpustore.errors import DeviceError
from tests.backends.test_sink import CHUNKS, ELEMENTS, FILL, SHAPE, Checks, run, whole
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = needs_compiler

NBYTES = 2 * CHUNKS[0] * CHUNKS[1]


@pytest.fixture
def direct(tmp_path, monkeypatch):
    """A device, a raw array in files as pipelines read it, and the path of a chunk by its key."""
    monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 1, "file": 1})
    metadata = {"shape": SHAPE, "chunks": CHUNKS, "dtype": "<u2", "compressor": None}
    metadata["fill_value"] = FILL
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    gpustore.open(spec, create=True, device="cpu").result()[...] = ELEMENTS
    with emulated() as device:
        array = gpustore.open(spec, device=device.name).result()._driver.reader
        yield device, array, tmp_path
        assert array.backend.buffers.taken == 0
        del array


def begin(part, rows, path):
    """Begin a read for each row, as a kvstore does; return the placeholders of the values."""
    arena, values = part.arena(), []
    for row, key in enumerate(rows.keys):
        with (path / key).open("rb") as file:
            descriptor = file.fileno()
            values.append(arena.direct.begin(row, descriptor, os.fstat(descriptor), 0, NBYTES))
    assert None not in values
    return values


def give(array, path, lo, hi, window):
    def task(sink):
        with sink.part(array.chain, rows=hi - lo) as part:
            rows = window.part(lo, hi)
            part.scatter(rows, begin(part, rows, path))

    return task


def test_values_on_the_device_are_placed_once_their_reads_have_ended(direct):
    device, array, path = direct
    window, memory = whole(array)
    check = Checks()
    tasks = [give(array, path, lo, lo + 2, window) for lo in (0, 2, 4)]
    assert run(array, [memory], check, tasks, [Chunks(array.chain, 6, 6)]) == "done"
    assert (check.rows, check.missing, check.errors) == (6, 0, {})
    assert np.array_equal(on_host(device, memory.array), ELEMENTS)
    assert device.counts["read_file"] == 6
    assert not any(file.reads for file in device.files)


def test_reads_end_although_their_values_are_never_added(direct):
    device, array, path = direct
    window, memory = whole(array)

    def fail(sink):
        with sink.part(array.chain, rows=3) as part:
            begin(part, window.part(0, 3), path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(array, [memory], Checks(), [fail], [Chunks(array.chain, 6, 6)])
    assert device.counts["read_file"] == 3
    assert not any(file.reads for file in device.files)


def test_a_part_whose_reads_fail_leaves_the_submission_to_the_others(direct):
    """Else those that have joined it, or wait for it, would wait for ever."""
    device, array, path = direct
    window, memory = whole(array)
    begun = threading.Barrier(2, timeout=20)

    def fail(sink):
        with sink.part(array.chain, rows=3) as part:
            rows = window.part(0, 3)
            values = begin(part, rows, path)
            begun.wait()
            device.faults.failing = {("file_result", device.counts["file_result"]): True}
            part.scatter(rows, values)

    def wait(sink):
        with sink.part(array.chain, rows=3) as part:
            part.arena()
            begun.wait()

    with pytest.raises(DeviceError, match="file_result failed: injected"):
        run(array, [memory], Checks(), [fail, wait], [Chunks(array.chain, 6, 6)])
