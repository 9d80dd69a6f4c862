"""Spaces of origins: where the patches of one volume may begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class PatchSpace:
    """Origins of the patches of a volume, along the dimensions that a sampler cuts.

    Attributes
    ----------
    shape, chunks : tuple of int
        Elements of the volume, and of a chunk, along each dimension.
    patch : tuple of int
        Elements of a patch.
    steps : tuple of int
        Origins are multiples of these, beside :attr:`first`.
    first : tuple of int
        Least origin: 0, or negative where patches may reach beyond the volume.
    counts : tuple of int
        Number of origins.
    nbytes : int
        Bytes of all arrays of the volume for one element of these dimensions.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    patch: tuple[int, ...]
    steps: tuple[int, ...]
    first: tuple[int, ...]
    counts: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        patch: tuple[int, ...],
        steps: tuple[int, ...],
        nbytes: int,
        *,
        inside: bool,
    ) -> PatchSpace:
        """Make the space of patches that are inside of the volume, or only their centres are."""
        first, counts = [], []
        for n, p, step in zip(shape, patch, steps, strict=True):
            least = 0 if inside else -(p // 2 // step) * step
            most = n - p if inside else n - 1 - p // 2
            first.append(least)
            counts.append((most - least) // step + 1)
        return cls(shape, chunks, patch, steps, tuple(first), tuple(counts), nbytes)

    def blocks(self, window_nbytes: int) -> list[Integers]:
        """Divide the origins into blocks of neighbours.

        The patches of a block are made of a region of the volume that is decoded once. Blocks have
        the shape for which these regions overlap least while they span at most `window_nbytes`
        (of origins; what patches reach beyond is not counted). Their edges are those of chunks.

        Returns
        -------
        list of ndarray of int64
            Edges of the blocks along each dimension, in numbers of origins: from 0 to
            :attr:`counts`.
        """
        ends = [
            first + (count - 1) * step + 1
            for first, count, step in zip(self.first, self.counts, self.steps, strict=True)
        ]
        limits = [max(1, -(-end // c)) for end, c in zip(ends, self.chunks, strict=True)]
        size = [1] * len(limits)
        chunk_nbytes = self.nbytes * math.prod(self.chunks)
        best, most = self._overlap(size), max(1, window_nbytes // max(1, chunk_nbytes))
        choices = [sorted({-(-limit // n) for n in range(1, limit + 1)}) for limit in limits]
        if math.prod(map(len, choices)) <= 100_000:
            for some in product(*choices):
                if math.prod(some) <= most and (found := self._overlap(some)) < best:
                    best, size = found, list(some)
        else:
            size = self._grown(limits, most)
        edges = []
        for d, first in enumerate(self.first):
            step, count, width = self.steps[d], self.counts[d], size[d] * self.chunks[d]
            # The number of the first origin that is not before each edge of the volume.
            at = np.arange(width, ends[d] + width, width)
            inner = np.clip(-(-(at - first) // step), 0, count)
            edges.append(np.unique(np.concatenate([[0], inner, [count]])).astype(np.int64))
        return edges

    def _overlap(self, size: tuple[int, ...] | list[int]) -> float:
        """Estimate how often a chunk is decoded if blocks have this many chunks."""
        found = 1.0
        for d, chunks in enumerate(size):
            total, width = -(-self.shape[d] // self.chunks[d]), chunks * self.chunks[d]
            last = self.first[d] + (self.counts[d] - 1) * self.steps[d]
            decoded = 0
            for begin in range(0, max(1, last + 1), width):
                end = min(begin + width - 1, last) + self.patch[d] - 1
                decoded += min(end // self.chunks[d], total - 1) - begin // self.chunks[d] + 1
            found *= decoded / total
        return found

    def _grown(self, limits: list[int], most: int) -> list[int]:
        """Double blocks along the dimension where that saves most, for very many chunks."""
        size = [1] * len(limits)
        while True:
            grown = [
                [min(2 * n, limits[d]) if d == at else n for d, n in enumerate(size)]
                for at in range(len(size))
            ]
            grown = [one for one in grown if one != size and math.prod(one) <= most]
            if not grown:
                return size
            size = min(grown, key=self._overlap)
