"""JAX: arrays of reads and for writes, and arrays divided between four devices of the host."""

import doctest
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

import gpustore
from tests.matrix import each

jax = pytest.importorskip("jax", reason="jax is not installed")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from gpustore.interop.jax import conversion, read  # noqa: E402

VALUES = np.arange(16 * 12 * 8, dtype="int32").reshape(16, 12, 8)
SAME = (
    *("bool", "int4", "int8", "int16", "int32", "uint4", "uint8", "uint16", "uint32"),
    *("bfloat16", "float16", "float32", "complex64", "float4_e2m1fn", "float8_e3m4"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)


@contextmanager
def with_64_bits():
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@each("name", SAME)
def test_data_types_are_exact_both_ways(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = np.array([[1, 0, 1], [1, 1, 0]]).astype(dtype)
    bits = values.view("u1")
    array = gpustore.array(values).read(to="jax").result()
    assert (array.dtype, array.shape) == (dtype, values.shape)
    np.testing.assert_array_equal(np.asarray(array).view("u1"), bits)
    target = gpustore.array(np.zeros_like(values))
    target.write(array).result()
    np.testing.assert_array_equal(target.read().result().view("u1"), bits)


class OfDevice:
    """An array that has of CuPy's face what is used, in host memory."""

    def __init__(self, array):
        self.array = array
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__

    def view(self, dtype):
        return OfDevice(self.array.view(dtype))


@each("name", ["uint16", "float32", "complex64", "bfloat16", "float8_e5m2"])
def test_arrays_of_a_device_are_handed_over_by_dlpack(name):
    values = np.arange(3).astype(getattr(ml_dtypes, name, name))
    found = conversion(gpustore.dtype(name))(OfDevice(values))
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(found).view("u1"), values.view("u1"))


@each("order", ["C", "F"])
@each("shape", [(4000, 250), (7,), (), (0, 3)])
def test_no_bytes_are_copied_in_c_order(order, shape, monkeypatch):
    values = np.ones(shape, "float32")
    store = gpustore.array(values)
    addresses = []
    convert = gpustore.interop.jax.conversion(store.dtype)
    monkeypatch.setattr(
        gpustore.interop.jax,
        "conversion",
        lambda dtype: lambda array: (addresses.append(array.ctypes.data), convert(array))[1],
    )
    found = store.read(to="jax", order=order).result()
    np.testing.assert_array_equal(found, values)
    if order == "C" and values.size:
        assert found.unsafe_buffer_pointer() == addresses[0]


def test_types_that_jax_would_change_are_refused():
    store = gpustore.array(np.arange(3))
    with pytest.raises(gpustore.UnsupportedError, match=r'jax_enable_x64.*cast\(store, "int32"\)'):
        store.read(to="jax")
    with with_64_bits():
        assert store.read(to="jax").result().dtype == np.int64
    with pytest.raises(gpustore.UnsupportedError, match="read it as NumPy"):
        conversion(gpustore.dtype("ustring"))
    with pytest.raises(gpustore.UnsupportedError, match="read it as NumPy"):
        gpustore.array(np.zeros(2, "M8[s]")).read(to="jax")


def test_reads_of_a_batch_and_crops_are_arrays():
    store = gpustore.array(VALUES)
    with gpustore.Batch() as batch:
        rows = [store[i].read(batch=batch, to="jax") for i in (3, 1)]
    for row, i in zip(rows, (3, 1), strict=True):
        np.testing.assert_array_equal(row.result(), VALUES[i])
    crops = store.read_many([[1, 0, 2]], [2, 12, 4], to="jax").result()
    np.testing.assert_array_equal(crops, [VALUES[1:3, :, 2:6]])


@pytest.fixture
def stored(tmp_path):
    return gpustore.save(tmp_path / "x.zarr", VALUES, chunks=(4, 3, 8))


def mesh(*shape):
    if len(jax.devices()) < 4:
        pytest.skip("JAX was told before of how many devices the host consists")
    return jax.make_mesh(shape, ("a", "b")[: len(shape)])


P = PartitionSpec
SHARDINGS = [
    ((4,), P("a")),
    ((4,), P(None, "a")),
    ((4,), P()),
    ((2, 2), P("a", "b")),
    ((2, 2), P("b", None, "a")),
    ((2, 2), P(None, ("a", "b"))),
    ((2, 2), P("b")),
    ((1, 4), P("a", "b")),
]


@each("division", SHARDINGS)
def test_each_device_gets_its_part_and_parts_are_read_once(division, stored):
    shape, spec = division
    sharding = NamedSharding(mesh(*shape), spec)
    before = gpustore.statistics.snapshot()
    found = read(stored, sharding=sharding)
    after = gpustore.statistics.snapshot()
    np.testing.assert_array_equal(found, VALUES)
    assert (found.sharding, found.dtype) == (sharding, np.int32)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, VALUES[shard.index])
    # 4 x 4 chunks: none of them is fetched twice, although parts may meet one.
    assert after["key_reads"] - before.get("key_reads", 0) == 16
    parts = {str(index) for index in sharding.devices_indices_map(VALUES.shape).values()}
    assert after["reads"] - before.get("reads", 0) == len(parts)


def test_views_count_from_zero(stored):
    view = stored[4:12, ::-1, 2]
    found = read(view, sharding=NamedSharding(mesh(4), P("a")))
    np.testing.assert_array_equal(found, VALUES[4:12, ::-1, 2])


_PROCESS = """
import sys
import jax, numpy as np
import gpustore
from gpustore.interop.jax import read

address, rank, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.distributed.initialize(address, 2, rank)
mesh = jax.make_mesh((4,), ("a",))
store = gpustore.open(path).result()
gpustore.statistics.reset()
found = read(store, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a")))
for shard in found.addressable_shards:
    print(shard.index[0].start, int(np.asarray(shard.data).sum()))
print("keys", gpustore.statistics["key_reads"])
"""


@pytest.mark.matrix("costly")
def test_a_process_reads_the_parts_of_its_own_devices_only(stored):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, address, str(rank), stored.kvstore.url],
            env={**os.environ, **flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=100) for process in processes]
    for rank, (out, error) in enumerate(said):
        assert out, error
        starts = (8 * rank, 8 * rank + 4)
        expected = [f"{start} {VALUES[start : start + 4].sum()}" for start in starts]
        assert out.splitlines() == [*expected, "keys 8"]


def test_what_does_not_divide_the_shape_is_an_error(stored):
    with pytest.raises(ValueError, match="divi"):
        read(stored[:3], sharding=NamedSharding(mesh(4), P("a")))
    with pytest.raises(TypeError, match=r"store: expected a gpustore\.TensorStore, got "):
        read(VALUES, sharding=NamedSharding(mesh(4), P("a")))


def test_examples():
    assert doctest.testmod(gpustore.interop.jax) == (0, 4)
