"""Operations of a device that fail, once or for ever, in every place of a read."""

import gc
import itertools
import threading
from contextlib import suppress

import numpy as np
import pytest

import gpustore
from gpustore.backends.device import direct_read
from gpustore.backends.device.staging_buffer import LARGE, SMALL
from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device
from tests.emulator.device import EmulatedDevice
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host
from tests.open_files import open_files

pytestmark = needs_compiler

SHAPE = (40, 30)
STARTS = np.array([[0, 0], [7, 3], [20, 11], [31, 14], [3, 17]])
TIMEOUT_S = 100

ELEMENTS = np.random.default_rng(0).integers(0, 1000, SHAPE).astype("<u4")


def create(path, compressor, dtype="<u4"):
    metadata = {"shape": [*SHAPE], "chunks": [8, 16], "dtype": dtype, "compressor": compressor}
    spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
    gpustore.open(spec, create=True).result()[:33] = ELEMENTS[:33]


@pytest.fixture(autouse=True)
def _small_files_are_read_directly(request, monkeypatch):
    if request.node.callspec.params["name"] == "direct":
        monkeypatch.setattr(direct_read, "LEAST_NBYTES", {"read": 16, "file": 16})


def _quick_collections():
    """Hundreds of collections need not look at what there was before."""
    gc.collect()
    gc.freeze()


_ended = itertools.count(1)


@pytest.fixture(autouse=True)
def _collect_all():
    """Collect what was in use when collections became quick; seldom, as it looks at everything."""
    yield
    if next(_ended) % 10 == 0:
        gc.unfreeze()
        _quick_collections()


class Case:
    """A way to use a device."""

    def __init__(self, compressor, use, budget=1 << 22):
        self.compressor = compressor
        self.use = use
        self.budget = budget

    def open(self, path, device):
        limits = {"limits": {"device_in_flight_nbytes": self.budget}}
        context = gpustore.Context(limits)
        return gpustore.open(f"file://{path}", device=device.name, context=context).result()

    def run(self, path, device):
        """What it reads, on the host; that is no part of it."""
        return self.use(self.open(path, device))


def whole(store):
    return store.read().result(timeout=TIMEOUT_S)


def column(store):
    """Five chunks: more submissions than staging buffers, where each has room for one chunk."""
    return store[:, :16].read().result(timeout=TIMEOUT_S)


def crops(store):
    return store.read_many(STARTS, (9, 13)).result(timeout=TIMEOUT_S)


def batch(store):
    futures = []
    try:
        with gpustore.Batch() as together:
            for i, j in STARTS.tolist():
                futures.append(store[i : i + 9, j::2].read(batch=together))
    finally:
        for future in futures:
            future.exception(timeout=TIMEOUT_S)  # All have ended when the first error is raised.
    return [future.result() for future in futures]


def copied(store):
    """Written from where it was read to: gathered and encoded on the device."""
    store[...] = store.read(order="F").result(timeout=TIMEOUT_S)
    return whole(store)


def changed(store):
    """Parts of chunks are written: these are decoded, changed and encoded."""
    store[3:30, 5:20] = store[3:30, 5:20].read(order="F").result(timeout=TIMEOUT_S)
    return whole(store)


ZSTD = {"id": "zstd", "level": 1}
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
CASES = {
    "zstd": Case(ZSTD, whole),
    "many submissions": Case(BLOSC, column, budget=24 * 2 * 512),
    "raw": Case(None, whole),
    "direct": Case(None, whole),
    "host alone": Case({"id": "bz2", "level": 1}, whole),
    "crops": Case({"id": "zlib", "level": 1}, crops),
    "batch": Case(BLOSC, batch),
    "copied": Case(ZSTD, copied),
    "changed": Case(BLOSC, changed),
}

QUICK = ("zstd", "crops", "direct", "host alone")
"""The others take seconds."""


def expected_of(path, case):
    return case.use(gpustore.open(f"file://{path}", device="cpu").result())


def healthy_calls(path, case):
    """How often each operation is called where nothing fails."""
    with emulated() as device:
        case.run(path, device)
        counts = {name: device.counts[name] for name in OPERATIONS if device.counts[name]}
    return counts


OPERATIONS = sorted(
    name for name in vars(EmulatedDevice) if not name.startswith("_") and name != "close"
)


ENDS = ("free", "free_pinned", "close_file")
"""Where these fail something is lost, whoever asks."""


def taken(device):
    """Slots that nobody gives back."""
    return select_backend(parse_device(device.name)).buffers.taken


def held(device, path):
    """Slots that nobody gives back, open files and pinned pieces of memory."""
    return taken(device), open_files(path), len(device._pinned)


