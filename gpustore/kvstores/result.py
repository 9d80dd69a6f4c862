"""The small values of TensorStore's kvstore interface: key range, read result, generation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpustore.kvstores.base import invalid_key

ReadResultState: TypeAlias = Literal["unspecified", "missing", "value"]

_STATES = ("unspecified", "missing", "value")


def as_bytes(value: str | bytes) -> bytes:
    """Return bytes unchanged and text as UTF-8; TypeError for anything else."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return value
    raise TypeError(f"Expected str or bytes, but received: {value!r:.200}")


def key_bytes(key: str | bytes) -> bytes:
    """Return a key as bytes, or a bound of keys; InvalidKeyError if it has none."""
    try:
        return as_bytes(key)
    except UnicodeEncodeError as error:
        raise invalid_key(str(key), "contains a surrogate that stands for no byte") from error


class KeyRange:
    """Half-open interval of keys in the order of their bytes.

    Parameters
    ----------
    inclusive_min : str or bytes
        Lower bound; empty for none.
    exclusive_max : str or bytes
        Upper bound; empty for none.

    Examples
    --------
    >>> KeyRange("a", "b").empty
    False
    """

    __slots__ = ("_exclusive_max", "_inclusive_min")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inclusive_min: str | bytes = "", exclusive_max: str | bytes = "") -> None:
        self._inclusive_min = key_bytes(inclusive_min)
        self._exclusive_max = key_bytes(exclusive_max)

    @property
    def inclusive_min(self) -> bytes:
        """Inclusive lower bound."""
        return self._inclusive_min

    @inclusive_min.setter
    def inclusive_min(self, value: str | bytes) -> None:
        self._inclusive_min = key_bytes(value)

    @property
    def exclusive_max(self) -> bytes:
        """Exclusive upper bound; empty if there is none."""
        return self._exclusive_max

    @exclusive_max.setter
    def exclusive_max(self, value: str | bytes) -> None:
        self._exclusive_max = key_bytes(value)

    @property
    def empty(self) -> bool:
        """Whether no key lies in the range."""
        return bool(self._exclusive_max) and self._inclusive_min >= self._exclusive_max

    def copy(self) -> KeyRange:
        """Return a copy."""
        return KeyRange(self._inclusive_min, self._exclusive_max)

    def __contains__(self, key: str | bytes) -> bool:
        key = as_bytes(key)
        return key >= self._inclusive_min and (not self._exclusive_max or key < self._exclusive_max)

    def __copy__(self) -> KeyRange:
        return self.copy()

    def __deepcopy__(self, memo: object) -> KeyRange:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyRange):
            return NotImplemented
        return (self._inclusive_min, self._exclusive_max) == (
            other._inclusive_min,
            other._exclusive_max,
        )

    def __repr__(self) -> str:
        return f"KvStore.KeyRange({self._inclusive_min!r}, {self._exclusive_max!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return KeyRange, (self._inclusive_min, self._exclusive_max)


@dataclass(slots=True, repr=False)
class TimestampedStorageGeneration:
    r"""Version of a value, and the time at which it was current.

    Attributes
    ----------
    generation : bytes
        Identifies the version; ``b""`` if unknown, ``b"\x02"`` for a key without a value.
    time : float
        Seconds since the epoch.
    """

    generation: bytes = b""
    time: float = -math.inf

    def __post_init__(self) -> None:
        self.generation = as_bytes(self.generation)
        self.time = float(self.time)

    def __repr__(self) -> str:
        return f"KvStore.TimestampedStorageGeneration({self.generation!r}, {self.time:.6f})"


@dataclass(slots=True, repr=False, eq=False)
class ReadResult:
    """Result of the read of one key.

    Attributes
    ----------
    state : {"unspecified", "missing", "value"}
        ``"unspecified"`` if the condition of the read did not hold.
    value : bytes
        Empty unless the state is ``"value"``.
    stamp : TimestampedStorageGeneration
    """

    state: ReadResultState = "unspecified"
    value: bytes = b""
    stamp: TimestampedStorageGeneration = field(default_factory=TimestampedStorageGeneration)

    def __post_init__(self) -> None:
        if self.state not in _STATES:
            raise TypeError(f"Expected one of {_STATES}, but received: {self.state!r:.200}")
        self.value = as_bytes(self.value)

    def __repr__(self) -> str:
        return (
            f"KvStore.ReadResult(state={self.state!r}, value={self.value!r}, stamp={self.stamp!r})"
        )
