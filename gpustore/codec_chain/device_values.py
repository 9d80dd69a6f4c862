"""Steps of codecs of values on a device: conversion of each number by itself.

Kernels report chunks with values that they must not decode: the host decodes those chunks, or
raises the error, so that kernels need no error messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_streams import destinations
from gpustore.device import table as device_table
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.value import (
    Conversion,
    Side,
    number_format,
    steps_and_words,
    value_runs,
)

Table = tuple[NDArray[Any], NDArray[np.bool_]]
"""Value of each byte, shape (256,), and whether the byte is legal, bool of shape (256,)."""


def component(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the parts of complex numbers, other types unchanged.

    >>> component(np.dtype(">c8"))
    dtype('>f4')
    """
    if dtype.kind != "c":
        return dtype
    return np.dtype(f"f{dtype.itemsize // 2}").newbyteorder("=" if dtype.isnative else "S")


def cast_conversions(source: np.dtype[Any], target: np.dtype[Any]) -> list[Conversion] | str:
    """Return the conversions of NumPy's "unsafe" cast, or why no kernel does it.

    Complex numbers lose their imaginary part, or each part is cast by itself. Integers of 4 and 8
    bytes become float16 by way of float32, as in NumPy.
    """
    if source.kind == "c" and target.kind == "b":
        return "complex numbers are converted to bool by the host"
    source, target = component(source), component(target)
    if source.newbyteorder("=") == target.newbyteorder("="):
        return []
    if number_format(source) is None or number_format(target) is None:
        return f"the host converts {source.name} to {target.name}"
    if target == np.float16 and source.kind in "iu" and source.itemsize > 2:
        single = np.dtype(np.float32)
        return [
            Conversion(source, single, beyond="infinity"),
            Conversion(single, target, beyond="infinity"),
        ]
    beyond = "infinity"
    if target.kind in "iu":
        # C leaves floats that do not fit undefined; integers wrap around.
        beyond = "wrap" if source.kind in "iub" else "error"
    rounding = "towards-zero" if target.kind in "iu" else "nearest-even"
    return [Conversion(source, target, rounding, beyond)]


def convert(
    commands: CommandList,
    src: Side,
    dst: Side,
    count: int,
    conversions: Sequence[Conversion],
    table: Table | None,
    name: str,
) -> None:
    """Record the conversion of all values, to `count` elements each, by one launch."""
    if not len(commands):
        return
    into = destinations(commands, np.full(len(commands), count * dst.stride, np.int64))
    runs, each, blocks = value_runs(
        commands.values.address, into.address, np.full(len(commands), count)
    )
    counts = commands.confirmations(each, f"{name}: an element is not decoded on a device")
    launch_conversions(commands, runs, blocks, (src, dst), conversions, table, counts)
    commands.values, commands.encoded = into, None


def launch_conversions(
    commands: CommandList,
    runs: NDArray[np.void],
    blocks: int,
    sides: tuple[Side, Side],
    conversions: Sequence[Conversion],
    table: Table | None,
    counts: device_table.Result | device_table.Table,
) -> None:
    """Record one launch that converts the numbers of runs.

    Parameters
    ----------
    runs, blocks
        Descriptors of :func:`~gpustore.device.kernels.value.value_runs`, and their thread blocks.
    sides : tuple of Side
        Layout of the elements before and after the conversion.
    conversions : sequence of Conversion
        Steps in their order.
    table : tuple of ndarray of length 256, optional
        Value of each byte, and whether the byte is legal: a step before all others.
    counts : Result or Table
        One uint32 for each run, to which blocks add 1 if all their elements are converted.
    """
    steps, words = steps_and_words(conversions, table)
    commands.launch(
        "value",
        "gs::convert_values",
        blocks,
        [
            commands.table(runs),
            np.uint32(len(runs)),
            *sides[0].arguments,
            *sides[1].arguments,
            commands.table(steps),
            np.uint32(len(steps)),
            commands.table(words),
            counts,
        ],
    )


def sum_values(
    commands: CommandList, dtype: np.dtype[Any], count: int, components: int, name: str
) -> None:
    """Record that `count` numbers of each value become their running sums, by one launch.

    Each of the `components` interleaved numbers of an element is summed by itself.
    """
    into = destinations(commands, commands.values.nbytes.astype(np.int64))
    runs, each, blocks = value_runs(
        commands.values.address,
        into.address,
        np.full(len(commands), count),
        blocks_each=components,
    )
    kind, bits, mantissa, bias = number_format(dtype) or (0, 0, 0, 0)
    side = Side.of(dtype)
    commands.launch(
        "value",
        "gs::sum_values",
        blocks,
        [
            commands.table(runs),
            np.uint32(len(runs)),
            np.uint32(side.nbytes),
            np.uint32(side.is_swapped),
            np.uint32(components),
            *map(np.uint32, (kind, bits, mantissa, bias)),
            commands.confirmations(each, f"{name}: a sum that is no number"),
        ],
    )
    commands.values, commands.encoded = into, None
