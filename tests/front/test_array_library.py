"""``read(to=...)`` where no library need be installed, into host memory and an emulated device."""

import numpy as np
import pytest

import gpustore
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated

VALUES = np.arange(6 * 4, dtype="int32").reshape(6, 4)


@each("to", ["numpy", None])
def test_numpy_is_what_a_store_in_host_memory_gives(to):
    store = gpustore.array(VALUES)
    assert isinstance(store.read(to=to).result(), np.ndarray)
    np.testing.assert_array_equal(store[1:, ::2].read(to=to).result(), VALUES[1:, ::2])
    crops = store.read_many([[0, 0], [1, 2]], [2, 2], to=to).result()
    np.testing.assert_array_equal(crops, [VALUES[:2, :2], VALUES[1:3, 2:]])


def test_what_is_not_possible_is_said_at_once():
    store = gpustore.array(VALUES)
    with pytest.raises(ValueError, match="numpy, cupy, torch, jax, got 'tensorflow'"):
        store.read(to="tensorflow")
    with pytest.raises(gpustore.UnsupportedError, match='open it with device="cuda"'):
        store.read(to="cupy")
    with pytest.raises(ValueError, match="either `out`"):
        store.read(to="numpy", out=np.empty_like(VALUES))
    with pytest.raises(gpustore.UnsupportedError, match='open it with device="cuda"'):
        store.read_many([[0, 0]], [1, 1], to="cupy")


@needs_compiler
def test_a_store_on_a_device_is_copied_to_the_host_for_numpy(tmp_path):
    gpustore.save(tmp_path / "x.zarr", VALUES, chunks=(2, 3))
    with emulated() as device:
        there = gpustore.open(tmp_path / "x.zarr", device=device.name).result()
        read = there[1:5].read(to="numpy")
        found = read.result()
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, VALUES[1:5])
        assert read.statistics["bytes_to_host"] >= found.nbytes
        on_device = there.read(to="cupy").result()
        assert type(on_device) is type(there.read().result())
        with gpustore.Batch() as batch:
            parts = [there[i : i + 2].read(to="numpy", batch=batch) for i in (0, 1)]
        np.testing.assert_array_equal([one.result() for one in parts], [VALUES[:2], VALUES[1:3]])
        del on_device, read
