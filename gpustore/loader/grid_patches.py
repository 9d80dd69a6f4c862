"""Patches that cover a volume, for inference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.display.nbytes import nbytes_of
from gpustore.loader.order import Window
from gpustore.loader.parameters import listed, patch_shape, whole_number
from gpustore.loader.space import PatchSpace

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class GridPatches:
    """Sampler of patches that cover the volume, all inside it.

    The last patch along a dimension is moved inside, and overlaps the one before more than others
    do. Neighbours come together, in the same order each epoch.

    Parameters
    ----------
    shape : sequence of int
        Elements of a patch along the last dimensions of the arrays; others are taken whole.
    overlap : int or sequence of int
        Elements that neighbours share along each dimension.
    window : int or str
        Bytes of the arrays, decoded, that one window of neighbours spans.

    Raises
    ------
    ValueError
        If a parameter has no meaning.
    """

    shape: Sequence[int]
    overlap: int | Sequence[int] = field(default=0, kw_only=True)
    window: int | str = field(default="256 MiB", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", patch_shape(self.shape))
        rank = len(self.shape)
        given = [self.overlap] * rank if np.ndim(self.overlap) == 0 else self.overlap
        expected = f"whole numbers from 0 to less than the patch's {self.shape}"
        some = [whole_number(o, "overlap", 0) for o in listed(given, "overlap", expected, rank)]
        if any(o >= p for o, p in zip(some, self.shape, strict=True)):
            raise ValueError(f"overlap: expected {expected}, got {self.overlap}")
        object.__setattr__(self, "overlap", tuple(some))
        object.__setattr__(self, "window", nbytes_of(self.window, "window"))

    @property
    def is_inside(self) -> bool:
        """Whether all patches lie inside the volume."""
        return True

    def order(self, volumes: Sequence[PatchSpace]) -> GridOrder:
        """Return the order of the patches of some volumes."""
        return GridOrder(self, volumes)

    def state(self) -> dict[str, Any]:
        """Return what the order depends on, as JSON."""
        assert not isinstance(self.overlap, int)
        return {
            "sampler": "grid",
            "shape": list(self.shape),
            "overlap": list(self.overlap),
            "window": self.window,
        }


class GridOrder:
    """Order of the patches of grids; see :class:`gpustore.loader.order.PatchOrder`."""

    def __init__(self, sampler: GridPatches, volumes: Sequence[PatchSpace]) -> None:
        self._parts: list[tuple[int, list[list[Integers]]]] = []
        counts: list[int] = []
        assert not isinstance(sampler.overlap, int)
        for volume, space in enumerate(volumes):
            along = []
            for d, edges in enumerate(space.blocks(int(sampler.window))):
                step = (sampler.shape[d] - sampler.overlap[d]) // space.steps[d] * space.steps[d]
                if not step:
                    raise ValueError(
                        f"overlap: patches of {sampler.shape[d]} elements in dimension {d} whose "
                        f"origins are multiples of {space.steps[d]} can not share "
                        f"{sampler.overlap[d]}"
                    )
                last = (space.counts[d] - 1) * space.steps[d]
                origins = np.append(np.arange(0, last, step), last)
                bounds = np.searchsorted(origins, edges * space.steps[d])
                pieces = [origins[lo:hi] for lo, hi in itertools.pairwise(bounds.tolist())]
                along.append([one for one in pieces if len(one)])
            self._parts.append((volume, along))
            counts += [math.prod(map(len, block)) for block in itertools.product(*along)]
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def origins(self, volume: int = 0) -> list[Integers]:
        """Return the origins of a volume's patches along each dimension, ascending."""
        return [np.concatenate(pieces) for pieces in self._parts[volume][1]]

    def strata(self, epoch: int, numbers: Integers) -> Integers:
        """Return the numbers: patches that follow each other are near."""
        return numbers

    def windows(self, epoch: int, first: int) -> Iterator[Window]:
        """Yield the windows of an epoch, in order, from the one that has patch `first` on."""
        at = itertools.chain.from_iterable(
            ((volume, block) for block in itertools.product(*along))
            for volume, along in self._parts
        )
        begin = 0
        for (volume, block), end in zip(at, self._ends.tolist(), strict=True):
            if end > first:
                grid = np.meshgrid(*block, indexing="ij")
                yield Window(begin, volume, np.stack([g.reshape(-1) for g in grid], axis=1))
            begin = end
