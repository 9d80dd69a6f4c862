"""Rectilinear grids: edges of chunks that differ in shape, and codecs of each shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpustore.data_types.json_array import shape_text
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.sharding.shard import ResolvedCodecs

_REMEMBERED = 4096
"""Most chunk shapes whose codecs are kept in memory."""


@dataclass(frozen=True, eq=False)
class RectilinearGrid:
    """The chunks of an array with a rectilinear grid.

    Parameters
    ----------
    edges : tuple of ChunkEdges, one an array dimension
        Edges along each dimension; inner dimensions, inside each stored element, come last.
    resolve : callable
        Returns the codecs of a chunk with a key, from its shape without inner dimensions.
    inner_rank : int
        Number of inner dimensions.
    """

    edges: tuple[ChunkEdges, ...]
    resolve: Callable[[tuple[int, ...]], ResolvedCodecs]
    inner_rank: int
    _resolved: dict[tuple[int, ...], ResolvedCodecs] = field(default_factory=dict)

    @cached_attribute
    def planned(self) -> tuple[int | ChunkEdges, ...]:
        """Edges along each dimension, or an integer if all chunks have that size."""
        return tuple(edges.constant or edges for edges in self.edges)

    def codecs(self, chunk_shape: tuple[int, ...]) -> ResolvedCodecs:
        """Return the codecs of chunks of `chunk_shape`, inner dimensions included."""
        found = self._resolved.get(chunk_shape)
        if found is None:
            found = self.resolve(chunk_shape[: len(chunk_shape) - self.inner_rank])
            if len(self._resolved) < _REMEMBERED:
                self._resolved[chunk_shape] = found
        return found

    def check_codecs(self) -> None:
        """Check that codecs that depend on the shape of a chunk fit every chunk.

        Raises
        ------
        MetadataError
            Naming the codec and the chunk shape.
        UnsupportedError
            If there are too many chunk shapes.
        """
        count = math.prod(len(edges.sizes) for edges in self.edges)
        if count > _REMEMBERED:
            raise UnsupportedError(
                f"Codecs that change the shape of chunks are supported in rectilinear grids with "
                f"at most {_REMEMBERED} chunk shapes, not {count}"
            )
        for shape in itertools.product(*(sorted(edges.sizes) for edges in self.edges)):
            self.codecs(shape)

    def check_inner(self, inner: Sequence[int]) -> None:
        """Check that all shards can be divided into inner chunks.

        Raises
        ------
        MetadataError
            Naming the dimension.
        """
        for d, (size, edges) in enumerate(zip(inner, self.edges)):
            for edge in sorted(edges.sizes):
                if edge % size:
                    raise MetadataError(
                        f"sharding_indexed sub-chunk shape of {shape_text(inner)} does not evenly "
                        f"divide the chunk edge {edge} of dimension {d}"
                    )

    def uniform(self, shape: Sequence[int]) -> list[int | None]:
        """Return the chunk size along each dimension of an array; None where chunks differ."""
        return [edges.uniform(extent) for edges, extent in zip(self.edges, shape)]

    def cells(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the number of chunks of an array along each dimension, without inner ones."""
        counts = [edges.cells(extent) for edges, extent in zip(self.edges, shape)]
        return tuple(counts[: len(counts) - self.inner_rank])
