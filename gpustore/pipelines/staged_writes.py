"""Writes of an array in a transaction: layers over its chunks, which are kept until the commit.

1. Plan as for any write (:mod:`gpustore.pipelines.write`), and copy the source to host memory,
   where the host encodes it later.
2. Give the kvstore what the write lays over each key (:mod:`gpustore.kvstores.transaction`).
3. When somebody needs the value, a reader in the transaction or the commit, all layers of the key
   are laid over what is stored, and encoded once (:mod:`gpustore.pipelines.value_change`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from gpustore.backends.base import Layer, Output
from gpustore.index_space import IndexTransform
from gpustore.kvstores.transaction.staged_value import Overlayer
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.staged_chunk import (
    Part,
    StagedChunks,
    are_worth_merging,
    may_cover,
    part_of_chunk,
    staged_array,
    staged_elements,
    staged_part,
    staged_rows,
    staged_source,
)
from gpustore.pipelines.value_change import encoded, is_whole, store_layers
from gpustore.pipelines.writes_under_way import PLANNED_ROWS, layers_of
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.future import Future, ready
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.transaction import Transaction, at_once
from gpustore.runtime.write_futures import WriteFutures
from gpustore.strict_json.parsing import dump


class LayerStage(Protocol):
    """Takes what writes lay over keys, until the commit of a transaction."""

    transaction: Transaction

    def lay(self, overlayer: Overlayer, layers: Iterable[tuple[str, Any]]) -> None:
        """Stage layers over the values of keys."""

    def merged(
        self, key: str, overlayer: Overlayer, *, changes: bool
    ) -> AbstractContextManager[Any]:
        """Return a context with the merged layers of a key, which nobody else uses meanwhile.

        It has None if there are none, or the transaction is not open. `changes` says whether a
        layer is added.
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
    transaction = store.transaction
    writes = transaction._shared(id(array), lambda: _StagedWrites(array, transaction))
    part = part_of_chunk(array, transform)
    if part is not None:
        done = writes.put(store, part, transform, source)
        return WriteFutures(done, done)
    planned = writes.planned(transform, source, transaction)

    def stage() -> None:
        transaction._check_open()
        for overlayer, layers in planned:
            store.lay(overlayer, layers)

    done = at_once(stage)
    return WriteFutures(done, done)


def staged_read(
    array: ChunkedArray, store: LayerStage, transform: IndexTransform, output: Output
) -> Future[Any] | None:
    """Read what is staged and lies in one chunk; None if a stored value, or a codec, is needed.

    What the native core decodes is what was encoded: other codecs may change elements, and readers
    see what they make of them.
    """
    if array.native_values is None:
        return None
    transaction = store.transaction
    writes = transaction._shared(id(array), lambda: _StagedWrites(array, transaction))
    elements = writes.taken(store, transform)
    if elements is None:
        return None
    memory = output.memory(array.backend, elements.shape, array.dtype)
    array.backend.place(elements, memory)
    STATISTICS.add(reads=1, chunks_planned=1)
    return ready(output.filled(memory))


