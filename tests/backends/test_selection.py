"""Which backend a device has, and what becomes of what CuPy says when there is none.

CuPy's place is taken by packages of a few lines: broken in the ways that it is found broken, or
just enough to be asked for a device.
"""

import importlib
import os
import signal
import sys
import types

import pytest

import gpustore
from gpustore import registry
from gpustore.backends import selection
from gpustore.backends.host import BACKEND as HOST
from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device
from tests.on_device import emulated

# At import: a library is missing. At use: no device, or a driver that is too old.
BROKEN = {
    "no library": "raise ImportError('libnvrtc.so.13: cannot open shared object file')",
    "library of another machine": "raise OSError('libcudart.so.13: invalid ELF header')",
    "old driver": """
class cuda:
    class runtime:
        class CUDARuntimeError(RuntimeError):
            pass
    def Device(ordinal=None):
        raise cuda.runtime.CUDARuntimeError('cudaErrorInsufficientDriver: driver is insufficient')
""",
}

WORKING = """
class cuda:
    current = 0
    class Device:
        def __init__(self, ordinal=None):
            self.id = cuda.current if ordinal is None else ordinal
        def __enter__(self):
            return self
        def __exit__(self, *error):
            pass
    class runtime:
        class CUDARuntimeError(RuntimeError):
            pass
        cudaDevAttrMultiProcessorCount = 16
        deviceGetAttribute = staticmethod(lambda attribute, ordinal: 132)
    class driver:
        class CUDADriverError(RuntimeError):
            pass
"""


