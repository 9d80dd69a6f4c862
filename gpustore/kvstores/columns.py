"""Requests and results of batch operations on a kvstore: columns with one entry a key."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from gpustore.errors import GpustoreError, LimitError, MismatchError
from gpustore.kvstores.arena import Arena
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import quote

ABSENT = b"\x02"
"""Generation of a missing key; as a write condition: create only."""


class ReadState(enum.IntEnum):
    """Outcome of the read of one key."""

    UNSPECIFIED = 0
    """The condition did not hold, or the read failed."""
    MISSING = 1
    VALUE = 2


@dataclass(slots=True)
class ReadRequest:
    """Keys to read, and the byte range of each.

    Attributes
    ----------
    keys : sequence of str, length n
        Keys in the driver's namespace, with their path.
    start : sequence of int, length n, optional
        First byte of each range; negative means a suffix of that length.
    stop : sequence of int or None, length n, optional
        End of each range, exclusive, in bytes; None means the end of the value.
    if_equal, if_not_equal : sequence of bytes, length n, optional
        Conditions on the generation; ``b""`` is no condition.
    staleness_bound : float, optional
        Seconds since the epoch: cached data that were current at this time are accepted without a
        request to the storage. None means now.
    max_nbytes : int, optional
        A longer value (or range) is a :class:`~gpustore.errors.LimitError`, raised before any
        memory is taken for it.
    into : Arena, optional
        Memory for the bytes. By default the store returns buffers of its own.
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
    """Results of a read, one entry a key.

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
        """Return columns for `count` keys without results."""
        return cls([ReadState.UNSPECIFIED] * count, [b""] * count, [None] * count, [-1] * count)

    def take(self, i: int, request: ReadRequest, value: Buffer | None, generation: bytes) -> None:
        """Fill an entry with a stored value, None for a missing one, as the request asks for it."""
        self.generation[i] = generation
        self.total[i] = -1 if value is None else len(value)
        if request.if_equal is not None and not condition_holds(request.if_equal[i], generation):
            return
        if value is None:
            self.state[i] = ReadState.MISSING
        elif request.if_not_equal is None or request.if_not_equal[i] != generation:
            try:
                self.value[i] = part_of(value, i, request)
                self.state[i] = ReadState.VALUE
            except GpustoreError as error:
                self.error[i] = error

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


@dataclass(slots=True)
class WriteRequest:
    """Keys to write, with values and conditions.

    Attributes
    ----------
    keys : sequence of str, length n
        Keys in the driver's namespace, with their path. A key that occurs twice is written in
        order.
    values : sequence of Buffer or None, length n
        None deletes the key.
    if_equal : sequence of bytes, length n, optional
        Condition: the stored generation equals this one; ``b""`` is no condition, :data:`ABSENT`
        requires a missing key.
    anew : bool
        Whether old values count as deleted, so that readers may find neither the old nor the new
        one for a moment. ext4 writes a file to the disk that replaces another, in 1 ms.
    """

    keys: Sequence[str]
    values: Sequence[Buffer | None]
    if_equal: Sequence[bytes] | None = None
    anew: bool = False


@dataclass(slots=True)
class AtomicRequest:
    """Changes of which all are made at once, or none if a condition fails.

    Attributes
    ----------
    keys : sequence of str, length n
        Keys to write, each once.
    values : sequence of Buffer or None, length n
        None deletes the key.
    expected : mapping of str to bytes
        Generations that keys must have, those that are written and others.
    deleted : sequence of (str, str or None)
        Ranges of keys that are deleted, but for those that are written: the first key, and the
        first one behind the range or None.
    """

    keys: Sequence[str]
    values: Sequence[Buffer | None]
    expected: Mapping[str, bytes]
    deleted: Sequence[tuple[str, str | None]] = ()

    def failed(self, found: Mapping[str, bytes]) -> list[str]:
        """Return the keys that do not have the expected generation, given those found."""
        return [key for key, generation in self.expected.items() if found[key] != generation]


@dataclass(slots=True)
class WriteColumns:
    """Results of a write, one entry a key.

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
        """Return columns for `count` keys that are not written."""
        return cls([b""] * count)

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


@dataclass(slots=True)
class LocateColumns:
    """Places of the bytes of each key, for readers that fetch them without this driver.

    A value with neither a path nor a URL needs this driver; its size is set nevertheless.

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
        Expected CRC-32 (RFC 1952 8) of the whole value; None if unknown.
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
        """Return columns for `count` keys without places."""
        none = [None] * count
        return cls([*none], [*none], [-1] * count, [-1] * count, [b""] * count, [*none])

    def raise_first(self) -> None:
        """Raise the failure of the earliest key, if any."""
        _raise_first(self.error)


def _raise_first(error: Mapping[int, GpustoreError]) -> None:
    if error:
        raise error[min(error)]


def check_byte_range(size: int, start: int, stop: int | None, key: str) -> tuple[int, int]:
    """Return the requested range of a value of `size` bytes.

    Parameters
    ----------
    size : int
        Length of the stored value, in bytes.
    start, stop : int, int or None
        First byte and end in the form of :class:`ReadRequest`.
    key : str
        Key for the error.

    Returns
    -------
    tuple of int
        First byte and end, ``0 <= start <= stop <= size``.

    Raises
    ------
    MismatchError
        If the range is not inside the value; a range is never shortened.
    """
    begin = start + size if start < 0 else start
    end = size if stop is None else stop
    if 0 <= begin <= end <= size:
        return begin, end
    text = f"Requested byte range [{start}, {'?' if stop is None else stop})"
    raise MismatchError(
        f"{text} is not valid for value of size {size}", status="OUT_OF_RANGE", key=key
    )


def check_nbytes(nbytes: int, max_nbytes: int | None, key: str) -> None:
    """Raise LimitError if a value is longer than its reader allows."""
    if max_nbytes is not None and nbytes > max_nbytes:
        raise LimitError(
            f"{quote(key)} has {nbytes} bytes, at most {max_nbytes} are expected",
            key=key,
        )


def part_of(value: Buffer, i: int, request: ReadRequest) -> Buffer:
    """Return the bytes of the value of entry `i` that the request asks for, where it asks for them.

    Raises
    ------
    MismatchError
        If the byte range is not inside the value.
    LimitError
        If the part is longer than the request allows.
    """
    key = request.keys[i]
    start = 0 if request.start is None else request.start[i]
    stop = None if request.stop is None else request.stop[i]
    part = value
    if start != 0 or stop is not None:
        begin, end = check_byte_range(len(value), start, stop, key)
        part = memoryview(value)[begin:end]
    check_nbytes(len(part), request.max_nbytes, key)
    if request.into is None:
        return part
    out = request.into.take(len(part))
    out[:] = part
    return out


def condition_holds(if_equal: bytes, generation: bytes) -> bool:
    """Return whether a generation fulfils an ``if_equal`` condition."""
    return not if_equal or if_equal == generation
