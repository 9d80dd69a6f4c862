"""Writes of an array in a transaction: layers over its chunks, which are kept until the commit.

1. Plan as for any write (:mod:`gpustore.pipelines.write`), and copy the source: elements on a
   device are copied to host memory, where the host encodes them later.
2. Give the kvstore what the write lays over each key (:mod:`gpustore.kvstores.transaction`).
3. When somebody needs the value, a reader in the transaction or the commit, all layers of the key
   are laid over what is stored, and encoded once (:mod:`gpustore.pipelines.value_change`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpustore.backends.base import Layer, Memory
from gpustore.index_space import IndexTransform
from gpustore.kvstores.transaction.staged_value import Overlayer
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.staged_chunk import (
    StagedChunk,
    are_worth_merging,
    can_merge,
    part_of_chunk,
)
from gpustore.pipelines.value_change import encoded, is_whole
from gpustore.pipelines.writes_under_way import layers_of
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.future import ready
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.transaction import Transaction, at_once
from gpustore.runtime.write_futures import WriteFutures


class LayerStage(Protocol):
    """Takes what writes lay over keys, until the commit of a transaction."""

    transaction: Transaction

    def lay(self, overlayer: Overlayer, layers: Iterable[tuple[str, Any]]) -> None:
        """Stage layers over the values of keys."""

    def merged(self, key: str, overlayer: Overlayer) -> AbstractContextManager[Any]:
        """Return a context with the merged layers of a key, which nobody else uses meanwhile.

        It has None if there are none, or the transaction is not open.
        """


def staged_write(
    array: ChunkedArray, store: LayerStage, transform: IndexTransform, source: Any
) -> WriteFutures:
    """Stage a write of `source` to the domain of `transform`; both Futures are done.

    Writes of one `array`, the array outside of the transaction, are laid over its chunks together.

    Raises
    ------
    OutOfBoundsError, LimitError, MismatchError, TypeError
        Before anything is staged.
    TransactionError
        Through the Futures.
    """
    writes = store.transaction._shared(array, lambda: _StagedWrites(array))
    if writes.put(store, transform, source):
        done = ready(None)
        return WriteFutures(done, done)
    planned = writes.planned(transform, source)

    def stage() -> None:
        for overlayer, layers in planned:
            store.lay(overlayer, layers)

    done = at_once(stage)
    return WriteFutures(done, done)


class _StagedWrites:
    """Lays writes of one array over stored values.

    Parameters
    ----------
    array : ChunkedArray
        The array outside of the transaction.
    """

    def __init__(self, array: ChunkedArray) -> None:
        self.array = array
        self._overlayers: dict[tuple[int, ...], _Overlayer] = {}
        self._merges = can_merge(array)
        self._key = array.format().key

    def put(self, store: LayerStage, transform: IndexTransform, source: Any) -> bool:
        """Lay a write over the merged ones of its chunk; return whether there are any.

        Raises
        ------
        MismatchError, TypeError
        """
        array = self.array
        part = part_of_chunk(array, transform) if self._merges else None
        if part is None:
            return False
        key = self._key(part.cell[: array.key_rank])
        with store.merged(key, self._overlayer(array)) as merged:
            if merged is None:
                return False
            memory = array.backend.source(source, transform.domain, array.dtype)
            merged.put(part, array.backend.elements(memory))
        STATISTICS.add(writes=1, chunks_planned=1)
        return True

    def planned(
        self, transform: IndexTransform, source: Any
    ) -> list[tuple[_Overlayer, Iterator[tuple[str, Layer]]]]:
        """Return what a write lays over each key, for each shape of chunks."""
        array = self.array
        memory = _copied(array, transform, source)
        plans = array.plans(transform, memory.strides)
        STATISTICS.add(writes=1, chunks_planned=sum([len(plan) for _, plan in plans]))
        return [(self._overlayer(one), layers_of(plan, memory)) for one, plan in plans]

    def _overlayer(self, array: ChunkedArray) -> _Overlayer:
        found = self._overlayers.get(array.chunk_shape)
        return found or self._overlayers.setdefault(array.chunk_shape, _Overlayer(array))


class _Overlayer:
    """Lays writes over chunks of one shape, as an ``Overlayer`` of a kvstore in a transaction."""

    def __init__(self, array: ChunkedArray) -> None:
        self._array = array
        self.max_nbytes = array.object_bound

    def merge(self, layers: Sequence[Layer]) -> StagedChunk | None:
        if not can_merge(self._array) or not are_worth_merging(self._array, layers):
            return None
        merged = StagedChunk(self._array, layers[0].rows)
        for one in layers:
            merged.lay(one)
        return merged

    def is_whole(self, layer: Layer) -> bool:
        return is_whole(self._array, layer.rows)

    def encode(
        self, values: Sequence[tuple[Sequence[Layer], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        return encoded(self._array, values)


def _copied(array: ChunkedArray, transform: IndexTransform, source: Any) -> Memory:
    """Return a copy of the source in host memory; a broadcast one stays small."""
    memory = array.backend.source(source, transform.domain, array.dtype)
    elements = array.backend.elements(memory)
    once = tuple([slice(None) if stride else slice(1) for stride in elements.strides])
    return array.backend.source(elements[once].copy(), transform.domain, array.dtype)
