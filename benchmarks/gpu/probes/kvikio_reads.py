"""kvikio's reads into device memory: files in the page cache, ranges of one file, small files."""

import resource
import statistics
import time

import cupy
import kvikio
import kvikio.cufile_driver
import kvikio.defaults
import numpy as np

from benchmarks.gpu.probes.page_cache import write_files

KIB, MIB = 1 << 10, 1 << 20
_SIZES = (64 * KIB, MIB, 16 * MIB)


def seconds_of(call, rounds):
    """Median, after one call that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        call()
        cupy.cuda.runtime.deviceSynchronize()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def files(paths, dev):
    """Open, read and close each file, 256 at a time: a process has not more handles."""
    for first in range(0, len(paths), 256):
        handles = [kvikio.CuFile(path, "r") for path in paths[first : first + 256]]
        reads = [handle.pread(dev[first + i]) for i, handle in enumerate(handles)]
        for read in reads:
            read.get()
        for handle in handles:
            handle.close()


def ranges(handle, dev, shift=0):
    """Rows of `dev` from one open file."""
    size = dev.shape[1]
    reads = [handle.pread(row, size, i * size + shift) for i, row in enumerate(dev)]
    for read in reads:
        read.get()


def mode():
    driver, defaults = kvikio.cufile_driver, kvikio.defaults
    found = {
        "compat_mode": str(defaults.get("compat_mode")),
        "compat_mode_preferred": defaults.is_compat_mode_preferred(),
        "libcufile": str(driver.libcufile_version()),
    }
    for name in ("is_gds_available", "major_version"):
        try:
            found[name] = driver.get(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:120]
    return found


def opening(paths):
    """Microseconds to open and close a file."""
    begin = time.perf_counter()
    for path in paths:
        kvikio.CuFile(path, "r").close()
    return round((time.perf_counter() - begin) / len(paths) * 1e6, 1)


def whole_file(handle, dev):
    """One read of the whole, in kvikio's own tasks."""
    handle.pread(dev.reshape(-1)).get()


def run(findings, gpu, variant):
    del gpu, variant
    findings.attempt("mode", mode)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # A CuFile opens its file twice.
    folder, total = findings.path.parent, (64 if findings.quick else 256) * MIB
    rounds = 2 if findings.quick else 4
    for size in _SIZES:
        paths = write_files(folder, size, total)
        whole = folder / f"whole-{size}"
        with whole.open("wb") as file:
            for path in paths:
                file.write(path.read_bytes())
            file.write(bytes(4096))
        dev = cupy.empty((len(paths), size), np.uint8)
        findings.note(f"open_and_close_{size // KIB}KiB_us", opening(paths[:64]))
        handle = kvikio.CuFile(whole, "r")
        for threads in (1, 16) if findings.quick else (1, 4, 8, 16):
            kvikio.defaults.set({"num_threads": threads})
            if not findings.begin(f"{size} {threads}", 20) or findings.seconds_left() < 3:
                continue

            def row(paths=paths, dev=dev, handle=handle, size=size):
                nbytes = dev.nbytes
                dev.fill(0xA5)
                taken = {"files": seconds_of(lambda: files(paths, dev), rounds)}
                first = np.fromfile(paths[0], np.uint8)
                equal = bool(np.array_equal(cupy.asnumpy(dev[0]), first))
                taken["ranges"] = seconds_of(lambda: ranges(handle, dev), rounds)
                taken["ranges_not_aligned"] = seconds_of(lambda: ranges(handle, dev, 1000), rounds)
                taken["one_read"] = seconds_of(lambda: whole_file(handle, dev), rounds)
                last = np.fromfile(paths[-1], np.uint8)
                equal = equal and bool(np.array_equal(cupy.asnumpy(dev[-1]), last))
                found = {f"{n}_GBs": round(nbytes / s / 1e9, 2) for n, s in taken.items()}
                return found | {"files_per_s": round(len(paths) / taken["files"]), "equal": equal}

            findings.attempt(f"{size // KIB}KiB_{threads}_threads", row)
        handle.close()
        whole.unlink()
