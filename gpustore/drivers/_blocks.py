"""Blocks of the elements of a base that are reduced to cells, for the ``downsample`` driver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpustore.backends.downsampling import GAUSSIAN, Downsampling
from gpustore.drivers._cells import Box
from gpustore.errors import OutOfBoundsError
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.index_space.downsampling import downsampled, elements_below

_PART_NBYTES: Final = 64 << 20
"""Bytes of the base that are read at once, unless one block has more."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a domain.

    Attributes
    ----------
    base_transform : IndexTransform
        From the domain that is downsampled to that of the base.
    factors : tuple of int
        Elements of a block along each dimension.
    method : str
        One of :data:`~gpustore.backends.downsampling.METHODS`, or ``"gaussian"``.
    """

    base_transform: IndexTransform
    factors: tuple[int, ...]
    method: str

    @property
    def domain(self) -> IndexDomain:
        """Domain of the cells."""
        domain = self.base_transform.domain
        return downsampled(domain, self.factors, strided=self.method == "stride")

    def elements_of_cells(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform to the elements of the base that cells are made of."""
        domain = self.domain.mark_bounds_implicit[False]
        transform = IndexTransform(domain)[transform]
        if self.method == "stride" or 0 in transform.domain.shape:
            if 0 not in transform.domain.shape:
                self.box(transform, domain)
            return self.strided(transform)
        return self.elements_of(self.box(transform, domain))

    def below(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform to all elements of the base of which cells are made.

        Its domain has new dimensions where the cells are not a range, as that of a crop.
        """
        if self.method == "stride":
            return self.strided(transform)
        base = self.base_transform.domain
        return self.base_transform[elements_below(transform, base, self.factors)]

    def strided(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform to the base of the first elements of blocks."""
        maps = []
        for map_, factor in zip(transform.output, self.factors, strict=True):
            offset, stride = map_.offset * factor, (map_.stride or 0) * factor
            if map_.index_array is not None:
                maps.append(OutputIndexMap(map_.index_array, offset=offset, stride=stride))
            elif map_.input_dimension is not None:
                maps.append(OutputIndexMap(map_.input_dimension, offset=offset, stride=stride))
            else:
                maps.append(OutputIndexMap(offset))
        return self.base_transform[IndexTransform(transform.domain, maps)]

    def box(self, transform: IndexTransform, within: IndexDomain) -> Box:
        """Return the smallest box with all outputs of a transform whose domain is not empty.

        Raises
        ------
        OutOfBoundsError
            If an index array has an index outside of `within`; other maps have been checked.
        """
        domain = transform.domain
        box = []
        for d, (dim, map_) in enumerate(zip(within, transform.output, strict=True)):
            indices = np.zeros(1, np.int64)
            if map_.index_array is not None:
                indices = map_.index_array.reshape(-1)
            elif map_.input_dimension is not None:
                along = domain[map_.input_dimension]
                indices = np.array([along.inclusive_min, along.exclusive_max - 1])
            found = map_.offset + (map_.stride or 0) * indices
            outside = (found < dim.inclusive_min) | (found >= dim.exclusive_max)
            if outside.any():
                index = found[outside.argmax()]
                where = f"Propagating downsampling factor {self.factors[d]} through output "
                where += f"dimension {d}: "
                if self.method == "stride" or self.factors[d] == 1:
                    where = ""
                valid = f"[{dim.inclusive_min}, {dim.exclusive_max})"
                raise OutOfBoundsError(f"{where}Index {index} is outside valid range {valid}")
            box.append((int(found.min()), int(found.max()) + 1))
        return tuple(box)

    def parts(self, box: Box, itemsize: int) -> Iterator[Box]:
        """Divide a box of cells so that the blocks of each take little memory.

        `itemsize` is the size of an element in bytes.
        """
        extents = self.base_transform.domain.shape
        # A block ends where the base does.
        block = math.prod(map(min, self.factors, extents))
        most = max(1, _PART_NBYTES // (max(1, block) * max(1, itemsize)))
        sides = [high - low for low, high in box]
        # Rows along the first dimensions are cut first: their elements lie furthest apart.
        for d in range(len(sides)):
            row = math.prod(sides[d + 1 :])
            if math.prod(sides) <= most:
                break
            sides[d] = max(1, most // row)
        steps = [range(low, high, side) for (low, high), side in zip(box, sides, strict=True)]
        for place in itertools.product(*steps):
            ends = zip(place, steps, strict=True)
            yield tuple((low, min(low + step.step, step.stop)) for low, step in ends)

    def elements_of(self, part: Box) -> IndexTransform:
        """Return the transform to the elements of the blocks of some cells."""
        return self.base_transform[tuple(slice(*along) for along in self.elements(part))]

    def elements(self, part: Box) -> Box:
        """Return the box of the elements of the blocks of some cells, as far as there are any."""
        domain = self.base_transform.domain
        found = []
        for (low, high), factor, first, end in zip(
            part, self.factors, domain.inclusive_min, domain.exclusive_max, strict=True
        ):
            neighbours = int(self.method == GAUSSIAN and factor == 2)
            found.append(
                (max(low * factor - neighbours, first), min(high * factor + neighbours, end))
            )
        return tuple(found)

    def job(self, part: Box) -> Downsampling:
        """Return how the elements of the blocks of some cells are reduced."""
        begin = [low for low, _ in self.elements(part)]
        cut = zip(begin, part, self.factors, strict=True)
        return Downsampling(self.method, self.factors, tuple(at - c[0] * f for at, c, f in cut))
