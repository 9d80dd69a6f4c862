"""Loaders of arrays on an emulated device: their batches are those of the host, bit for bit."""

import gc
import weakref
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.selection import select_backend
from gpustore.loader import GridPatches, PatchLoader, RandomPatches
from gpustore.resources.device import parse_device
from tests.emulator import host_build
from tests.emulator.queue import ORDERS
from tests.matrix import share
from tests.on_device import emulated, on_host
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(host_build.COMPILER is None, reason="no C++ compiler")

SHAPE = (20, 18, 16)
VALUES = np.arange(np.prod(SHAPE)).reshape(SHAPE)


def written(url, values, chunks, **options):
    return gpustore.create_array(
        url, data=values, chunks=chunks, overwrite=True, context=CONTEXT, **options
    ).result()


CONTEXT = gpustore.Context()


def there(store, device, **options):
    """A store whose reads give arrays on a device."""
    context = gpustore.Context(options, CONTEXT)
    return gpustore.open(
        {**store.spec().to_json(), "recheck_cached_data": False},
        context=context,
        device=device.name,
    ).result()


def batches_of(loader, device):
    """All batches, copied to the host behind the work of the consumer's stream."""
    found = []
    with loader:
        for batch in loader:
            stream = device.caller_stream()
            found.append(
                {
                    name: array if isinstance(array, np.ndarray) else on_host(device, array, stream)
                    for name, array in batch.items()
                }
            )
            del batch
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert one[name].shape == other[name].shape
            assert one[name].tobytes() == other[name].tobytes(), name


@settings(max_examples=share(40))
@given(
    patch=st.tuples(*[st.integers(1, 20)] * 3),
    chunks=st.tuples(*[st.integers(5, 20)] * 3),
    edge=st.sampled_from(["shift", "reflect", "fill"]),
    batch_size=st.integers(1, 7),
    window=st.integers(1, 12_000),
    seed=st.integers(0, 5),
    dtype=st.sampled_from(["bool", "int8", ">u2", "uint32", "int64", "float32", "complex64"]),
    target=st.sampled_from([None, "float16", ml_dtypes.bfloat16, "float32"]),
    normalize=st.sampled_from([None, (3, 250)]),
    layout=st.sampled_from([None, "xzyc", (1, 2, 0)]),
    order=st.sampled_from(ORDERS),
)
def test_batches_are_those_of_the_host(
    patch, chunks, edge, batch_size, window, seed, dtype, target, normalize, layout, order
):
    if edge == "shift":
        patch = tuple(min(p, n) for p, n in zip(patch, SHAPE, strict=True))
    options = {
        "sampler": RandomPatches(patch, per_epoch=9, seed=seed, window=window, edge=edge),
        "batch_size": batch_size,
        "layout": layout,
        "dtype": None if dtype == "complex64" else target,
        "normalize": None if dtype == "complex64" else normalize,
    }
    host = written("memory://device/", VALUES.astype(dtype), chunks, fill_value=1)
    expected = [*PatchLoader(host, prefetch=0, **options)]
    with emulated(order) as device:
        store = there(host, device)
        assert_same(batches_of(PatchLoader(store, to="cupy", **options), device), expected)
        del store


def plain(**options):
    """Patches of the whole array in one window, and their batches on the host."""
    return {"sampler": RandomPatches((8, 6, 4), per_epoch=40, seed=3), "batch_size": 4} | options


@pytest.fixture(scope="module")
def host():
    return written("memory://loaded/", VALUES.astype("uint16"), (8, 8, 8), codec="zstd")


@pytest.mark.parametrize("edge", ["shift", "reflect", "fill"])
def test_pairs_and_several_volumes_are_those_of_the_host(edge):
    channels = np.stack([VALUES, VALUES + 1]).astype("uint16")
    pairs = [
        {"image": channels, "half": VALUES[::2, ::2, ::2].astype("uint8"), "label": VALUES > 2000},
        {"image": channels[:, :12], "half": VALUES[:12:2, ::2, ::2].astype("uint8"),
         "label": VALUES[:12] > 2000},
    ]  # fmt: skip
    chunks = {"image": (1, 8, 8, 8), "half": (5, 5, 5), "label": (20, 9, 16)}
    stores = [
        {
            name: written(f"memory://pairs{i}{name}/", values, chunks[name])
            for name, values in one.items()
        }
        for i, one in enumerate(pairs)
    ]
    options = plain(
        sampler=RandomPatches((8, 6, 4), per_epoch=30, window=6000, edge=edge),
        dtype={"label": "int64"},
        normalize={"image": (0, 65535)},
        layout={"image": "zyxc"},
    )
    expected = [*PatchLoader(stores, **options)]
    with emulated() as device:
        on_device = [{name: there(one, device) for name, one in some.items()} for some in stores]
        assert_same(batches_of(PatchLoader(on_device, to="cupy", **options), device), expected)
        del on_device


