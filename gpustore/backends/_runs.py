"""Copies and fills of strided places, brought into the few forms that kernels know.

A row is one rectangle of elements: where it starts in two memories, how many elements each
dimension has, how far they are apart. :func:`copy_launches` turns the rows of a whole plan window
into launches whose number does not depend on the number of rows. All steps work on columns:

1. Dimensions with negative strides in dst are turned round, then sorted by their distance in
   dst, the nearest last. The bytes of an element are the innermost dimension.
2. For each row, dimensions of extent 1 are dropped, and what follows itself without a gap on
   both sides is merged. Order, fields, steps and edges have vanished after this.
3. The widest item of 1 to 16 bytes is chosen that divides the innermost run, all distances and
   both addresses. Where elements whose bytes are swapped do not lie so, bytes are copied one by
   one, backwards.
4. Rows of 2**31 items or more are cut.
5. Rows that the same kernel instance can do are one launch.

Nothing here knows a device: addresses are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.backends import _kernels
from gpustore.backends._descriptor import (
    ITEMS_PER_TILE,
    MAX_ITEMS,
    KernelLaunch,
    division,
    first_tiles,
    run_dtype,
)
from gpustore.backends._kernels import WIDTHS

__all__ = [
    "Listed",
    "Rows",
    "cast_launches",
    "copy_launches",
    "fill_launches",
    "indexed_launches",
    "repeated",
]

Integers = NDArray[np.int64]

_MAX_WIDTH = 16
_LEAST_ALIKE = 64
"""Fewer rows are planned one by one."""

_WIDTHS_DOWN = (16, 8, 4, 2, 1)
_TILED_EXTENT = 8
"""Fewer neighbours than this are not worth a tile; not measured."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rectangles of elements in two memories.

    Attributes
    ----------
    src, dst : integers, shape (n,)
        Address of the element of index zero of each row, in bytes.
    count : integers, shape (rank, n)
        Elements of each row along each dimension. Rows without elements are left out.
    src_stride, dst_stride : integers, shape (rank,) or (rank, n)
        Bytes between neighbours. A src stride may be 0, a dst stride only along one element.
    """

    src: ArrayLike
    dst: ArrayLike
    count: ArrayLike
    src_stride: ArrayLike
    dst_stride: ArrayLike


@dataclass(slots=True)
class _Runs:
    """Rows on their way; axis 0 of what has two counts dimensions, the innermost first."""

    src: Integers
    dst: Integers
    extent: Integers
    src_stride: Integers
    dst_stride: Integers
    indexed: Integers
    row: Integers

    def take(self, rows: NDArray[Any]) -> _Runs:
        return _Runs(
            self.src[rows],
            self.dst[rows],
            self.extent[:, rows],
            self.src_stride[:, rows],
            self.dst_stride[:, rows],
            self.indexed[:, rows],
            self.row[rows],
        )

    def items(self) -> Integers:
        # Exact below 2**53, and what is larger is cut until it is not.
        product: NDArray[np.float64] = np.prod(self.extent.astype(np.float64), axis=0)
        items: Integers = np.minimum(product, 2.0**62).astype(np.int64)
        return items


def copy_launches(rows: Rows, itemsize: int, *, unit: int = 1) -> list[KernelLaunch]:
    """Launches that copy all elements of all rows.

    Parameters
    ----------
    rows : Rows
        No byte of dst belongs to two elements, and none to src.
    itemsize : int
        Bytes of an element.
    unit : int
        Bytes whose order is reversed, each unit of an element by itself: 2, 4 or 8, and
        `itemsize` a multiple of it. 1: bytes are copied as they are.

    Raises
    ------
    ValueError
        If elements of dst lie on each other (a stride of 0), or `unit` does not fit.
    LimitError
        If a launch would have 2**31 blocks or more.
    """
    _check_unit(itemsize, unit)
    return _by_class(rows, lambda some: _copy_launches(some, itemsize, unit))


def _copy_launches(rows: Rows, itemsize: int, unit: int) -> list[KernelLaunch]:
    launches = []
    for size, swapped, _, part in _by_width(_merged(_columns(rows), itemsize), unit, 0):
        part = _packed(_cut(part))
        tiled = _is_tiled(part, size)
        for kernel, mask in (("copy_tiled", tiled), ("copy_strided", ~tiled)):
            if mask.any():
                launches.append(
                    _launch("copy", kernel, WIDTHS[size], part.take(mask), (np.uint32(swapped),))
                )
    return launches


def _check_unit(itemsize: int, unit: int) -> None:
    if unit not in (1, 2, 4, 8) or itemsize % unit:
        raise ValueError(f"elements of {itemsize} bytes cannot be swapped by {unit} bytes")


def _by_width(
    runs: _Runs, unit: int, common: int
) -> Iterator[tuple[int, int, NDArray[np.bool_], _Runs]]:
    """Rows that are copied by items of one width: it, the unit left to swap, which rows, they.

    `common` has the bits of all further offsets.
    """
    width = _width(runs, common)
    width[width < unit] = 1
    for size in _WIDTHS_DOWN:
        chosen = width == size
        if not chosen.any():
            continue
        part = runs.take(chosen)
        if size < unit:
            yield size, 1, chosen, _reversed_bytes(part, unit)
            continue
        part.extent[0] //= size
        part.src_stride[0] = part.dst_stride[0] = size
        yield size, unit, chosen, part


def cast_launches(
    rows: Rows, src_dtype: np.dtype[Any], dst_dtype: np.dtype[Any]
) -> list[KernelLaunch]:
    """Launches that convert all elements of all rows, as NumPy's and ml_dtypes' ``astype`` do.

    Parameters
    ----------
    rows : Rows
    src_dtype : dtype
        Boolean, integer or float, in any byte order.
    dst_dtype : dtype
        float16, bfloat16 or float32, not the type of `src_dtype`.

    Raises
    ------
    ValueError
        If there is no such kernel, or elements of dst lie on each other (a stride of 0).
    """
    source = _kernels.CASTS.get(_type_text(src_dtype))
    target = _kernels.CASTS.get(_type_text(dst_dtype))
    if source is None or target not in _kernels.CAST_TARGETS or source == target:
        raise ValueError(f"no kernel casts {src_dtype} to {dst_dtype}")
    sizes = src_dtype.itemsize, dst_dtype.itemsize
    unit = np.uint32(1 if src_dtype.isnative else src_dtype.itemsize)
    return _by_class(rows, lambda some: _cast_launches(some, source, target, sizes, unit))


def _cast_launches(
    rows: Rows, source: str, target: str, sizes: tuple[int, int], unit: np.uint32
) -> list[KernelLaunch]:
    # Elements are whole items: the innermost dimension is of one.
    runs = _merged(_columns(rows), 1, sizes)
    n = len(runs.src)
    src_bits, dst_bits = runs.src.copy(), runs.dst.copy()
    for k in range(1, len(runs.extent)):
        src_bits |= runs.src_stride[k]
        dst_bits |= runs.dst_stride[k]
    bytewise = (src_bits % sizes[0] != 0) | (dst_bits % sizes[1] != 0)
    four = np.arange(n) >= 0
    for bits, size in ((src_bits, sizes[0]), (dst_bits, sizes[1])):
        four &= bits % min(4 * size, _MAX_WIDTH) == 0
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
        launches.append(
            _launch(
                "cast",
                "cast_strided",
                f"{source}, {target}, {neighbours}",
                _packed(_cut(part)),
                (unit, np.uint32(unaligned)),
            )
        )
    return launches


def _type_text(dtype: np.dtype[Any]) -> str:
    native = dtype.newbyteorder("=")
    return native.str if native.str in _kernels.CASTS else native.name


@dataclass(frozen=True, slots=True)
class Listed:
    """A dimension whose elements are listed one by one.

    Attributes
    ----------
    count : integers, shape (n,)
        Elements of each row.
    src, dst : list of ndarray of int64, length n
        Byte offsets of the elements of each row; None for src: the same element for all.
    """

    count: ArrayLike
    src: list[Integers] | None
    dst: list[Integers]


def indexed_launches(
    rows: Rows, listed: Sequence[Listed], itemsize: int, *, unit: int = 1
) -> list[KernelLaunch]:
    """Launches that copy elements of which some dimensions are listed, as index arrays do.

    Parameters
    ----------
    rows : Rows
        The strided dimensions; the elements are all sums of their offsets and the listed ones.
    listed : sequence of Listed
        At least one.
    itemsize, unit : int
        As in :func:`copy_launches`.

    Raises
    ------
    ValueError
        As in :func:`copy_launches`.
    """
    _check_unit(itemsize, unit)
    runs = _merged(_columns(rows), itemsize)
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
            part = _inserted(part, at + number, count[chosen], src[chosen], dst[chosen], sides)
        part = _packed(_cut(part))
        launches.append(
            _launch("copy", "copy_indexed", WIDTHS[size], part, (np.uint32(swapped),), table)
        )
    return launches


def fill_launches(
    dst: ArrayLike, count: ArrayLike, dst_stride: ArrayLike, pattern: bytes
) -> list[KernelLaunch]:
    """Launches that write `pattern` to all elements of all rows.

    Parameters
    ----------
    dst, count, dst_stride
        As in :class:`Rows`.
    pattern : bytes
        One element. Its :func:`repeated` part has 1, 2, 4, 8 or 16 bytes; others are copied from
        device memory with a src stride of 0.

    Raises
    ------
    ValueError
        If `pattern` is another, or elements lie on each other (a stride of 0).
    """
    part_nbytes = repeated(pattern)
    if part_nbytes not in WIDTHS:
        raise ValueError(f"a pattern of {part_nbytes} bytes cannot be filled in")
    # What is written lies like what is read, so it merges and widens alike.
    rows = Rows(dst, dst, count, dst_stride, dst_stride)
    return _by_class(rows, lambda some: _fill_launches(some, pattern, part_nbytes))


def _fill_launches(rows: Rows, pattern: bytes, part_nbytes: int) -> list[KernelLaunch]:
    runs = _merged(_columns(rows), len(pattern))
    width = _width(runs, 0)
    launches = []
    for size in _WIDTHS_DOWN:
        chosen = width == size
        if not chosen.any():
            continue
        # Narrower items than the pattern: one launch for each place in the pattern.
        step = max(size, part_nbytes)
        for place in range(0, step, size):
            part = runs.take(chosen)
            part.dst += place
            part.extent[0] //= step
            part.src_stride[0] = part.dst_stride[0] = step
            item = np.frombuffer((pattern * _MAX_WIDTH)[place : place + size], np.uint8)
            launches.append(
                _launch("fill", "fill_strided", WIDTHS[size], _packed(_cut(part)), (item,))
            )
    return launches


def repeated(pattern: bytes) -> int:
    """Bytes of the shortest beginning that `pattern` repeats.

    >>> repeated(bytes(12)), repeated(b"abab"), repeated(b"abc")
    (1, 2, 3)
    """
    return (pattern + pattern).index(pattern, 1)


def _by_class(rows: Rows, plan: Callable[[Rows], list[KernelLaunch]]) -> list[KernelLaunch]:
    """Plan one row of each kind and repeat its descriptors: most chunks of a window are alike.

    Rows of the same counts, whose addresses lie alike between multiples of 16, differ by nothing
    but their addresses.
    """
    count = np.asarray(rows.count, np.int64)
    src, dst = (np.asarray(column, np.uint64) for column in (rows.src, rows.dst))
    uniform = np.ndim(rows.src_stride) == np.ndim(rows.dst_stride) == 1
    if len(src) < _LEAST_ALIKE or not uniform:
        return plan(rows)
    key = ((src % _MAX_WIDTH) * _MAX_WIDTH + dst % _MAX_WIDTH).astype(np.int64)
    largest = _MAX_WIDTH**2
    for column in count:
        base = int(column.max()) + 1
        largest *= base
        if largest > 1 << 62:
            return plan(rows)
        key = key * base + column
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    if len(first) > len(src) // 2:
        return plan(rows)
    launches = plan(Rows(src[first], dst[first], count[:, first], rows.src_stride, rows.dst_stride))
    if any(len(np.unique(launch.table["row"])) < len(launch.table) for launch in launches):
        return plan(rows)  # Rows were cut.
    return [
        _repeated(launch, kind, src - src[first][kind], dst - dst[first][kind], len(first))
        for launch in launches
    ]


def _repeated(
    launch: KernelLaunch,
    kind: NDArray[np.intp],
    src: NDArray[np.uint64],
    dst: NDArray[np.uint64],
    kinds: int,
) -> KernelLaunch:
    """A launch of kinds of rows as one of all rows; `src` and `dst` are how far they are moved."""
    place = np.full(kinds, -1)
    place[launch.table["row"]] = np.arange(len(launch.table))
    tiles = np.diff(launch.table["first_tile"], append=np.uint32(launch.blocks)).astype(np.int64)
    of_row = place[kind]
    chosen = np.flatnonzero(of_row >= 0)
    of_row = of_row[chosen]
    table = launch.table[of_row]
    table["src"] += src[chosen]
    table["dst"] += dst[chosen]
    table["row"] = chosen
    table["first_tile"], blocks = first_tiles(tiles[of_row])
    return replace(launch, table=table, blocks=blocks)


def _columns(rows: Rows) -> _Runs:
    """Columns of the rows that have elements, no dst stride negative, dimensions sorted."""
    src = np.array(rows.src, np.uint64).astype(np.int64)
    dst = np.array(rows.dst, np.uint64).astype(np.int64)
    count = np.asarray(rows.count, np.int64)
    count = count.reshape(len(count), len(src))

    def strides(given: ArrayLike) -> Integers:
        column = np.asarray(given, np.int64)
        return np.broadcast_to(column.reshape(len(count), -1 if len(count) else 1), count.shape)

    src_stride, dst_stride = strides(rows.src_stride), strides(rows.dst_stride)
    row = np.arange(len(src))
    some = (count > 0).all(axis=0)
    if not some.all():
        src, dst, count, row = src[some], dst[some], count[:, some], row[some]
        src_stride, dst_stride = src_stride[:, some], dst_stride[:, some]
    if ((dst_stride == 0) & (count > 1)).any():
        raise ValueError("elements of the destination lie on each other: a stride is 0")
    back = dst_stride < 0
    src += np.where(back, src_stride * (count - 1), 0).sum(axis=0)
    dst += np.where(back, dst_stride * (count - 1), 0).sum(axis=0)
    src_stride, dst_stride = (
        np.where(back, -src_stride, src_stride),
        np.where(back, -dst_stride, dst_stride),
    )
    uniform = np.ndim(rows.src_stride) == np.ndim(rows.dst_stride) == 1
    head = slice(0, 1) if uniform else slice(None)
    order = np.lexsort((np.abs(src_stride[:, head]), dst_stride[:, head]), axis=0)
    if uniform and order.size:
        at = order[:, 0]
        count, src_stride, dst_stride = count[at], src_stride[at], dst_stride[at]
    elif order.size:
        count, src_stride, dst_stride = (
            np.take_along_axis(column, order, 0) for column in (count, src_stride, dst_stride)
        )
    return _Runs(src, dst, count, src_stride, dst_stride, np.zeros_like(count), row)


def _merged(runs: _Runs, inner: int, strides: tuple[int, int] = (1, 1)) -> _Runs:
    """As few dimensions as each row needs; the innermost begins with `inner` bytes or elements."""
    rank, n = runs.extent.shape
    extent = np.ones((rank + 1, n), np.int64)
    src_stride = np.zeros((rank + 1, n), np.int64)
    dst_stride = np.zeros((rank + 1, n), np.int64)
    extent[0], src_stride[0], dst_stride[0] = inner, *strides
    last = np.zeros(n, np.int64)
    every = np.arange(n)
    for k in range(rank):
        more = runs.extent[k] > 1
        reach = extent[last, every]
        follows = more & (src_stride[last, every] * reach == runs.src_stride[k])
        follows &= dst_stride[last, every] * reach == runs.dst_stride[k]
        last += more & ~follows
        kept = every[more]
        to = last[more]
        extent[to, kept] *= runs.extent[k][more]
        new = more & ~follows
        src_stride[last[new], every[new]] = runs.src_stride[k][new]
        dst_stride[last[new], every[new]] = runs.dst_stride[k][new]
    top = int(last.max(initial=0)) + 1
    return _Runs(
        runs.src,
        runs.dst,
        extent[:top],
        src_stride[:top],
        dst_stride[:top],
        np.zeros((top, n), np.int64),
        runs.row,
    )


def _width(runs: _Runs, common: int) -> Integers:
    """Bytes of the widest item that all distances of a row are multiples of."""
    every = runs.extent[0] | runs.src | runs.dst | _MAX_WIDTH | common
    for k in range(1, len(runs.extent)):
        every |= runs.src_stride[k] | runs.dst_stride[k]
    lowest_bit: Integers = every & -every
    return lowest_bit


def _reversed_bytes(runs: _Runs, unit: int) -> _Runs:
    """Each unit of the innermost dimension as single bytes, read backwards."""
    inner = np.ones_like(runs.extent[:1])
    return _Runs(
        runs.src + unit - 1,
        runs.dst,
        np.concatenate((inner * unit, runs.extent[:1] // unit, runs.extent[1:])),
        np.concatenate((-inner, inner * unit, runs.src_stride[1:])),
        np.concatenate((inner, inner * unit, runs.dst_stride[1:])),
        np.concatenate((runs.indexed, 0 * inner)),
        runs.row,
    )


def _cut(runs: _Runs) -> _Runs:
    """The same items in rows of at most :data:`MAX_ITEMS`."""
    while True:
        items = runs.items()
        large = items > MAX_ITEMS
        if not large.any():
            return runs
        n = len(items)
        every = np.arange(n)
        outer = np.argmax(np.cumsum(runs.extent > 1, axis=0), axis=0)
        extent = runs.extent[outer, every]
        inside = np.where(large, items // extent, 1)
        step = np.where(large, np.maximum(MAX_ITEMS // np.maximum(inside, 1), 1), extent)
        parts = -(-extent // step)
        whose = np.repeat(every, parts)
        number = np.arange(len(whose)) - np.repeat(np.cumsum(parts) - parts, parts)
        begin = number * step[whose]
        cut = runs.take(whose)
        place = outer[whose], np.arange(len(whose))
        indexed = cut.indexed[place]
        for side, start, stride in ((1, cut.src, cut.src_stride), (2, cut.dst, cut.dst_stride)):
            listed = (indexed & side) > 0
            start += np.where(listed, 0, begin * stride[place])
            stride[place] += np.where(listed, begin, 0)
        cut.extent[place] = np.minimum(step[whose], extent[whose] - begin)
        runs = cut


def _packed(runs: _Runs) -> _Runs:
    """The same rows with dimensions of extent 1 outermost, as few as the longest row has."""
    unused = (runs.extent == 1) & (runs.indexed == 0)  # The one listed element has an offset.
    order = np.argsort(unused, axis=0, kind="stable")
    rank = max(1, int((~unused).sum(axis=0).max(initial=0)))
    to = order[:rank], np.arange(len(runs.src))
    return replace(
        runs,
        extent=runs.extent[to],
        src_stride=runs.src_stride[to],
        dst_stride=runs.dst_stride[to],
        indexed=runs.indexed[to],
    )


def _is_tiled(runs: _Runs, size: int) -> NDArray[np.bool_]:
    """Rows whose neighbours in dst are far apart in src but have near ones across.

    Makes the dimension of these the second one.
    """
    rank, n = runs.extent.shape
    if rank < 2:
        return np.zeros(n, np.bool_)
    apart = np.where(runs.extent < _TILED_EXTENT, np.iinfo(np.int64).max, np.abs(runs.src_stride))
    nearest = np.argmin(apart, axis=0)
    every = np.arange(n)
    tiled: NDArray[np.bool_] = (
        (nearest > 0) & (runs.extent[0] >= _TILED_EXTENT) & (runs.dst_stride[0] == size)
    )
    tiled &= apart[nearest, every] == size
    chosen = every[tiled]
    other = nearest[tiled], chosen
    for column in (runs.extent, runs.src_stride, runs.dst_stride):
        column[1, chosen], column[other] = column[other], column[1, chosen]
    return tiled


def _step(part: Listed) -> int:
    """How far neighbours lie apart in dst, more or less."""
    for offsets in part.dst:
        if len(offsets) > 1:
            return abs(int(offsets[1] - offsets[0]))
    return 1 << 62


def _inserted(
    runs: _Runs, at: int, extent: Integers, src: Integers, dst: Integers, sides: int
) -> _Runs:
    """The rows with one more dimension, of listed elements."""
    return _Runs(
        runs.src,
        runs.dst,
        np.insert(runs.extent, at, extent, 0),
        np.insert(runs.src_stride, at, src, 0),
        np.insert(runs.dst_stride, at, dst, 0),
        np.insert(runs.indexed, at, sides, 0),
        runs.row,
    )


def _launch(
    family: str,
    kernel: str,
    types: str,
    runs: _Runs,
    arguments: tuple[np.generic | NDArray[np.uint8], ...],
    offsets: Integers | None = None,
) -> KernelLaunch:
    used, n = runs.extent.shape
    is_tiled = kernel == "copy_tiled"
    side = 64 if types in (WIDTHS[1], WIDTHS[2]) else 32
    rank = _kernels.rank_for(kernel, used)
    table = np.zeros(n, run_dtype(rank))
    table["src"], table["dst"] = runs.src, runs.dst
    table["items"], table["row"] = runs.items(), runs.row
    dim = table["dim"]
    dim["extent"] = 1
    tiles = np.ones(n, np.int64)
    for k in range(used):
        column = dim[:, rank - 1 - k]
        extent = runs.extent[k]
        steps = -(-extent // side) if is_tiled and k < 2 else extent
        tiles *= steps
        column["extent"] = extent
        column["magic"], column["shift"] = division(steps)
        column["indexed"] = runs.indexed[k]
        column["src_stride"], column["dst_stride"] = runs.src_stride[k], runs.dst_stride[k]
    if not is_tiled:
        tiles = -(-tiles // ITEMS_PER_TILE)
    table["first_tile"], blocks = first_tiles(tiles)
    expression = f"gs::{kernel}<{types}, {rank}>"
    return KernelLaunch(family, expression, blocks, table, arguments, offsets)
