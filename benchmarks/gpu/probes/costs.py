"""What one launch, event, copy, allocation or graph costs the host and the device; array types."""

import functools
import importlib
import time

import cupy
import numpy as np

from benchmarks.gpu.findings import MissingError

MIB = 1 << 20


def microseconds(call, times):
    """Of the host, a call."""
    call()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return round((time.perf_counter() - begin) / times * 1e6, 2)


def launches(gpu):
    def nothing(times):
        gpu.launch("nothing", 1, 1, np.int32(1), times=times)

    nothing(1000)
    gpu.wait()
    host = round(microseconds(lambda: nothing(500), 1) / 500, 2)
    gpu.wait()
    device = gpu.time_ms(lambda: nothing(1000)) / 1000 * 1e3
    graph = gpu.capture(lambda: nothing(100))
    in_graph = gpu.time_ms(lambda: graph.launch(gpu.stream), rounds=15) / 100 * 1e3
    return {
        "host_us": host,
        "device_us": round(device, 3),
        "in_graph_of_100_us": round(in_graph, 3),
    }


def first_compile():
    """NVRTC and load, of a kernel that no cache knows."""
    source = f'extern "C" __global__ void k{time.time_ns()}(int) {{}}'
    name = source.split("void ")[1].split("(")[0]
    begin = time.perf_counter()
    cupy.RawModule(code=source, options=("--std=c++17",)).get_function(name)
    return {"s": round(time.perf_counter() - begin, 3)}


def streams_and_events(gpu):
    runtime = cupy.cuda.runtime
    memory, event = gpu.allocate(64), cupy.cuda.Event(disable_timing=True)
    other = cupy.cuda.Stream(non_blocking=True)

    def wait_for_launch():
        gpu.launch("nothing", 1, 1, np.int32(1))
        gpu.stream.synchronize()

    found = {
        "new_stream_us": microseconds(lambda: cupy.cuda.Stream(non_blocking=True), 50),
        "new_event_us": microseconds(lambda: cupy.cuda.Event(disable_timing=True), 1000),
        "record_us": microseconds(lambda: event.record(gpu.stream), 1000),
        "wait_event_us": microseconds(lambda: other.wait_event(event), 1000),
        "query_us": microseconds(lambda: event.done, 1000),
        "memset_us": microseconds(lambda: runtime.memsetAsync(memory.ptr, 0, 64, gpu.queue), 1000),
        "launch_and_synchronize_us": microseconds(wait_for_launch, 200),
    }
    gpu.wait()
    return found


def small_copies(gpu):
    """Host's time to queue, and the time until the bytes are there."""
    pinned, memory = cupy.cuda.alloc_pinned_memory(MIB), gpu.allocate(MIB)

    def there_and_waited(size):
        gpu.to_device(memory.ptr, pinned.ptr, size)
        gpu.stream.synchronize()

    queue = microseconds(lambda: gpu.to_device(memory.ptr, pinned.ptr, 4096), 500)
    gpu.wait()
    return {"queue_4KiB_us": queue} | {
        f"waited_{size}_us": microseconds(lambda size=size: there_and_waited(size), 200)
        for size in (8, 4096, 65536, MIB)
    }


def allocations(gpu):
    """Of 64 MiB: plain, in the order of the stream, from CuPy's pool; and of pinned memory."""
    runtime = cupy.cuda.runtime
    nbytes = 64 * MIB

    def ordered():
        runtime.freeAsync(runtime.mallocAsync(nbytes, gpu.queue), gpu.queue)

    def pinned():
        runtime.freeHost(runtime.hostAlloc(nbytes, 0))

    found = {
        "cudaMalloc_and_free_us": microseconds(lambda: runtime.free(runtime.malloc(nbytes)), 20),
        "cudaMallocAsync_and_free_us": microseconds(ordered, 100),
        "cupy_pool_us": microseconds(lambda: gpu.allocate(nbytes), 200),
        "pinned_us": microseconds(pinned, 4),
    }
    gpu.wait()
    return found


def array_type(gpu, dtype):
    """What CuPy does with arrays of this type."""
    dtype = np.dtype(dtype)
    memory = gpu.upload(np.zeros(4 * dtype.itemsize, np.uint8))
    array = cupy.ndarray((4,), dtype, memptr=memory)
    questions = {
        "dlpack": array.__dlpack__,
        "typestr": lambda: array.__cuda_array_interface__["typestr"],
        "to_host": lambda: array.get().dtype,
        "add": lambda: (array + array).dtype,
        "copy": lambda: array.copy().dtype,
    }
    found = {}
    for name, question in questions.items():
        try:
            found[name] = str(question())[:60]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:120]
    return found


def array_types():
    found = {">u2": ">u2", "f2": "f2", "bool": "?", "c8": "c8", "M8[ns]": "M8[ns]", "S3": "S3"}
    found |= {"V3": "V3", "record": [("a", "<u2"), ("b", "<f4")]}
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise MissingError(str(error)) from error
    return found | {n: getattr(ml_dtypes, n) for n in ("bfloat16", "float8_e4m3fn", "int4")}


def run(findings, gpu, variant):
    del variant
    findings.attempt("first_compile", first_compile)
    for question in (launches, streams_and_events, small_copies, allocations):
        if findings.begin(question.__name__):
            findings.attempt(question.__name__, functools.partial(question, gpu))
    for name, dtype in array_types().items():
        if findings.begin(f"type {name}"):
            findings.attempt(f"type_{name}", functools.partial(array_type, gpu, dtype))
