"""What a transaction stages for one key: a value, a deletion, or layers of partial writes.

Layers are kept until somebody needs the value, a reader or the commit; what a reader saw is kept as
long as neither they nor the stored value change.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpustore.kvstores.columns import ABSENT
from gpustore.runtime.buffer import Buffer

_counter = itertools.count(1)
_pack_generation = struct.Struct("<BQ").pack


def new_generation() -> bytes:
    """Return a generation of a staged value; no kvstore has one that begins like it."""
    return _pack_generation(4, next(_counter))


UNSEEN: Final[tuple[bytes, Buffer | None, bytes]] = (b"", None, b"")


class Overlayer(Protocol):
    """Lays partial writes of one array over stored values.

    Attributes
    ----------
    max_nbytes : int
        Most bytes of a stored value.
    """

    max_nbytes: int

    def is_whole(self, layer: Any) -> bool:
        """Whether nothing of a value stays under the layer."""

    def encode(
        self, values: Sequence[tuple[Sequence[Any], Buffer | None]]
    ) -> Sequence[Buffer | None]:
        """Return the values with their layers, each given with the value under them."""


@dataclass(slots=True)
class Entry:
    """What is staged for one key.

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
    layers : list of (Overlayer, list)
        Layers, by the arrays that laid them.
    seen : tuple of (bytes, Buffer or None, bytes), optional
        Generation of the stored value, the value with the layers, and its generation.
    """

    generation: bytes = b""
    is_set: bool = False
    value: Buffer | None = None
    expected: bytes = b""
    layers: list[tuple[Overlayer, list[Any]]] = field(default_factory=list)
    seen: tuple[bytes, Buffer | None, bytes] | None = None

    @property
    def is_staged(self) -> bool:
        """Whether anything is staged."""
        return self.is_set or bool(self.layers)

    def set(self, value: Buffer | None) -> None:
        """Replace everything but the condition."""
        self.is_set, self.value, self.layers, self.seen = True, value, [], None
        self.generation = ABSENT if value is None else new_generation()

    def lay(self, overlayer: Overlayer, layer: Any) -> None:
        """Add a layer."""
        if overlayer.is_whole(layer):
            self.set(None)
        self.seen = None
        if not self.layers or self.layers[-1][0] is not overlayer:
            self.layers.append((overlayer, []))
        self.layers[-1][1].append(layer)


@dataclass(slots=True)
class Made:
    """A staged value that is being made.

    Attributes
    ----------
    entry : Entry
    is_set, layers, seen
        Those of the entry when this began.
    value : Buffer or None
        Value with the first `number` layers.
    stored : bytes
        Generation of the stored value below; ``b""`` if none is needed, or it has none.
    generation : bytes
        Generation for readers in the transaction.
    """

    entry: Entry
    is_set: bool
    layers: list[tuple[Overlayer, list[Any]]]
    seen: tuple[bytes, Buffer | None, bytes]
    value: Buffer | None
    number: int = 0
    stored: bytes = b""
    generation: bytes = b""

    @classmethod
    def of(cls, entry: Entry) -> Made:
        """Begin with what is staged now."""
        layers = [(overlayer, list(some)) for overlayer, some in entry.layers]
        made = cls(entry, entry.is_set, layers, entry.seen or UNSEEN, entry.value)
        made.generation = b"" if layers else entry.generation
        return made

    @property
    def is_unfinished(self) -> bool:
        """Whether layers are left."""
        return self.number < len(self.layers)

    @property
    def next(self) -> tuple[Sequence[Any], Buffer | None]:
        """The next layers, and the value under them."""
        return self.layers[self.number][1], self.value

    @property
    def overlayer(self) -> Overlayer:
        """Lays the next layers."""
        return self.layers[self.number][0]

    def take_seen(self) -> bool:
        """Take the value that was made before, if it was made from the same stored one."""
        stored, value, generation = self.seen
        if not generation or stored != self.stored:
            return False
        self.value, self.generation, self.number = value, generation, len(self.layers)
        return True

    def keep(self) -> None:
        """Let the entry remember the value, unless it has changed meanwhile."""
        if self.generation or self.is_unfinished:
            return
        self.generation = ABSENT if self.value is None else new_generation()
        entry = self.entry
        if entry.is_set == self.is_set and [len(one) for _, one in entry.layers] == [
            len(one) for _, one in self.layers
        ]:
            entry.seen = self.stored, self.value, self.generation


def is_in(key: str, range: tuple[str, str | None]) -> bool:
    """Whether a key is in a range: from its first key to before the second, None for no end."""
    low, high = range
    return low <= key and (high is None or key < high)
