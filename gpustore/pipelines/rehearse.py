"""A read without its bytes, to know beforehand what it will do.

1. Plan, split and refine as :mod:`gpustore.pipelines.read` does. Indices of shards are read, chunks
   are not: the store is asked whether they are there and how long they are, and memory of that
   length, with anything in it, goes the way of a value.
2. A device that does nothing (:mod:`gpustore.backends.rehearsal`) is asked for everything. Where
   codecs look at encoded bytes they see a chunk of zeros, encoded as a writer would.
3. What is counted on the way is what the read would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpustore.backends._files import direct_refusal
from gpustore.backends.device import DeviceBackend
from gpustore.backends.rehearsal import Rehearsal, rehearsing
from gpustore.cache import Cache, CacheUse
from gpustore.chunk_plan import ChunkPlan
from gpustore.codecs.chain import CodecChain
from gpustore.device import Device, Spans
from gpustore.device_batch import DeviceBatch
from gpustore.errors import GpustoreError
from gpustore.kvstores.base import (
    Buffer,
    DriverSpec,
    KvStoreDriver,
    ReadColumns,
    ReadRequest,
    ReadState,
    check_byte_range,
    check_nbytes,
)
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import read_part
from gpustore.plan_window import PlanWindow
from gpustore.refiner import Probe, Refiner
from gpustore.statistics import STATISTICS, attributed
from gpustore.statistics import Rehearsed as RehearsedStatistics

__all__ = ["Rehearsed", "rehearse"]


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
    array: ChunkedArray, plans: Sequence[tuple[ChunkedArray, ChunkPlan]], shape: tuple[int, ...]
) -> Rehearsed:
    """Rehearse the read of the plans of `array` into a new one. Counts nothing for the process.

    With a cache, as if nothing were in it.

    Raises
    ------
    CorruptChunkError, NotFoundError, StoreIOError
        As the read, if an index is damaged or missing chunks are an error.
    """
    rehearsal = Rehearsal()
    backend = rehearsing(array.backend, rehearsal)
    store = _Store(array)

    def idle(array: ChunkedArray) -> ChunkedArray:
        found = replace(_idle(array, store), backend=backend)
        if array.stored is None or array.cache is None:
            return found
        cache = CacheUse(Cache(0), array.cache.space, array.cache.bound)
        stored = replace(_idle(array.stored, store), backend=backend)
        return replace(found, cache=cache, stored=stored)

    def read() -> None:
        STATISTICS.add(reads=1, chunks_planned=sum(len(plan) for _, plan in plans))
        out = backend.empty(shape, array.dtype, "C")
        for some, plan in plans:
            one = idle(some)
            parts = one.fewer_parts(one.parts(plan), len(plan))
            for part in range(parts):
                read_part(one, plan, out, part, parts)

    counted = RehearsedStatistics()
    attributed(counted, read)
    return Rehearsed(
        counted.snapshot(), rehearsal, store.direct_nbytes, sizes_are_known=store.sizes_are_known
    )


def _idle(array: ChunkedArray, store: _Store) -> ChunkedArray:
    """The array with a store and a chain that look at no chunk."""
    refiners = tuple(_Refiner(one, store) for one in array.refiners)
    return replace(array, store=store, refiners=refiners, chain=_Chain.of(array.chain))


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
            and backend.files.refusal is None
            and array.store.locates_files
            and (chain.is_raw or backend.refusal(chain) is None)
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
        for i, state in enumerate(found.state):
            if state is ReadState.VALUE:
                try:
                    found.value[i] = self._value(i, request, found.total[i])
                except GpustoreError as error:
                    found.state[i], found.value[i] = ReadState.UNSPECIFIED, None
                    found.error[i] = error
        return found

    def _value(self, i: int, request: ReadRequest, total: int) -> Buffer:
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
        if self._may_be_direct and not direct_refusal(
            needs_bytes=False, nbytes=nbytes, file_nbytes=total, is_direct=True
        ):
            self.direct_nbytes += nbytes
        # Files are read into the memory given, other stores have the bytes already.
        if request.into is not None and self._inner.locates_files:
            return request.into.take(nbytes)
        return np.empty(nbytes, np.uint8).data


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
