"""A read without its bytes, to know beforehand what it will do.

1. Plan, split and refine as :mod:`gpustore.pipelines.read` does. Indices of shards are read, chunks
   are not: the store is asked whether they are there and how long they are, and memory of that
   length, with anything in it, goes the way of a value.
2. A device that does nothing (:mod:`gpustore.backends.device.null_device`) is asked for everything.
Where
   codecs look at encoded bytes they see a chunk of zeros, encoded as a writer would.
3. What is counted on the way is what the read would count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpustore.backends.base import Memory
from gpustore.backends.device import DeviceBackend
from gpustore.backends.device.direct_read import direct_unsupported_reason
from gpustore.backends.device.null_device import Rehearsal, rehearsing
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.command_list import DeviceBatch
from gpustore.device.protocol import Device, Spans
from gpustore.errors import CorruptChunkError, GpustoreError
from gpustore.kvstores.base import DriverSpec, KvStoreDriver, check_byte_range, check_nbytes
from gpustore.kvstores.columns import LocateColumns, ReadColumns, ReadRequest, ReadState
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import read_part
from gpustore.pipelines.read_many import copy_parts, read_copy_part
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cache import Cache, CacheUse
from gpustore.runtime.statistics import STATISTICS, attributed
from gpustore.runtime.statistics import Rehearsed as RehearsedStatistics
from gpustore.sharding.refiner import Probe, Refiner


@dataclass(slots=True)
class Rehearsed:
    """What a rehearsal has shown.

    Attributes
    ----------
    counts : dict of str to int
        The statistics of the read.
    rehearsal : Rehearsal
    direct_nbytes : int
        Bytes that may go from files straight to the device, where the system can do that.
    sizes_are_known : bool
        Whether the kvstore tells how long values are.
    """

    counts: dict[str, int]
    rehearsal: Rehearsal
    direct_nbytes: int
    sizes_are_known: bool


def rehearse(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, ChunkPlan]],
    shape: tuple[int, ...],
    memory: Memory | None = None,
) -> Rehearsed:
    """Rehearse the read of the plans of `array` into `memory`, by default a new array.

    Counts nothing for the process. With a cache, as if nothing were in it.

    Raises
    ------
    CorruptChunkError, NotFoundError, StoreIOError
        As the read, if an index is damaged or missing chunks are an error.
    """

    def read(idle: _Idle) -> None:
        STATISTICS.add(reads=1, chunks_planned=sum(len(plan) for _, plan in plans))
        out = idle.backend.empty(shape, array.dtype, "C") if memory is None else memory
        for some, plan in plans:
            one = idle.of(some)
            parts = one.fewer_parts(one.parts(plan), len(plan))
            for part in range(parts):
                read_part(one, plan, out, part, parts)

    return _rehearse(array, read)


def rehearse_pieces(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, CopyPlan]],
    shapes: Sequence[tuple[int, ...]],
    memories: Sequence[Memory] | None = None,
    *,
    reads: int = 1,
    by_element: bool = False,
) -> Rehearsed:
    """The same for reads or crops that share their chunks.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Of the arrays that are filled.
    memories : sequence of Memory, optional
        These arrays, if there are any yet.
    reads : int
        How many reads are counted.
    by_element : bool
        As for :func:`gpustore.pipelines.read_many.read_regions`.
    """
    counts = copy_parts(array, plans, sum(map(math.prod, shapes))) or [1] * len(plans)

    def read(idle: _Idle) -> None:
        STATISTICS.add(reads=reads, chunks_planned=sum(len(plan) for _, plan in plans))
        out = memories or [idle.backend.empty(shape, array.dtype, "C") for shape in shapes]
        for (some, plan), parts in zip(plans, counts):
            one = idle.of(some)
            for part in range(parts):
                read_copy_part(one, plan, out, part, parts, by_element=by_element)

    return _rehearse(array, read)


def _rehearse(array: ChunkedArray, read: Callable[[_Idle], None]) -> Rehearsed:
    rehearsal = Rehearsal()
    store = _Store(array)
    idle = _Idle(store, rehearsing(array.backend, rehearsal))
    counted = RehearsedStatistics()
    attributed(counted, lambda: read(idle))
    return Rehearsed(
        counted.snapshot(), rehearsal, store.direct_nbytes, sizes_are_known=store.sizes_are_known
    )


@dataclass(frozen=True, slots=True)
class _Idle:
    """What arrays are given so that they look at no chunk and fill no memory."""

    store: _Store
    backend: Any

    def of(self, array: ChunkedArray) -> ChunkedArray:
        """The array as it is rehearsed."""
        found = self._of(array)
        if array.stored is None or array.cache is None:
            return found
        cache = CacheUse(Cache(0), array.cache.space, array.cache.bound)
        return replace(found, cache=cache, stored=self._of(array.stored))

    def _of(self, array: ChunkedArray) -> ChunkedArray:
        return replace(
            array,
            store=self.store,
            refiners=tuple(_Refiner(one, self.store) for one in array.refiners),
            chain=_Chain.of(array.chain),
            backend=self.backend,
        )


@dataclass(frozen=True, slots=True)
class _Refiner:
    """Lets the store know that what is asked for next is to be read."""

    refiner: Refiner
    store: _Store

    def probe(self, rows: PlanWindow) -> Probe | None:
        probe = self.refiner.probe(rows)
        self.store.reads = probe is not None
        return probe

    def refine(
        self, rows: PlanWindow, heads: Sequence[Buffer | None], totals: Sequence[int]
    ) -> PlanWindow:
        self.store.reads = False
        return self.refiner.refine(rows, heads, totals)


class _Store(KvStoreDriver):
    """A kvstore whose values have the right length and anything in them.

    Attributes
    ----------
    reads : bool
        Whether values are really read.
    """

    id = "rehearsal"

    def __init__(self, array: ChunkedArray) -> None:
        self.reads = False
        self.direct_nbytes = 0
        self.sizes_are_known = True
        self._inner = array.store
        backend: Any = array.backend
        chain = array.chain
        self._may_be_direct = (
            isinstance(backend, DeviceBackend)
            and array.stored is None
            and backend.files.unsupported_reason is None
            and array.store.locates_files
            and (chain.is_raw or backend.unsupported_reason(chain) is None)
            and not chain.needs_bytes
        )

    @property
    def spec(self) -> DriverSpec:
        return self._inner.spec

    def check_key(self, key: str) -> None:
        self._inner.check_key(key)

    def describe(self, key: str) -> str:
        return self._inner.describe(key)

    def read_many(self, request: ReadRequest) -> ReadColumns:
        if self.reads:
            return self._inner.read_many(request)
        count = len(request.keys)
        nothing = replace(request, start=[0] * count, stop=[0] * count, into=None)
        found = self._inner.read_many(nothing)
        located = None
        if self._may_be_direct and self._inner.base is not None:
            located = self._inner.locate_many(request.keys)
        for i, state in enumerate(found.state):
            if state is ReadState.VALUE:
                try:
                    found.value[i] = self._value(i, request, found.total[i], located)
                except GpustoreError as error:
                    found.state[i], found.value[i] = ReadState.UNSPECIFIED, None
                    found.error[i] = error
        return found

    def _value(
        self, i: int, request: ReadRequest, total: int, located: LocateColumns | None
    ) -> Buffer:
        key = request.keys[i]
        start = 0 if request.start is None else request.start[i]
        stop = None if request.stop is None else request.stop[i]
        if total < 0:
            self.sizes_are_known = False
            nbytes = max(0, (stop or 0) - start)
        else:
            low, high = check_byte_range(total, start, stop, key)
            nbytes = high - low
        check_nbytes(nbytes, request.max_nbytes, key)
        # Files are read into the memory given, other stores have the bytes already.
        if request.into is None or not self._inner.locates_files:
            return np.empty(nbytes, np.uint8).data
        piece = request.into.take(nbytes)
        if self._may_be_direct and not direct_unsupported_reason(
            needs_bytes=False,
            nbytes=nbytes,
            # An adapter's values are parts of files, of which this knows no length, or are
            # compressed and lie in none.
            file_nbytes=total if located is None else None,
            is_direct=located is None or located.path[i] is not None,
        ):
            self.direct_nbytes += nbytes
            crc32 = None if located is None else located.crc32[i]
            if crc32 is not None and nbytes == total:
                request.into.expect(piece, crc32, lambda _: CorruptChunkError(""))
        return piece


class _Chain(CodecChain):
    """A chain that decodes whatever it is given, on a device as it would decode zeros."""

    __slots__ = ("_sample", "_zeros")

    _sample: Buffer | None
    _zeros: bytes

    @classmethod
    def of(cls, chain: CodecChain) -> _Chain:
        self = cls.__new__(cls)
        for name in CodecChain.__slots__:
            setattr(self, name, getattr(chain, name))
        self._zeros = bytes(chain.layout.nbytes)
        self._sample = None
        return self

    def decode(self, encoded: Buffer, out: memoryview | None = None) -> Buffer:
        return encoded if self.is_raw else self._zeros if out is None else out

    def check(self, decoded: Buffer) -> Buffer:
        return decoded

    def decode_device(self, batch: DeviceBatch, device: Device) -> None:
        if not self.is_raw and batch.encoded is not None:
            if self._sample is None:
                self._sample = self.encode(self._zeros)
            nbytes = np.full(len(batch), len(self._sample), np.uint64)
            batch.values = Spans(batch.values.address, nbytes)
            batch.encoded = [self._sample] * len(batch)
        super().decode_device(batch, device)
