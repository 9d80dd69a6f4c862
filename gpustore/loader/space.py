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
        choices = [
            [(n, self._decodes(d, n)) for n in _quotients(limit)] for d, limit in enumerate(limits)
        ]
        if math.prod(map(len, choices)) <= 100_000:
            for some in product(*choices):
                found = math.prod(decodes for _, decodes in some)
                if found < best and math.prod(n for n, _ in some) <= most:
                    best, size = found, [n for n, _ in some]
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
        return math.prod(self._decodes(d, n) for d, n in enumerate(size))

    def _decodes(self, d: int, size: int) -> float:
        """Estimate how often a chunk is decoded, along one dimension, for blocks of `size` chunks.

        Blocks are counted together: arrays may have many millions of them.
        """
        chunk, total = self.chunks[d], -(-self.shape[d] // self.chunks[d])
        last = self.first[d] + (self.counts[d] - 1) * self.steps[d]
        whole = max(0, last) // (size * chunk)  # Blocks but for the last one.
        reach = (size * chunk + self.patch[d] - 2) // chunk + 1
        # Those whose patches end before the volume decode as many chunks each.
        inner = min(max(0, (total - reach) // size + 1), whole)
        outer = whole - inner
        decoded = inner * reach + outer * total - size * outer * (inner + whole - 1) // 2
        end = min((last + self.patch[d] - 1) // chunk, total - 1)
        return (decoded + end - whole * size + 1) / total

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


def _quotients(limit: int) -> list[int]:
    """Return `limit` divided by each whole number up to it, rounded up, each once; ascending."""
    found = [1]
    while found[-1] < limit:
        parts = -(-limit // found[-1])  # As few as give the last one.
        found.append(-(-limit // (parts - 1)))
    return found
