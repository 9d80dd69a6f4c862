"""Selects the backend of an array, from the context resource ``device``.

``"cpu"`` is host memory. ``"cuda"`` and ``"cuda:N"`` are a GPU's. ``"auto"`` is a GPU if one can be
used, else host memory, so that one program runs on a workstation and on a laptop. Each device has
one backend, which keeps its memory from one read to the next.

A GPU needs a driver and CuPy. Without nvcomp own kernels decode what they can, and the host the
rest; ``docs/gpu.md`` lists them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from gpustore import registry
from gpustore.errors import DeviceError
from gpustore.resources.device import DEVICES


def select_backend(device: Any, allocator: str = "default") -> Any:
    """Return the registered backend of a device.

    Parameters
    ----------
    device : value of the context resource ``device``
        Parsed resource; its text is the user's.
    allocator : str
        Value of the context resource ``device_allocator``; of no meaning for the host.

    Raises
    ------
    DeviceError
        If a GPU is asked for and cannot be used; says what is missing and how to get it.
    """
    text, kind = device.text, device.kind
    if kind == "cpu" or (kind == "auto" and not _may_have_gpu()):
        return registry.find("backends", "host")
    if kind in DEVICES:
        return _backend(kind, device.ordinal, allocator, DEVICES[kind])
    missing = missing_for_cuda()
    if allocator == "torch" and not registry.is_installed("torch"):
        missing.append("not installed: torch, the device_allocator (python -m pip install torch)")
    if missing:
        raise DeviceError(
            f'device "{text}" cannot be used: {"; ".join(missing)}. Use device="cpu", or '
            f'device="auto" to take a GPU only where there is one'
        )
    try:
        return _backend("cuda", device.ordinal, allocator, registry.find("backends", "cuda"))
    except (RuntimeError, ImportError, OSError) as error:
        # Also what CuPy raises: it finds a driver without a device, or one too old, or not all of
        # its libraries.
        if kind == "auto":
            return registry.find("backends", "host")
        if isinstance(error, DeviceError):
            raise
        raise DeviceError(f'device "{text}" cannot be used: {error}') from error


def for_objects(backend: Any) -> Any:
    """Return the host backend for arrays of Python objects, which no device can hold.

    If `backend` is a device's, each chunk that is decoded is counted as a fallback.
    """
    host = registry.find("backends", "host")
    return host if backend.device == host.device else host.as_fallback


_lock = threading.Lock()
_backends: dict[tuple[str, int | None, str], Any] = {}


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _backend(
    kind: str, ordinal: int | None, allocator: str, make: Callable[[int | None, str], Any]
) -> Any:
    """Return the backend of a device and an allocator, made at its first use."""
    with _lock:
        found = _backends.get((kind, ordinal, allocator))
        if found is None:
            found = registry.find("backends", "device")(make(ordinal, allocator))
            # Without a number it is the one that is current now, which may change.
            if ordinal is not None or kind in DEVICES:
                _backends[kind, ordinal, allocator] = found
            else:
                found = _backends.setdefault((kind, found.driven.ordinal, allocator), found)
    return found


def _may_have_gpu() -> bool:
    """Whether all requirements of a GPU are met; a search of packages takes 100 us."""
    return _has_driver() and not missing_for_cuda()


@cache
def _has_driver() -> bool:
    """Whether a driver of NVIDIA is there; none appears while a process runs."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")  # noqa: PTH110  3 us less


def missing_for_cuda() -> list[str]:
    """List missing requirements of a GPU, each with the way to get it; imports nothing."""
    missing = []
    if not _has_driver():
        missing.append("no NVIDIA driver was found: install one, or run on a machine with a GPU")
    if not registry.is_installed("cupy"):
        missing.append(
            "not installed: cupy (python -m pip install 'gpustore[cuda13]', or [cuda12] for a "
            "driver of CUDA 12)"
        )
    return missing