def test_grids_and_batches_on_the_host_are_those_of_the_host(host):
    options = plain(sampler=GridPatches((9, 10, 11), overlap=(2, 0, 3), window=3000))
    expected = [*PatchLoader(host, **options)]
    with emulated() as device:
        store = there(host, device)
        assert_same(batches_of(PatchLoader(store, to="cupy", **options), device), expected)
        assert_same(batches_of(PatchLoader(store, **options), device), expected)
        del store


@pytest.mark.parametrize("is_resident", [False, True])
@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_chunk_that_changes_is_an_error(tmp_path, place, is_resident):
    path = "memory://changing-there/" if place == "memory" else str(tmp_path / "a.zarr")
    store = written(path, VALUES.astype("uint16"), (8, 8, 8), codec="zstd")
    pool = {"device_cache_pool": {"total_bytes_limit": 10**7 * is_resident}}
    with emulated() as device:
        context = gpustore.Context(pool, CONTEXT)
        on_device = gpustore.open(path, context=context, device=device.name).result()
        loader = PatchLoader(on_device, **plain())
        assert len([*loader]) == len([*loader]) == 10
        store[9, 9, 9].write(0).result()
        with pytest.raises(gpustore.ConflictError, match=r"patches of array 'image'.*has changed"):
            list(loader)
        del on_device, loader


def test_a_batch_is_one_launch_and_no_wait(host):
    """Of all its arrays, where it has patches of two windows too."""
    with emulated() as device:
        store = there(host, device)
        arrays = {"image": store, "same": store}
        conversions = {"dtype": {"image": "float32"}, "layout": {"same": "xzy"}}
        loader = PatchLoader(arrays, to="cupy", **plain(**conversions))
        with loader:
            batches = iter(loader)
            held = [next(batches)]
            before = device.counts.copy()
            held += batches
            counts = device.counts - before
        assert len(held) == 10
        assert (counts["launch"], counts["upload"], counts["download"]) == (9, 9, 0)
        assert counts["synchronize"] == 10  # At the end of the iteration, of uploads of tables.
        host_arrays = {"image": host, "same": host}
        expected = [*PatchLoader(host_arrays, **plain(**conversions))]
        for batch, one in zip(held, expected, strict=True):
            for name in arrays:
                found = on_host(device, batch[name], device.caller_stream())
                assert found.tobytes() == one[name].tobytes()
        windows = PatchLoader(
            store,
            to="cupy",
            **plain(sampler=RandomPatches((8, 6, 4), per_epoch=40, window=4000), batch_size=7),
        )
        batches = iter(windows)
        before = device.counts["launch"]
        cuts = 0
        launch = device.launch

        def counted(kernel, *arguments):
            nonlocal cuts
            cuts += "cut_patches" in kernel.expression
            launch(kernel, *arguments)

        device.launch = counted
        assert len([*batches]) == cuts == 6
        assert windows.stats()["windows"] > 3
        del held, batch, store, arrays, loader, windows, batches


def test_the_host_waits_for_uploads_of_tables_that_are_far_behind(host):
    with emulated() as device:
        store = there(host, device)
        loader = PatchLoader(store, to="cupy", **plain(batch_size=1))
        batches = iter(loader)
        held = [next(batches)]
        before = device.counts.copy()
        held += (next(batches) for _ in range(39))
        counts = device.counts - before
        assert (counts["launch"], counts["allocate_pinned"]) == (39, 15)
        assert counts["synchronize"] == 39 - 15
        assert [*batches] == []
        del held, store, loader, batches


def test_states_and_ranks_of_a_device_are_those_of_the_host(host):
    options = plain(sampler=RandomPatches((8, 6, 4), per_epoch=40, window=4000))
    with emulated() as device:
        store = there(host, device)
        explained = [PatchLoader(one, **options).explain() for one in (store, host)]
        assert len({(one.windows, one.chunks, one.chunks_decoded) for one in explained}) == 1
        for rank in range(2):
            one = PatchLoader(host, dist=(rank, 2), **options)
            other = PatchLoader(store, to="cupy", dist=(rank, 2), **options)
            expected = [*one]
            with other:
                for number, _ in enumerate(other):
                    if number == 2:
                        break
                del _
            again = PatchLoader(store, to="cupy", dist=(rank, 2), **options)
            again.load_state_dict(other.state_dict())
            assert_same(batches_of(again, device), expected[3:])
        del store, other, again


