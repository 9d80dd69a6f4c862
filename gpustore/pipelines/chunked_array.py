"""Chunked arrays as pipelines see them: places, keys and decoding of the chunks."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gpustore.backends.base import Backend
from gpustore.backends.host import HostBackend
from gpustore.backends.native.array import NativeArray, native_array, native_files
from gpustore.backends.native.encoding import NativeEncoding, native_encoding
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.decoder_choice import Choice
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KeyDirectory, KvStoreDriver
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.pipelines.seen_generations import SeenGenerations
from gpustore.planning.cell_numbers import CellNumbers
from gpustore.planning.chunk_format import ChunkFormat, KeyNames
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.chunk_plan import ChunkPlan, check_bounds, plan_chunks
from gpustore.planning.copy_plan import CopyPlan
from gpustore.resources.device_cache_pool import Residence
from gpustore.resources.gpu_decode_choice import AUTO, DecodeRule
from gpustore.runtime.cache import CacheUse
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS
from gpustore.sharding.refiner import RawBytesRefiner, Refiner
from gpustore.sharding.shard import ShardLevel, ShardRefiner

SPLIT_S = 100e-6
"""Shortest decoding that is worth a task of its own, in seconds; a handover costs 50 us."""

QUICK_S = 3.9e-6
"""Seconds; chunks that decode faster stay on one thread."""

UNIT_NBYTES = 1 << 20
"""Decoded bytes of a shard that a thread reads without a look at the time: a few ms."""

HELPED_NBYTES = 8 << 20
"""Longest chunk that a thread which waits for a read decodes itself, in bytes: the core hears
Ctrl-C between two chunks only. 8 MiB of zstd or gzip take 10 to 20 ms."""

_MOST_NUMBERS = 2**62
"""Most chunks of an array whose chunks are numbered in 64 bits."""

SPLIT_ROWS = 16
"""Fewest inner chunks of a shard that are worth a task of their own."""


_Constants: TypeAlias = dict[tuple[str, bool], NativeArray | None]
"""Constants for the native core, by use and an option of it. They do not depend on where the chunks
are.
"""


class Waiting:
    """Reads of an array that wait for a thread (:mod:`gpustore.pipelines.strided_reads`).

    Attributes
    ----------
    reads : deque
        Weak references to their Futures.
    forced : deque
        Pairs of read and Future of those that were forced.
    called : int or None
        Epoch of the process in which a worker was called that has not come yet.
    """

    __slots__ = ("called", "forced", "reads")

    def __init__(self) -> None:
        self.reads: deque[weakref.ref[Future[Any]]] = deque()
        self.forced: deque[tuple[Any, Future[Any]]] = deque()
        self.called: int | None = None


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array stored as a grid of chunks, each with a key or in a shard.

    Attributes
    ----------
    store : KvStoreDriver
        Store of the chunks.
    key_prefix, key_separator : str
        Prefix of a chunk's key, and the separator that joins its grid indices behind it.
    shape, chunk_shape : tuple of int
        Extents of the array and of a chunk (the innermost one, in shards), in elements. Inner
        dimensions, those inside each stored element, come last.
    inner_rank : int
        Number of inner dimensions.
    dtype : numpy.dtype
        Data type of the elements in memory, in native byte order.
    fill_value : ndarray of `dtype`, shape (); or of bytes ``V<n>``
        Value of the elements of missing chunks. Where those of one stored element differ, the
        bytes of a stored element.
    blank : ndarray of shape ()
        Initial value of the elements of a new chunk: `fill_value`, or the bytes of a stored element
        if the elements are parts of stored ones.
    chain : CodecChain
        Decodes a stored chunk; its layout is that of the decoded bytes.
    levels : tuple of ShardLevel
        Sharding, outermost first; empty without.
    refiners : tuple of Refiner
        Stages that can narrow a read down to parts of a chunk, outermost first.
    fill_missing : bool
        Whether missing chunks read as the fill value; otherwise they are an error.
    keep_fill : bool
        Whether chunks that equal the fill value bit for bit are stored all the same.
    backend, executor, limits
        Memory space of the arrays read and written, threads of the tasks, and bounds of sizes.
    cache : CacheUse, optional
        Cache of chunks in host memory.
    decode_rule : DecodeRule
        Rule that chooses who decodes reads into a device.
    residence : Residence, optional
        Caches of chunks in the memory of devices.
    grid : RectilinearGrid, optional
        Grid of chunks that differ in shape. `chunk_shape`, `chain`, `levels` and `refiners` are
        those of the largest chunks then; :meth:`plans` returns arrays with those of the others.
    names : KeyNames, optional
        Other names of chunks than their indices.
    stored : ChunkedArray, optional
        Array of stored chunks, if this one is its view of cached chunks; see :meth:`reader`.
    seen : SeenGenerations, optional
        Generations that reads note; `store` notes those of what it reads.
    """

    store: KvStoreDriver
    key_prefix: str
    key_separator: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    inner_rank: int
    dtype: np.dtype[Any]
    fill_value: Any
    blank: Any
    chain: CodecChain
    levels: tuple[ShardLevel, ...]
    refiners: tuple[Refiner, ...]
    fill_missing: bool
    keep_fill: bool
    backend: Backend
    executor: Executor
    limits: Limits
    cache: CacheUse | None = None
    decode_rule: DecodeRule = AUTO
    residence: Residence | None = None
    grid: RectilinearGrid | None = None
    names: KeyNames | None = None
    stored: ChunkedArray | None = None
    seen: SeenGenerations | None = None
    waiting: Waiting = field(default_factory=Waiting, init=False, compare=False, repr=False)
    _constants: _Constants = field(default_factory=dict, init=False, compare=False, repr=False)
    _native: list[NativeArray | None] = field(default_factory=list, init=False, compare=False)
    _encoding: list[NativeEncoding | None] = field(default_factory=list, init=False, compare=False)
    _files: list[NativeArray | None] = field(default_factory=list, init=False, compare=False)
    _staging: list[NativeArray | None] = field(default_factory=list, init=False, compare=False)

    @property
    def _is_in_files(self) -> bool:
        """Whether values are files that the native core can name."""
        return self.names is None and self.store.key_directory(self.key_prefix) is not None

    @property
    def native(self) -> NativeArray | None:
        """Constants for the native core; None if chunks are read in Python."""
        if not self._native:
            found = None
            if self.stored is None and self._is_in_files:
                found = self._native_array(self.levels, fill_missing=self.fill_missing)
            self._native.append(found)
        return self._native[0]

    @property
    def unit_rows(self) -> int:
        """Number of chunks that the native core decodes before it asks whether they are wanted."""
        return max(1, UNIT_NBYTES // max(1, self.chain.layout.nbytes))

    @property
    def native_files(self) -> NativeArray | None:
        """Constants for fetching whole values by the native core; None if Python fetches them."""
        if not self._files:
            found = None
            if not self.levels and self._is_in_files:
                found = self._fetched_natively()
            self._files.append(found)
        return self._files[0]

    @property
    def native_staging(self) -> NativeArray | None:
        """Constants for fetching chunks by the native core, which decodes them if the host has to;
        None if Python does.
        """
        if not self._staging:
            found = None
            is_cached = self.stored is not None and self.cache is not None
            is_plain = not is_cached and self.chain.objects is None
            if is_plain and self._is_in_files:
                is_for_host = self.backend.unsupported_reason(self.chain) is not None
                found = self._fetched_natively(decodes=is_for_host)
            self._staging.append(found)
        return self._staging[0]

    def _fetched_natively(self, *, decodes: bool = False) -> NativeArray | None:
        key = "fetched", decodes
        if key not in self._constants:
            self._constants[key] = native_files(
                self.chain,
                self.levels,
                shape=self.shape,
                key_separator=self.key_separator,
                key_ratio=self.key_ratio,
                key_rank=self.key_rank,
                decodes=decodes,
            )
        return self._constants[key]

    def key_directory(self) -> KeyDirectory:
        """Open the directory of the chunks' files, for the native core."""
        directory = self.store.key_directory(self.key_prefix)
        assert directory is not None
        if self.seen is not None:
            directory.note = partial(self.seen.note_files, self.key_ratio)
        return directory

    def file_system(self) -> int | None:
        """Return the number of the file system of that directory; None if it does not exist."""
        return self.key_directory().file_system()

    @property
    def native_values(self) -> NativeArray | None:
        """Constants for decoding values in memory by the native core; None if Python decodes."""
        return self._native_array((), fill_missing=True)

    def _native_array(
        self, levels: tuple[ShardLevel, ...], *, fill_missing: bool
    ) -> NativeArray | None:
        backend: Any = self.backend
        if not isinstance(backend, HostBackend):
            return None
        key = "sharded" if levels else "placed", fill_missing
        if key not in self._constants:
            self._constants[key] = native_array(
                self.chain,
                levels,
                shape=self.shape,
                dtype=self.dtype,
                fill_value=self.fill_value,
                fill_missing=fill_missing,
                key_separator=self.key_separator,
                key_ratio=self.key_ratio,
                key_rank=self.key_rank,
            )
        return self._constants[key]

    @property
    def native_encoding(self) -> NativeEncoding | None:
        """Constants for encoding chunks by the native core; None if Python encodes them."""
        if not self._encoding:
            values = self.native_values
            found = None
            if values is not None:
                found = native_encoding(values, self.chain, self.blank)
            self._encoding.append(found)
        return self._encoding[0]

    @property
    def writes_files_natively(self) -> bool:
        """Whether the native core writes chunks: as files, not in shards."""
        is_native = self.native_encoding is not None and self.native is not None
        return is_native and not self.levels

    def reader(self) -> ChunkedArray:
        """Return the array for reads: with a cache, a view whose values are the cached chunks."""
        if self.cache is None and not self.is_resident:
            return self
        chain = self.chain
        if self.cache is not None and not self.cache.keeps_encoded:
            chain = CodecChain(
                self.chain.layout,
                (),
                None,
                inner_order=self.chain.inner_order,
                objects=self.chain.objects,
                objects_max=self.chain.objects_max,
            )
            chain.decode_s = self.chain.decode_s  # How long a chunk takes that is not cached.
        whole = tuple(one for one in self.refiners if isinstance(one, ShardRefiner))
        stored = replace(self, refiners=whole, fill_missing=True)
        return replace(self, chain=chain, refiners=(), stored=stored)

    def for_host(self, reason: str) -> ChunkedArray:
        """Return the array whose chunks the host decodes, for `reason`, on every device."""
        stored = None if self.stored is None else self.stored.for_host(reason)
        return replace(self, chain=self.chain.for_host(reason), stored=stored)

    @property
    def is_for_host(self) -> bool:
        """Whether the host decodes the chunks of a read into a device, once that is chosen."""
        if self.stored is None:
            return self.chain.is_for_host
        return self.backend.unsupported_reason(self.stored.chain) is not None

    @property
    def is_resident(self) -> bool:
        """Whether reads look into the cache of a device."""
        residence = self.residence
        if residence is None or residence.cache is None:
            return False
        return self.cell_numbers.count < _MOST_NUMBERS

    @property
    def cell_numbers(self) -> CellNumbers:
        """Numbers of the innermost chunks in the caches of devices."""
        assert self.residence is not None
        chunks = 0
        if self.grid is None:
            chunks = math.prod([-(-n // chunk) for n, chunk in zip(self.shape, self.chunk_shape)])
        return CellNumbers(self.key_counts, self.residence.inner, chunks)

    @property
    def key_counts(self) -> tuple[int, ...]:
        """Number of keys along each dimension that keys have."""
        if self.grid is not None:
            return self.grid.cells(self.shape)
        sizes = zip(self.shape[: self.key_rank], self.chunk_shape, self.key_ratio)
        return tuple([-(-size // (chunk * ratio)) for size, chunk, ratio in sizes])

    def forget(self, keys: Sequence[str]) -> None:
        """Drop the chunks of `keys`, which were or may have been changed, from all caches."""
        if self.cache is not None:
            self.cache.forget(keys)
        if self.residence is not None and self.residence.pool.caches:
            begin, separator = len(self.key_prefix), self.key_separator
            if self.names is not None:
                indices = [self.names.cell(key[begin:]) for key in keys]
            else:
                indices = [
                    tuple(map(int, key[begin:].split(separator))) if self.key_rank else ()
                    for key in keys
                ]
            self.residence.pool.forget(self.residence.array, indices)

    def plans(
        self,
        transform: IndexTransform,
        strides: tuple[int, ...],
        *,
        src_stride: Callable[[ChunkedArray], tuple[int, ...]] | None = None,
    ) -> list[tuple[ChunkedArray, ChunkPlan]]:
        """Plan the chunks `transform` touches, for an array in memory with these byte strides.

        `src_stride` returns other strides of an array's decoded chunks, in bytes.

        Returns
        -------
        list of (ChunkedArray, ChunkPlan)
            For each chunk shape the array of the chunks of that shape, and its plan.

        Raises
        ------
        OutOfBoundsError
            If the transform leaves the array.
        LimitError
            If it touches more chunks than the limit.
        """
        check_bounds(transform, self.shape)
        arrays: dict[tuple[int, ...], ChunkedArray] = {}

        def format_of(chunk_shape: tuple[int, ...]) -> ChunkFormat:
            array = arrays[chunk_shape] = self.of_chunks(chunk_shape)
            return array.format(src_stride(array) if src_stride else None)

        limit = self.limits.chunks_per_request
        plans = plan_chunks(transform, self.chunk_grid, format_of, strides, limit)
        return [(arrays[chunk_shape], plan) for chunk_shape, plan in plans]

    @property
    def chunk_grid(self) -> ChunkGrid:
        """Edges of the chunks along each dimension."""
        if self.grid is None:
            return ChunkGrid(self.shape, self.chunk_shape)
        return ChunkGrid(self.shape, self.grid.planned, self.chunk_shape if self.levels else None)

    def format(self, stride: tuple[int, ...] | None = None) -> ChunkFormat:
        """Return layout and keys of chunks of `chunk_shape`, perhaps with another `stride`."""
        layout = self.chain.layout
        return ChunkFormat(
            layout.strides if stride is None else stride,
            self.key_prefix,
            self.key_separator,
            self.key_ratio,
            self.key_rank,
            layout.is_dense,
            self.names,
        )

    def of_chunks(self, chunk_shape: tuple[int, ...]) -> ChunkedArray:
        """Return the array for chunks of `chunk_shape`: itself unless the grid is rectilinear."""
        if self.grid is None:
            return self
        if self.stored is not None:
            return self.stored.of_chunks(chunk_shape).reader()
        codecs = self.grid.codecs(chunk_shape)
        inner = chunk_shape[len(chunk_shape) - self.inner_rank :]
        chain = codecs.chain.trusted_as(self.chain)
        narrows = any(isinstance(one, RawBytesRefiner) for one in self.refiners)
        return replace(
            self,
            chunk_shape=codecs.chunk_shape + inner,
            chain=chain,
            levels=codecs.levels,
            refiners=refiners_of(chain, codecs.levels, narrows=narrows),
        )

    def first_of_key(self, d: int, cell: int) -> int:
        """Return the first position along dimension `d` of the chunk or shard that holds `cell`."""
        number = cell // self.key_ratio[d]
        if self.grid is not None:
            return int(self.grid.edges[d].starts(np.array([number]))[0])
        return number * self.key_ratio[d] * self.chunk_shape[d]

    def inner_chunks(self, cell: Sequence[int]) -> int:
        """Count the innermost chunks of the key of a chunk that lie inside the array."""
        count = 1
        for d, at in enumerate(cell):
            size, ratio = self.shape[d] - self.first_of_key(d, at), self.key_ratio[d]
            count *= min(ratio, -(-size // self.chunk_shape[d]))
        return count

    def parts(self, plan: ChunkPlan) -> int:
        """Choose the number of parts of a plan, one a task.

        Chunks that decode quickly stay on one thread: a second one made Python slower (0.8 times,
        raw chunks of 16 KiB, 2 cores), because the interpreter lock is held most of the time. A
        shard is split only if there are fewer shards than threads, as each part needs the index
        again.
        """
        if self.chain.decode_s < QUICK_S:
            return 1
        most = 4 * self.executor.limit
        if self.levels:
            shards, rows = plan.objects, len(plan)
            wanted = shards if shards >= self.executor.limit else rows // SPLIT_ROWS
            return max(1, min(wanted, most))
        wanted = min(len(plan), int(len(plan) * self.chain.decode_s / SPLIT_S))
        # One a thread; more of them, for an even end, only if they are long enough.
        return max(1, min(wanted, self.executor.limit), min(wanted // 8, most))

    def fewer_parts(self, parts: int, rows: int) -> int:
        """Reduce `parts` so that each is worth a task, if a device decodes the `rows`."""
        if self.backend.part_nbytes() is None:
            return parts
        chain = (self.stored or self).chain
        fewer = self.device_parts(parts, rows)
        return parts if self.backend.unsupported_reason(chain) is not None else fewer

    def device_parts(self, parts: int, rows: int) -> int:
        """Reduce `parts` so that each is worth a task, of `rows` that a device decodes."""
        nbytes = self.backend.part_nbytes()
        assert nbytes is not None
        return max(1, min(parts, rows * self.chain.layout.nbytes // nbytes))

    @property
    def is_helped(self) -> bool:
        """Whether a thread that waits for a read does a part of it."""
        return self.native is not None and self.chain.layout.nbytes <= HELPED_NBYTES

    @property
    def object_bound(self) -> int:
        """Most bytes of a stored value: a chunk, or a shard with gaps in it."""
        return self.inner_bound(0) + ((1 << 20) if self.levels else 0)

    def inner_bound(self, depth: int) -> int:
        """Return the most bytes of a chunk or shard below `depth` levels of sharding."""
        bound = self.chain.encoded_bound
        levels = self.levels[depth:]
        if not levels:
            return bound
        indices = sum(level.index.nbytes for level in levels)
        return 2 * math.prod(levels[0].ratio) * (bound + indices)

    @property
    def key_ratio(self) -> tuple[int, ...]:
        """Number of chunks along each dimension that share a key."""
        if not self.levels:
            return (1,) * len(self.shape)
        return self.levels[0].ratio + (1,) * self.inner_rank

    @property
    def key_rank(self) -> int:
        """Number of dimensions in a key."""
        return len(self.shape) - self.inner_rank


class ArrayTemplate:
    """Maker of arrays that differ in where their chunks are and in context resources alone.

    The arrays share their constants for the native core, which take longer than a small read.

    Parameters
    ----------
    chain : CodecChain
    **fields
        Other attributes of :class:`ChunkedArray`, all but those that :meth:`array` takes.
    """

    __slots__ = ("_constants", "_fields", "chain")

    def __init__(self, *, chain: CodecChain, **fields: Any) -> None:
        self.chain = chain
        self._fields = {"chain": chain, **fields}
        self._constants: _Constants = {}

    def array(self, **fields: Any) -> ChunkedArray:
        """Return the array with these other attributes: store, prefix, and context resources."""
        array = ChunkedArray(**self._fields, **fields)
        object.__setattr__(array, "_constants", self._constants)
        return array


Plan = TypeVar("Plan", ChunkPlan, CopyPlan)


def decoder_choice(
    plans: Sequence[tuple[ChunkedArray, ChunkPlan | CopyPlan]],
) -> Choice | None:
    """Choose who decodes one read, given its plans; None if only one side can."""
    if not plans:
        return None
    array, _ = plans[0]
    chunks = [(one.chain, len(plan)) for one, plan in plans if len(plan)]
    return array.backend.choose_decoder(chunks, array.decode_rule) if chunks else None


def with_decoder(plans: Sequence[tuple[ChunkedArray, Plan]]) -> list[tuple[ChunkedArray, Plan]]:
    """Return the plans of one read with arrays whose chunks the host decodes, if it is faster."""
    choice = decoder_choice(plans)
    if choice is None or not choice.by_host:
        return list(plans)
    if choice.counter is not None:
        STATISTICS.add(**{choice.counter: 1})
    return [(one.for_host(choice.reason), plan) for one, plan in plans]


def refiners_of(
    chain: CodecChain, levels: tuple[ShardLevel, ...], *, narrows: bool
) -> tuple[Refiner, ...]:
    """Return the stages that narrow a read; byte ranges of raw chunks only if `narrows`."""
    layout = chain.layout
    raw = RawBytesRefiner(layout.nbytes, layout.dtype.itemsize, layout.offset)
    return (*(ShardRefiner(level) for level in levels), *([raw] if narrows else []))
