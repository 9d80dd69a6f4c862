"""Versions of everything, and kvikio's mode; no GPU is asked."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

DISTRIBUTIONS = (
    "numpy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13",
    "nvidia-libnvcomp-cu12", "nvidia-libnvcomp-cu13", "kvikio-cu12", "kvikio-cu13",
    "libkvikio-cu12", "libkvikio-cu13", "rapids-logger", "nvidia-cufile", "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc", "numcodecs", "ml_dtypes", "google-crc32c", "isal", "zstandard", "cramjam",
    "zarr", "zarrs", "tensorstore", "torch", "jax", "pyarrow",
)  # fmt: skip

_QUERY = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"


def versions():
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine():
    processors = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processors": processors, "memory_GiB": round(memory, 1)}


def nvidia_smi():
    program = shutil.which("nvidia-smi")
    if not program:
        return None
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()


def kvikio():
    """How it would read, and what of the machine decides that."""
    try:
        # kvikio does not import these itself.
        defaults = importlib.import_module("kvikio.defaults")
        driver = importlib.import_module("kvikio.cufile_driver")
    except ImportError as error:
        return {"missing": str(error)}
    names = (
        "compat_mode", "num_threads", "task_size", "gds_threshold", "bounce_buffer_size",
        "auto_direct_io_read",
    )  # fmt: skip
    found = {}
    for name in names:
        try:
            found[name] = str(defaults.get(name))
        except (KeyError, ValueError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found | {
        "compat_mode_preferred": defaults.is_compat_mode_preferred(),
        "libcufile": str(driver.libcufile_version()),
        "udev_readable": os.access("/run/udev", os.R_OK),
        "nvidia_fs_loaded": Path("/proc/driver/nvidia-fs").exists(),
    }


def run(findings, target, variant):
    del target, variant
    for question in (versions, machine, nvidia_smi, kvikio):
        findings.attempt(question.__name__, question)
