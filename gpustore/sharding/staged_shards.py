"""Writes of a transaction to chunks in shards: layers over whole shards, each made anew once."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpustore.kvstores.neuroglancer_uint64_sharded.shards import Place, Uint64Shards
from gpustore.kvstores.transaction import TransactedKvStore
from gpustore.kvstores.transaction.staged_value import Laid, Overlayer, lay_over, merged_by
from gpustore.runtime.buffer import Buffer


class ShardLayer(NamedTuple):
    """Layer over one chunk of a shard.

    Attributes
    ----------
    place : Place
        Place of the chunk.
    overlayer : Overlayer
        Lays it over the stored chunk.
    layer : object
    """

    place: Place
    overlayer: Overlayer
    layer: Any


class StagedShards:
    """Lays writes over shards, as an ``Overlayer`` of the kvstore in which they lie.

    Parameters
    ----------
    shards : Uint64Shards
        The shards outside of the transaction.
    """

    max_nbytes = sys.maxsize

    def __init__(self, shards: Uint64Shards) -> None:
        self._shards = shards

    def layer(self, key: str, overlayer: Overlayer, layer: Any) -> tuple[str, ShardLayer]:
        """Return the key of a shard, and the layer over it that is `layer` over a chunk."""
        place = self.place(key)
        return place.shard, ShardLayer(place, overlayer, layer)

    def place(self, key: str) -> Place:
        """Return where the chunk of a key is."""
        return self._shards.place(key)

    def merge(self, layers: Sequence[ShardLayer]) -> StagedShard:
        """Merge layers by chunks."""
        return StagedShard(layers)

    def is_whole(self, layer: ShardLayer) -> bool:
        """Return False: other chunks of the shard stay."""
        del layer
        return False

    def cover(self, layers: Sequence[ShardLayer]) -> None:
        """Return None: other chunks of the shard stay."""
        del layers

    def encode(
        self, values: Sequence[tuple[Sequence[ShardLayer], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        """Return shards with their layers, each given with the shard under them."""
        return [self._encoded(layers, shard) for layers, shard in values]

    def store(self, values: Sequence[tuple[str, Sequence[ShardLayer], bool]]) -> Sequence[str]:
        """Return all keys: shards are made of what is stored."""
        return [key for key, _, _ in values]

    def _encoded(self, layers: Sequence[ShardLayer], shard: Buffer | None) -> Buffer | None:
        key = layers[0].place.shard
        chunks = {} if shard is None else self._shards.chunks(bytes(shard), key)
        stays: dict[Place, list[Any]] = defaultdict(list)
        places: dict[Overlayer, dict[Place, None]] = defaultdict(dict)
        for place, overlayer, layer in layers:
            if overlayer.is_whole(layer):
                stays[place].clear()
                chunks.get(place.minishard, {}).pop(place.number, None)
            stays[place].append(layer)
            places[overlayer][place] = None
        for overlayer, some in places.items():
            below = [chunks.get(one.minishard, {}).get(one.number) for one in some]
            made = overlayer.encode([(stays[one], old) for one, old in zip(some, below)])
            for place, chunk in zip(some, made, strict=True):
                minishard = chunks.setdefault(place.minishard, {})
                if chunk is None:
                    minishard.pop(place.number, None)
                else:
                    minishard[place.number] = chunk
        return b"".join(self._shards.pieces(chunks)) if any(chunks.values()) else None


class StagedShard:
    """Merged layers of a shard: those of each chunk. Not thread-safe.

    Attributes
    ----------
    count : int
        Number of layers.
    """

    is_whole = False

    def __init__(self, layers: Sequence[ShardLayer]) -> None:
        self.count = 0
        self._laid: dict[Place, list[Laid]] = {}
        self._changed: dict[Place, int] = {}
        for one in layers:
            self.lay(one)

    def lay(self, layer: ShardLayer) -> None:
        """Add a layer."""
        place, overlayer, inner = layer
        self.count += 1
        self._changed[place] = self.count
        laid = self._laid.setdefault(place, [])
        if overlayer.is_whole(inner):
            laid.clear()
        lay_over(laid, overlayer, inner)

    def merged(self, place: Place, overlayer: Overlayer, *, changes: bool) -> Any:
        """Return the merged layers of a chunk; None if there are none."""
        found = merged_by(self._laid.get(place, ()), overlayer)
        if changes and found is not None:
            self.count += 1
            self._changed[place] = self.count
        return found

    def layers(self, seen: int) -> list[tuple[int, ShardLayer]]:
        """Return layers that do not change, with the number of the last one of their chunk."""
        del seen
        return [
            (self._changed[place], ShardLayer(place, one.overlayer, layer))
            for place, laid in self._laid.items()
            for one in laid
            for _, layer in one.now(0)
        ]


class ShardStage:
    """Takes layers over chunks in a transaction, in place of the kvstore in which shards lie.

    Parameters
    ----------
    store : TransactedKvStore
        That kvstore.
    shards : Uint64Shards
        The shards outside of the transaction.
    """

    def __init__(self, store: TransactedKvStore, shards: Uint64Shards) -> None:
        self.transaction = store.transaction
        self._store = store
        self._staged = self.transaction._shared(id(shards), lambda: StagedShards(shards))

    def lay(self, overlayer: Overlayer, layers: Iterable[tuple[str, Any]]) -> None:
        """Stage layers of an array over chunks by their keys."""
        staged = self._staged
        self._store.lay(staged, (staged.layer(key, overlayer, one) for key, one in layers))

    @contextmanager
    def merged(self, key: str, overlayer: Overlayer, *, changes: bool) -> Iterator[Any]:
        """Give the merged layers of a chunk, as :meth:`TransactedKvStore.merged` those of a key."""
        place = self._staged.place(key)
        with self._store.merged(place.shard, self._staged, changes=changes) as shard:
            yield None if shard is None else shard.merged(place, overlayer, changes=changes)
