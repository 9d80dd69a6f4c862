"""Conversions by a table, on an emulated device, against the host's: bit for bit."""

import numpy as np
import pytest

import gpustore
from gpustore.data_types.conversion import converter
from gpustore.device.kernels.launch import has_cast
from gpustore.device.kernels.value import number_format
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.kernels.test_value import numbers
from tests.on_device import emulated, on_host

pytestmark = needs_compiler

FLOAT8 = (
    *("float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
SOURCES = (*FLOAT8, "int2", "int4", "float4_e2m1fn", "int8", "uint8", "bool")
TARGETS = (
    *("bool", "int4", "int8", "uint8", "int16", "uint32", "int64", "uint64"),
    *("float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64"),
)


def spec_of(path, name):
    """An array of 20 x 20 with every byte that is a legal element."""
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/{name}/"}
    layout = gpustore.ChunkLayout(chunk_shape=[8, 20])
    store = gpustore.open(
        spec, create=True, dtype=name, shape=[20, 20], chunk_layout=layout, device="cpu"
    ).result()
    most = {"bool": 2, "int2": 4, "int4": 16, "float4_e2m1fn": 16}.get(name, 256)
    store.write(
        (np.arange(400) % most).astype("u1").view(store.dtype.numpy_dtype).reshape(20, 20)
    ).result()
    return spec


def counted(future):
    return future.result(), future.statistics["host_conversions"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", SOURCES)
def test_what_elements_of_a_byte_become_is_looked_up(tmp_path, name):
    spec = spec_of(tmp_path, name)
    host = gpustore.open(spec, device="cpu").result()
    with emulated(ORDERS[SOURCES.index(name) % 3], seed=1) as device:
        there = gpustore.open(spec, device=device.name).result()
        for target in TARGETS:
            if target == name:
                continue
            expected = gpustore.cast(host, target).read().result()
            found, by_host = counted(gpustore.cast(there, target).read())
            assert by_host == 0
            found = on_host(device, found)
            assert found.dtype == expected.dtype
            computed = has_cast(host.dtype.numpy_dtype, expected.dtype)
            if computed or target == "bfloat16":  # Kernels make other NaNs than NumPy.
                found, expected = found.astype("f4"), expected.astype("f4")
                assert np.array_equal(found, expected, equal_nan=True)
            else:
                assert found.tobytes() == expected.tobytes(), target
            del found
        # Of 16 bytes there are no words.
        found, by_host = counted(gpustore.cast(there, "complex128")[3].read())
        assert by_host == (number_format(host.dtype.numpy_dtype) is None)
        expected = gpustore.cast(host, "complex128")[3].read().result()
        assert np.array_equal(on_host(device, found), expected, equal_nan=True)
        del there, found


NUMBERS = (
    *("int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
COMPUTED = ("bool", "int2", "int4", "int8", "uint8", *NUMBERS)


@pytest.mark.matrix
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_computed(name):
    dtype = gpustore.dtype(name).numpy_dtype
    values = numbers(dtype if dtype.kind != "c" else np.dtype(f"f{dtype.itemsize // 2}"))
    if dtype.kind == "c":
        values = np.stack([values, values[::-1]], axis=-1).reshape(-1).view(dtype)
    # TensorStore agrees with the host: tests/data_types/test_conversion.py.
    host = gpustore.array(values)
    with emulated(ORDERS[NUMBERS.index(name) % 3], seed=2) as device:
        context = gpustore.Context({"device": device.name})
        spec = {"driver": "zarr3", "kvstore": "memory://a/"}
        there = gpustore.open(
            spec, create=True, dtype=name, shape=values.shape, context=context
        ).result()
        there.write(values).result()
        for target in COMPUTED:
            if target == name or (dtype.kind == "c" and target == "bool"):
                continue
            expected = gpustore.cast(host, target).read().result()
            found, by_host = counted(gpustore.cast(there, target).read())
            found = on_host(device, found)
            assert (by_host, found.dtype) == (0, expected.dtype), target
            if expected.dtype.kind in "fc" or target == "bfloat16":
                wide = "c16" if expected.dtype.kind == "c" else "f8"
                found, expected = found.astype(wide), expected.astype(wide)
                assert np.array_equal(found, expected, equal_nan=True), target
            else:
                assert found.tobytes() == expected.tobytes(), target
            del found
        del there


def test_arrays_that_lie_otherwise_go_through_the_host(tmp_path):
    spec = spec_of(tmp_path, "float8_e5m2")
    host = gpustore.cast(gpustore.open(spec, device="cpu").result(), "float64")
    with emulated() as device:
        there = gpustore.cast(gpustore.open(spec, device=device.name).result(), "float64")
        stream = device.caller_stream()
        for part in (np.s_[:, :], np.s_[3:17:2, ::-1], np.s_[4, :], np.s_[2:2, :], np.s_[7, 7]):
            expected = host[part].read().result()
            for order in "CF":
                found, by_host = counted(there[part].read(order=order))
                assert by_host == 0
                assert np.array_equal(on_host(device, found), expected, equal_nan=True)
            out = device.empty(expected.shape, expected.dtype, "F", stream).array
            by_host = counted(there[part].read(out=out))[1]
            assert by_host == (expected.ndim == 2 and expected.size > 0)
            assert np.array_equal(on_host(device, out), expected, equal_nan=True)
        starts = [[0, 1], [9, 9], [13, 12]]
        found, by_host = counted(there.read_many(starts, [5, 6]))
        expected = host.read_many(starts, [5, 6]).result()
        assert by_host == 0
        assert np.array_equal(on_host(device, found), expected, equal_nan=True)
        del there, found, out


def test_every_type_of_a_byte_is_there():
    names = {d.name for d in map(gpustore.dtype, ("int8", "uint8", "bool", "int4", "int2"))}
    assert names <= {*SOURCES}
    for source in SOURCES:
        assert converter(gpustore.dtype(source), gpustore.dtype("float64")) is not None
