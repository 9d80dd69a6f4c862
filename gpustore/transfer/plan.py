"""Division of an array into regions of whole target chunks, for :func:`gpustore.copy`.

Chunks of the target are then written once and never read. A chunk of the source that several
regions touch is decoded once for each of them; :func:`plan_regions` looks for extents that make
this rare.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_ENOUGH_NBYTES = 32 << 20
"""Largest useful region, in bytes: larger ones gain no speed and end later after Ctrl-C."""

_CHUNKS_PER_REGION = 1 << 16
"""Largest number of chunks in a region: plans of more chunks take too much memory."""

LEAST_IN_FLIGHT = 3
"""Number of regions in memory: one is read, one is written, one is between the two."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Division of an array into regions.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array.
    region : tuple of int
        Extents of a region: whole chunks of the target, or all of a dimension.
    itemsize : int
        Bytes of a decoded element.
    in_flight : int
        Regions that may be in memory at once.
    reads_per_chunk : float
        Average number of times that a chunk of the source is decoded.

    Examples
    --------
    >>> list(Plan((5, 2), (3, 2), itemsize=1, in_flight=1, reads_per_chunk=1.0).regions())
    [(slice(0, 3, None), slice(0, 2, None)), (slice(3, 5, None), slice(0, 2, None))]
    """

    shape: tuple[int, ...]
    region: tuple[int, ...]
    itemsize: int
    in_flight: int
    reads_per_chunk: float

    @property
    def nbytes(self) -> int:
        """Decoded size of the array, in bytes."""
        return math.prod(self.shape) * self.itemsize

    @property
    def count(self) -> int:
        """Number of regions."""
        return math.prod(-(-n // r) for n, r in zip(self.shape, self.region, strict=True))

    def nbytes_of(self, count: int) -> int:
        """Return the decoded size of the first `count` regions, in bytes."""
        places = itertools.islice(self.regions(), count)
        sizes = (math.prod(int(p.stop) - int(p.start) for p in place) for place in places)
        return sum(sizes) * self.itemsize

    @property
    def region_nbytes(self) -> int:
        """Decoded size of the largest region, in bytes."""
        return math.prod(self.region) * self.itemsize

    def regions(self, first: int = 0) -> Iterator[tuple[slice, ...]]:
        """Yield the regions from number `first` on; the last dimension varies fastest.

        Slices are relative to the array's first element.
        """
        starts = [range(0, n, r) for n, r in zip(self.shape, self.region, strict=True)]
        # Not itertools.product: it would hold each of a million starts of a long dimension.
        if not all(starts):
            return
        for number in range(first, math.prod(map(len, starts))):
            place = []
            rest = number
            for start, r in zip(reversed(starts), reversed(self.region), strict=True):
                rest, at = divmod(rest, len(start))
                place.append(slice(start[at], min(start[at] + r, start.stop)))
            yield tuple(reversed(place))


def plan_regions(
    shape: Sequence[int],
    itemsize: int,
    *,
    source_chunk: Sequence[int],
    target_chunk: Sequence[int],
    memory_nbytes: int,
    workers: int,
) -> Plan:
    """Divide an array into regions of whole target chunks that decode each source chunk few times.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Bytes of a decoded element.
    source_chunk, target_chunk : sequence of int
        Extents of the unit of reading (a chunk) and of writing (a shard, if there are any).
    memory_nbytes : int
        Bound of the decoded regions in memory; passed only where one target chunk is larger.
    workers : int
        Threads that should have something to do; no more regions are in memory than they need.

    Examples
    --------
    >>> plan = plan_regions(
    ...     (64, 64),
    ...     1,
    ...     source_chunk=(1, 64),
    ...     target_chunk=(16, 16),
    ...     memory_nbytes=3072,
    ...     workers=2,
    ... )
    >>> plan.region, plan.in_flight, plan.reads_per_chunk
    ((16, 64), 3, 1.0)
    """
    most = max(LEAST_IN_FLIGHT, workers + 1)
    plans = []
    for in_flight in range(LEAST_IN_FLIGHT, 0, -1):
        region = _grow(shape, itemsize, source_chunk, target_chunk, memory_nbytes // in_flight)
        fitting = memory_nbytes // max(1, math.prod(region) * itemsize)
        if in_flight == 1 or fitting >= in_flight:
            reads = _reads_per_chunk(shape, source_chunk, region)
            count = max(1, min(fitting, most))
            plans.append(Plan(tuple(shape), tuple(region), itemsize, count, reads))
    # Reading while writing gains less than decoding everything once more costs.
    return min(plans, key=lambda plan: (round(plan.reads_per_chunk, 1), -plan.in_flight))


def _grow(
    shape: Sequence[int],
    itemsize: int,
    source_chunk: Sequence[int],
    target_chunk: Sequence[int],
    limit_nbytes: int,
) -> list[int]:
    """Grow a region by one dimension after the other, where it saves most."""
    region = [max(1, min(c, n)) for c, n in zip(target_chunk, shape, strict=True)]
    reads = _reads_per_chunk(shape, source_chunk, region)
    while True:
        candidates = []
        for d, n in enumerate(shape):
            common = math.lcm(source_chunk[d], target_chunk[d])
            for extent in {2 * region[d], -(-region[d] // common) * common, n}:
                grown = region.copy()
                grown[d] = min(extent, n)
                if grown[d] > region[d] and _fits(
                    grown, itemsize, (source_chunk, target_chunk), limit_nbytes
                ):
                    better = _reads_per_chunk(shape, source_chunk, grown)
                    # Of equal ones the smaller: dimensions grow from the last one on.
                    candidates.append((better, math.prod(grown), -d, grown))
        best = min(candidates, default=None)
        if best is None or (best[0] >= reads and best[1] * itemsize > _ENOUGH_NBYTES):
            return region
        reads, _, _, region = best


def _fits(
    region: Sequence[int], itemsize: int, chunks: Sequence[Sequence[int]], limit_nbytes: int
) -> bool:
    """Return whether a region, and the plans of reading and writing it, fit in memory."""
    return math.prod(region) * itemsize <= limit_nbytes and all(
        math.prod(-(-r // c) for r, c in zip(region, chunk, strict=True)) <= _CHUNKS_PER_REGION
        for chunk in chunks
    )


def _reads_per_chunk(shape: Sequence[int], chunk: Sequence[int], region: Sequence[int]) -> float:
    """Return the average number of times that a source chunk is decoded."""
    reads = 1.0
    for n, c, r in zip(shape, chunk, region, strict=True):
        if n:
            # Pieces begin where a chunk begins or a region does; some begin where both do.
            pieces = -(-n // c) + -(-n // r) - -(-n // math.lcm(c, r))
            reads *= pieces / -(-n // c)
    return reads