def test_batches_are_ready_in_the_order_of_the_stream(host):
    """Nothing has run when the program gets a batch, which it may use behind it and drop."""
    expected = [*PatchLoader(host, **plain())]
    with emulated("lazy") as device:
        store = there(host, device)
        with PatchLoader(store, to="cupy", **plain()) as loader:
            stream = device.stream()
            copies = []
            for batch in loader:
                waits = device.counts["synchronize"]
                device.wait(stream, device.record(device.caller_stream()))
                view = device.wrap(batch["image"])
                pinned = device.allocate_pinned(batch["image"].allocation.nbytes)
                device.download(view.address, pinned, 0, pinned.nbytes, stream)
                device.wait(device.caller_stream(), device.record(stream))
                copies.append(pinned)
                del batch, view
                assert device.counts["synchronize"] == waits
        device.synchronize(device.record(stream))
        for pinned, one in zip(copies, expected, strict=True):
            assert bytes(pinned.view) == one["image"].tobytes()
            device.free_pinned(pinned)
        del store, loader


def test_second_epoch_of_a_resident_array_asks_for_nothing(host):
    with emulated() as device:
        store = there(host, device, device_cache_pool={"total_bytes_limit": 10**6})
        options = plain(sampler=RandomPatches((8, 6, 4), per_epoch=40, window=6000))
        expected = PatchLoader(host, **options)
        loader = PatchLoader(store, to="cupy", **options)
        assert_same(batches_of(loader, device), [*expected])
        first = loader.stats()
        # Of those that two windows have some may be decoded while the pool has them not yet.
        assert 3 * 3 * 2 <= first["chunks_decoded"] <= expected.stats()["chunks_decoded"]
        assert first["bytes_read"] > 0
        before = device.counts.copy()
        assert_same(batches_of(loader, device), [*expected])
        counts, second = device.counts - before, loader.stats()
        assert second["bytes_read"] == first["bytes_read"]
        assert second["chunks_decoded"] == first["chunks_decoded"]
        assert second["chunks_cached"] > first["chunks_cached"]
        assert counts["decompress"] == 0
        # One upload of a table for each batch, and for the window that is read patch by patch.
        assert counts["upload"] == 10 + 1
        assert counts["download"] == 10  # By this test.
        assert counts["upload_nbytes"] < 4096 * counts["upload"]
        del store, loader


def watched(device):
    """The most bytes of arrays on a device at a time, as a list of one number."""
    most, alive, empty = [0], weakref.WeakSet(), device.empty

    def watching(*arguments):
        view = empty(*arguments)
        alive.add(view.array)
        most[0] = max(most[0], sum(one.allocation.nbytes for one in alive))
        return view

    device.empty = watching
    return most


