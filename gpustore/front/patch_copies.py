"""Copies of patches in host memory, for the loader."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.host.boxes import copy_boxes
from gpustore.front.store import TensorStore


def copy_patches(
    store: TensorStore,
    region: NDArray[Any],
    starts: NDArray[np.int64],
    out: NDArray[Any],
    rows: NDArray[np.int64],
) -> None:
    """Copy patches of a region of a store, with its threads; see :func:`copy_boxes`."""
    copy_boxes(region, starts, out, rows, store._driver.executor)
