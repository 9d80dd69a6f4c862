"""Conversions of arrays on a device by kernels.

To float16, bfloat16 and float32 it computes the numbers wherever they lie (:func:`.cast_launches`).
If both arrays lie alike, what elements of one byte become, of whatever type, is looked up in a
table of 256, and integers, ``bool``, float64 and complex numbers are computed, as
:mod:`gpustore.data_types.conversion` has it, by the kernel that decodes codecs of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_values import launch_conversions
from gpustore.data_types.conversion import Converter
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.launch import cast_launches, has_cast
from gpustore.device.kernels.run import Rows
from gpustore.device.kernels.value import (
    NARROW,
    Conversion,
    Side,
    number_format,
    value_runs,
)
from gpustore.device.protocol import DeviceArray

_WORD_NBYTES: Final = 8
"""Longest elements that a table holds, in bytes."""


def conversion_of(
    source: DeviceArray, target: DeviceArray, convert: Converter
) -> Callable[[CommandList], None] | None:
    """Return the function that records the launch of a conversion; None if no kernel does it.

    Parameters
    ----------
    source, target : DeviceArray
        Arrays on the device, of the same shape and not empty.
    convert : Converter
        Elementwise conversion of `source` on the host.
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
        return lambda commands: commands.launch_tables(launches)
    if not _lie_alike(source, target):
        return None
    if source.dtype.itemsize == 1 and target.dtype.itemsize <= _WORD_NBYTES:
        found = convert(np.arange(256, dtype=np.uint8).view(source.dtype))
        # Parts of complex numbers stay together.
        nbytes = target.dtype.itemsize
        words = found.astype(target.dtype, copy=False).view(f"u{nbytes}")
        sides = Side(1, 1, is_swapped=False), Side(nbytes, nbytes, is_swapped=False)
        table = (words, np.ones(256, np.bool_))
        return partial(_convert, source, target, sides, (), table)
    conversions = _conversions(_real(source.dtype), _real(target.dtype))
    if conversions is None:
        return None
    if source.dtype.kind == target.dtype.kind == "c":
        sides = Side.of(_real(source.dtype)), Side.of(_real(target.dtype))
    else:
        sides = Side.of(source.dtype), Side.of(target.dtype)
    return partial(_convert, source, target, sides, conversions, None)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type of the parts of complex numbers, and any other type unchanged."""
    return np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _conversions(source: np.dtype[Any], target: np.dtype[Any]) -> tuple[Conversion, ...] | None:
    """Return the conversion of each number; None if the kernel lacks one of the types."""
    if number_format(source) is None or number_format(target) is None:
        return None
    if not np.issubdtype(target, np.integer) and target.name not in NARROW:
        # What becomes bfloat16 goes through float32, as everywhere.
        by = np.dtype(np.float32) if target.name == "bfloat16" else source
        wide = () if by == source else (Conversion(source, by, beyond="infinity"),)
        return *wide, Conversion(by, target, beyond="infinity")
    if source.kind in "iub" or source.name in NARROW:
        return (Conversion(source, target, beyond="wrap"),)
    if target == np.uint64:
        return (Conversion(source, target, "towards-zero", "least"),)
    by = np.dtype(np.int64 if target in (np.int64, np.uint32) else np.int32)
    signed = Conversion(source, by, "towards-zero", "least")
    return signed, Conversion(by, target, beyond="wrap")


def _lie_alike(source: DeviceArray, target: DeviceArray) -> bool:
    """Whether elements follow each other without gaps, in the same order on both sides."""
    steps = [
        (of_source / source.dtype.itemsize, of_target / target.dtype.itemsize, size)
        for of_source, of_target, size in zip(source.strides, target.strides, source.shape)
        if size > 1
    ]
    next_step = 1
    for of_source, of_target, size in sorted(steps):
        if of_source != next_step or of_target != next_step:
            return False
        next_step *= size
    return True


def _convert(
    source: DeviceArray,
    target: DeviceArray,
    sides: tuple[Side, Side],
    conversions: Sequence[Conversion],
    table: tuple[NDArray[Any], NDArray[np.bool_]] | None,
    commands: CommandList,
) -> None:
    # Both parts of complex numbers that become complex ones are numbers by themselves.
    elements = math.prod(source.shape) * (source.dtype.itemsize // sides[0].stride)
    runs, _, blocks = value_runs([source.address], [target.address], [elements])
    # All elements are converted, so the count that the kernel writes is not read.
    count = commands.table(np.zeros(1, np.uint32))
    launch_conversions(commands, runs, blocks, sides, conversions, table, count)
