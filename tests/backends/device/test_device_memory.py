"""Memory that runs out at any moment: right elements or a LimitError, and nothing left behind."""

import numpy as np
import pytest

import gpustore
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = [needs_compiler, pytest.mark.long]
"""Ten seconds: a stage of its own in .ci/run."""

SHAPE = (24, 20)
POINTS = np.random.default_rng(0).integers(0, 480, 90_000)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory")
    metadata = {
        "shape": list(SHAPE),
        "chunks": [8, 6],
        "dtype": "<u4",
        "compressor": {"id": "zlib", "level": 1},
        "filters": [{"id": "delta", "dtype": "<u4"}, {"id": "shuffle", "elementsize": 4}],
    }
    made = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
    store = gpustore.open(made, create=True).result()
    store[...] = np.arange(480, dtype="<u4").reshape(SHAPE)
    # Values that the host must decode, among others.
    (path / "1.1").write_bytes(b"")
    store[8:16, 6:12].write(np.arange(48, dtype="<u4").reshape(8, 6)).result()
    return made


def write_back(store, device):
    """A write from the device that changes nothing; the host encodes it."""
    source = store[:4].read(order="F").result()
    store[:4].write(source).result()
    return source


def write_encoded(store, device):
    """A write of parts of chunks, encoded on the device."""
    source = store[2:15, 3:].read(order="F").result()
    made = {
        "driver": "zarr",
        "kvstore": "memory://",
        "metadata": {
            "shape": list(SHAPE),
            "chunks": [8, 6],
            "dtype": ">u4",
            "compressor": {"id": "blosc", "cname": "zlib", "clevel": 5, "shuffle": 2},
        },
    }
    other = gpustore.open(made, create=True, device=device.name).result()
    other[...] = np.arange(480, dtype="<u4").reshape(SHAPE) + 1
    other[2:15, 3:].write(source).result()
    return other.read().result()


WORK = {
    "read": lambda store, device: store[1:, ::-2].read(order="F").result(),
    "crops": lambda store, device: store.read_many([[0, 0], [5, 7], [9, 2]], (7, 9)).result(),
    # Tables of more bytes than a staging buffer has.
    "points": lambda store, device: store.vindex[POINTS % 24, POINTS % 20].read().result(),
    "write": write_back,
    "encoded write": write_encoded,
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", ["allocations", "pinned"])
@pytest.mark.parametrize(
    ("how", "order"), [*(("once", order) for order in ORDERS), ("from then on", "lazy")]
)
def test_memory_may_run_out_at_any_call(spec, order, work, kind, how):
    calls = 0
    failed = []
    expected = None
    number = -1  # First without a fault, to see what is right and how many calls there are.
    while number < calls:
        with emulated(order, seed=number + 1) as device:
            store = gpustore.open(spec, device=device.name).result()
            if number >= 0:
                after = range(number, number + (1 if how == "once" else 10_000))
                setattr(device.faults, kind, set(after))
            try:
                found = on_host_of(device, WORK[work](store, device))
            except gpustore.LimitError:
                failed.append(number)
                found = expected
            if number < 0:
                expected = found
                calls = device.counts["allocations" if kind == "allocations" else "allocate_pinned"]
            assert np.array_equal(found, expected)
            device.faults.allocations = device.faults.pinned = set()
            again = on_host(device, store[:4].read().result())
            assert np.array_equal(again, np.arange(80).reshape(4, 20))
            del store
        number += 1
    assert calls
    assert -1 not in failed
    if how == "once":
        assert len(failed) < calls


def on_host_of(device, found):
    device.faults.allocations = device.faults.pinned = set()
    return on_host(device, found)
