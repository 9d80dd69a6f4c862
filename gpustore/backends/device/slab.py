"""Slabs: memory of a cache for the chunks of one submission, on the device or pinned on the host.

A chunk has a *position*: its address if the slab is on the device; in pinned memory its first byte
in the slab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.cell_table import CellTable
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.command_list import CommandList
from gpustore.device.headers import Headers
from gpustore.device.kernels.block import stream_launches
from gpustore.device.protocol import Allocation, Device, Pinned, Spans, Stream
from gpustore.planning.chunk_grid import Integers

SLAB_ALIGNMENT: Final = 16
"""Multiple of bytes at which chunks begin in a slab."""

_GAP_NBYTES: Final = 64 << 10
"""Most bytes between chunks in pinned memory that are uploaded with them: about as many as the bus
copies in the time that one more copy takes. Not measured."""


@dataclass(frozen=True, slots=True)
class EncodedSlab:
    """Encoded chunks of a slab.

    Attributes
    ----------
    start, sizes : ndarray of int64, shape (n,)
        Position of each, ascending, and its length in bytes.
    headers : Headers or None
        Headers of all of them, if decoding needs any.
    """

    start: Integers
    sizes: Integers
    headers: Headers | None

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        columns = self.start.nbytes + self.sizes.nbytes
        return columns + (0 if self.headers is None else self.headers.nbytes)

    def find(self, position: Integers) -> tuple[Integers, Headers | None]:
        """Return length and headers of the chunks at these positions."""
        at = np.searchsorted(self.start, position)
        return self.sizes[at], None if self.headers is None else self.headers.take(at)


@dataclass(slots=True)
class Slab:
    """Memory of the chunks of one submission.

    Attributes
    ----------
    number : int
        Number in the cache, at least 1.
    nbytes : int
        Bytes of the memory.
    allocation : Allocation or None
        The memory, if it is the device's.
    pinned : Pinned or None
        The memory, if it is pinned.
    holds : int
        Number of users who need it to stay.
    live : int
        Number of entries that lie in it.
    parts : list of (CellTable, ndarray of int64)
        Chunks that had entries in it at some time, by table.
    encoded : EncodedSlab, optional
        Description of the chunks, if they are encoded.
    tables : ChunkTables, optional
        Tables of an array that lie there in place of chunks.
    """

    number: int
    nbytes: int
    allocation: Allocation | None = None
    pinned: Pinned | None = None
    holds: int = 1
    live: int = 0
    parts: list[tuple[CellTable, Integers]] = field(default_factory=list)
    encoded: EncodedSlab | None = None
    tables: ChunkTables | None = None

    @property
    def start(self) -> int:
        """Position of its first byte."""
        return 0 if self.allocation is None else self.allocation.address

    @property
    def total_nbytes(self) -> int:
        """Bytes of the memory, and of headers and sums in host memory."""
        return self.nbytes + sum([one.nbytes for one in (self.encoded, self.tables) if one])

    def free(self, device: Device, stream: Stream) -> None:
        """Free the memory, which nobody uses behind this point of `stream`."""
        if self.allocation is not None:
            device.free(self.allocation, stream)
        if self.pinned is not None:
            device.free_pinned(self.pinned)

    def copy(
        self,
        commands: CommandList,
        chunks: NDArray[np.uint64],
        position: Integers,
        sizes: Integers,
    ) -> None:
        """Record the copy of chunks into the slab, at ascending positions; one download if pinned.

        Parameters
        ----------
        chunks : ndarray of uint64, shape (n,)
            Device address of each chunk.
        position, sizes : ndarray of int64, shape (n,)
            Position of each in the slab, and its bytes.
        """
        if self.pinned is None:
            commands.launch_tables(stream_launches(chunks, position, sizes))
            return
        nbytes = int(position[-1] + sizes[-1])
        packed = commands.scratch(nbytes)
        commands.launch_tables(stream_launches(chunks, packed + position, sizes))
        commands.download(packed, self.pinned, 0, nbytes)


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Rows of a group whose chunks lie in slabs of a cache.

    Attributes
    ----------
    rows : ndarray of int64, shape (n,)
        Numbers of the rows.
    position, nbytes : ndarray of int64, shape (n,)
        Position of each chunk in its slab, and its bytes there.
    slabs : list of Slab
    owner : ndarray of int64, shape (n,)
        Index of the slab of each chunk, ascending.
    headers : Headers or None
        Headers of encoded chunks, if decoding needs any.
    """

    rows: Integers
    position: Integers
    nbytes: Integers
    slabs: list[Slab]
    owner: Integers
    headers: Headers | None

    @classmethod
    def of(
        cls,
        rows: Integers,
        number: Integers,
        position: Integers,
        slabs: Mapping[int, Slab],
        nbytes: int,
    ) -> CachedRows:
        """Return rows slab by slab, all of encoded chunks or none.

        Parameters
        ----------
        number, position : ndarray of int64, shape (n,)
            Number of the slab of each chunk, and its position there.
        nbytes : int
            Bytes of a decoded chunk.
        """
        order = np.argsort(number, kind="stable")
        position = position[order]
        known, first, owner = np.unique(number[order], return_index=True, return_inverse=True)
        sizes = np.full(len(rows), nbytes, np.int64)
        headers: list[Headers] = []
        found = [slabs[one] for one in known.tolist()]
        for slab, lo, hi in zip(found, first, [*first[1:], len(rows)]):
            if slab.encoded is not None:
                sizes[lo:hi], some_headers = slab.encoded.find(position[lo:hi])
                headers += [] if some_headers is None else [some_headers]
        joined = headers[0].joined(headers[1:]) if headers else None
        return cls(rows[order], position, sizes, found, owner, joined)

    def on_device(self, commands: CommandList) -> Spans:
        """Return the places of the chunks on the device; record the uploads of pinned ones.

        Chunks that lie close together are one upload.
        """
        start, nbytes = self.position, self.nbytes.astype(np.uint64)
        if self.slabs[0].pinned is None:
            return Spans(start.astype(np.uint64), nbytes)
        order = np.lexsort((start, self.owner))
        owner, start = self.owner[order], start[order]
        stop = start + self.nbytes[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (owner[1:] != owner[:-1]) | (start[1:] - stop[:-1] > _GAP_NBYTES)
        first = np.flatnonzero(is_first)
        low, high = start[first], stop[np.append(first[1:], len(order)) - 1]
        sizes = -(-(high - low) // SLAB_ALIGNMENT) * SLAB_ALIGNMENT
        base = commands.scratch(int(sizes.sum())) + np.cumsum(sizes) - sizes
        columns = owner[first], low, base, high - low
        for number, lo, at, n in zip(*(column.tolist() for column in columns)):
            pinned = self.slabs[number].pinned
            assert pinned is not None
            commands.upload(pinned, lo, at, n)
        address = np.empty(len(order), np.uint64)
        address[order] = start + (base - low)[np.cumsum(is_first) - 1]
        return Spans(address, nbytes)
