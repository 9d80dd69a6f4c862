"""Grid of the stored values of an array: a chunk each, or a shard of chunks.

A value is known by its key, so that a list of the keys tells which values are stored.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpustore.cli.failure import CommandError
from gpustore.display.array_info import FORMATS, METADATA_NAMES
from gpustore.display.elements import Elements
from gpustore.display.extents import Edges, chunk_extents, edges_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import gpustore


_NUMBERED = ("zarr", "zarr2", "zarr3", "n5")
"""Drivers whose keys are the numbers of chunks along the dimensions."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True)
class ValueGrid:
    """Grid of stored values.

    Attributes
    ----------
    edges : tuple of sequence of int
        Indices at which the values along each dimension begin, and the extent at the end.
    key_prefix, separator : str
        Text before and between the numbers of a key.
    scalar_key : str
        Key of the only value of an array of rank 0.
    is_sharded : bool
        Whether a value is a shard of several chunks.
    """

    edges: tuple[Sequence[int], ...]
    key_prefix: str
    separator: str
    scalar_key: str
    is_sharded: bool

    @classmethod
    def of(cls, store: gpustore.TensorStore) -> ValueGrid:
        """Return the grid of an opened array.

        Raises
        ------
        CommandError
            If the array has no stored chunks, or their keys are not numbers.
        """
        spec: dict[str, Any] = store.spec().to_json()
        if store.kvstore is None or spec["driver"] not in _NUMBERED:
            name = FORMATS.get(spec["driver"], spec["driver"])
            raise CommandError(
                f"chunks of Zarr and N5 are known by their keys, those of {name} not"
            )
        metadata = spec["metadata"]
        rank = Elements.of(store).rank
        shape = [int(n) for n in store.shape[:rank]]
        extents = chunk_extents(store, "write_chunk")[:rank]
        along = edges_of(store) or extents
        edges = tuple(Edges(size, n) for size, n in zip(along, shape, strict=True))
        is_sharded = extents != chunk_extents(store, "read_chunk")[:rank]
        if spec["driver"] == "n5":
            return cls(edges, "", "/", "0", is_sharded)
        encoding = metadata.get("chunk_key_encoding")
        if encoding is None:
            return cls(edges, "", str(metadata.get("dimension_separator") or "."), "0", is_sharded)
        is_default = encoding["name"] == "default"
        separator = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        prefix, scalar = (f"c{separator}", "c") if is_default else ("", "0")
        return cls(edges, prefix, separator, scalar, is_sharded)

    @property
    def noun(self) -> str:
        """Name of a value, for people."""
        return "shard" if self.is_sharded else "chunk"

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of values along each dimension."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.counts)

    def cells(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions of all values, the last dimension fastest."""
        # Not itertools.product: it would hold all positions along each dimension.
        for number in range(self.size):
            cell = []
            for count in reversed(self.counts):
                number, at = divmod(number, count)
                cell.append(at)
            yield tuple(reversed(cell))

    def cell(self, key: str) -> tuple[int, ...] | None:
        """Return the position of the value with a key, None if no value of the grid has it."""
        if not self.counts:
            return () if key == self.scalar_key else None
        if not key.startswith(self.key_prefix):
            return None
        words = key[len(self.key_prefix) :].split(self.separator)
        if len(words) != len(self.counts) or not all(map(_INDEX.fullmatch, words)):
            return None
        found = tuple(map(int, words))
        return found if all(i < n for i, n in zip(found, self.counts, strict=True)) else None

    def key(self, cell: Sequence[int]) -> str:
        """Return the key of the value at a position."""
        if not self.counts:
            return self.scalar_key
        return self.key_prefix + self.separator.join(map(str, cell))

    def box(self, cell: Sequence[int]) -> tuple[range, ...]:
        """Return the indices of the elements of a value."""
        return tuple(
            range(edges[i], edges[i + 1]) for edges, i in zip(self.edges, cell, strict=True)
        )

    def touched(self, dimension: int, indices: range) -> range:
        """Return the positions along a dimension of the values between two indices."""
        if not indices:
            return range(0)
        edges = self.edges[dimension]
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        return range(bisect_left(edges, low + 1) - 1, bisect_left(edges, high + 1))


@dataclass(frozen=True, slots=True)
class StoredValues:
    """Values of an array that are stored.

    Attributes
    ----------
    nbytes : dict of tuple to int
        Encoded size by position.
    others : list of str
        Keys that belong to no value of the grid and are no metadata.
    errors : dict of str to GpustoreError
        Keys whose sizes cannot be found, with the reason.
    """

    nbytes: dict[tuple[int, ...], int]
    others: list[str]
    errors: dict[str, gpustore.GpustoreError]

    @classmethod
    def listed(cls, store: gpustore.TensorStore, grid: ValueGrid) -> StoredValues | None:
        """List the stored values of an array; None if its kvstore cannot list."""
        kvstore = store.kvstore
        if kvstore is None or not kvstore.driver.can_list:
            return None
        sizes, errors = kvstore.list_nbytes().result()
        nbytes: dict[tuple[int, ...], int] = {}
        others = []
        for key, size in sizes.items():
            cell = grid.cell(key)
            if cell is not None:
                nbytes[cell] = size
            elif key.rpartition("/")[2] not in METADATA_NAMES:
                others.append(key)
        return cls(nbytes, others, errors)