@pytest.mark.parametrize("memory", [20_000, 60_000])
def test_memory_bounds_windows_and_batches_on_the_device(host, memory):
    options = plain(
        sampler=RandomPatches((8, 6, 4), per_epoch=60, window=memory // 6), batch_size=7
    )
    expected = [*PatchLoader(host, **options)]
    with emulated() as device:
        store = there(host, device)
        most = watched(device)
        loader = PatchLoader(store, to="cupy", memory=memory, **options)
        assert_same(batches_of(loader, device), expected)
        assert memory // 6 < most[0] <= memory
        del store, loader


def test_batches_of_more_windows_than_memory_has_room_for_are_several_launches(host):
    options = plain(sampler=RandomPatches((2, 2, 2), per_epoch=90, window=600), batch_size=45)
    expected = [*PatchLoader(host, **options)]
    with emulated() as device:
        store = there(host, device)
        most = watched(device)
        loader = PatchLoader(store, to="cupy", memory=9000, **options)
        assert_same(batches_of(loader, device), expected)
        assert most[0] <= 9000
        assert loader.stats()["windows"] > 10
        del store, loader


@pytest.mark.matrix("costly")
def test_nothing_is_left_on_the_device_by_a_close_a_break_an_error_or_a_drop(host):
    def fail(batch):
        raise ZeroDivisionError

    with emulated() as device:
        store = there(host, device)
        memory, pinned = device._memory, device._pinned

        def is_empty():
            select_backend(parse_device(device.name)).release()
            device.memory()
            gc.collect()
            return not memory.live() and not pinned

        options = plain(sampler=RandomPatches((8, 6, 4), per_epoch=40, window=4000), to="cupy")
        loader = PatchLoader(store, **options)
        for _ in loader:
            break
        del _
        wait_until(is_empty)
        with suppress(ZeroDivisionError):
            next(iter(PatchLoader(store, transform=fail, **options)))
        wait_until(is_empty)
        batches = iter(loader)
        next(batches)
        loader.close()
        wait_until(is_empty)
        with pytest.raises(RuntimeError, match="was closed"):
            next(batches)
        batches = iter(loader)
        next(batches)
        del batches
        wait_until(is_empty)
        with loader:
            assert len([*loader]) == 10
        wait_until(is_empty)
        # The arrays of a batch live as long as the program holds them.
        (last,) = [batch["image"] for batch in loader][-1:]
        assert sum(one.nbytes for one in memory.live()) >= last.allocation.nbytes
        del store, last


def test_transforms_get_arrays_of_the_device(host):
    with emulated() as device:
        store = there(host, device)
        shapes = [
            batch
            for batch in PatchLoader(
                store,
                to="cupy",
                layout="czyx",
                transform=lambda batch: batch["image"].__cuda_array_interface__["shape"],
                **plain(),
            )
        ]
        assert shapes == [(4, 1, 8, 6, 4)] * 10
        del store


@pytest.mark.matrix("costly")
def test_damaged_chunks_are_errors_or_replaced_as_on_the_host(tmp_path):
    host = written(str(tmp_path), VALUES.astype("uint16"), (8, 8, 8), codec="zstd")
    (tmp_path / "c/1/1/1").write_bytes(b"damaged")
    options = plain(sampler=RandomPatches((5, 5, 5), per_epoch=16, window=9000))
    expected = [*PatchLoader(host, on_damage="replace", **options)]
    with emulated() as device:
        store = there(host, device)
        loader = PatchLoader(store, to="cupy", on_damage="replace", **options)
        assert_same(batches_of(loader, device), expected)
        assert loader.stats()["patches_replaced"] > 0
        loader = PatchLoader({"cells": store}, to="cupy", **options)
        with pytest.raises(gpustore.CorruptChunkError, match=r"array 'cells' at \[.*c/1/1/1"):
            for _ in loader:
                pass
        del store, loader


@pytest.mark.parametrize("operation", ["empty", "allocate", "allocate_pinned"])
def test_lack_of_memory_is_an_error(host, operation):
    with emulated() as device:
        store = there(host, device)
        loader = PatchLoader(store, to="cupy", **plain())
        batches = iter(loader)
        next(batches)
        begin = device.counts[operation]
        device.faults.lacking |= {(operation, begin + i) for i in range(9)}
        with pytest.raises(gpustore.LimitError, match="memory"):
            next(batches)
        device.faults.lacking.clear()
        assert len([*loader]) == 10
        del store, loader, batches


def test_a_lost_device_ends_the_iteration(host):
    with emulated() as device:
        store = there(host, device)
        loader = PatchLoader(store, to="cupy", **plain())
        batches = iter(loader)
        next(batches)
        device.faults.failing["upload", device.counts["upload"]] = True
        with pytest.raises(gpustore.DeviceError, match="injected"):
            next(batches)
        del store, loader, batches


def test_arrays_that_make_no_batches_on_a_device_are_refused(host):
    options = plain()
    with pytest.raises(gpustore.UnsupportedError, match='device="cuda"'):
        PatchLoader(host, to="cupy", **options)
    with emulated() as device:
        store = there(host, device)
        with pytest.raises(gpustore.MismatchError, match=r"'b' is read to emulated.* 'a' to cpu"):
            PatchLoader({"a": host, "b": store}, **options)
        with pytest.raises(gpustore.MismatchError, match="volume 1 is read to cpu"):
            PatchLoader([{"a": store}, {"a": host}], **options)
        floats = gpustore.cast(store, "float32")
        with pytest.raises(gpustore.UnsupportedError, match="of float32 is not converted to int32"):
            PatchLoader(floats, dtype="int32", **options)
        with pytest.raises(gpustore.UnsupportedError, match="not normalised to complex64"):
            PatchLoader(store, dtype="complex64", normalize=(0, 1), **options)
        with pytest.raises(gpustore.LimitError, match="2 batches"):
            PatchLoader(store, memory="1 kB", **options)
        del store, floats
