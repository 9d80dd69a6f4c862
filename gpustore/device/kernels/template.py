"""Templates of launches: descriptors of one row of each kind, which are repeated for all rows.

Most chunks of a submission are alike, and so are those of the next one. Rows of the same counts and
strides, whose addresses have the same remainder modulo 16, differ in their addresses only. So one
row of each kind is planned, and its descriptors are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.kernels.descriptor import KernelLaunch, first_tiles
from gpustore.device.kernels.run import MAX_WIDTH, Integers, Rows

_KEPT: Final = 1024
"""Kinds of rows whose templates are kept."""

_FEW: Final = 64
"""Number of rows below which Python compares them faster than NumPy sorts."""

Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """Descriptor of a row, with addresses that count from those of the row."""

    launch: KernelLaunch
    words: NDArray[np.uint64]
    tiles: int

    @property
    def instance(self) -> tuple[Hashable, ...]:
        """Kernel instance and arguments, which rows of one launch share."""
        arguments = [argument.tobytes() for argument in self.launch.arguments]
        return self.launch.family, self.launch.expression, *arguments


_kept: dict[tuple[Hashable, ...], tuple[_Descriptor, ...]] = {}


def templated(
    rows: Rows, plan: Callable[[Rows], list[KernelLaunch]], meaning: tuple[Hashable, ...]
) -> list[KernelLaunch]:
    """Return the launches that `plan` makes of `rows`, by way of templates if many are alike.

    Parameters
    ----------
    rows : Rows
    plan : callable
        Makes launches without ``offsets`` of any rows.
    meaning : tuple
        Name and parameters of `plan`.
    """
    count = np.asarray(rows.count, np.int64)
    src, dst = (np.asarray(column, np.uint64) for column in (rows.src, rows.dst))
    uniform = np.ndim(rows.src_stride) == np.ndim(rows.dst_stride) == 1
    found = _kinds(src, dst, count.reshape(len(count), len(src))) if uniform else None
    if found is None:
        return plan(rows)
    first, kind = found
    strides = tuple(np.asarray((rows.src_stride, rows.dst_stride), np.int64).ravel().tolist())
    keys = [
        (*meaning, *strides, *one)
        for one in zip(
            *((column[first] % MAX_WIDTH).tolist() for column in (src, dst)),
            *count[:, first].tolist(),
        )
    ]
    templates = [_kept.get(key) for key in keys]
    if None in templates:
        some = Rows(src[first], dst[first], count[:, first], rows.src_stride, rows.dst_stride)
        made = _templates(plan(some), src[first], dst[first])
        if made is None:
            return plan(rows)
        if len(_kept) + len(keys) > _KEPT:
            _kept.clear()
        _kept.update(zip(keys, made))
        templates = [*made]
    return _repeated([one or () for one in templates], kind, src, dst)


def _kinds(
    src: Addresses, dst: Addresses, count: Integers
) -> tuple[Integers, NDArray[np.intp]] | None:
    """Return a row of each kind, and the number of the kind of each row; None for too many."""
    n = len(src)
    if not n:
        return None
    none = np.zeros(1, np.int64)
    apart = (src ^ src[0]) | (dst ^ dst[0])
    if not (apart % MAX_WIDTH).any() and not (count != count[:, :1]).any():
        return none, np.zeros(n, np.intp)
    columns = [*((column % MAX_WIDTH).astype(np.int64) for column in (src, dst)), *count]
    if n < _FEW:
        numbers: dict[tuple[int, ...], int] = {}
        every = list(zip(*(column.tolist() for column in columns)))
        kind = np.array([numbers.setdefault(one, len(numbers)) for one in every])
        first = np.array([every.index(one) for one in numbers])
    else:
        key, largest = np.zeros(n, np.int64), 1
        for column in columns:
            base = int(column.max()) + 1
            largest *= base
            if largest > 1 << 62:
                return None
            key = key * base + column
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    return (first, kind) if 2 * len(first) <= n else None


def _templates(
    launches: Sequence[KernelLaunch], src: Addresses, dst: Addresses
) -> list[tuple[_Descriptor, ...]] | None:
    """Return the descriptors of each row of launches; None if any row was cut."""
    found: list[list[_Descriptor]] = [[] for _ in src]
    for launch in launches:
        rows = launch.table["row"].astype(np.intp)
        if len(np.unique(rows)) < len(rows):
            return None
        tiles = np.diff(launch.table["first_tile"], append=np.uint32(launch.blocks)).tolist()
        words = launch.table.view(np.uint64).reshape(len(rows), -1).copy()
        words[:, 0] -= src[rows]
        words[:, 1] -= dst[rows]
        kept = replace(launch, table=launch.table[:0])
        for row, one, count in zip(rows.tolist(), words, tiles):
            found[row].append(_Descriptor(kept, one.copy(), count))
    return [tuple(one) for one in found]


def _repeated(
    templates: Sequence[tuple[_Descriptor, ...]],
    kind: NDArray[np.intp],
    src: Addresses,
    dst: Addresses,
) -> list[KernelLaunch]:
    """Return the launches of rows, each of which has the descriptors of its kind."""
    members: dict[tuple[Hashable, ...], list[tuple[int, _Descriptor]]] = {}
    for number, template in enumerate(templates):
        # A launch has one descriptor of a row; fills of a pattern may have several of an instance.
        for place, descriptor in enumerate(template):
            members.setdefault((place, *descriptor.instance), []).append((number, descriptor))
    launches = []
    for found in members.values():
        of_kind = np.full(len(templates), -1)
        of_kind[[number for number, _ in found]] = np.arange(len(found))
        every = np.stack([one.words for _, one in found])
        each = np.array([one.tiles for _, one in found])
        if len(found) == len(templates) == 1:
            words, tiles = np.empty((len(src), every.shape[1]), np.uint64), each.repeat(len(src))
            words[:] = every
            row = np.arange(len(src))
        else:
            of_row = of_kind[kind]
            row = np.flatnonzero(of_row >= 0)
            words, tiles = every[of_row[row]], each[of_row[row]]
        words[:, 0] += src[row]
        words[:, 1] += dst[row]
        launch = found[0][1].launch
        table = words.view(launch.table.dtype).reshape(-1)
        table["row"] = row
        table["first_tile"], blocks = first_tiles(tiles)
        launches.append(replace(launch, table=table, blocks=blocks))
    return launches
