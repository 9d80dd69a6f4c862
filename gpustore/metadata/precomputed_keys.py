"""Names of the chunks of a Neuroglancer precomputed scale.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/volume.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpustore.metadata.precomputed_scale import Sizes, z_index_bits


@dataclass(frozen=True, slots=True)
class BoxNames:
    """Names of chunks with files of their own: the bounds of each along x, y and z.

    Attributes
    ----------
    origin, size, chunk_size : tuple of 3 ints

    >>> names = BoxNames((10, -5, 0), (7, 5, 4), (3, 2, 2))
    >>> names.name((2, 0, 1)), names.cell("16-17_-5--3_2-4")
    ('16-17_-5--3_2-4', (2, 0, 1))
    """

    origin: Sizes
    size: Sizes
    chunk_size: Sizes

    def name(self, cell: Sequence[int]) -> str:
        """Return the name of the chunk at a cell."""
        bounds = zip(cell, self.origin, self.size, self.chunk_size, strict=True)
        return "_".join([f"{o + i * c}-{o + min((i + 1) * c, n)}" for i, o, n, c in bounds])

    def cell(self, name: str) -> tuple[int, ...]:
        """Return the cell of a name."""
        begins = [int(part[: part.index("-", 1)]) for part in name.split("_")]
        return tuple((b - o) // c for b, o, c in zip(begins, self.origin, self.chunk_size))


@dataclass(frozen=True, slots=True)
class ZIndexNames:
    """Names of chunks in shards: their numbers, in which the bits of x, y and z alternate.

    Attributes
    ----------
    bits : tuple of 3 ints
        Bits of a cell along x, y and z.

    >>> names = ZIndexNames((2, 1, 0))
    >>> [names.name((x, y, 0)) for y in range(2) for x in range(4)]
    ['0', '1', '4', '5', '2', '3', '6', '7']
    >>> names.cell("6")
    (2, 1, 0)
    """

    bits: Sizes

    @classmethod
    def of(cls, size: Sizes, chunk_size: Sizes) -> ZIndexNames:
        """Return the names in a scale of these extents."""
        return cls(z_index_bits(size, chunk_size))

    def name(self, cell: Sequence[int]) -> str:
        """Return the name of the chunk at a cell."""
        found = 0
        for out, (d, bit) in enumerate(self._places()):
            found |= (cell[d] >> bit & 1) << out
        return str(found)

    def cell(self, name: str) -> tuple[int, ...]:
        """Return the cell of a name."""
        number, cell = int(name), [0, 0, 0]
        for out, (d, bit) in enumerate(self._places()):
            cell[d] |= (number >> out & 1) << bit
        return tuple(cell)

    def _places(self) -> list[tuple[int, int]]:
        """Return dimension and bit in the cell of each bit of a number, the lowest first."""
        most = max(self.bits)
        return [(d, bit) for bit in range(most) for d in range(3) if bit < self.bits[d]]
