"""How fast bytes go to the device, back and within it, by size, pageable and pinned."""

import statistics
import threading
import time

import cupy
import numpy as np

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
_LARGEST = _SIZES[-1]


def rate(nbytes, milliseconds):
    """GB/s."""
    return round(nbytes / milliseconds / 1e6, 2)


def pinned_copies(gpu, dev, pinned):
    """Rows of each direction and size: alone, and many queued at once."""
    for size in _SIZES:
        count = min(_LARGEST // size, 256)
        for name, copy in (("to_device", gpu.to_device), ("to_host", gpu.to_host)):

            def queue(times, copy=copy, name=name, size=size):
                for at in range(0, times * size, size):
                    ends = dev.ptr + at, pinned.ptr + at
                    copy(*(ends if name == "to_device" else ends[::-1]), size)

            many = gpu.time_ms(lambda queue=queue, count=count: queue(count))
            one = gpu.time_ms(lambda queue=queue: queue(1), rounds=15)
            yield (
                f"{name}_pinned_{size // KIB}KiB",
                {
                    "queued_GBs": rate(count * size, many),
                    "alone_GBs": rate(size, one),
                    "alone_us": round(one * 1e3, 1),
                },
            )


def pageable_copies(gpu, dev, host):
    for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, _LARGEST):
        taken = []
        for _ in range(6):
            begin = time.perf_counter()
            gpu.to_device(dev.ptr, host.ctypes.data, size)
            gpu.stream.synchronize()
            taken.append((time.perf_counter() - begin) * 1e3)
        yield (
            f"to_device_pageable_{size // KIB}KiB",
            {"GBs": rate(size, statistics.median(taken[1:]))},
        )


def device_copies(gpu):
    """Counting the payload, not both reading and writing."""
    largest = min(2 * GIB, gpu.room() // 2)
    src, dst = gpu.allocate(largest), gpu.allocate(largest)
    gpu.randomise(src.ptr, largest)
    gpu.wait()
    for size in (MIB, 16 * MIB, 256 * MIB, largest):
        taken = gpu.time_ms(lambda size=size: gpu.copy(dst.ptr, src.ptr, size), rounds=15)
        yield f"within_device_{size // KIB}KiB", {"GBs": rate(size, taken)}


def two_streams(gpu, dev, pinned):
    """Sum of two copies at once, by the host's clock."""
    other = cupy.cuda.Stream(non_blocking=True)
    back, half = gpu.allocate(_LARGEST // 2), _LARGEST // 2
    runtime = cupy.cuda.runtime
    seconds = {
        "two_to_device": lambda: runtime.memcpyAsync(
            back.ptr, pinned.ptr + half, half, 1, other.ptr
        ),
        "to_device_and_to_host": lambda: runtime.memcpyAsync(
            pinned.ptr + half, back.ptr, half, 2, other.ptr
        ),
    }
    for name, second in seconds.items():
        taken = []
        for _ in range(6):
            begin = time.perf_counter()
            gpu.to_device(dev.ptr, pinned.ptr, half)
            second()
            gpu.stream.synchronize()
            other.synchronize()
            taken.append((time.perf_counter() - begin) * 1e3)
        yield name, {"sum_GBs": rate(2 * half, statistics.median(taken[1:]))}


def into_pinned(host, pinned_array):
    """The host's own copy from pageable into pinned memory, by threads."""
    pieces = [slice(at, at + 4 * MIB) for at in range(0, _LARGEST, 4 * MIB)]

    def copy(mine):
        for piece in mine:
            pinned_array[piece] = host[piece]

    for count in (1, 4, 8, 16):
        taken = []
        for _ in range(4):
            threads = [
                threading.Thread(target=copy, args=(pieces[i::count],)) for i in range(count)
            ]
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            taken.append(time.perf_counter() - begin)
        yield f"into_pinned_{count}_threads", {"GBs": rate(_LARGEST, min(taken) * 1e3)}


def run(findings, gpu, variant):
    del variant
    begin = time.perf_counter()
    pinned = cupy.cuda.alloc_pinned_memory(_LARGEST)
    findings.note("pin_256MiB_s", round(time.perf_counter() - begin, 3))
    host = np.random.default_rng(1).integers(1, 256, _LARGEST, dtype=np.uint8)
    pinned_array = np.frombuffer(pinned, np.uint8, _LARGEST)
    pinned_array[:] = host
    dev = gpu.allocate(_LARGEST)
    gpu.upload(host, dev.ptr)
    findings.note("equal", bool(np.array_equal(gpu.download(dev.ptr, _LARGEST), host)))
    questions = (
        lambda: pinned_copies(gpu, dev, pinned),
        lambda: pageable_copies(gpu, dev, host),
        lambda: device_copies(gpu),
        lambda: two_streams(gpu, dev, pinned),
        lambda: into_pinned(host, pinned_array),
    )
    for question in questions:
        for name, row in question():
            findings.note(name, row)
            if findings.seconds_left() < 2:
                return
