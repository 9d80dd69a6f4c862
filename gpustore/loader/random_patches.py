"""Patches at random places, in an order that lets each chunk be decoded about once an epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.display.nbytes import nbytes_of
from gpustore.loader.numbers import below, fractions, key_of, permutation, words
from gpustore.loader.order import Window
from gpustore.loader.parameters import patch_shape, whole_number
from gpustore.loader.space import PatchSpace
from gpustore.loader.strata import LEVELS, halvings, placed, strata

Integers = NDArray[np.int64]

_BLOCKS, _OFFSET, _CELLS, _ORIGIN, _STRATA, _SIDES = range(6)
"""Purposes of random numbers, part of their keys."""

EDGES: Final = ("shift", "reflect", "fill")


@dataclass(frozen=True)
class RandomPatches:
    """Sampler of patches at random places.

    All origins are equally likely, or as `weights` say. The origins of an epoch are a function of
    `seed` and of the epoch alone: they are the same on any machine, for any number of ranks.
    Patches come in *windows* of neighbours, and windows come in random order: so each chunk is
    decoded about once an epoch. Within a window the order is random, and consecutive patches are
    spread over the window evenly. A larger window mixes better and decodes less often, and takes
    more memory.

    Parameters
    ----------
    shape : sequence of int
        Elements of a patch along the last dimensions of the arrays; others are taken whole.
    per_epoch : int
        Number of patches of an epoch.
    seed : int
        From 0 to 2**64 - 1.
    window : int or str
        Bytes of the arrays, decoded, that the origins of a window span, such as ``"256 MiB"``;
        with several ranks each reads about its part of a window.
    weights : array-like of numbers, optional
        Relative probability of patches by the place of their centre: a map of the volume at any
        lower resolution. Host memory; shape (n, ...) of the dimensions of `shape`.
    edge : {"shift", "reflect", "fill"}
        Patches lie inside the volume; or only their centres do, and what lies outside is mirrored
        at the last element, or has the fill value.

    Raises
    ------
    ValueError
        If a parameter has no meaning, or all weights are 0.
    """

    shape: Sequence[int]
    per_epoch: int = field(kw_only=True)
    seed: int = field(default=0, kw_only=True)
    window: int | str = field(default="256 MiB", kw_only=True)
    weights: Any = field(default=None, kw_only=True, compare=False, repr=False)
    edge: str = field(default="shift", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", patch_shape(self.shape))
        object.__setattr__(self, "per_epoch", whole_number(self.per_epoch, "per_epoch", 1))
        object.__setattr__(self, "seed", whole_number(self.seed, "seed", 0))
        if self.seed >= 1 << 64:
            raise ValueError(f"seed: expected a number from 0 to 2**64 - 1, got {self.seed}")
        if self.edge not in EDGES:
            raise ValueError(f"edge: expected one of {', '.join(EDGES)}, got {self.edge!r}")
        object.__setattr__(self, "window", nbytes_of(self.window, "window"))
        if self.weights is None:
            return
        try:
            weights = np.array(self.weights, np.float64)  # A copy, which nobody changes.
        except (TypeError, ValueError) as error:
            raise TypeError(f"weights: expected an array of numbers: {error}") from error
        if weights.ndim != len(self.shape):
            raise ValueError(
                f"weights: expected {len(self.shape)} dimensions as the patch has, "
                f"got {weights.ndim}"
            )
        if not weights.size:
            raise ValueError(
                f"weights: expected a map of at least one element, got {weights.shape}"
            )
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ValueError(
                "weights: expected finite numbers of which none is negative, not all 0"
            )
        # Sums over all origins stay finite. A power of two changes no probability.
        weights = np.ldexp(weights, -int(np.frexp(weights.max())[1]))
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    def __eq__(self, other: object) -> bool:
        """Whether another sampler gives the same order."""
        return isinstance(other, RandomPatches) and self.state() == other.state()

    @property
    def is_inside(self) -> bool:
        """Whether all patches lie inside the volume."""
        return self.edge == "shift"

    def order(self, volumes: Sequence[PatchSpace]) -> RandomOrder:
        """Return the order of the patches of some volumes."""
        return RandomOrder(self, volumes)

    def state(self) -> dict[str, Any]:
        """Return what the order depends on, as JSON."""
        return {
            "sampler": "random",
            "shape": list(self.shape),
            "per_epoch": self.per_epoch,
            "seed": self.seed,
            "window": self.window,
            "edge": self.edge,
            "weights": None if self.weights is None else _digest(self.weights),
        }


class RandomOrder:
    """Order of random patches; see :class:`gpustore.loader.order.PatchOrder`.

    Each block has as many patches as its weight says, rounded up or down so that the mean over
    epochs is exact. A block is a window.
    """

    def __init__(self, sampler: RandomPatches, volumes: Sequence[PatchSpace]) -> None:
        self._sampler = sampler
        self._volumes = [_Blocks(one, sampler) for one in volumes]
        self._volume = np.repeat(np.arange(len(volumes)), [len(one) for one in self._volumes])
        self._number = np.concatenate([np.arange(len(one)) for one in self._volumes])
        mass = np.concatenate([one.mass for one in self._volumes])
        ends = np.cumsum(mass)
        if not ends[-1]:
            raise ValueError("weights: no patch has its centre where a weight is not 0")
        self._expected = ends / ends[-1] * sampler.per_epoch

    def __len__(self) -> int:
        return self._sampler.per_epoch

    def strata(self, epoch: int, numbers: Integers) -> Integers:
        """Return the stratum of each patch; see :mod:`gpustore.loader.strata`."""
        return strata(key_of(self._sampler.seed, epoch, _STRATA), numbers)

    def windows(self, epoch: int, first: int) -> Iterator[Window]:
        """Yield the windows of an epoch, in order, from the one that has patch `first` on."""
        key = key_of(self._sampler.seed, epoch)
        offset = float(fractions(key_of(key, _OFFSET), 0))
        counts = np.diff(np.floor(self._expected + offset), prepend=0).astype(np.int64)
        order = permutation(key_of(key, _BLOCKS), len(counts))
        ends = np.cumsum(counts[order])
        for at in range(int(np.searchsorted(ends, first, "right")), len(order)):
            block, count = int(order[at]), int(counts[order[at]])
            if not count:
                continue
            volume = int(self._volume[block])
            space, number = self._volumes[volume], int(self._number[block])
            origins = space.draw(key_of(key, block), number, count)
            first = int(ends[at]) - count
            # Each rank has the same strata always: their places differ from window to window.
            sides = int(words(key_of(key, _SIDES), block)) >> (64 - LEVELS)
            stratum = self.strata(epoch, first + np.arange(count)) ^ sides
            yield Window(first, volume, placed(origins, stratum, space.halvings(number)))


class _Blocks:
    """Blocks of the origins of one volume, and the probability of each."""

    def __init__(self, space: PatchSpace, sampler: RandomPatches) -> None:
        self._space = space
        self._weights = sampler.weights
        self._edges = space.blocks(int(sampler.window))
        self._shape = tuple(len(one) - 1 for one in self._edges)

    def __len__(self) -> int:
        return int(np.prod(self._shape))

    @cached_property
    def _cells(self) -> list[Integers]:
        """Edges of the cells of the weights along each dimension, in numbers of origins."""
        found = []
        for d, n in enumerate(self._weights.shape):
            space = self._space
            # The centre of an origin lies in a cell from its first element on.
            begin = -(-np.arange(1, n) * space.shape[d] // n)
            number = -(-(begin - space.patch[d] // 2 - space.first[d]) // space.steps[d])
            inner = np.clip(number, 0, space.counts[d])
            found.append(np.concatenate([[0], inner, [space.counts[d]]]))
        return found

    @cached_property
    def mass(self) -> NDArray[np.float64]:
        """Weight of all origins of each block, in C order."""
        if self._weights is None:
            found = np.ones(())
            for edges in self._edges:
                found = np.multiply.outer(found, np.diff(edges).astype(np.float64))
            return found.reshape(-1)
        found = self._weights
        for d, (edges, cells) in enumerate(zip(self._edges, self._cells, strict=True)):
            # Of each cell, as much as lies in each block.
            low = np.maximum(edges[:-1, None], cells[None, :-1])
            high = np.minimum(edges[1:, None], cells[None, 1:])
            share = np.maximum(high - low, 0).astype(np.float64)
            found = np.moveaxis(np.tensordot(share, found, (1, d)), 0, d)
        return found.reshape(-1)

    def halvings(self, number: int) -> list[int]:
        """Return along which dimensions a block is divided so that few chunks are in two parts."""
        low, high = self._bounds(number)
        space = self._space
        first, steps = np.array(space.first), np.array(space.steps)
        begin, end = first + low * steps, first + (high - 1) * steps + 1
        return halvings(begin.tolist(), end.tolist(), space.patch, space.chunks, space.shape)

    def _bounds(self, number: int) -> tuple[Integers, Integers]:
        """Return the first origin of a block along each dimension, and the one behind the last."""
        place = np.unravel_index(number, self._shape)
        low = np.array([e[i] for e, i in zip(self._edges, place, strict=True)])
        high = np.array([e[i + 1] for e, i in zip(self._edges, place, strict=True)])
        return low, high

    def draw(self, key: int, number: int, count: int) -> Integers:
        """Return the origins of `count` patches of a block, in random order."""
        low, high = self._bounds(number)
        index = np.arange(count)
        if self._weights is None:
            begin, extent = low[None], (high - low)[None]
        else:
            begin, extent = self._drawn_cells(key, low, high, count)
        drawn = np.stack(
            [
                below(key_of(key, _ORIGIN, d), index, np.broadcast_to(extent[:, d], count))
                for d in range(len(low))
            ],
            axis=1,
        )
        first, steps = np.array(self._space.first), np.array(self._space.steps)
        origins: Integers = first + (begin + drawn) * steps
        return origins

    def _drawn_cells(
        self, key: int, low: Integers, high: Integers, count: int
    ) -> tuple[Integers, Integers]:
        """Draw a cell of the weights for each patch: its first origin in a block, and extents."""
        some, begin, extent = [], [], []
        for d, cells in enumerate(self._cells):
            lo, hi = np.maximum(cells[:-1], low[d]), np.minimum(cells[1:], high[d])
            (inside,) = np.nonzero(lo < hi)
            some.append(inside)
            begin.append(lo[inside])
            extent.append((hi - lo)[inside])
        mass = self._weights[np.ix_(*some)]
        for d, one in enumerate(extent):
            mass = mass * one.reshape([-1 if k == d else 1 for k in range(mass.ndim)])
        ends = np.cumsum(mass.reshape(-1))
        wanted = fractions(key_of(key, _CELLS), np.arange(count)) * ends[-1]
        # Rounding up must not reach cells of weight 0 behind the last one.
        last = int(np.flatnonzero(mass.reshape(-1))[-1])
        found = np.minimum(np.searchsorted(ends, wanted, "right"), last)
        at = np.unravel_index(found, mass.shape)
        return (
            np.stack([one[i] for one, i in zip(begin, at, strict=True)], axis=1),
            np.stack([one[i] for one, i in zip(extent, at, strict=True)], axis=1),
        )


def _digest(weights: NDArray[np.float64]) -> str:
    """Return a short text that changes with the weights."""
    return hashlib.sha256(repr(weights.shape).encode() + weights.tobytes()).hexdigest()[:16]
