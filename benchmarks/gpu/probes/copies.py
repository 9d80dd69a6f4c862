"""How fast bytes go to the device, back and within it, by size, pageable and pinned."""

import statistics

import numpy as np

from benchmarks.gpu.timing import milliseconds, rate

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
_TINY = (4 * KIB, 64 * KIB)


def pinned_copies(target, sizes, pinned, memory, stream):
    """Rows of each direction and size: alone, and many queued at once."""
    device, largest = target.device, sizes[-1]
    for size in sizes:
        count = min(largest // size, 256)
        for name in ("to_device", "to_host"):

            def queue(times, name=name, size=size):
                for at in range(0, times * size, size):
                    if name == "to_device":
                        device.upload(pinned, at, memory.address + at, size, stream)
                    else:
                        device.download(memory.address + at, pinned, at, size, stream)

            many = milliseconds(target, stream, lambda queue=queue, count=count: queue(count))
            one = milliseconds(target, stream, lambda queue=queue: queue(1))
            yield (
                f"{name}_pinned_{size // KIB}KiB",
                {"copies": count} | rate(count * size, many, "queued_GBs") | rate(size, one),
            )


def both_ways(target, sizes, pinned, memory, stream):
    """Sum of the rates of a copy to the device and one to the host at once."""
    device, half = target.device, sizes[-1] // 2
    other = device.stream()

    def queue():
        device.wait(other, device.record(stream))
        device.upload(pinned, 0, memory.address, half, stream)
        device.download(memory.address + half, pinned, half, half, other)
        device.wait(stream, device.record(other))

    yield "pinned_both_ways", {"copies": 2} | rate(2 * half, milliseconds(target, stream, queue))


def pageable_copies(target, sizes, memory, stream):
    host = np.ones(sizes[-1], np.uint8)
    for size in sizes[1:]:
        for to_device in (True, False):
            taken = [
                target.pageable_seconds(host[:size], memory.address, stream, to_device=to_device)
                for _ in range(6)
            ]
            name = f"{'to_device' if to_device else 'to_host'}_pageable_{size // KIB}KiB"
            yield name, rate(size, statistics.median(taken[1:]) * 1e3)


def copies_within(target, stream):
    """Counting the payload, not both reading and writing."""
    device = target.device
    largest = min(2 * GIB, device.memory().free_nbytes // 8)
    src, dst = (device.allocate(largest, stream) for _ in range(2))
    device.fill(src.address, 0x5A, largest, stream)
    for size in (MIB, 16 * MIB, 256 * MIB, largest):
        taken = milliseconds(
            target,
            stream,
            lambda size=size: target.copy_within(dst.address, src.address, size, stream),
        )
        yield f"within_device_{size // KIB}KiB", rate(size, taken)
    device.free(src, stream)
    device.free(dst, stream)


def run(findings, target, variant):
    del variant
    device, sizes = target.device, _TINY if target.is_emulated else _SIZES
    stream, largest = device.stream(), sizes[-1]
    pinned, memory = device.allocate_pinned(largest), device.allocate(largest, stream)
    expected = np.resize(np.arange(251, dtype=np.uint8), largest)
    np.frombuffer(pinned.view, np.uint8)[:] = expected
    device.upload(pinned, 0, memory.address, largest, stream)
    device.synchronize(device.record(stream))
    questions = [
        lambda: pinned_copies(target, sizes, pinned, memory, stream),
        lambda: both_ways(target, sizes, pinned, memory, stream),
    ]
    if not target.is_emulated:
        questions.append(lambda: pageable_copies(target, sizes, memory, stream))
        questions.append(lambda: copies_within(target, stream))
    for question in questions:
        for name, row in question():
            findings.note(name, row)
            if findings.seconds_left() < 2:
                return
    device.download(memory.address, pinned, 0, largest, stream)
    device.synchronize(device.record(stream))
    found = np.frombuffer(pinned.view, np.uint8)
    findings.note("equal", bool(np.array_equal(found, expected)))
    device.free_pinned(pinned)
    device.free(memory, stream)
