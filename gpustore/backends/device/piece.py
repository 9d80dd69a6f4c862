"""Pieces of submissions: values of some chunks in a staging buffer, and chunks in a cache.

The tasks of a read make :class:`Piece` objects; a submission joins those of one chain to a
:class:`Group`, whose columns NumPy takes all at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.chunk_cache import CachedChunks, ChunkCache
from gpustore.backends.device.direct_read import DirectReads
from gpustore.backends.device.placement import Places, TablePlaces, joined, order_of
from gpustore.backends.device.slab import CachedRows, Slab
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.headers import KnownHeaders
from gpustore.errors import GpustoreError

Integers = NDArray[np.int64]

ENCODED: Final = 0
DECODED: Final = 1
MISSING: Final = 2
FAILED: Final = 3
CACHED: Final = 4
CACHED_ENCODED: Final = 5
"""States of values in a staging buffer, or of chunks in a cache of the device.

Values of uncompressed chunks are encoded, or parts.
"""

Report = Callable[[int, Mapping[int, GpustoreError]], None]


@dataclass(slots=True)
class Piece:
    """Values of some chunks in a staging buffer.

    Attributes
    ----------
    chain : CodecChain
        Decodes the values; other pieces of a read may have another.
    places : Places or TablePlaces
        Destinations of the elements of each value.
    start, nbytes : ndarray of int64, shape (n,)
        Place of each value in the buffer.
    state : ndarray of uint8, shape (n,)
        :data:`ENCODED`, :data:`DECODED`, :data:`MISSING`, :data:`FAILED`, :data:`CACHED` or
        :data:`CACHED_ENCODED`.
    report : callable
        Called once the rows are in place, with the number of missing ones, and the error of each
        row that failed.
    are_parts : bool
        Whether the values are parts of uncompressed chunks.
    errors : dict of int to GpustoreError
        Errors of failed rows.
    direct : DirectReads, optional
        Reads of files straight to the device, which have ended.
    known : KnownHeaders, optional
        Headers of the values that the native core has read; see
        :class:`~gpustore.device.encoded_columns.EncodedColumns`.
    cached : CachedChunks, optional
        Chunks of the rows in a cache, which those that are not there go to.
    """

    chain: CodecChain
    places: Places | TablePlaces
    start: Integers
    nbytes: Integers
    state: NDArray[np.uint8]
    report: Report
    are_parts: bool = False
    errors: dict[int, GpustoreError] = field(default_factory=dict)
    direct: DirectReads | None = None
    known: KnownHeaders | None = None
    cached: CachedChunks | None = None

    def __len__(self) -> int:
        return len(self.state)

    def find_cached(self) -> Integers:
        """Note the state of rows whose chunks are cached; return the other rows."""
        if self.cached is None:
            return np.arange(len(self))
        self.state[self.cached.is_known] = CACHED
        self.state[self.cached.is_missing] = MISSING
        self.state[self.cached.is_encoded] = CACHED_ENCODED
        return np.flatnonzero(~self.cached.is_known)

    def fail(self, row: int, error: GpustoreError) -> None:
        """Note the error of a row, which has no value any more."""
        self.state[row] = FAILED
        self.errors[row] = error

    def take(self, rows: Integers) -> Piece:
        """Return some of the rows, which are reported by their old numbers."""
        numbers = {int(row): i for i, row in enumerate(rows)}
        return Piece(
            self.chain,
            self.places.take(rows),
            self.start[rows],
            self.nbytes[rows],
            self.state[rows],
            renumbered(self.report, rows),
            self.are_parts,
            {numbers[row]: error for row, error in self.errors.items()},
            self.direct,
            None if self.known is None else self.known.take(rows),
            None if self.cached is None else self.cached.take(rows),
        )


@dataclass(slots=True)
class Left:
    """Rows of a piece that the host must decode.

    Attributes
    ----------
    piece : Piece
    rows : ndarray of int64
        Numbers of the rows in the piece.
    values : list of bytes
        Encoded value of each row.
    """

    piece: Piece
    rows: Integers
    values: list[bytes]


def renumbered(report: Report, rows: Integers) -> Report:
    """Return a function that reports rows of a piece by their numbers in `rows`."""

    def renumber(missing: int, errors: Mapping[int, GpustoreError]) -> None:
        report(missing, {int(rows[i]): error for i, error in errors.items()})

    return renumber


class Group:
    """Pieces of one chain, as columns of all their rows.

    Attributes
    ----------
    last_state : int
        Highest of the states of the rows.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        if len(pieces) > 1:
            pieces = sorted(pieces, key=lambda piece: order_of(piece.places))
        self.pieces = pieces
        self.chain = pieces[0].chain
        edges = itertools.accumulate(map(len, pieces), initial=0)
        self.edges: Integers = np.fromiter(edges, np.int64, len(pieces) + 1)
        self.places = joined([piece.places for piece in pieces])
        one = pieces[0]
        self.start, self.nbytes, self.state = one.start, one.nbytes, one.state
        self.known = one.known
        if len(pieces) > 1:
            self.start = np.concatenate([piece.start for piece in pieces])
            self.nbytes = np.concatenate([piece.nbytes for piece in pieces])
            self.state = np.concatenate([piece.state for piece in pieces])
            self.known = self._known()
        self.last_state = int(self.state.max()) if np.count_nonzero(self.state) else ENCODED

    def _known(self) -> KnownHeaders | None:
        """Return the headers of all pieces that the core has read; None without any."""
        some = next((piece.known for piece in self.pieces if piece.known is not None), None)
        if some is None:
            return None
        first, *others = [
            some.unknown(len(piece)) if piece.known is None else piece.known
            for piece in self.pieces
        ]
        return first.joined(others)

    def by_piece(self, rows: Integers) -> Iterator[tuple[Piece, Integers, Integers]]:
        """Divide rows: yield each piece with its rows, and their numbers in `rows`."""
        owner = np.searchsorted(self.edges, rows, "right") - 1
        for number in np.unique(owner).tolist():
            chosen = np.flatnonzero(owner == number)
            yield self.pieces[number], rows[chosen] - self.edges[number], chosen

    @property
    def tables(self) -> ChunkTables | None:
        """Tables of all chunks of the array, if all pieces know them."""
        found = [None if piece.cached is None else piece.cached.tables for piece in self.pieces]
        return found[0] if all([one is found[0] for one in found]) else None

    def numbers(self, rows: Integers) -> Integers:
        """Return the numbers of cached chunks."""
        found = np.empty(len(rows), np.int64)
        for piece, some, chosen in self.by_piece(rows):
            assert piece.cached is not None
            found[chosen] = piece.cached.numbers[some]
        return found

    def fail(self, row: int, error: GpustoreError) -> None:
        """Note the error of a row."""
        number = int(np.searchsorted(self.edges, row, "right")) - 1
        self.pieces[number].fail(row - int(self.edges[number]), error)

    def in_slabs(self, rows: Integers) -> CachedRows:
        """Return rows with cached chunks slab by slab, all of encoded ones or none."""
        number, position = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        slabs: dict[int, Slab] = {}
        for piece, some, chosen in self.by_piece(rows):
            assert piece.cached is not None
            number[chosen], position[chosen] = piece.cached.slab[some], piece.cached.position[some]
            slabs |= piece.cached.slabs
        return CachedRows.of(rows, number, position, slabs, self.chain.layout.nbytes)


@dataclass(slots=True)
class Kept:
    """Chunks that are copied to a cache.

    Attributes
    ----------
    group : Group
    rows : ndarray of int64, shape (n,)
    cache : ChunkCache
    slab : Slab or None
        Memory of the cache for the chunks, held; None if there is no room.
    position : ndarray of int64, shape (n,)
        Position of each chunk there.
    sizes : ndarray of int64, shape (n,)
        Bytes of each chunk.
    """

    group: Group
    rows: Integers
    cache: ChunkCache
    slab: Slab | None
    position: Integers
    sizes: Integers

    def take(self, chosen: NDArray[np.bool_]) -> None:
        """Leave out the other chunks."""
        self.rows, self.position = self.rows[chosen], self.position[chosen]
        self.sizes = self.sizes[chosen]

    def let_go(self) -> None:
        """Leave the memory to the cache."""
        if self.slab is not None:
            self.cache.let_go(self.slab)
