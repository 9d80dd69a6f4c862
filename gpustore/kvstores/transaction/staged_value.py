"""Changes that a transaction stages for one key: a value, a deletion, or layers of partial writes.

Layers are kept until somebody needs the value, a reader or the commit. What a reader saw is kept as
long as the stored value does not change, and later layers are laid over it for the next reader; the
commit lays all of them over the stored value.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from gpustore.kvstores.columns import ABSENT
from gpustore.runtime.buffer import Buffer

FEWEST_MERGED: Final = 4
"""Fewest layers that are merged; whether they should be is asked at each power of two."""

_counter = itertools.count(1)
_pack_generation = struct.Struct("<BQ").pack


def new_generation() -> bytes:
    """Return a generation of a staged value; no kvstore has one that begins like it."""
    return _pack_generation(4, next(_counter))


class Merged(Protocol):
    """Layers of one value, merged. Called under the lock of the stage.

    Attributes
    ----------
    count : int
        Number of layers.
    is_whole : bool
        Whether nothing of a value stays under them.
    """

    count: int

    @property
    def is_whole(self) -> bool: ...

    def lay(self, layer: Any) -> None:
        """Add a layer."""

    def layers(self, seen: int) -> list[tuple[int, Any]]:
        """Return layers that mean the same, and do not change, with the number of the last in each.

        No layer has parts both of the first `seen` layers alone and of later ones.
        """


class Overlayer(Protocol):
    """Lays partial writes of one array over stored values.

    Attributes
    ----------
    max_nbytes : int
        Most bytes of a stored value.
    """

    max_nbytes: int

    def merge(self, layers: Sequence[Any]) -> Merged | None:
        """Merge layers of one value if that takes less memory; None if it does not."""

    def is_whole(self, layer: Any) -> bool:
        """Whether nothing of a value stays under the layer."""

    def cover(self, layers: Sequence[Any]) -> Merged | None:
        """Merge layers of one value that leave nothing of it; None if that is not plain."""

    def encode(
        self, values: Sequence[tuple[Sequence[Any], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        """Return the values with their layers, each given with the value under them."""

    def store(self, values: Sequence[tuple[str, Sequence[Any], bool]]) -> Sequence[str]:
        """Store values of keys with their layers, under the lock of each.

        Each is given with its layers, and with whether there is nothing under them; otherwise they
        are laid over what is stored then. Return the keys that are left.
        """


class Seen(NamedTuple):
    """Value that a reader saw.

    Attributes
    ----------
    stored : bytes
        Generation of the stored value below; ``b""`` if there is none, or it has none.
    value : Buffer or None
    generation : bytes
        Its own generation; ``b""`` for nothing seen.
    layers : int
        Number of layers that it has.
    is_direct : bool
        Whether all of them were laid over the stored value at once, as the commit does.
    """

    stored: bytes = b""
    value: Buffer | None = None
    generation: bytes = b""
    layers: int = 0
    is_direct: bool = False


UNSEEN: Final = Seen()


@dataclass(slots=True)
class Laid:
    """Layers that one array has laid one after the other.

    Attributes
    ----------
    overlayer : Overlayer
    layers : list
        The layers, unless they are merged.
    merged : Merged or None
    """

    overlayer: Overlayer
    layers: list[Any] = field(default_factory=list)
    merged: Merged | None = None

    @property
    def count(self) -> int:
        """Number of layers laid."""
        return len(self.layers) if self.merged is None else self.merged.count

    def add(self, layer: Any) -> None:
        """Add a layer; all are merged if they take more memory than that."""
        if self.merged is not None:
            self.merged.lay(layer)
            return
        self.layers.append(layer)
        count = len(self.layers)
        if count >= FEWEST_MERGED and not count & (count - 1):
            self.merged = self.overlayer.merge(self.layers)
            if self.merged is not None:
                self.layers = []

    def now(self, seen: int) -> list[tuple[int, Any]]:
        """Return the layers as they are now, with their numbers; see :meth:`Merged.layers`."""
        return [*enumerate(self.layers, 1)] if self.merged is None else self.merged.layers(seen)


def lay_over(laid: list[Laid], overlayer: Overlayer, layer: Any) -> None:
    """Add a layer to those that arrays have laid."""
    if not laid or laid[-1].overlayer is not overlayer:
        laid.append(Laid(overlayer))
    laid[-1].add(layer)


def merged_by(laid: Sequence[Laid], overlayer: Overlayer) -> Any:
    """Return the merged layers that an array may add to; None if there are none."""
    return laid[-1].merged if laid and laid[-1].overlayer is overlayer else None


@dataclass(slots=True)
class Entry:
    """Changes that are staged for one key.

    Attributes
    ----------
    generation : bytes
        Generation for readers in the transaction, unless there are layers.
    is_set : bool
        Whether `value` replaces the stored value.
    value : Buffer or None
        Value under the layers; None for none.
    expected : bytes
        Generation that the stored value must have; ``b""`` for any.
    layers : list of Laid
        Layers, by the arrays that laid them.
    seen : Seen
    version : int
        Number of times that the layers were dropped.
    """

    generation: bytes = b""
    is_set: bool = False
    value: Buffer | None = None
    expected: bytes = b""
    layers: list[Laid] = field(default_factory=list)
    seen: Seen = UNSEEN
    version: int = 0

    @property
    def last_seen(self) -> Seen:
        """Observation of the stored value by a reader."""
        return self.seen if self.seen.layers == self.count else UNSEEN

    @property
    def count(self) -> int:
        """Number of layers laid."""
        return sum([one.count for one in self.layers])

    def set(self, value: Buffer | None) -> None:
        """Replace everything but the condition."""
        self.is_set, self.value, self.layers, self.seen = True, value, [], UNSEEN
        self.version += 1
        self.generation = ABSENT if value is None else new_generation()

    def lay(self, overlayer: Overlayer, layer: Any) -> None:
        """Add a layer."""
        if overlayer.is_whole(layer):
            self.set(None)
        lay_over(self.layers, overlayer, layer)

    def drop_covered(self, *, merges: bool) -> None:
        """Drop what lies under layers that cover the value: merged ones, or all that `merges`."""
        if self.is_set or self.seen.layers == self.count:
            return
        for i in reversed(range(len(self.layers))):
            laid = self.layers[i]
            merged = laid.merged
            if merged is None and merges and len(laid.layers) > 1:
                merged = laid.overlayer.cover(laid.layers)
            if merged is None or not merged.is_whole:
                continue
            if laid.merged is None:
                laid.merged, laid.layers = merged, []
            self.is_set, self.value = True, None
            if i:
                self.layers, self.seen = self.layers[i:], UNSEEN
                self.version += 1
            return


@dataclass(slots=True)
class Made:
    """A staged value that is being made.

    Attributes
    ----------
    entry : Entry
    is_set, version, seen
        Those of the entry when this began.
    layers : list of (Overlayer, list of (int, object), int)
        Layers that are left with their numbers, by the arrays that laid them, and how many each had
        laid.
    value : Buffer or None
        Value under them.
    count : int
        Number of layers of the finished value.
    is_direct : bool
        Whether the value was not made of one that was seen.
    stored : bytes
        Generation of the stored value below; ``b""`` if none is needed, or it has none.
    generation : bytes
        Generation for readers in the transaction.
    """

    entry: Entry
    is_set: bool
    version: int
    seen: Seen
    layers: list[tuple[Overlayer, list[tuple[int, Any]], int]]
    value: Buffer | None
    count: int
    is_direct: bool = True
    stored: bytes = b""
    generation: bytes = b""

    @classmethod
    def of(cls, entry: Entry, *, to_store: bool, merges: bool) -> Made:
        """Begin with what is staged now.

        What is `to_store` is made of a value that was seen only if that is the same. With `merges`
        layers that cover the value together are merged, which takes longer than to read a file.
        """
        entry.drop_covered(merges=merges)
        count = entry.count
        seen = entry.seen
        if to_store and not (seen.is_direct and seen.layers == count):
            seen = UNSEEN
        layers: list[tuple[Overlayer, list[tuple[int, Any]], int]] = []
        skipped = seen.layers
        for one in entry.layers:
            layers.append((one.overlayer, one.now(skipped), one.count))
            skipped = max(0, skipped - one.count)
        made = cls(entry, entry.is_set, entry.version, seen, layers, entry.value, count)
        made.generation = b"" if layers else entry.generation
        return made

    @property
    def next(self) -> tuple[Sequence[Any], Buffer | None]:
        """The next layers of one array, and the value under them."""
        return [layer for _, layer in self.layers[0][1]], self.value

    @property
    def overlayer(self) -> Overlayer:
        """Lays the next layers."""
        return self.layers[0][0]

    def take_seen(self) -> None:
        """Begin with the value that was seen, if it was made from the same stored one."""
        seen = self.seen
        if not seen.generation or seen.stored != self.stored:
            return
        self.value = seen.value
        left, skipped = [], seen.layers
        for overlayer, some, count in self.layers:
            if skipped < count:
                left.append((overlayer, [one for one in some if one[0] > skipped], count))
            skipped = max(0, skipped - count)
        self.layers = left
        self.is_direct = seen.is_direct and not left
        if not left:
            self.generation = seen.generation

    def keep(self) -> None:
        """Let the entry remember the value, unless it was replaced meanwhile."""
        if self.generation or self.layers:
            return
        self.generation = ABSENT if self.value is None else new_generation()
        if self.entry.version == self.version:
            self.entry.seen = Seen(
                self.stored, self.value, self.generation, self.count, self.is_direct
            )


def is_in(key: str, range: tuple[str, str | None]) -> bool:
    """Whether a key is in a range: from its first key to before the second, None for no end."""
    low, high = range
    return low <= key and (high is None or key < high)