class _StagedWrites:
    """Lays writes of one array over stored values.

    Parameters
    ----------
    array : ChunkedArray
        The array outside of the transaction.
    transaction : Transaction
        Not kept.
    """

    def __init__(self, array: ChunkedArray, transaction: Transaction) -> None:
        self.array = array
        self._overlayers: dict[tuple[int, ...], _Overlayer] = {}
        self._key = array.format().key
        self._ratio = array.key_ratio[: array.key_rank]
        if array.grid is None:
            self._add_overlayer(array, transaction)

    def _key_of(self, part: Part) -> str:
        return self._key([at // ratio for at, ratio in zip(part.cell, self._ratio)])

    def taken(self, store: LayerStage, transform: IndexTransform) -> NDArray[Any] | None:
        """Return a copy of elements of one chunk of which all are in merged layers, else None."""
        array = self.array
        part = part_of_chunk(array, transform)
        if part is None:
            return None
        shape, dtype = tuple(transform.domain.shape), array.chain.layout.dtype
        with store.merged(
            self._key_of(part), self._overlayers[array.chunk_shape], changes=False
        ) as merged:
            found = None if merged is None else merged.taken(part, shape, dtype)
            return None if found is None else found.astype(array.dtype)

    def put(
        self, store: LayerStage, part: Part, transform: IndexTransform, source: Any
    ) -> Future[None]:
        """Stage a write of a part of one chunk, over its merged ones if there are any.

        Raises
        ------
        MismatchError, TypeError
        """
        array = self.array
        memory = array.backend.source(source, transform.domain, array.dtype)
        elements = array.backend.elements(memory)
        key, overlayer = self._key_of(part), self._overlayers[array.chunk_shape]
        STATISTICS.add(writes=1, chunks_planned=1)
        with store.merged(key, overlayer, changes=True) as merged:
            if merged is not None:
                merged.put(part, staged_elements(array, elements))
                return ready(None)
        layer = staged_part(overlayer.array, key, part, staged_source(array, elements))
        return at_once(lambda: store.lay(overlayer, [(key, layer)]))

    def planned(
        self, transform: IndexTransform, source: Any, transaction: Transaction
    ) -> list[tuple[_Overlayer, Iterator[tuple[str, Layer]]]]:
        """Return what a write lays over each key, for each shape of chunks."""
        array = self.array
        memory = array.backend.source(source, transform.domain, array.dtype)
        copied = staged_source(array, array.backend.elements(memory))
        plans = array.plans(transform, copied.strides[: transform.input_rank])
        STATISTICS.add(writes=1, chunks_planned=sum([len(plan) for _, plan in plans]))
        return [
            (
                self._overlayers.get(one.chunk_shape) or self._add_overlayer(one, transaction),
                layers_of(
                    (staged_rows(one, rows) for rows in plan.windows(0, 1, PLANNED_ROWS)), copied
                ),
            )
            for one, plan in plans
        ]

    def _add_overlayer(self, array: ChunkedArray, transaction: Transaction) -> _Overlayer:
        """Return what lays writes over chunks of one shape, for all arrays with such values."""
        form = staged_array(array)
        made = transaction._shared(_values_of(form), lambda: _Overlayer(form))
        return self._overlayers.setdefault(array.chunk_shape, made)


def _values_of(array: ChunkedArray) -> Hashable:
    """Return what is equal for arrays with the same stored values."""
    chain = array.chain
    chains = [chain, *[level.index.chain for level in array.levels]]
    codecs = tuple([dump(one.to_json(), non_finite=True) for one in chains])
    shards = tuple([(one.ratio, one.order, one.index.at_end) for one in array.levels])
    layout = chain.layout.dtype, chain.layout.strides, type(chain.objects)
    fill = array.blank.dtype, array.blank.tobytes(), array.keep_fill
    place = array.store.identity, array.key_prefix, array.key_separator, array.names
    return *place, array.shape, array.chunk_shape, array.dtype, layout, codecs, shards, fill


class _Overlayer:
    """Lays writes over chunks of one shape, as an ``Overlayer`` of a kvstore in a transaction.

    Parameters
    ----------
    array : ChunkedArray
        A :func:`~gpustore.pipelines.staged_chunk.staged_array`.
    """

    def __init__(self, array: ChunkedArray) -> None:
        self.array = array
        self.max_nbytes = array.object_bound

    def merge(self, layers: Sequence[Layer]) -> StagedChunks | None:
        is_worth = are_worth_merging(self.array, layers)
        return StagedChunks(self.array, layers) if is_worth else None

    def is_whole(self, layer: Layer) -> bool:
        return is_whole(self.array, layer.rows)

    def cover(self, layers: Sequence[Layer]) -> StagedChunks | None:
        if self.array.levels or not may_cover(self.array, layers):
            return None
        return StagedChunks(self.array, layers)

    def encode(
        self, values: Sequence[tuple[Sequence[Layer], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        return encoded(self.array, values)

    def store(self, values: Sequence[tuple[str, Sequence[Layer], bool]]) -> Sequence[str]:
        if not self.array.writes_files_natively:
            return [key for key, _, _ in values]
        return store_layers(self.array, values)
