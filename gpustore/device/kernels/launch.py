"""Launches that copy, convert and fill rectangles of elements, for any number of rectangles.

The rows of a whole plan window (:mod:`gpustore.device.kernels.run`) become launches whose number
does not depend on the number of rows: all rows for one kernel instance are one launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.device.kernels.descriptor import (
    ITEMS_PER_TILE,
    KernelLaunch,
    division,
    first_tiles,
    run_dtype,
)
from gpustore.device.kernels.instance import CAST_TARGETS, CASTS, WIDTHS, rank_for
from gpustore.device.kernels.run import (
    MAX_WIDTH,
    Integers,
    Rows,
    Runs,
    cut,
    inserted,
    merged,
    ordered,
    packed,
    reversed_bytes,
    widths,
)
from gpustore.device.kernels.template import templated

_WIDTHS_DOWN = (16, 8, 4, 2, 1)
TILED_EXTENT = 8
"""Number of neighbours below which a tile is not worth while; not measured."""


def copy_launches(rows: Rows, itemsize: int, *, unit: int = 1) -> list[KernelLaunch]:
    """Return launches that copy all elements of all rows.

    Parameters
    ----------
    rows : Rows
        Rectangles in device memory. No byte of dst belongs to two elements, and none to src.
    itemsize : int
        Bytes of an element.
    unit : int
        Size of the units of an element whose bytes are reversed: 2, 4 or 8, and `itemsize` a
        multiple of it. 1 copies bytes unchanged.

    Raises
    ------
    ValueError
        If elements of dst overlap (a stride of 0), or `itemsize` is no multiple of `unit`.
    LimitError
        If a launch would have 2**31 blocks or more.
    """
    _check_unit(itemsize, unit)
    meaning = "copy", itemsize, unit
    return templated(rows, lambda some: _copy_launches(some, itemsize, unit), meaning)


def _copy_launches(rows: Rows, itemsize: int, unit: int) -> list[KernelLaunch]:
    launches = []
    for size, swapped, _, part in _by_width(merged(ordered(rows), itemsize), unit, 0):
        part = packed(cut(part))
        tiled = _is_tiled(part, size, size)
        arguments = (np.uint32(swapped),)
        if tiled.any():
            launches.append(
                _launch("copy", "copy_tiled", WIDTHS[size], part.take(tiled), arguments, tile=size)
            )
        if not tiled.all():
            launches.append(
                _launch("copy", "copy_strided", WIDTHS[size], part.take(~tiled), arguments)
            )
    return launches


def _check_unit(itemsize: int, unit: int) -> None:
    if unit not in (1, 2, 4, 8) or itemsize % unit:
        raise ValueError(f"elements of {itemsize} bytes cannot be swapped by {unit} bytes")


def _by_width(
    runs: Runs, unit: int, common: int
) -> Iterator[tuple[int, int, NDArray[np.bool_], Runs]]:
    """Yield width of items, unit left to swap, mask and runs of the rows of each width.

    `common` is the bitwise or of all further offsets.
    """
    width = widths(runs, common)
    width[width < unit] = 1
    for size in _WIDTHS_DOWN:
        chosen = width == size
        if not chosen.any():
            continue
        part = runs.take(chosen)
        if size < unit:
            yield size, 1, chosen, reversed_bytes(part, unit)
            continue
        part.extent[0] //= size
        part.src_stride[0] = part.dst_stride[0] = size
        yield size, unit, chosen, part


def cast_launches(
    rows: Rows, src_dtype: np.dtype[Any], dst_dtype: np.dtype[Any]
) -> list[KernelLaunch]:
    """Return launches that convert all elements of all rows, as ``astype`` of NumPy and ml_dtypes.

    Parameters
    ----------
    rows : Rows
        Rectangles in device memory.
    src_dtype : dtype
        Boolean, integer or float type, in any byte order.
    dst_dtype : dtype
        float16, bfloat16 or float32, not the type of `src_dtype`.

    Raises
    ------
    ValueError
        If there is no such kernel, or elements of dst overlap (a stride of 0).
    """
    if not has_cast(src_dtype, dst_dtype):
        raise ValueError(f"no kernel casts {src_dtype} to {dst_dtype}")
    source, target = CASTS[_type_text(src_dtype)], CASTS[_type_text(dst_dtype)]
    sizes = src_dtype.itemsize, dst_dtype.itemsize
    unit = np.uint32(1 if src_dtype.isnative else src_dtype.itemsize)
    meaning = "cast", source, target, int(unit)
    return templated(rows, lambda some: _cast_launches(some, source, target, sizes, unit), meaning)


def has_cast(src_dtype: np.dtype[Any], dst_dtype: np.dtype[Any]) -> bool:
    """Whether :func:`cast_launches` converts between these types."""
    source, target = CASTS.get(_type_text(src_dtype)), CASTS.get(_type_text(dst_dtype))
    return source is not None and target in CAST_TARGETS and source != target


def _cast_launches(
    rows: Rows, source: str, target: str, sizes: tuple[int, int], unit: np.uint32
) -> list[KernelLaunch]:
    # Elements are whole items, so the innermost dimension has one item.
    runs = merged(ordered(rows), 1, sizes)
    n = len(runs.src)
    src_bits, dst_bits = runs.src.copy(), runs.dst.copy()
    for k in range(1, len(runs.extent)):
        src_bits |= runs.src_stride[k]
        dst_bits |= runs.dst_stride[k]
    bytewise = (src_bits % sizes[0] != 0) | (dst_bits % sizes[1] != 0)
    four = np.arange(n) >= 0
    for bits, size in ((src_bits, sizes[0]), (dst_bits, sizes[1])):
        four &= bits % min(4 * size, MAX_WIDTH) == 0
    four &= runs.extent[0] % 4 == 0
    launches = []
    for neighbours, unaligned, chosen in (
        (4, 0, four),
        (1, 0, ~four & ~bytewise),
        (1, 1, bytewise),
    ):
        if not chosen.any():
            continue
        part = runs.take(chosen)
        part.extent[0] //= neighbours
        part.src_stride[0] *= neighbours
        part.dst_stride[0] *= neighbours
        part = packed(cut(part))
        types = f"{source}, {target}"
        tiled = _is_tiled(part, *sizes) & (neighbours == 1) & (not unaligned)
        if tiled.any():
            launches.append(
                _launch("cast", "cast_tiled", types, part.take(tiled), (unit,), tile=sizes[1])
            )
        if not tiled.all():
            arguments = (unit, np.uint32(unaligned))
            types = f"{types}, {neighbours}"
            launches.append(_launch("cast", "cast_strided", types, part.take(~tiled), arguments))
    return launches


def _type_text(dtype: np.dtype[Any]) -> str:
    native = dtype.newbyteorder("=")
    return native.str if native.str in CASTS else native.name


@dataclass(frozen=True, slots=True)
class Listed:
    """Dimension whose elements are listed one by one, as by an index array.

    Attributes
    ----------
    count : integers, shape (n,)
        Number of elements of each row.
    src, dst : list of ndarray of int64, length n
        Byte offsets of the elements of each row; `src` None stands for one element for all.
    """

    count: ArrayLike
    src: list[Integers] | None
    dst: list[Integers]


def indexed_launches(
    rows: Rows, listed: Sequence[Listed], itemsize: int, *, unit: int = 1
) -> list[KernelLaunch]:
    """Return launches that copy elements of rows with listed dimensions.

    Parameters
    ----------
    rows : Rows
        Strided dimensions in device memory; the offset of an element is the sum of its strided
        offsets and its listed ones.
    listed : sequence of Listed, length at least 1
        Listed dimensions.
    itemsize, unit : int
        Bytes of an element and of a byte-swapped unit; see :func:`copy_launches`.

    Raises
    ------
    ValueError
        If `unit` is illegal; see :func:`copy_launches`.
    """
    _check_unit(itemsize, unit)
    runs = merged(ordered(rows), itemsize)
    n = len(runs.src)
    counts = [np.asarray(part.count, np.int64) for part in listed]
    if not all(len(count) == n and (count > 0).all() for count in counts):
        raise ValueError("a row without elements")
    offsets: list[Integers] = []
    length = 0
    dims: list[tuple[Integers, Integers, Integers, int]] = []
    for each, count in zip(listed, counts):
        places = [np.zeros(n, np.int64)] * 2
        for side, lists in enumerate((each.src, each.dst)):
            if lists is not None:
                places[side] = np.cumsum(count) - count + length
                offsets.extend(lists)
                length += int(count.sum())
        dims.append((count, places[0], places[1], 2 if each.src is None else 3))
    table = np.concatenate([*offsets, np.zeros(0, np.int64)]).astype(np.int64, copy=False)
    common = int(np.bitwise_or.reduce(table))
    step = min(map(_step, listed))
    launches = []
    for size, swapped, chosen, part in _by_width(runs, unit, common):
        inside = (part.extent > 1) & (part.dst_stride < step)
        at = int(inside.sum(axis=0).max())
        for number, (count, src, dst, sides) in enumerate(dims):
            part = inserted(part, at + number, count[chosen], src[chosen], dst[chosen], sides)
        part = packed(cut(part))
        launches.append(
            _launch("copy", "copy_indexed", WIDTHS[size], part, (np.uint32(swapped),), table)
        )
    return launches


def _step(part: Listed) -> int:
    """Return an estimate of the distance of neighbours in dst, in bytes."""
    for offsets in part.dst:
        if len(offsets) > 1:
            return abs(int(offsets[1] - offsets[0]))
    return 1 << 62


def fill_launches(
    dst: ArrayLike, count: ArrayLike, dst_stride: ArrayLike, pattern: bytes
) -> list[KernelLaunch]:
    """Return launches that write `pattern` to all elements of all rows.

    Parameters
    ----------
    dst, count, dst_stride
        Destinations in device memory, as in :class:`Rows`.
    pattern : bytes
        One element, whose :func:`repeated` part has 1, 2, 4, 8 or 16 bytes. (Other elements are
        copied from device memory with a src stride of 0.)

    Raises
    ------
    ValueError
        If the repeated part has another size, or elements overlap (a stride of 0).
    """
    part_nbytes = repeated(pattern)
    if part_nbytes not in WIDTHS:
        raise ValueError(f"a pattern of {part_nbytes} bytes cannot be filled in")
    # Source and destination have the same layout, so both merge and widen alike.
    rows = Rows(dst, dst, count, dst_stride, dst_stride)
    meaning = "fill", pattern
    return templated(rows, lambda some: _fill_launches(some, pattern, part_nbytes), meaning)


def _fill_launches(rows: Rows, pattern: bytes, part_nbytes: int) -> list[KernelLaunch]:
    runs = merged(ordered(rows), len(pattern))
    width = widths(runs, 0)
    launches = []
    for size in _WIDTHS_DOWN:
        chosen = width == size
        if not chosen.any():
            continue
        # Items are narrower than the pattern: one launch for each position in the pattern.
        step = max(size, part_nbytes)
        for place in range(0, step, size):
            part = runs.take(chosen)
            part.dst += place
            part.extent[0] //= step
            part.src_stride[0] = part.dst_stride[0] = step
            item = np.frombuffer((pattern * MAX_WIDTH)[place : place + size], np.uint8)
            launches.append(
                _launch("fill", "fill_strided", WIDTHS[size], packed(cut(part)), (item,))
            )
    return launches


def repeated(pattern: bytes) -> int:
    """Return the size in bytes of the shortest beginning that `pattern` repeats.

    >>> repeated(bytes(12)), repeated(b"abab"), repeated(b"abc")
    (1, 2, 3)
    """
    return (pattern + pattern).index(pattern, 1)


def _is_tiled(runs: Runs, src_size: int, dst_size: int) -> NDArray[np.bool_]:
    """Return a mask of rows whose neighbours in dst are far apart in src, but near across.

    The dimension of the near ones becomes the second one of `runs`. `src_size` and `dst_size` are
    the bytes of an item.
    """
    rank, n = runs.extent.shape
    if rank < 2:
        return np.zeros(n, np.bool_)
    apart = np.where(runs.extent < TILED_EXTENT, np.iinfo(np.int64).max, np.abs(runs.src_stride))
    nearest = np.argmin(apart, axis=0)
    every = np.arange(n)
    tiled: NDArray[np.bool_] = (
        (nearest > 0) & (runs.extent[0] >= TILED_EXTENT) & (runs.dst_stride[0] == dst_size)
    )
    tiled &= apart[nearest, every] == src_size
    chosen = every[tiled]
    other = nearest[tiled], chosen
    for column in (runs.extent, runs.src_stride, runs.dst_stride):
        column[1, chosen], column[other] = column[other], column[1, chosen]
    return tiled


def _launch(
    family: str,
    kernel: str,
    types: str,
    runs: Runs,
    arguments: tuple[np.generic | NDArray[np.uint8], ...],
    offsets: Integers | None = None,
    *,
    tile: int = 0,
) -> KernelLaunch:
    """Return the launch of runs; `tile` is the item size of tiled kernels in bytes, else 0."""
    used, n = runs.extent.shape
    side = 64 if tile <= 2 else 32
    rank = rank_for(kernel, used)
    table = np.zeros(n, run_dtype(rank))
    table["src"], table["dst"] = runs.src, runs.dst
    table["items"], table["row"] = runs.items(), runs.row
    dim = table["dim"]
    dim["extent"] = 1
    tiles = np.ones(n, np.int64)
    for k in range(used):
        column = dim[:, rank - 1 - k]
        extent = runs.extent[k]
        steps = -(-extent // side) if tile and k < 2 else extent
        tiles *= steps
        column["extent"] = extent
        column["magic"], column["shift"] = division(steps)
        column["indexed"] = runs.indexed[k]
        column["src_stride"], column["dst_stride"] = runs.src_stride[k], runs.dst_stride[k]
    if not tile:
        tiles = -(-tiles // ITEMS_PER_TILE)
    table["first_tile"], blocks = first_tiles(tiles)
    expression = f"gs::{kernel}<{types}, {rank}>"
    return KernelLaunch(family, expression, blocks, table, arguments, offsets)
