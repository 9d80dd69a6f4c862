"""What every sink does: values in their places, errors to the callback, on host and device."""

import contextlib
import threading
from functools import partial

import numpy as np
import pytest

import gpustore
from gpustore.backends.base import Chunks
from gpustore.errors import CorruptChunkError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.read_many import plan_many
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

SHAPE, CHUNKS = (12, 10), (4, 5)
ELEMENTS = np.arange(120, dtype="<u2").reshape(SHAPE)
FILL = 7


@pytest.fixture(params=["cpu", pytest.param("lazy", marks=needs_compiler)])
def opened(request):
    """A raw array as pipelines read it, and what makes its memory a NumPy array."""
    metadata = {
        "shape": SHAPE,
        "chunks": CHUNKS,
        "dtype": "<u2",
        "compressor": None,
        "fill_value": FILL,
    }
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    with contextlib.ExitStack() as stack:
        device, as_array = "cpu", np.asarray
        if request.param != "cpu":
            emulation = stack.enter_context(emulated(request.param))
            device, as_array = emulation.name, lambda array: on_host(emulation, array)
        store = gpustore.open(spec, create=True, device=device).result()
        yield store._driver.reader, as_array


def value_of(rows, i):
    """The stored chunk of a row."""
    index = [slice(cell[i] * n, (cell[i] + 1) * n) for cell, n in zip(rows.cells, CHUNKS)]
    return np.ascontiguousarray(ELEMENTS[tuple(index)]).tobytes()


class Checks:
    """Collects what a sink reports."""

    def __init__(self):
        self.rows = self.missing = 0
        self.errors = {}

    def __call__(self, keys, missing, errors):
        self.rows += len(keys)
        self.missing += missing
        self.errors.update((keys[row], type(error)) for row, error in errors.items())


def run(array, out, check, tasks, chunks):
    """Do a read whose tasks are called with a sink."""
    sink = array.backend.sink(chunks, array.fill_value, out, array.limits, check)
    tasks = [partial(task, sink) for task in tasks]
    return sink.run(array.executor, tasks, lambda: "done").result(timeout=20)


def whole(array):
    """The plan of all chunks, and memory for their elements."""
    memory = array.backend.empty(SHAPE, array.dtype, "C")
    transform = IndexTransform(gpustore.IndexDomain(shape=SHAPE))
    ((_, plan),) = array.plans(transform, memory.strides)
    return plan.window(0, 6), memory


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("together", [1, 2])
def test_values_missing_ones_and_errors_reach_their_places_and_the_check(opened, together, tasks):
    array, as_array = opened
    window, memory = whole(array)
    expected = ELEMENTS.copy()
    expected[:4, 5:] = FILL
    check = Checks()

    def give(number, sink):
        lo, hi = (6 * i // tasks for i in (number, number + 1))
        with sink.part(array.chain, rows=hi - lo) as part:
            for first in range(lo, hi, together):
                rows = window.part(first, min(first + together, hi))
                values = [value_of(rows, i) for i in range(len(rows))]
                arena = part.arena()
                for i, key in enumerate(rows.keys):
                    if key == "0.1":
                        values[i] = None
                    elif key == "2.0":
                        values[i] = values[i][:-1]
                    elif i % 2 == 0:  # Some lie in the arena, others elsewhere.
                        values[i] = arena.take(len(value_of(rows, i)))
                        values[i][:] = value_of(rows, i)
                part.scatter(rows, values)

    chunks = [Chunks(array.chain, 6, 6)]
    assert run(array, [memory], check, [partial(give, i) for i in range(tasks)], chunks) == "done"
    assert (check.rows, check.missing) == (6, 1)
    assert check.errors == {"2.0": CorruptChunkError}
    found = as_array(memory.array)
    assert np.array_equal(found[:8], expected[:8])
    assert np.array_equal(found[8:, 5:], expected[8:, 5:])


@pytest.mark.parametrize("together", [1, 2, 5])
def test_regions_of_chunks_given_in_any_batches_are_copied(opened, together):
    array, as_array = opened
    starts, extent = np.array([[0, 0], [1, 3], [5, 4], [8, 5]]), (4, 5)
    memory = array.backend.empty((4, *extent), array.dtype, "C")
    transform = IndexTransform(gpustore.IndexDomain(shape=SHAPE))
    check = Checks()
    for one, plan in plan_many(array, transform, starts, extent, memory.strides):
        blocks = 2 if plan.block.buffered else 1

        def give(sink, one=one, plan=plan, blocks=blocks):
            shape = (blocks, *plan.block.block_shape)
            with sink.part(one.chain, rows=len(plan), blocks=shape) as part:
                for window in plan.windows(0, 1, blocks):
                    for first in range(0, len(window.chunks), together):
                        rows = window.chunks.part(first, first + together)
                        values = [value_of(rows, i) for i in range(len(rows))]
                        part.copy_regions(window, first, rows, values)

        chunks = [Chunks(one.chain, len(plan), len(plan.order))]
        run(one, [memory], check, [give], chunks)
    assert check.errors == {}
    expected = [ELEMENTS[y : y + 4, x : x + 5] for y, x in starts]
    assert np.array_equal(as_array(memory.array), expected)


def test_errors_of_the_check_are_raised_and_leave_nothing_under_way(opened):
    array, _ = opened
    window, memory = whole(array)

    def check(keys, missing, errors):
        raise errors[0]

    def give(sink):
        with sink.part(array.chain, rows=1) as part:
            part.scatter(window.part(0, 1), [b"short"])

    with pytest.raises(CorruptChunkError):
        run(array, [memory], check, [give], [Chunks(array.chain, 1, 1)])
    buffers = getattr(array.backend, "buffers", None)
    assert buffers is None or buffers.taken == 0


def test_a_task_that_fails_ends_those_that_wait_for_it(opened):
    array, _ = opened
    window, memory = whole(array)
    begun = threading.Barrier(2, timeout=20)

    def fail(sink):
        with sink.part(array.chain, rows=1) as part:
            part.arena()
            begun.wait()
            raise ZeroDivisionError

    def give(sink):
        with sink.part(array.chain, rows=3) as part:
            part.arena()
            begun.wait()
            for first in range(6):
                part.scatter(window.part(first, first + 1), [value_of(window, first)])

    with pytest.raises(ZeroDivisionError):
        run(array, [memory], Checks(), [fail, give], [Chunks(array.chain, 6, 6)])
    buffers = getattr(array.backend, "buffers", None)
    assert buffers is None or buffers.taken == 0