@pytest.fixture
def cupy(tmp_path, monkeypatch):
    """Makes a package of that name, beside a driver."""

    def make(text):
        (tmp_path / "cupy").mkdir()
        (tmp_path / "cupy" / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(selection, "_has_driver", lambda: True)
        monkeypatch.setattr(selection, "_backends", {})

    own = [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupy_backends")]
    ours = [f"gpustore.backends.{name}" for name in ("cuda", "cuda.gds", "cuda.own_pool")]
    for name in (*own, "cupy", *ours):
        if name in sys.modules:
            monkeypatch.delitem(sys.modules, name)
    registry.find.cache_clear()
    yield make
    registry.find.cache_clear()
    for name in ("cupy", *ours):
        sys.modules.pop(name, None)


def test_the_host():
    assert select_backend(parse_device("cpu")) is HOST


def test_nothing_there(monkeypatch):
    monkeypatch.setattr(selection, "_has_driver", lambda: False)
    assert select_backend(parse_device("auto")) is HOST
    with pytest.raises(gpustore.DeviceError) as caught:
        select_backend(parse_device("cuda:3"))
    assert str(caught.value).startswith(
        'device "cuda:3" cannot be used: no NVIDIA driver was found'
    )
    assert str(caught.value).endswith(
        'Use device="cpu", or device="auto" to take a GPU only where there is one'
    )


def test_an_emulated_device_has_one_backend():
    with emulated() as device, emulated() as other:
        found = select_backend(parse_device(device.name))
        assert found.driven is device
        assert select_backend(parse_device(device.name)) is found
        assert select_backend(parse_device(other.name)).driven is other


@pytest.mark.parametrize("name", BROKEN)
def test_what_cupy_says_is_the_reason(cupy, name):
    cupy(BROKEN[name])
    assert select_backend(parse_device("auto")) is HOST
    with pytest.raises(gpustore.DeviceError) as caught:
        select_backend(parse_device("cuda"))
    reason = BROKEN[name].split("'")[1]
    assert str(caught.value) == f'device "cuda" cannot be used: {reason}'
    assert type(caught.value.__cause__) is not gpustore.DeviceError
    future = gpustore.open(
        "memory://a|zarr3:", create=True, dtype="uint8", shape=[1], device="cuda"
    )
    assert isinstance(future.exception(), gpustore.DeviceError)


def test_a_device_that_says_itself_what_is_wrong_is_quoted_as_it_is(monkeypatch):
    def refuse(ordinal, allocator):
        raise gpustore.DeviceError(f"number {ordinal} is taken")

    monkeypatch.setitem(selection.DEVICES, "emulated", refuse)
    with pytest.raises(gpustore.DeviceError, match=r"^number 7 is taken$"):
        select_backend(parse_device("emulated:7"))


def test_cuda_without_a_number_is_the_current_device(cupy):
    cupy(WORKING)
    second = select_backend(parse_device("cuda:1"))
    first = select_backend(parse_device("cuda"))
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    sys.modules["cupy"].cuda.current = 1
    assert select_backend(parse_device("cuda")) is second
    assert select_backend(parse_device("auto")) is second
    assert select_backend(parse_device("cuda:0")) is first


def test_a_lost_gpu_says_the_same_for_ever_and_holds_nobody(cupy):
    """An error that is raised again keeps the frames of all who raised it."""
    cupy(WORKING)
    device = select_backend(parse_device("cuda:0")).driven
    runtime = sys.modules["cupy"].cuda.runtime

    def fail():
        error = runtime.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")
        error.status = 700
        raise error

    runtime.memGetInfo = staticmethod(fail)
    errors = []
    for operation in (device.memory, device.memory, device.stream):
        with pytest.raises(gpustore.DeviceError) as caught:
            operation()
        errors.append(caught.value)
    assert {str(error) for error in errors} == {
        "cuda:0: memory: cudaErrorIllegalAddress: an illegal memory access; this process cannot "
        "use the device any more: start it anew"
    }
    assert len({id(error) for error in errors}) == 3


def test_device_memory_comes_from_a_pool_of_its_own(cupy):
    """CUDA's default pool belongs to other libraries, too."""
    cupy(WORKING)
    device = select_backend(parse_device("cuda:0")).driven
    runtime, attributes, pools = sys.modules["cupy"].cuda.runtime, {}, []

    def create(properties):
        pools.append(properties)
        return 70 + len(pools)

    runtime.cudaMemAllocationTypePinned = runtime.cudaMemLocationTypeDevice = 1
    runtime.cudaMemHandleTypeNone = 0
    runtime.cudaMemPoolAttrReleaseThreshold = 4
    runtime.MemPoolProps = staticmethod(lambda *properties: properties)
    runtime.memPoolCreate = staticmethod(create)
    runtime.memGetInfo = staticmethod(lambda: (70 << 30, 80 << 30))
    runtime.memPoolSetAttribute = staticmethod(
        lambda pool, attribute, value: attributes.update({(pool, attribute): value})
    )
    runtime.mallocFromPoolAsync = staticmethod(lambda nbytes, pool, stream: 1000 * pool)
    stream = types.SimpleNamespace(ptr=7)
    assert [device.allocate(10, stream).address for _ in range(2)] == [71_000, 71_000]
    assert pools == [(1, 0, 1, 0)]
    assert attributes == {(71, 4): 5 << 30}


TORCH_CUDA = """
class OutOfMemoryError(RuntimeError):
    pass
calls = []
def is_available():
    return True
def init():
    calls.append("init")
def caching_allocator_alloc(size, device=None, stream=None):
    calls.append((size, device, stream))
    return 512 * len(calls)
def caching_allocator_delete(mem_ptr):
    calls.append(mem_ptr)
def memory_reserved(device):
    return 1000
def memory_allocated(device):
    return 300
"""


def test_pytorch_serves_the_memory_of_a_device_of_its_own(cupy, tmp_path, monkeypatch):
    cupy(WORKING)
    with pytest.raises(gpustore.DeviceError, match=r"not installed: torch.*pip install torch"):
        select_backend(parse_device("cuda:0"), "torch")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "cuda.py").write_text(TORCH_CUDA)
    importlib.invalidate_caches()
    for name in ("torch", "torch.cuda"):
        monkeypatch.setitem(sys.modules, name, None)  # So that what is imported goes again.
        monkeypatch.delitem(sys.modules, name)
    default, own = (select_backend(parse_device("cuda:0"), name) for name in ("default", "torch"))
    assert default is not own
    assert select_backend(parse_device("cuda"), "torch") is own
    device, runtime = own.driven, sys.modules["cupy"].cuda.runtime
    runtime.memGetInfo = staticmethod(lambda: (5000, 9000))
    assert device.memory().free_nbytes == 5700
    stream = types.SimpleNamespace(ptr=7)
    allocation = device.allocate(10, stream)
    device.free(allocation, types.SimpleNamespace(ptr=7))
    assert sys.modules["torch.cuda"].calls == 2 * ["init"] + [(10, 0, 7), allocation.address]


def test_threads_sleep_while_they_wait_for_events(cupy):
    cupy(WORKING)
    device = select_backend(parse_device("cuda:0")).driven
    sys.modules["cupy"].cuda.Event = lambda **flags: flags
    stream = types.SimpleNamespace(record=lambda event: event)
    assert device.record(stream) == {"block": True, "disable_timing": True}


@pytest.mark.parametrize(
    ("status", "kind", "is_lost"),
    [(2, MemoryError, False), (1, gpustore.DeviceError, False), (719, gpustore.DeviceError, True)],
)
def test_errors_of_cuda_by_number(cupy, status, kind, is_lost):
    cupy(WORKING)
    device = select_backend(parse_device("cuda:0")).driven
    runtime = sys.modules["cupy"].cuda.runtime

    def fail():
        error = runtime.CUDARuntimeError("what it says")
        error.status = status
        raise error

    runtime.memGetInfo = staticmethod(fail)
    with pytest.raises(kind, match="what it says"):
        device.memory()
    assert (device.failure is not None) == is_lost


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_waits_for_no_thread_of_its_parent():
    with emulated() as device, selection._lock:  # As if another thread were to start a device.
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                select_backend(parse_device(device.name))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
