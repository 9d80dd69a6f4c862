"""How fast files in the page cache are read, by threads and size; how fast the disk is; tmpfs."""

import importlib
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

KIB, MIB = 1 << 10, 1 << 20
_SIZES = (64 * KIB, MIB, 16 * MIB)
_THREADS = (1, 2, 4, 8, 16)


def target(nbytes):
    """Memory to read into, pinned where CuPy and a device are there; and which it is."""
    try:
        pinned = importlib.import_module("cupy").cuda.alloc_pinned_memory(nbytes)
    except Exception:
        out = np.empty(nbytes, np.uint8)
        out[:] = 1  # Take the pages now.
        return out, "pageable"
    return np.frombuffer(pinned, np.uint8, nbytes), "pinned"


def write_files(folder, size, total):
    """Files of random bytes; paths."""
    rng = np.random.default_rng(2)
    block = rng.integers(0, 256, 2 * size + 4096 * 64, dtype=np.uint8)
    paths = []
    for i in range(total // size):
        path = folder / f"{size}-{i}"
        if not path.exists() or path.stat().st_size != size:
            block[i % 64 * 4096 :][:size].tofile(path)
        paths.append(path)
    return paths


def in_threads(count, work, jobs):
    """Seconds until `work` has done all jobs."""
    threads = [threading.Thread(target=work, args=(jobs[i::count],)) for i in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def read_files(jobs):
    for path, view in jobs:
        handle = os.open(path, os.O_RDONLY)
        try:
            if os.preadv(handle, [view], 0) != len(view):
                raise OSError(f"{path}: short read")
        finally:
            os.close(handle)


def read_ranges(handle):
    def read(jobs):
        for start, view in jobs:
            if os.preadv(handle, [view], start) != len(view):
                raise OSError("short read")

    return read


def forget(paths):
    """Ask the kernel to drop these files from its cache."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def rates(folder, out, total, rounds):
    for size in _SIZES:
        paths = write_files(folder, size, total)
        views = [out[i * size : (i + 1) * size] for i in range(len(paths))]
        whole = folder / "whole"
        with whole.open("wb") as file:
            for path in paths:
                file.write(path.read_bytes())
        handle = os.open(whole, os.O_RDONLY)
        ranges = [(i * size, view) for i, view in enumerate(views)]
        for count in _THREADS:
            jobs = [*zip(paths, views)]
            files = statistics.median(in_threads(count, read_files, jobs) for _ in range(rounds))
            one = [in_threads(count, read_ranges(handle), ranges) for _ in range(rounds)]
            nbytes = size * len(paths)
            yield (
                f"{size // KIB}KiB_{count}_threads",
                {
                    "files_GBs": round(nbytes / files / 1e9, 2),
                    "files_per_s": round(len(paths) / files),
                    "ranges_of_one_file_GBs": round(nbytes / statistics.median(one) / 1e9, 2),
                },
            )
        os.close(handle)
        if size == _SIZES[-1]:
            forget(paths)
            cold = in_threads(16, read_files, [*zip(paths, views)])
            yield "cold_16MiB_16_threads", {"files_GBs": round(size * len(paths) / cold / 1e9, 2)}


def tmpfs(out, total):
    """The same from memory that is a file system."""
    size = 16 * MIB
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = write_files(Path(folder), size, total)
        jobs = [(path, out[i * size : (i + 1) * size]) for i, path in enumerate(paths)]
        seconds = min(in_threads(16, read_files, jobs) for _ in range(3))
    return {"files_GBs": round(size * len(paths) / seconds / 1e9, 2)}


def run(findings, gpu, variant):
    del gpu, variant
    total = (64 if findings.quick else 512) * MIB
    out, kind = target(total)
    findings.note("into", kind)
    for name, row in rates(findings.path.parent, out, total, 2 if findings.quick else 4):
        findings.note(name, row)
        if findings.seconds_left() < 2:
            return
    if not findings.quick and os.access("/dev/shm", os.W_OK):
        findings.attempt("tmpfs_16MiB_16_threads", lambda: tmpfs(out, total // 2))
