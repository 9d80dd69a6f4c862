"""Cutters of patches on a device, for the loader: imported for stores that are read to one."""

from __future__ import annotations

from gpustore.backends.device.patch_cutter import PatchCutter
from gpustore.front.store import TensorStore


def patch_cutter(store: TensorStore) -> PatchCutter:
    """Return a cutter of patches of arrays on the device that a store is read to."""
    return PatchCutter(store._driver.backend)
