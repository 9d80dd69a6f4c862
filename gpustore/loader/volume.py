"""Volumes: arrays of one place, whose patches belong together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.loader.space import PatchSpace

Integers = NDArray[np.int64]
_T = TypeVar("_T")


@dataclass(frozen=True)
class PairedArray:
    """One array of a volume.

    Attributes
    ----------
    name : str
        Name of the array in batches.
    store : TensorStore
    leading : tuple of int
        Elements of the dimensions that patches take whole, in front of the others.
    scale : tuple of Fraction
        Elements of the array for one of the first array, along the dimensions of a patch.
    patch : tuple of int
        Elements of a patch of this array along these dimensions.
    dtype : numpy.dtype
        Data type of its elements in memory.
    watches : bool
        Whether reads fail if a chunk has changed since it was first read.
    """

    name: str
    store: gpustore.TensorStore
    leading: tuple[int, ...]
    scale: tuple[Fraction, ...]
    patch: tuple[int, ...]
    dtype: np.dtype[Any]
    watches: bool

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was read: another process begins anew."""
        return {name: value for name, value in vars(self).items() if name != "_reader"}

    @property
    def reader(self) -> gpustore.TensorStore:
        """Store for reading the elements; of a forked process its own."""
        if not self.watches:
            return self.store
        process, found = vars(self).get("_reader", (0, None))
        if found is None or process != os.getpid():
            found = registry.public("front.watched", "watched")(self.store)
            vars(self)["_reader"] = os.getpid(), found
        store: gpustore.TensorStore = found
        return store

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Shape of a patch with all dimensions."""
        return *self.leading, *self.patch

    @property
    def patch_nbytes(self) -> int:
        """Bytes of a patch."""
        return math.prod(self.patch_shape) * self.dtype.itemsize

    def at(self, origins: Integers) -> Integers:
        """Return origins of this array for origins of the first one; shape (n, rank)."""
        found = origins.copy()
        for d, one in enumerate(self.scale):
            found[:, d] = found[:, d] * one.numerator // one.denominator
        return found

    def extent(self) -> tuple[int, ...]:
        """Return the number of elements along the dimensions of a patch."""
        return tuple(self.store.shape)[len(self.leading) :]

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk along the dimensions of a patch; of a patch if no size is common."""
        return _last(self.store.chunks or self.patch, len(self.patch))

    def box(self, low: Sequence[int], high: Sequence[int]) -> gpustore.TensorStore:
        """Return the elements from `low` up to `high`, counted from the first element."""
        origin = self.store.domain.origin[len(self.leading) :]
        index = tuple(slice(o + lo, o + hi) for o, lo, hi in zip(origin, low, high, strict=True))
        return self.reader[(..., *index)]

    def crops(self, origins: Integers) -> tuple[Integers, tuple[int, ...]]:
        """Return starts and shape, for ``read_many``, of whole patches in their order."""
        starts = np.zeros((len(origins), self.store.rank), np.int64)
        starts[:, len(self.leading) :] = origins
        return starts + np.array(self.store.domain.origin), self.patch_shape


class Volume:
    """Arrays whose patches belong together: an image and its labels.

    Parameters
    ----------
    arrays : mapping of str to TensorStore
        The first one says what origins mean; others may have more or fewer leading dimensions, and
        fewer or more elements, by a whole factor.
    patch : sequence of int
        Elements of a patch of the first array along the last dimensions.
    watches : bool
        Whether reads fail if a chunk has changed since it was first read.

    Raises
    ------
    MismatchError
        If the arrays do not fit together, or are smaller than a patch; the message names the array.
    """

    def __init__(
        self, arrays: Mapping[str, gpustore.TensorStore], patch: Sequence[int], *, watches: bool
    ) -> None:
        if not arrays:
            raise gpustore.MismatchError("arrays: expected at least one array, got none")
        names = list(arrays)
        first = arrays[names[0]]
        rank = len(patch)
        for name, store in arrays.items():
            if store.device != first.device:
                raise gpustore.MismatchError(
                    f"array {name!r} is read to {store.device} and {names[0]!r} to {first.device}: "
                    "open them with the same device"
                )
            if store.rank < rank:
                raise gpustore.MismatchError(
                    f"array {name!r} has {store.rank} dimensions, its patches {rank}"
                )
        self.device = first.device
        self.shape = tuple(first.shape)[first.rank - rank :]
        if 0 in self.shape:
            raise gpustore.MismatchError(f"array {names[0]!r} of shape {first.shape} is empty")
        self.origin = first.domain.origin[first.rank - rank :]
        self.chunks = _last(first.chunks or first.shape, rank)
        self.arrays = [
            _paired(name, arrays[name], names[0], self.shape, patch, watches=watches)
            for name in names
        ]

    def space(self, patch: tuple[int, ...], *, inside: bool) -> PatchSpace:
        """Return the space of the origins of patches."""
        if inside and any(p > n for p, n in zip(patch, self.shape, strict=True)):
            raise gpustore.MismatchError(
                f"array {self.arrays[0].name!r} of shape {self.shape} is smaller than a patch of "
                f'shape {patch}; choose a smaller patch, or edge="reflect" or "fill"'
            )
        nbytes = sum(
            Fraction(math.prod(one.leading) * one.dtype.itemsize) * math.prod(one.scale)
            for one in self.arrays
        )
        steps = [
            math.lcm(*(one.scale[d].denominator for one in self.arrays)) for d in range(len(patch))
        ]
        return PatchSpace.of(
            self.shape, self.chunks, patch, tuple(steps), max(1, int(nbytes)), inside=inside
        )

    def state(self) -> dict[str, Any]:
        """Return what the order of patches depends on, as JSON."""
        arrays = {
            one.name: {"shape": list(one.store.shape), "dtype": one.store.dtype.name}
            for one in self.arrays
        }
        # Those of the first array, in whose elements patches and origins are given.
        return {"arrays": arrays, "shape": list(self.shape), "chunks": list(self.chunks)}


def _last(values: Sequence[_T], rank: int) -> tuple[_T, ...]:
    return tuple(values)[len(values) - rank :]


def _paired(
    name: str,
    store: gpustore.TensorStore,
    first: str,
    shape: Sequence[int],
    patch: Sequence[int],
    *,
    watches: bool,
) -> PairedArray:
    rank = len(patch)
    extent = _last(store.shape, rank)
    scale = tuple(Fraction(n, whole or 1) for n, whole in zip(extent, shape, strict=True))
    for d, one in enumerate(scale):
        if one.numerator != 1 and one.denominator != 1:
            raise gpustore.MismatchError(
                f"array {name!r} has {extent[d]} elements in dimension {d - rank} and "
                f"{first!r} has {shape[d]}: neither is a multiple of the other"
            )
        if (one * patch[d]).denominator != 1:
            raise gpustore.MismatchError(
                f"array {name!r} has one element for {one.denominator} of {first!r} in dimension "
                f"{d - rank}, so patches must be multiples of that; got {patch[d]}"
            )
    return PairedArray(
        name=name,
        store=store,
        leading=tuple(store.shape)[: store.rank - rank],
        scale=scale,
        patch=tuple(int(one * p) for one, p in zip(scale, patch, strict=True)),
        dtype=store.dtype.array_dtype,
        watches=watches,
    )
