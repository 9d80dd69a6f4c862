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
    """Layers of one value, merged. Called under the lock of the stage."""

    def lay(self, layer: Any) -> None:
        """Add a layer."""

    def layers(self) -> list[Any]:
        """Return layers that mean the same, and do not change."""


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

    def encode(
        self, values: Sequence[tuple[Sequence[Any], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        """Return the values with their layers, each given with the value under them."""


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
    count : int
        Number of layers laid.
    layers : list
        The layers, unless they are merged.
    merged : Merged or None
    """

    overlayer: Overlayer
    count: int = 0
    layers: list[Any] = field(default_factory=list)
    merged: Merged | None = None

    def add(self, layer: Any) -> None:
        """Add a layer; all are merged if they take more memory than that."""
        self.count += 1
        if self.merged is not None:
            self.merged.lay(layer)
            return
        self.layers.append(layer)
        count = len(self.layers)
        if count >= FEWEST_MERGED and not count & (count - 1):
            self.merged = self.overlayer.merge(self.layers)
            if self.merged is not None:
                self.layers = []

    def now(self) -> list[Any]:
        """Return the layers as they are now."""
        return list(self.layers) if self.merged is None else self.merged.layers()


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
        if not self.layers or self.layers[-1].overlayer is not overlayer:
            self.layers.append(Laid(overlayer))
        self.layers[-1].add(layer)


@dataclass(slots=True)
class Made:
    """A staged value that is being made.

    Attributes
    ----------
    entry : Entry
    is_set, version, seen
        Those of the entry when this began.
    layers : list of (Overlayer, list, int)
        Layers that are left, by the arrays that laid them, and how many each had laid.
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
    layers: list[tuple[Overlayer, list[Any], int]]
    value: Buffer | None
    count: int
    is_direct: bool = True
    stored: bytes = b""
    generation: bytes = b""

    @classmethod
    def of(cls, entry: Entry, *, to_store: bool) -> Made:
        """Begin with what is staged now.

        What is `to_store` is made of a value that was seen only if that is the same.
        """
        layers = [(one.overlayer, one.now(), one.count) for one in entry.layers]
        count = entry.count
        seen = entry.seen
        if to_store and not (seen.is_direct and seen.layers == count):
            seen = UNSEEN
        is_set, value = entry.is_set, entry.value
        for i in reversed(range(len(layers) if seen.layers != count else 0)):
            if entry.layers[i].merged is not None and layers[i][0].is_whole(layers[i][1][0]):
                # Nothing stays under it.
                layers, seen, is_set, value = layers[i:], UNSEEN, True, None
                break
        made = cls(entry, is_set, entry.version, seen, layers, value, count)
        made.generation = b"" if layers else entry.generation
        return made

    @property
    def next(self) -> tuple[Sequence[Any], Buffer | None]:
        """The next layers of one array, and the value under them."""
        return self.layers[0][1], self.value

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
                # Of merged layers those that were seen are laid again, as the others are.
                left.append((overlayer, some[skipped:] if len(some) == count else some, count))
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
