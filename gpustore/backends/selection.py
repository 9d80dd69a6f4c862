"""Selects the backend of an array, from the context resource ``device``.

``"cpu"`` is host memory. ``"cuda"`` and ``"cuda:N"`` are a GPU's. ``"auto"`` is a GPU if one can be
used, else host memory, so that one program runs on a workstation and on a laptop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpustore import registry
from gpustore.errors import DeviceError

__all__ = ["missing_for_cuda", "select_backend"]


def select_backend(device: Any) -> Any:
    """The registered backend of a device.

    Parameters
    ----------
    device : value of the context resource ``device``
        Its text is what the user wrote.

    Raises
    ------
    DeviceError
        If a GPU is asked for and cannot be used; says what is missing and how to get it.
    """
    text = str(device)
    if not text.startswith("cuda"):
        # "auto" is the host too, as long as there is no CUDA backend to choose.
        return registry.find("backends", "host")
    cuda = registry.find("backends", "cuda")
    missing = missing_for_cuda()
    if cuda is None:
        missing.append("this version of gpustore has no CUDA backend yet")
    if missing:
        raise DeviceError(
            f'device "{text}" cannot be used: {"; ".join(missing)}. Use device="cpu", or '
            f'device="auto" to take a GPU only where there is one'
        )
    return cuda


def missing_for_cuda() -> list[str]:
    """What a GPU would need that is not there, each with the way to get it; imports nothing."""
    missing = []
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        missing.append("no NVIDIA driver was found: install one, or run on a machine with a GPU")
    modules = {"cupy": "cupy", "nvidia.nvcomp": "nvidia-nvcomp"}
    packages = [package for module, package in modules.items() if not registry.is_installed(module)]
    if packages:
        missing.append(
            f"not installed: {', '.join(packages)} (python -m pip install 'gpustore[cuda13]', or "
            f"[cuda12] for a driver of CUDA 12)"
        )
    return missing
