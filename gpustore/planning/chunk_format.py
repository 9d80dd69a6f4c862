"""Layout and keys of stored chunks, as plans know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class KeyNames(Protocol):
    """Names of chunks that are not the indices of their cells, joined by a separator."""

    def name(self, cell: Sequence[int]) -> str:
        """Return what follows the prefix in the key of the chunk at `cell`."""

    def cell(self, name: str) -> tuple[int, ...]:
        """Return the cell of a :meth:`name`."""


@dataclass(slots=True)
class ChunkFormat:
    """Layout and keys of stored chunks of one shape.

    Attributes
    ----------
    stride : tuple of int, one an array dimension
        Bytes between neighbours in a decoded chunk; of shards, in a decoded innermost chunk.
    key_prefix, key_separator : str
        Prefix of a key, and the separator that joins the cell indices behind it.
    key_ratio : tuple of int, one an array dimension
        Cells along each dimension that share a key: 1, or the inner chunks of a shard.
    key_rank : int
        Number of array dimensions in a key; the others are inside each stored element.
    dense : bool
        Whether a row that has all elements of a chunk has all of its bytes.
    names : KeyNames, optional
        Other names of chunks than joined indices.
    """

    stride: tuple[int, ...]
    key_prefix: str
    key_separator: str
    key_ratio: tuple[int, ...]
    key_rank: int
    dense: bool = True
    names: KeyNames | None = None

    def keys(self, cells: Sequence[NDArray[np.int64]], count: int) -> list[str]:
        """Make the keys of `count` chunks at these cells, one column an array dimension."""
        if not self.key_rank:
            return [self.key_prefix] * count
        ratios = self.key_ratio[: self.key_rank]
        columns = [(cell // ratio).tolist() for cell, ratio in zip(cells, ratios)]
        return [self.key(index) for index in zip(*columns)]

    def key(self, index: Sequence[int]) -> str:
        """Return the key with these indices."""
        if self.names is not None:
            return self.key_prefix + self.names.name(index)
        return self.key_prefix + self.key_separator.join(map(str, index))
