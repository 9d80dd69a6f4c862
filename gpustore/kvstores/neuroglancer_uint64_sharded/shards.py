"""Chunks in the shards of a Neuroglancer precomputed scale, as a kvstore over that of the volume.

The key of a chunk ends in its number; ``<number>-<n>`` is the key of the `n` bytes before it. A
hash of the number (without its lowest bits) says which shard and which minishard of it have the
chunk. A shard begins with the place of the index of each minishard: start and end, uint64, counted
from the end of these. An index has three rows of uint64: numbers of chunks, gaps before them and
their lengths, the first two as differences.

Reads fetch the places, the indices and the chunks, each for all keys at once; indices are
remembered together with the generation of their shard. A write makes a shard anew, on condition
that nobody has changed it meanwhile.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/sharded.md``.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    GpustoreError,
    MismatchError,
    StoreIOError,
)
from gpustore.kvstores.base import DriverSpec, KvStoreDriver, Replacement
from gpustore.kvstores.columns import (
    ABSENT,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    condition_holds,
)
from gpustore.metadata.precomputed_scale import Sharding
from gpustore.runtime.buffer import Buffer

_ATTEMPTS: Final = 10
_MOST_REMEMBERED: Final = 1024
_MAX_INDEX_NBYTES: Final = 256 << 20
_PLACE: Final = struct.Struct("<QQ")
_U64: Final = (1 << 64) - 1
_U32: Final = (1 << 32) - 1


def hash_of(number: int) -> int:
    """Return the lower 64 bits of MurmurHash3_x86_128 of a number, 8 bytes little endian, seed 0.

    >>> hex(hash_of(0))
    '0x4772b084e028ae41'
    """

    def rotated(x: int, n: int) -> int:
        return (x << n | x >> 32 - n) & _U32

    def mixed(h: int) -> int:
        h = (h ^ h >> 16) * 0x85EBCA6B & _U32
        h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
        return h ^ h >> 16

    c1, c2, c3 = 0x239B961B, 0xAB0E9789, 0x38B34AE5
    k1 = rotated((number & _U32) * c1 & _U32, 15) * c2 & _U32
    k2 = rotated((number >> 32) * c2 & _U32, 16) * c3 & _U32
    h = [k1 ^ 8, k2 ^ 8, 8, 8]
    h[0] = sum(h) & _U32
    h[1:] = [x + h[0] & _U32 for x in h[1:]]
    h = list(map(mixed, h))
    h[0] = sum(h) & _U32
    return (h[1] + h[0] & _U32) << 32 | h[0]


class Place(NamedTuple):
    """Place of a chunk, or of bytes before it.

    Attributes
    ----------
    shard : str
        Key of the shard.
    minishard : int
        Number of the minishard in it.
    number : int
        Number of the chunk.
    before : int or None
        Number of bytes that are meant, which end where the chunk begins; None for the chunk.
    """

    shard: str
    minishard: int
    number: int
    before: int | None = None


@dataclass(frozen=True, slots=True)
class _Index:
    """Index of a minishard: numbers of chunks, ascending or not, and their ranges in the shard."""

    generation: bytes
    ranges: dict[int, tuple[int, int]]


class Uint64Shards(KvStoreDriver):
    """The chunks in the shards below a prefix of keys.

    Parameters
    ----------
    base : KvStoreDriver
        Kvstore of the shards.
    prefix : str
        Prefix of their keys, and of those of chunks.
    sharding : Sharding
    """

    id = "neuroglancer_uint64_sharded"
    can_list = False
    write_nbytes = 64 << 20

    def __init__(self, base: KvStoreDriver, prefix: str, sharding: Sharding) -> None:
        self._base = base
        self._prefix = prefix
        self._sharding = sharding
        self._index_end = 16 << sharding.minishard_bits
        self._known: dict[tuple[str, int], _Index] = {}
        self._lock = threading.Lock()
        self.can_write = base.can_write
        self.is_local = base.is_local
        self.is_trusted = base.is_trusted
        self.batch_nbytes = base.batch_nbytes
        self.executor = base.executor

    @property
    def identity(self) -> Hashable:
        return self.id, self._base.identity, self._prefix

    @property
    def spec(self) -> DriverSpec:
        """Spec of the kvstore of the shards: an array is opened with that."""
        return self._base.spec

    @property
    def plain(self) -> Uint64Shards:
        return Uint64Shards(self._base.plain, self._prefix, self._sharding)

    def check_key(self, key: str) -> None:
        """Accept any key: arrays make them."""

    def describe(self, key: str) -> str:
        place = self.place(key)
        return (
            f"chunk {place.number} in minishard {place.minishard} of "
            f"{self._base.describe(place.shard)}"
        )

    def place(self, key: str) -> Place:
        """Return where the chunk of a key is."""
        one = self._sharding
        digits_of_number, _, before = key[len(self._prefix) :].partition("-")
        number = int(digits_of_number)
        hashed = number >> one.preshift_bits
        if one.hash != "identity":
            hashed = hash_of(hashed)
        minishard = hashed & (1 << one.minishard_bits) - 1
        shard = hashed >> one.minishard_bits & (1 << one.shard_bits) - 1
        digits = -(-one.shard_bits // 4)
        name = f"{self._prefix}{shard:0{digits}x}.shard"
        return Place(name, minishard, number, int(before) if before else None)

    # ----------------------------------------------------------------- reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Read a batch of chunks; generations are those of their shards."""
        result = ReadColumns.blank(len(request.keys))
        places = [self.place(key) for key in request.keys]
        rows = list(range(len(places)))
        fresh: set[tuple[str, int]] = set()
        for _ in range(_ATTEMPTS):
            rows = self._read(request, places, rows, result, fresh)
            if not rows:
                return result
        for row in rows:
            result.error[row] = ConflictError(
                f"Error reading {self.describe(request.keys[row])}: the shard was replaced "
                f"{_ATTEMPTS} times while being read",
                key=request.keys[row],
            )
        return result

    def _read(
        self,
        request: ReadRequest,
        places: Sequence[Place],
        rows: Sequence[int],
        result: ReadColumns,
        fresh: set[tuple[str, int]],
    ) -> list[int]:
        """Read some rows; return those whose shard has or may have changed meanwhile.

        An index is read again if a chunk is missing in it or its generation does not fulfil a
        condition, unless that was done for this request: it is in `fresh`.
        """
        wanted = dict.fromkeys((places[row].shard, places[row].minishard) for row in rows)
        indices, errors = self._indices(list(wanted), fresh)
        changed = []
        keys, starts, stops, generations, read = [], [], [], [], []
        for row in rows:
            place, key = places[row], request.keys[row]
            found = (place.shard, place.minishard)
            if found in errors:
                result.error[row] = errors[found].prefixed(f"Error reading {self.describe(key)}")
                continue
            index = indices.get(found)
            generation = ABSENT if index is None else index.generation
            span = None if index is None else index.ranges.get(place.number)
            is_wanted = _wanted(request, row, generation)
            if index is not None and found not in fresh and (span is None or not is_wanted):
                changed.append(row)
                continue
            result.generation[row] = generation
            if not is_wanted:
                continue
            if span is None:
                result.state[row] = ReadState.MISSING
                continue
            begin, end = span
            if place.before is not None:
                begin, end = begin - place.before, begin
                if begin < 0:
                    result.error[row] = MismatchError(
                        f"Error reading {self.describe(key)}: the shard has fewer than "
                        f"{place.before} bytes before the chunk",
                        status="OUT_OF_RANGE",
                        key=key,
                    )
                    continue
            start = 0 if request.start is None else request.start[row]
            stop = None if request.stop is None else request.stop[row]
            try:
                low, high = check_byte_range(end - begin, start, stop, key)
            except GpustoreError as error:
                result.error[row] = error
                continue
            result.total[row] = end - begin
            keys.append(place.shard)
            starts.append(begin + low)
            stops.append(begin + high)
            generations.append(generation)
            read.append(row)
        for row in changed:
            self._known.pop((places[row].shard, places[row].minishard), None)
        if not read:
            return changed
        columns = self._base.read_many(
            ReadRequest(
                keys,
                start=starts,
                stop=stops,
                if_equal=generations,
                max_nbytes=request.max_nbytes,
                into=request.into,
            )
        )
        for i, row in enumerate(read):
            if i in columns.error:
                where = self.describe(request.keys[row])
                result.error[row] = columns.error[i].prefixed(f"Error reading {where}")
                continue
            value = columns.value[i]
            if value is None:
                self._known.pop((places[row].shard, places[row].minishard), None)
                changed.append(row)
            elif len(value) != stops[i] - starts[i]:
                result.error[row] = self._incomplete(keys[i], len(value), stops[i] - starts[i])
            else:
                result.state[row], result.value[row] = ReadState.VALUE, value
        return changed

    def _indices(
        self, wanted: Sequence[tuple[str, int]], fresh: set[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], _Index], dict[tuple[str, int], GpustoreError]]:
        """Return the indices of minishards, without those in no shard; add the read to `fresh`."""
        found = {one: self._known[one] for one in wanted if one in self._known}
        left = [one for one in wanted if one not in found]
        fresh.update(left)
        errors: dict[tuple[str, int], GpustoreError] = {}
        for _ in range(_ATTEMPTS):
            if not left:
                break
            left = self._read_indices(left, found, errors)
        for one in left:
            errors[one] = ConflictError("the shard was replaced while being read", key=one[0])
        return found, errors

    def _read_indices(
        self,
        wanted: Sequence[tuple[str, int]],
        found: dict[tuple[str, int], _Index],
        errors: dict[tuple[str, int], GpustoreError],
    ) -> list[tuple[str, int]]:
        """Read indices; return those whose shard has changed meanwhile."""
        places = self._base.read_many(
            ReadRequest(
                [shard for shard, _ in wanted],
                start=[16 * minishard for _, minishard in wanted],
                stop=[16 * minishard + 16 for _, minishard in wanted],
            )
        )
        asked, keys, starts, stops, generations = [], [], [], [], []
        for i, one in enumerate(wanted):
            value = places.value[i]
            if i in places.error:
                errors[one] = places.error[i]
            elif value is not None and len(value) != _PLACE.size:
                errors[one] = self._incomplete(one[0], len(value), _PLACE.size)
            elif value is not None:
                begin, end = (self._index_end + at for at in _PLACE.unpack(bytes(value)))
                if begin == end:
                    found[one] = self._remembered(one, _Index(places.generation[i], {}))
                    continue
                if not begin < end or end - begin > _MAX_INDEX_NBYTES:
                    errors[one] = self._damaged(one, f"range [{begin}, {end}) of the index")
                    continue
                asked.append(one)
                keys.append(one[0])
                starts.append(begin)
                stops.append(end)
                generations.append(places.generation[i])
        if not asked:
            return []
        columns = self._base.read_many(
            ReadRequest(keys, start=starts, stop=stops, if_equal=generations)
        )
        changed = []
        for i, one in enumerate(asked):
            value = columns.value[i]
            if i in columns.error:
                errors[one] = columns.error[i]
            elif value is None:
                changed.append(one)
            elif len(value) != stops[i] - starts[i]:
                errors[one] = self._incomplete(one[0], len(value), stops[i] - starts[i])
            else:
                try:
                    ranges = self._decoded_index(bytes(value), one)
                except CorruptChunkError as error:
                    errors[one] = error
                else:
                    found[one] = self._remembered(one, _Index(generations[i], ranges))
        return changed

    def _remembered(self, one: tuple[str, int], index: _Index) -> _Index:
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[one] = index
        return index

    def _decoded_index(self, value: bytes, one: tuple[str, int]) -> dict[int, tuple[int, int]]:
        """Return the range in the shard of each chunk, by its number."""
        if self._sharding.minishard_index_encoding == "gzip":
            value = self._inflated(value, one)
        if len(value) % 24:
            raise self._damaged(one, f"an index of {len(value)} bytes")
        numbers, gaps, sizes = np.frombuffer(value, "<u8").reshape(3, -1).tolist()
        ranges, number, end = {}, 0, self._index_end
        for step, gap, nbytes in zip(numbers, gaps, sizes, strict=True):
            number, begin = number + step & _U64, end + gap & _U64
            end = begin + nbytes
            if end > 1 << 62 or begin < self._index_end:
                raise self._damaged(one, f"range [{begin}, {end}) of chunk {number}")
            ranges[number] = begin, end
        return ranges

    def _inflated(self, value: bytes, one: tuple[str, int]) -> bytes:
        stream = zlib.decompressobj(31)
        try:
            decoded = stream.decompress(value, _MAX_INDEX_NBYTES)
        except zlib.error as error:
            raise self._damaged(one, str(error)) from error
        if not stream.eof or stream.unused_data:
            raise self._damaged(one, "the index is no gzip stream")
        return decoded

    def _incomplete(self, shard: str, received: int, asked: int) -> StoreIOError:
        return StoreIOError(
            f"received {received} of {asked} bytes of {self._base.describe(shard)}",
            status="DATA_LOSS",
            key=shard,
        )

    def _damaged(self, one: tuple[str, int], what: str) -> CorruptChunkError:
        shard, minishard = one
        return CorruptChunkError(
            f"Invalid minishard {minishard} of {self._base.describe(shard)}: {what}",
            key=shard,
            codec=self.id,
        )

    # ----------------------------------------------------------------- writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """Write or delete a batch of chunks; each shard is made anew once."""
        result = WriteColumns.blank(len(request.keys))
        rows_of: dict[str, list[int]] = defaultdict(list)
        places = [self.place(key) for key in request.keys]
        for row, place in enumerate(places):
            rows_of[place.shard].append(row)
        for shard, rows in rows_of.items():
            try:
                with self._lock:
                    self._write(shard, rows, places, request, result)
            except GpustoreError as error:
                for row in rows:
                    result.error[row] = error
        return result

    def _write(
        self,
        shard: str,
        rows: Sequence[int],
        places: Sequence[Place],
        request: WriteRequest,
        result: WriteColumns,
    ) -> None:
        written: list[int] = []
        is_empty = False

        def make() -> Replacement | None:
            nonlocal is_empty
            written.clear()
            columns = self._base.read_many(ReadRequest([shard]))
            columns.raise_first()
            value, generation = columns.value[0], columns.generation[0]
            chunks = {} if value is None else self.chunks(bytes(value), shard)
            generation = ABSENT if value is None else generation
            for row in rows:
                place, new = places[row], request.values[row]
                condition = b"" if request.if_equal is None else request.if_equal[row]
                minishard = chunks.setdefault(place.minishard, {})
                if condition == ABSENT and place.number not in minishard:
                    condition = b""
                if not condition_holds(condition, generation):
                    continue
                written.append(row)
                if new is None:
                    minishard.pop(place.number, None)
                else:
                    minishard[place.number] = new
            is_empty = not any(chunks.values())
            if not written or (is_empty and value is None):
                return None
            pieces = [] if is_empty else self.pieces(chunks)
            return Replacement(generation, sum(map(len, pieces)), pieces)

        new = self._replaced(shard, make, lambda: is_empty)
        for one in [one for one in self._known if one[0] == shard]:
            del self._known[one]
        for row in written:
            result.generation[row] = new or ABSENT

    def _replaced(self, shard: str, make: Any, is_empty: Any) -> bytes:
        """Replace a shard, or delete one without chunks; return its generation."""
        for _ in range(_ATTEMPTS):
            made = make()
            if made is None:
                return b""
            value = None if is_empty() else b"".join(made.pieces)
            columns = self._base.write_many(WriteRequest([shard], [value], [made.if_equal]))
            columns.raise_first()
            if columns.generation[0]:
                return columns.generation[0]
        raise ConflictError(
            f"Error writing {self._base.describe(shard)}: another writer was faster {_ATTEMPTS} "
            "times",
            key=shard,
        )

    def chunks(self, shard: bytes, key: str) -> dict[int, dict[int, Buffer]]:
        """Return the encoded chunks of a whole shard by minishard and number."""
        if len(shard) < self._index_end:
            raise self._damaged((key, 0), f"a shard of {len(shard)} bytes")
        found: dict[int, dict[int, Buffer]] = {}
        view = memoryview(shard)
        places: NDArray[Any] = np.frombuffer(shard, "<u8", 2 << self._sharding.minishard_bits)
        for minishard, (begin, end) in enumerate(places.reshape(-1, 2).tolist()):
            if begin == end:
                continue
            begin, end = begin + self._index_end, end + self._index_end
            one = key, minishard
            if not begin < end <= len(shard):
                raise self._damaged(one, f"range [{begin}, {end}) of the index")
            ranges = self._decoded_index(bytes(view[begin:end]), one)
            if any(high > len(shard) for _, high in ranges.values()):
                raise self._damaged(one, "a chunk ends behind the shard")
            found[minishard] = {number: view[low:high] for number, (low, high) in ranges.items()}
        return found

    def pieces(self, chunks: dict[int, dict[int, Buffer]]) -> list[Buffer]:
        """Return the parts of a shard: of each minishard its chunks by number, then its index."""
        places = bytearray(self._index_end)
        pieces: list[Buffer] = [places]
        at = 0
        for minishard in sorted(chunks):
            numbers = sorted(chunks[minishard])
            if not numbers:
                continue
            values = [chunks[minishard][number] for number in numbers]
            steps = [numbers[0], *(b - a for a, b in pairwise(numbers))]
            sizes = list(map(len, values))
            gaps = [at] + [0] * (len(values) - 1)
            index = np.array([steps, gaps, sizes], np.uint64).astype("<u8").tobytes()
            if self._sharding.minishard_index_encoding == "gzip":
                stream = zlib.compressobj(9, zlib.DEFLATED, 31)
                index = stream.compress(index) + stream.flush()
            begin = at + list(accumulate(sizes))[-1]
            at = begin + len(index)
            _PLACE.pack_into(places, 16 * minishard, begin, at)
            pieces += [*values, index]
        return pieces


def _wanted(request: ReadRequest, row: int, generation: bytes) -> bool:
    """Whether the conditions of a row hold."""
    if request.if_equal is not None and not condition_holds(request.if_equal[row], generation):
        return False
    unwanted = b"" if request.if_not_equal is None else request.if_not_equal[row]
    return not unwanted or unwanted != generation