def threads():
    """All but those of pools, of which there are no more than a pool may have."""
    return {thread for thread in threading.enumerate() if thread.name != "gpustore"}


def assert_same(device, found, expected):
    if not isinstance(found, list):
        found, expected = [found], [expected]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(on_host(device, one), other)


def check_lost(path, case, **faults):
    """One clear error, the same from then on, at once; nothing more is held each time.

    Also where the array is opened again.
    """
    with emulated() as device:
        vars(device.faults).update(faults)
        with pytest.raises(gpustore.DeviceError, match=r"injected|illegal memory") as first:
            case.run(path, device)
        text = str(first.value)
        del first
        store = case.open(path, device)
        gc.collect()
        before, threads_before = held(device, path), threads()
        for number in range(max(LARGE, SMALL) + 1):
            launches = device.counts["launch"] + device.counts["decompress"]
            with pytest.raises(gpustore.DeviceError) as again:
                case.use(store) if number else case.run(path, device)
            assert text.endswith(str(again.value))
            assert device.counts["launch"] + device.counts["decompress"] == launches
            del again
        gc.collect()
        assert before[0] == 0
        assert held(device, path) == before
        assert threads() <= threads_before  # Those of other tests may end.


def check_passing(path, case, call, expected, *, repeats):
    """An error or the right elements; then all is as if nothing had been."""
    with emulated() as device:
        device.faults.failing = {call: False}
        found = None
        with suppress(gpustore.DeviceError):
            found = case.run(path, device)
        # Reads of a batch that fails are repeated one by one.
        assert found is None or case.use is batch
        if found is not None:
            assert_same(device, found, expected)
        assert taken(device) == 0
        for _ in range(repeats):
            found = case.run(path, device)
            assert_same(device, found, expected)
            del found


def places(calls, every):
    """First and last call of each operation, and those between."""
    for name, count in calls.items():
        numbers = range(count) if every else {0, count - 1}
        for number in sorted(numbers):
            yield name, number


def check_all(tmp_path, name, *, every):
    case = CASES[name]
    create(tmp_path, case.compressor)
    expected = expected_of(tmp_path, case)
    calls = healthy_calls(tmp_path, case)
    assert (name == "direct") == ("read_file" in calls)
    assert {"allocate_pinned", "upload", "launch", "synchronize"} <= {*calls}
    for call in places(calls, every):
        _quick_collections()
        try:
            check_lost(tmp_path, case, failing={call: True})
            if call[0] not in ENDS:
                check_passing(tmp_path, case, call, expected, repeats=1 if every else 2)
        except BaseException as error:
            error.add_note(f"when this failed: {call}")
            raise
    # What runs later fails later.
    launches = calls["launch"] + calls.get("decompress", 0)
    for number in range(launches) if every else {0, launches - 1}:
        check_lost(tmp_path, case, lost_at=number)


def check_memory(path, name, every):
    """Lack of memory in any place: right elements or a LimitError, then all is as before."""
    case = CASES[name]
    create(path, case.compressor)
    expected = expected_of(path, case)
    with emulated() as device:
        case.run(path, device)
        counts = {
            "allocations": device.counts["allocations"],
            "pinned": device.counts["allocate_pinned"],
        }
    outcomes = {"right": 0, "error": 0}
    for kind, count in counts.items():
        assert count
        for first in range(count) if every else {0, 1, 2, count // 2, count - 1}:
            for last in (first + 1, 1 << 20):
                _quick_collections()
                with emulated() as device:
                    setattr(device.faults, kind, range(first, last))
                    found = None
                    try:
                        found = case.run(path, device)
                    except gpustore.LimitError:
                        outcomes["error"] += 1
                    setattr(device.faults, kind, ())
                    assert taken(device) == 0
                    if found is not None:
                        outcomes["right"] += 1
                        assert_same(device, found, expected)
                    found = case.run(path, device)
                    assert_same(device, found, expected)
                    del found
    assert outcomes["right"]
    assert outcomes["error"]


@pytest.mark.parametrize("name", QUICK)
def test_lack_of_memory_in_any_place(tmp_path, name):
    check_memory(tmp_path, name, every=False)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_lack_of_memory_for_any_call(tmp_path, name):
    check_memory(tmp_path, name, every=True)


@pytest.mark.matrix
@pytest.mark.parametrize("name", QUICK)
def test_a_failure_in_any_place_is_one_error_and_leaves_nothing_behind(tmp_path, name):
    check_all(tmp_path, name, every=False)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_a_failure_of_any_call(tmp_path, name):
    check_all(tmp_path, name, every=True)
