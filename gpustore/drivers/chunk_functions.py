"""Functions of the user that compute and store chunks, as a kvstore of decoded chunks.

A key names a cell of the grid. Reads call the function of the user with an array over the memory of
the value, writes with a read-only one; both see the part of the chunk that is inside the domain.
All functions of one request are called before one of them is waited for.

With a cache a chunk is computed again unless its version is known to be recent enough: the function
is told the generation of the version that is kept, and may say that it is still the current one.

Source: the semantics of TensorStore's ``driver/virtual_chunked``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.errors import MetadataError
from gpustore.index_space import IndexDomain
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import (
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
)
from gpustore.kvstores.result import TimestampedStorageGeneration
from gpustore.runtime.batch import Batch
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cache import Cache, Entry, Space
from gpustore.runtime.future import Future, ready

if TYPE_CHECKING:
    import asyncio

Stamp = TimestampedStorageGeneration | None

_BATCH_NBYTES: Final = 64 << 20
"""Most bytes of the chunks whose functions are given one batch, unless one chunk has more."""

UNVERSIONED: Final = b"\x00unversioned"
"""Generation of chunks whose function names none: they never change."""


class _Parameters:
    """Base of parameters, which only reads and writes make."""

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError(f"gpustore.{type(self).__name__}: reads and writes make it")


class VirtualChunkedReadParameters(_Parameters):
    """Conditions of a read for the function that computes a chunk; see :func:`virtual_chunked`.

    Attributes
    ----------
    if_not_equal : bytes
        Generation of the version that is kept in the cache, ``b""`` if there is none. The function
        may leave the array as it is, and return a generation of ``b""`` with a time at which the
        version was current.
    staleness_bound : float
        A version that was current at this time is recent enough; in seconds since the epoch.
    batch : Batch or None
        Batch for the reads of the function, if the chunk is read in one. It is submitted when the
        functions of all chunks have been called.
    """

    __slots__ = ("batch", "if_not_equal", "staleness_bound")

    if_not_equal: bytes
    staleness_bound: float
    batch: Batch | None

    def __repr__(self) -> str:
        return (
            f"VirtualChunkedReadParameters(if_not_equal={self.if_not_equal!r}, "
            f"staleness_bound={self.staleness_bound!r}, batch={self.batch!r})"
        )


class VirtualChunkedWriteParameters(_Parameters):
    """Conditions of a write for the function that stores a chunk; see :func:`virtual_chunked`.

    Attributes
    ----------
    if_equal : bytes
        Generation of the version that was changed, ``b""`` if that does not matter. If another one
        is stored, the function returns a generation of ``b""``; the chunk is then read again.
    """

    __slots__ = ("if_equal",)

    if_equal: bytes

    def __repr__(self) -> str:
        return f"VirtualChunkedWriteParameters(if_equal={self.if_equal!r})"


Result = Stamp | Future[Stamp] | Coroutine[Any, Any, Stamp]
ReadFunction = Callable[[IndexDomain, NDArray[Any], VirtualChunkedReadParameters], Result]
WriteFunction = Callable[[IndexDomain, NDArray[Any], VirtualChunkedWriteParameters], Result]


@dataclass(frozen=True, slots=True)
class ChunkFunctions:
    """Functions of the user; equal and picklable as these are.

    Attributes
    ----------
    read, write : callable or None
    loop : asyncio.AbstractEventLoop or None
        Loop of coroutines that the functions return; it belongs to a process, and is not pickled.
    """

    read: ReadFunction | None
    write: WriteFunction | None
    loop: asyncio.AbstractEventLoop | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_in_this_process, (self.read, self.write))

    def future(self, result: object) -> Future[Stamp]:
        """Return the result of a function as a Future of what it says about the version."""
        if isinstance(result, Coroutine):
            if self.loop is None:
                result.close()
                raise MetadataError(
                    "no event loop specified and thread does not have a default event loop: give "
                    "virtual_chunked a loop, or call it in a coroutine"
                )
            return Future(result, loop=self.loop)
        if isinstance(result, Future):
            return result
        return ready(_checked(result))


def _in_this_process(read: ReadFunction | None, write: WriteFunction | None) -> ChunkFunctions:
    return ChunkFunctions(read, write, running_loop())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread, None if there is none."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _checked(stamp: object) -> Stamp:
    if stamp is None or isinstance(stamp, TimestampedStorageGeneration):
        return stamp
    raise TypeError(
        f"virtual_chunked: expected a KvStore.TimestampedStorageGeneration or None from the "
        f"function, but received: {stamp!r:.200}"
    )


@dataclass(frozen=True, eq=False)
class ChunkStore(KvStoreDriver):
    """Kvstore whose values are the chunks of functions, decoded, in memory order of the chain.

    Attributes
    ----------
    functions : ChunkFunctions
    domain : IndexDomain
        Domain of the array.
    edges : tuple of callable
        First index and extent of the cells with a number, one function a dimension.
    dtype : dtype
    chain : callable
        Codec chain of chunks of a shape.
    cache : Cache or None
    space : Space
        Names the chunks in the cache.
    bound : float
        Versions that are known to be current at this time, in seconds since the epoch, are not
        computed again; infinite if only those are that never change.
    batched : bool
        Whether the functions are given a batch.
    """

    functions: ChunkFunctions
    domain: IndexDomain
    edges: tuple[Callable[[int], tuple[int, int]], ...]
    dtype: dtype_
    chain: Callable[[tuple[int, ...]], CodecChain]
    cache: Cache | None
    space: Space
    bound: float
    batched: bool = False
    batch_nbytes: int | None = None

    id = "virtual_chunked"
    can_list = False
    computes_values = True

    @property
    def spec(self) -> NoReturn:
        """Raise the error: no spec names functions."""
        raise self._unsupported("specs")

    def check_key(self, key: str) -> None:
        """Accept any key: the plans make them."""

    def describe(self, key: str) -> str:
        """Return the domain of the chunk."""
        return f"virtual chunk {self._part(key)[0]}"

    def in_batches(self) -> ChunkStore:
        """Return the same store, whose functions are given a batch: that of many chunks."""
        return replace(self, batched=True, batch_nbytes=_BATCH_NBYTES)

    def _part(self, key: str) -> tuple[IndexDomain, tuple[Any, ...], ChunkBytes, CodecChain]:
        """Return the domain of a chunk, where that is in the chunk, and its layout."""
        cell = [int(number) for number in key.split("/")] if self.domain.rank else []
        places = [edges(number) for edges, number in zip(self.edges, cell, strict=True)]
        low = [max(at, d.inclusive_min) for (at, _), d in zip(places, self.domain)]
        high = [min(at + size, d.exclusive_max) for (at, size), d in zip(places, self.domain)]
        part = IndexDomain(inclusive_min=low, exclusive_max=high, labels=self.domain.labels)
        # With "..." it is a view of rank-0 arrays too.
        inside = (*[slice(a - at, b - at) for a, b, (at, _) in zip(low, high, places)], ...)
        chain = self.chain(tuple([size for _, size in places]))
        return part, inside, chain.layout, chain

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Compute the chunks that are not in the cache.

        Raises
        ------
        MetadataError
            If there is no function that computes chunks.
        Exception
            Those of the function.
        """
        read = self.functions.read
        if read is None:
            raise MetadataError("Write-only virtual chunked view requires chunk-aligned writes")
        keys = request.keys
        columns = ReadColumns.blank(len(keys))
        entries = self._entries(keys)
        bound = min(self.bound, time.time())
        begun: list[tuple[int, Future[Stamp], Buffer | NDArray[Any], CodecChain]] = []
        batch = Batch() if self.batched else None
        for row, key in enumerate(keys):
            entry, _ = entries[row]
            if entry is not None and entry.read_at >= self.bound:
                self._found(columns, row, entry.value, entry.generation)
                continue
            part, inside, layout, chain = self._part(key)
            memory, array = self._blank(request, layout)
            parameters = object.__new__(VirtualChunkedReadParameters)
            parameters.if_not_equal = b"" if entry is None else _named(entry.generation)
            parameters.staleness_bound = bound
            parameters.batch = batch
            said = read(part, array[inside], parameters)
            begun.append((row, self.functions.future(said), memory, chain))
        if batch is not None:
            batch.submit()
        for row, future, memory, chain in begun:
            stamp = _checked(future.result())
            entry, mark = entries[row]
            if stamp is not None and not stamp.generation and entry is not None:
                entry.read_at = max(entry.read_at, stamp.time)
                self._found(columns, row, entry.value, entry.generation)
                continue
            value = memory
            if isinstance(memory, np.ndarray):
                value = chain.encode_objects(memory)
            generation = UNVERSIONED if stamp is None else stamp.generation
            self._keep(
                keys[row], value, generation, math.inf if stamp is None else stamp.time, mark
            )
            self._found(columns, row, value, generation)
        return columns

    def _blank(
        self, request: ReadRequest, layout: ChunkBytes
    ) -> tuple[Buffer | NDArray[Any], NDArray[Any]]:
        """Return the memory of a chunk and an array over it, filled with zeros or empty objects."""
        if layout.dtype.hasobject:
            kind = self.dtype.type
            first = None if self.dtype.name == "json" else kind()
            elements = np.full(math.prod(layout.shape), first, object)
            return elements, _laid_out(elements, layout)
        memory: Any
        if request.into is None or self.cache is not None:
            memory = memoryview(bytearray(layout.nbytes))
        else:
            memory = request.into.take(layout.nbytes)
            np.frombuffer(memory, np.uint8)[:] = 0
        return memory, _laid_out(memory, layout)

    @staticmethod
    def _found(columns: ReadColumns, row: int, value: Any, generation: bytes) -> None:
        columns.state[row] = ReadState.VALUE
        columns.value[row] = value
        columns.total[row] = len(value)
        columns.generation[row] = generation

    def _entries(self, keys: Sequence[str]) -> list[tuple[Entry | None, int]]:
        if self.cache is None:
            return [(None, 0)] * len(keys)
        return self.cache.find(self.space, keys, [None] * len(keys))

    def _keep(self, key: str, value: Any, generation: bytes, known_at: float, mark: int) -> None:
        """Keep a version in the cache, unless it was changed since `mark`."""
        if self.cache is not None and generation:
            entry = Entry(value, len(value), generation, known_at)
            self.cache.put(self.space, key, None, entry, mark)

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """Store chunks.

        Raises
        ------
        Exception
            Those of the function.
        """
        write = self.functions.write
        assert write is not None  # The store checks that it is writable.
        columns = WriteColumns.blank(len(request.keys))
        begun: list[Future[Stamp]] = []
        try:
            for row, (key, value) in enumerate(zip(request.keys, request.values, strict=True)):
                assert value is not None  # Chunks are stored even if they equal the fill value.
                part, inside, layout, chain = self._part(key)
                memory: Any = value
                if layout.dtype.hasobject:
                    memory = chain.decode_objects(value)
                array = _laid_out(memory, layout)[inside]
                array.flags.writeable = False
                parameters = object.__new__(VirtualChunkedWriteParameters)
                generation = b"" if request.if_equal is None else request.if_equal[row]
                parameters.if_equal = _named(generation)
                begun.append(self.functions.future(write(part, array, parameters)))
            for row, future in enumerate(begun):
                stamp = _checked(future.result())
                columns.generation[row] = UNVERSIONED if stamp is None else stamp.generation
        finally:
            if self.cache is not None:
                self.cache.forget(self.space, request.keys)
        return columns


def _named(generation: bytes) -> bytes:
    """Return a generation as the functions know it."""
    return b"" if generation == UNVERSIONED else generation


def _laid_out(memory: Any, layout: ChunkBytes) -> NDArray[Any]:
    """Return an array over the memory of a chunk."""
    if isinstance(memory, np.ndarray):
        strides = layout.strides
        array: NDArray[Any] = np.lib.stride_tricks.as_strided(memory, layout.shape, strides)
        return array
    return np.ndarray(layout.shape, layout.dtype, memory, 0, layout.strides)
