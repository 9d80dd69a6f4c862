"""What a batch operation on a kvstore takes and returns: one entry a key in each column."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from gpustore.errors import GpustoreError
from gpustore.kvstores.arena import Arena
from gpustore.runtime.buffer import Buffer

ABSENT = b"\x02"
"""Generation of a key that has no value; as a write condition: create only."""


class ReadState(enum.IntEnum):
    """What a read found."""

    UNSPECIFIED = 0
    """The condition did not hold, or the read failed; the value was not looked at."""
    MISSING = 1
    VALUE = 2


@dataclass(slots=True)
class ReadRequest:
    """Which keys to read, and which part of each.

    Attributes
    ----------
    keys : sequence of str, length n
        Whole keys in the driver's namespace.
    start : sequence of int, length n, optional
        First byte of each range; negative means a suffix of that length.
    stop : sequence of int or None, length n, optional
        End of each range, exclusive, in bytes; None means the end of the value.
    if_equal, if_not_equal : sequence of bytes, length n, optional
        Conditions on the generation; ``b""`` is no condition.
    staleness_bound : float, optional
        Seconds since the epoch: cached data at least as recent may be used without asking the
        storage again. None means now.
    max_nbytes : int, optional
        A longer value (or range) is a :class:`~gpustore.errors.LimitError`, raised before any
        memory is taken for it.
    into : Arena, optional
        Where to put the bytes. Without it the store returns buffers of its own.
    """

    keys: Sequence[str]
    start: Sequence[int] | None = None
    stop: Sequence[int | None] | None = None
    if_equal: Sequence[bytes] | None = None
    if_not_equal: Sequence[bytes] | None = None
    staleness_bound: float | None = None
    max_nbytes: int | None = None
    into: Arena | None = None


@dataclass(slots=True)
class ReadColumns:
    """The results of a read, one entry a key.

    Attributes
    ----------
    state : list of ReadState
    generation : list of bytes
        The generation seen, ``b""`` if unknown.
    value : list of Buffer or None
        The bytes read; None unless the state is VALUE.
    total : list of int
        Size of the whole stored value in bytes, -1 if unknown or missing.
    error : dict of int to GpustoreError
        Failures by position; a failure of one key never fails the others.
    """

    state: list[ReadState]
    generation: list[bytes]
    value: list[Buffer | None]
    total: list[int]
    error: dict[int, GpustoreError] = field(default_factory=dict)

    @classmethod
    def blank(cls, count: int) -> Self:
        """Columns for `count` keys about which nothing is known yet."""
        return cls([ReadState.UNSPECIFIED] * count, [b""] * count, [None] * count, [-1] * count)

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


@dataclass(slots=True)
class WriteRequest:
    """Which keys to write.

    Attributes
    ----------
    keys : sequence of str, length n
        Whole keys in the driver's namespace. A key that occurs twice is written in order.
    values : sequence of Buffer or None, length n
        None deletes the key.
    if_equal : sequence of bytes, length n, optional
        The write happens only if the stored generation equals this; ``b""`` is no condition,
        :data:`ABSENT` means "only if there is no value".
    """

    keys: Sequence[str]
    values: Sequence[Buffer | None]
    if_equal: Sequence[bytes] | None = None


@dataclass(slots=True)
class WriteColumns:
    """The results of a write, one entry a key.

    Attributes
    ----------
    generation : list of bytes
        The new generation (:data:`ABSENT` after a deletion); ``b""`` if the condition failed.
    error : dict of int to GpustoreError
        Failures by position.
    """

    generation: list[bytes]
    error: dict[int, GpustoreError] = field(default_factory=dict)

    @classmethod
    def blank(cls, count: int) -> Self:
        """Columns for `count` keys that have not been written yet."""
        return cls([b""] * count)

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


@dataclass(slots=True)
class LocateColumns:
    """Where the bytes of each key lie, for readers that fetch them without this driver.

    A value with neither a path nor a URL cannot be fetched so; its size is given all the same.

    Attributes
    ----------
    path : list of str or None
        A local file that holds the value.
    url : list of str or None
        A URL that serves it.
    offset, nbytes : list of int
        The range of that file or URL, in bytes; -1 if there is no value.
    generation : list of bytes
        :data:`ABSENT` for a key without a value.
    crc32 : list of int or None
        What the CRC-32 (RFC 1952 8) of the whole value must be; None if the kvstore does not know.
    error : dict of int to GpustoreError
        Failures by position.
    """

    path: list[str | None]
    url: list[str | None]
    offset: list[int]
    nbytes: list[int]
    generation: list[bytes]
    crc32: list[int | None]
    error: dict[int, GpustoreError] = field(default_factory=dict)

    @classmethod
    def blank(cls, count: int) -> Self:
        """Columns for `count` keys that have not been located yet."""
        none = [None] * count
        return cls([*none], [*none], [-1] * count, [-1] * count, [b""] * count, [*none])

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


def _raise_first(error: Mapping[int, GpustoreError]) -> None:
    if error:
        raise error[min(error)]
