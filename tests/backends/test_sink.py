"""What every sink does: values in their places, errors to the callback, on host and device."""

import contextlib

import numpy as np
import pytest

import gpustore
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
        self.rows = 0
        self.errors = {}

    def __call__(self, rows, values, errors):
        assert len(rows) == len(values)
        self.rows += len(rows)
        self.errors.update((rows.keys[row], type(error)) for row, error in errors.items())


def sink_of(array, out, check, rows, **options):
    return array.backend.sink(
        array.chain, array.fill_value, out, array.limits, check, rows=rows, **options
    )


def whole(array):
    """The plan of all chunks, and memory for their elements."""
    memory = array.backend.empty(SHAPE, array.dtype, "C")
    transform = IndexTransform(gpustore.IndexDomain(shape=SHAPE))
    ((_, plan),) = array.plans(transform, memory.strides)
    return plan.window(0, 6), memory


@pytest.mark.parametrize("together", [1, 2, 6])
def test_values_missing_ones_and_errors_reach_their_places_and_the_check(opened, together):
    array, as_array = opened
    window, memory = whole(array)
    expected = ELEMENTS.copy()
    expected[:4, 5:] = FILL
    check = Checks()
    with sink_of(array, [memory], check, len(window)) as sink:
        for first in range(0, len(window), together):
            rows = window.part(first, first + together)
            values = [value_of(rows, i) for i in range(len(rows))]
            arena = sink.arena()
            for i, key in enumerate(rows.keys):
                if key == "0.1":
                    values[i] = None
                elif key == "2.0":
                    values[i] = values[i][:-1]
                elif i % 2 == 0:  # Some lie in the arena, others elsewhere.
                    values[i] = arena.take(len(value_of(rows, i)))
                    values[i][:] = value_of(rows, i)
            sink.scatter(rows, values)
        sink.finish()
    assert check.rows == 6
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
        shape = (blocks, *plan.block.block_shape)
        with sink_of(
            one, [memory], check, len(plan), regions=len(plan.order), blocks=shape
        ) as sink:
            for window in plan.windows(0, 1, blocks):
                for first in range(0, len(window.chunks), together):
                    rows = window.chunks.part(first, first + together)
                    values = [value_of(rows, i) for i in range(len(rows))]
                    sink.copy_regions(window, first, rows, values)
            sink.finish()
    assert check.errors == {}
    expected = [ELEMENTS[y : y + 4, x : x + 5] for y, x in starts]
    assert np.array_equal(as_array(memory.array), expected)


def test_errors_of_the_check_are_raised_and_leave_nothing_under_way(opened):
    array, _ = opened
    window, memory = whole(array)

    def check(rows, values, errors):
        raise errors[0]

    def give():
        with sink_of(array, [memory], check, 1) as sink:
            sink.scatter(window.part(0, 1), [b"short"])
            sink.finish()

    with pytest.raises(CorruptChunkError):
        give()
    taken = getattr(array.backend, "buffers", None)
    assert taken is None or all(buffer.used == 0 for buffer in taken._idle)
