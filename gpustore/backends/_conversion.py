"""Which arrays on a device a kernel converts, and how.

To float16, bfloat16 and float32 it computes the numbers (:func:`.cast_launches`). What elements of
one byte become, of whatever type, is looked up in a table of 256, if both arrays lie alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.conversion import Converter
from gpustore.device import DeviceArray
from gpustore.device_batch import DeviceBatch
from gpustore.device_kernels.launch import cast_launches, has_cast
from gpustore.device_kernels.run import Rows
from gpustore.device_kernels.value import Side, steps_and_words, value_runs

__all__ = ["conversion_of"]

_WORD_NBYTES: Final = 8
"""Longest elements that are looked up."""


def conversion_of(
    source: DeviceArray, target: DeviceArray, convert: Converter
) -> Callable[[DeviceBatch], None] | None:
    """What records the launch that converts all elements; None if no kernel does.

    Parameters
    ----------
    source, target : DeviceArray
        Of one shape, with elements.
    convert : Converter
        What the host does with elements of `source`, each by itself.
    """
    if has_cast(source.dtype, target.dtype):
        rank = max(1, len(source.shape))
        rows = Rows(
            [source.address],
            [target.address],
            np.array(source.shape or (1,), np.int64)[:, None],
            source.strides or (0,) * rank,
            target.strides or (0,) * rank,
        )
        launches = cast_launches(rows, source.dtype, target.dtype)
        return lambda batch: batch.launch_tables(launches)
    if source.dtype.itemsize > 1 or target.dtype.itemsize > _WORD_NBYTES:
        return None
    if not _lie_alike(source, target):
        return None
    found = convert(np.arange(256, dtype=np.uint8).view(source.dtype))
    return partial(_look_up, source, target, found)


def _lie_alike(source: DeviceArray, target: DeviceArray) -> bool:
    """Whether elements follow each other without gaps, in the same order on both sides."""
    steps = [
        (of_source, of_target // target.dtype.itemsize, size)
        for of_source, of_target, size in zip(source.strides, target.strides, source.shape)
        if size > 1
    ]
    next_step = 1
    for of_source, of_target, size in sorted(steps):
        if of_source != next_step or of_target != next_step:
            return False
        next_step *= size
    return True


def _look_up(
    source: DeviceArray, target: DeviceArray, found: NDArray[Any], batch: DeviceBatch
) -> None:
    elements = math.prod(source.shape)
    runs, _, blocks = value_runs([source.address], [target.address], [elements])
    # Parts of complex numbers stay together.
    nbytes = target.dtype.itemsize
    words = found.astype(target.dtype, copy=False).view(f"u{nbytes}")
    steps, table = steps_and_words((), (words, np.ones(256, np.bool_)))
    batch.launch(
        "value",
        "gs::convert_values",
        blocks,
        [
            batch.table(runs),
            np.uint32(len(runs)),
            *Side(1, 1, is_swapped=False).arguments,
            *Side(nbytes, nbytes, is_swapped=False).arguments,
            batch.table(steps),
            np.uint32(len(steps)),
            batch.table(table),
            # Every byte is legal, so nobody reads what the kernel counts there.
            batch.table(np.zeros(1, np.uint32)),
        ],
    )
