"""Joining of reads of an OCDBT database's data files that lie close together.

Ranges of one file are joined where the gaps between them are small, also ranges of several threads
within some time: the first thread waits that long and then reads for all. Bases join close ranges
by rules of their own, which these options override.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ReadColumns, ReadRequest, ReadState, check_nbytes
from gpustore.kvstores.ocdbt.columns import UINT64_MAX
from gpustore.resources._duration import Duration, format_duration, parse_duration, seconds
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import JsonValue, expect_int

if TYPE_CHECKING:
    from gpustore.strict_json.parsing import Members


_THRESHOLD: Final = "experimental_read_coalescing_threshold_bytes"
_MERGED: Final = "experimental_read_coalescing_merged_bytes"
_INTERVAL: Final = "experimental_read_coalescing_interval"
_parse_nbytes: Final = partial(expect_int, minimum=0, maximum=UINT64_MAX, integral_floats=True)

# A read is not held up for longer.
_LONGEST_S: Final = 1.0


class Coalescing(NamedTuple):
    """Options for the joining of reads; None for those left out.

    Attributes
    ----------
    threshold_nbytes : int or None
        Largest gap between joined ranges, in bytes.
    merged_nbytes : int or None
        Longest joined range, in bytes; 0 for any length.
    interval : Duration or None
        Time that the first of several threads waits for others, at most a second.
    """

    threshold_nbytes: int | None
    merged_nbytes: int | None
    interval: Duration | None

    @classmethod
    def take(cls, members: Members) -> Coalescing | None:
        """Take the members of a spec for these options; None if there are none."""
        taken = cls(
            members.take_with(_THRESHOLD, _parse_nbytes, None),
            members.take_with(_MERGED, _parse_nbytes, None),
            members.take_with(_INTERVAL, parse_duration, None),
        )
        return None if taken == (None, None, None) else taken

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members that were given."""
        interval = None if self.interval is None else format_duration(self.interval)
        json = {_THRESHOLD: self.threshold_nbytes, _MERGED: self.merged_nbytes, _INTERVAL: interval}
        return {name: value for name, value in json.items() if value is not None}


class _Row(NamedTuple):
    """A requested range."""

    key: str
    start: int
    stop: int


@dataclass(slots=True, eq=False)
class _Call:
    """Requested ranges of one thread, and their results, row by row."""

    rows: Sequence[_Row]
    found: Sequence[Buffer | GpustoreError | None] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Coalescer:
    """Reads ranges in fewer, longer ones. Thread-safe.

    Parameters
    ----------
    read : callable
        Function that takes a request to the base.
    coalescing : Coalescing
    """

    def __init__(self, read: Callable[[ReadRequest], ReadColumns], coalescing: Coalescing) -> None:
        self._read_base = read
        self._threshold_nbytes = coalescing.threshold_nbytes or 0
        self._merged_nbytes = coalescing.merged_nbytes or 0
        self._interval_s = min(max(0.0, seconds(coalescing.interval or 0)), _LONGEST_S)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock of the parent process, and drop the calls of its threads."""
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []

    def read(self, request: ReadRequest) -> ReadColumns:
        """Read ranges that have a start and a stop, without conditions.

        Values are in host memory, in the arena of the request if it has one.
        """
        assert request.start is not None
        assert request.stop is not None
        result = ReadColumns.blank(len(request.keys))
        indices, rows = [], []
        for i, key in enumerate(request.keys):
            stop = request.stop[i]
            assert stop is not None
            row = _Row(key, int(request.start[i]), int(stop))
            try:
                check_nbytes(row.stop - row.start, request.max_nbytes, key)
            except GpustoreError as error:
                result.error[i] = error
                continue
            indices.append(i)
            rows.append(row)
        for i, value in zip(indices, self._together(rows), strict=True):
            if isinstance(value, GpustoreError):
                result.error[i] = value
            elif value is None:
                result.state[i] = ReadState.MISSING
            else:
                if request.into is not None:
                    piece = request.into.take(len(value))
                    piece[:] = value
                    value = piece
                result.state[i] = ReadState.VALUE
                result.value[i] = value
        return result

    def _together(self, rows: Sequence[_Row]) -> Sequence[Buffer | GpustoreError | None]:
        """Return the bytes of ranges, read together with those of other threads."""
        if not self._interval_s:
            return self._join(rows)
        call = _Call(rows)
        with self._lock:
            self._waiting.append(call)
            is_first = len(self._waiting) == 1
        if not is_first:
            call.done.wait()
            # Without a result, the thread that read for all was interrupted.
            return self._join(rows) if call.found is None else call.found
        calls: Sequence[_Call] = ()
        try:
            time.sleep(self._interval_s)
            calls = self._take()
            found = self._join([row for one in calls for row in one.rows])
            for one in calls:
                one.found, found = found[: len(one.rows)], found[len(one.rows) :]
        finally:
            for one in calls or self._take():
                one.done.set()
        assert call.found is not None
        return call.found

    def _take(self) -> list[_Call]:
        with self._lock:
            calls, self._waiting = self._waiting, []
        return calls

    def _join(self, rows: Sequence[_Row]) -> list[Buffer | GpustoreError | None]:
        """Return the bytes of ranges, read in as few ranges as possible."""
        found: list[Buffer | GpustoreError | None] = [None] * len(rows)
        groups = self._groups(rows)
        joined = [_span(rows, group) for group in groups]
        alone: list[int] = []
        for group, span, data in zip(groups, joined, self._read(joined), strict=True):
            for i in group:
                if len(group) > 1 and isinstance(data, GpustoreError):
                    alone.append(i)  # An error of one range does not make the others fail.
                elif data is None or isinstance(data, GpustoreError):
                    found[i] = data
                else:
                    found[i] = data[rows[i].start - span.start : rows[i].stop - span.start]
        for i, data in zip(alone, self._read([rows[i] for i in alone]), strict=True):
            found[i] = data
        return found

    def _groups(self, rows: Sequence[_Row]) -> list[list[int]]:
        """Yield the rows that are read as one."""
        threshold, merged = self._threshold_nbytes, self._merged_nbytes
        groups: list[list[int]] = []
        span = _Row("", 0, 0)
        for i in sorted(range(len(rows)), key=rows.__getitem__):
            row = rows[i]
            stop = max(span.stop, row.stop)
            if (
                groups
                and row.key == span.key
                and row.start - span.stop <= threshold
                and (not merged or stop - span.start <= merged)
            ):
                groups[-1].append(i)
                span = span._replace(stop=stop)
            else:
                groups.append([i])
                span = row
        return groups

    def _read(self, rows: Sequence[_Row]) -> list[Buffer | GpustoreError | None]:
        if not rows:
            return []
        columns = self._read_base(
            ReadRequest(
                [row.key for row in rows],
                start=[row.start for row in rows],
                stop=[row.stop for row in rows],
            )
        )
        return [columns.error.get(i, columns.value[i]) for i in range(len(rows))]


def _span(rows: Sequence[_Row], group: Sequence[int]) -> _Row:
    first = rows[group[0]]
    return first._replace(stop=max(rows[i].stop for i in group))
