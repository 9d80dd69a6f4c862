"""Counters of the work done: keys read, bytes fetched, chunks decoded, launches, copies.

A :class:`Statistics` belongs to one operation or to the process. Nothing falls back silently: every
fallback is counted in both.

All code counts in :data:`STATISTICS`. Each read and write of an array is begun by
:func:`operation`; its Future, and every Future made meanwhile, knows to which operation it
belongs, and threads that work for one of them count for that operation too.
"""

from __future__ import annotations

import os
import threading
from array import array as numbers
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")

COUNTERS: Final = MappingProxyType(
    {
        "reads": "reads of an array",
        "writes": "writes of an array",
        "chunks_planned": "chunks that reads and writes touch",
        "chunks_missing": "chunks that are not stored and are read as the fill value",
        "chunks_decoded_device": "chunks decoded by the device",
        "host_fallbacks": "chunks decoded by the host because the device cannot, then copied",
        "few_stream_reads": "reads into a device that the host decoded, for few and long streams",
        "chunks_encoded_device": "chunks encoded by the device",
        "host_encodings": "chunks of arrays on a device encoded by the host",
        "missing_decoder_reads": "reads into a device that the host decoded, for lack of a library",
        "retries": "attempts repeated because a writer was faster, or a device or network failed",
        "host_conversions": "arrays converted by the host because no kernel of the device does",
        "key_reads": "keys (or byte ranges of keys) of chunks and shards asked of a kvstore",
        "bytes_fetched": "encoded bytes of chunks and shards that came from a kvstore",
        "bytes_decoded": "decoded bytes of chunks (or parts of uncompressed ones) that were read",
        "bytes_encoded": "decoded bytes of chunks that writes encoded",
        "values_stored": "chunks and shards that went to a kvstore",
        "bytes_stored": "encoded bytes of chunks and shards that went to a kvstore",
        "bytes_to_device": "bytes copied from host to device memory",
        "bytes_to_host": "bytes copied from device to host memory",
        "bytes_direct": "encoded bytes read from files straight into device memory",
        "direct_reads": "reads of files straight into device memory",
        "direct_fallbacks": "such reads that failed or could not begin, and went through the host",
        "direct_unavailable": "such reads that went through the host because this system has none",
        "unbuffered_reads": "reads of files past the page cache (file_io_mode direct)",
        "unbuffered_fallbacks": "such reads that the file system refused, and went through it",
        "copies": "copies between host and device memory",
        "launches": "kernel launches and calls of device libraries",
        "waits": "times a thread waited for the device",
        "cache_hits": "chunks found in the cache",
        "device_cache_hits": "chunks found in the memory of the device",
        "device_cache_misses": "chunks looked for there that were not, and were fetched",
        "device_cache_bytes": "bytes of chunks that were put there to stay",
    }
)
"""Description of each counter, by name; a test holds the package to these names."""


# One lock for all: it is held for a few dictionary updates a batch, never while anything waits. A
# thread may take it twice: the collector runs finalizers, which may count, where objects are made.
_lock = threading.RLock()


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Statistics:
    """Named counters (see :data:`COUNTERS`) that many threads may add to.

    Examples
    --------
    >>> statistics = Statistics()
    >>> statistics.add(key_reads=3, bytes_fetched=4096)
    >>> statistics["key_reads"], statistics["launches"]
    (3, 0)
    >>> statistics.snapshot()
    {'bytes_fetched': 4096, 'key_reads': 3}
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, **amounts: int) -> None:
        """Add to the named counters, all at once."""
        with _lock:
            _add(self._counts, amounts)

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """Return the counters that are not 0, by name, as of one moment."""
        with _lock:
            counts = dict(self._counts)
        return {name: counts[name] for name in sorted(counts) if counts[name]}

    def reset(self) -> dict[str, int]:
        """Set all counters to 0 and return those that were not, by name."""
        with _lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
        return {name: counts[name] for name in sorted(counts) if counts[name]}

    def __repr__(self) -> str:
        return f"Statistics({self.snapshot()})"


def _add(counts: dict[str, int], amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        counts[name] = counts.get(name, 0) + amount


_Running = tuple[tuple[str, Callable[[], int]], ...]
"""Work that is not counted yet: names of counters, and functions that return amounts."""


class Division:
    """Work that is divided into equal parts; each is found when somebody looks at it.

    Attributes
    ----------
    amounts : dict or None
        Amounts to divide; None while they are not known.
    """

    __slots__ = ("_chunks", "_futures", "_numbers", "_parts", "amounts")

    def __init__(self, parts: int, amounts: dict[str, int] | None = None) -> None:
        self.amounts = amounts
        self._parts = parts
        # Of reads: the addresses of their Futures, the numbers of their parts by these, which are
        # made when they are needed, and the chunks that they touch.
        self._futures = self._chunks = numbers("q")
        self._numbers: dict[int, int] = {}

    @staticmethod
    def of_reads(futures: Sequence[Any], chunks: Sequence[int]) -> Division:
        """Count reads that begin together, by the chunks they touch; each has a part of the work.

        The parts are those of the operations of `futures`; reads whose operations nobody has looked
        at keep the division until somebody does.
        """
        division = Division(len(futures))
        # From a list, of which an array is made in half the time.
        division._futures = numbers("q", [id(future) for future in futures])
        division._chunks = numbers("q", chunks)
        with _lock:
            _add(STATISTICS._counts, {"reads": len(chunks), "chunks_planned": sum(chunks)})
            for number, future in enumerate(futures):
                if future._counted is ReadOperation:
                    future._counted = division
                elif (one := operation_of(future)) is not None:
                    division.give(one, number)
        return division

    def give(self, operation: Operation, number: int) -> None:
        """Give a part to an operation, and count its read; called under the lock."""
        counts = operation._counts
        counts[self] = (*counts.get(self, ()), number)
        if self._chunks:
            _add(counts, {"reads": 1, "chunks_planned": self._chunks[number]})

    def operation(self, future: int) -> ReadOperation:
        """Make the operation of a Future that has none, by its address; called under the lock."""
        if not self._numbers:
            self._numbers = {address: number for number, address in enumerate(self._futures)}
        one = ReadOperation()
        self.give(one, self._numbers[future])
        return one

    def part(self, number: int) -> dict[str, int]:
        """Return a part of the amounts."""
        parts, amounts = self._parts, self.amounts or {}
        return {
            name: amount * (number + 1) // parts - amount * number // parts
            for name, amount in amounts.items()
        }


class Operation(Statistics):
    """Statistics of one read or write; amounts added count for the process too.

    Attributes
    ----------
    kind : str
        Kind of the operation, for people.
    """

    __slots__ = ("_running",)

    kind: ClassVar[str] = "operation"
    _counts: dict[Any, Any]  # of a Division the numbers of our parts
    _running: _Running

    def __getitem__(self, name: str) -> int:
        with _lock:
            self._settle()
            running = [amount() for one, amount in self._work_under_way() if one == name]
            counted: int = self._counts.get(name, 0)
            return counted + sum(running)

    def snapshot(self) -> dict[str, int]:
        """Return the counters that are not 0, by name, as of one moment."""
        with _lock:
            self._settle()
            counted = [name for name in self._counts if type(name) is str]
            names = {*counted, *(name for name, _ in self._work_under_way())}
            return {name: amount for name in sorted(names) if (amount := self[name])}

    def reset(self) -> dict[str, int]:
        """Set all counters to 0 and return those that were not, by name."""
        with _lock:
            self._settle()
            counts = self._counts
            self._counts = {key: counts.pop(key) for key in [*counts] if type(key) is Division}
            return {name: counts[name] for name in sorted(counts) if counts[name]}

    def _settle(self) -> None:
        """Count our parts of divided work that is done; called under the lock."""
        for key in [*self._counts]:
            if type(key) is Division and key.amounts is not None:
                for number in self._counts.pop(key):
                    _add(self._counts, key.part(number))

    def add(self, **amounts: int) -> None:
        """Add to the named counters, all at once."""
        attributed(self, lambda: STATISTICS.add(**amounts))

    def _work_under_way(self) -> _Running:
        # Small reads are many: an operation without such work has no member for it.
        return getattr(self, "_running", ())

    def divide(self, operations: Iterable[Operation | None]) -> None:
        """Divide the amounts between the different operations that the work was done for."""
        parts = dict.fromkeys(filter(None, operations))
        division = Division(len(parts), self.snapshot())
        with _lock:
            for number, one in enumerate(parts):
                division.give(one, number)


class ReadOperation(Operation):
    """Statistics of a read."""

    __slots__ = ()
    kind = "read"


class WriteOperation(Operation):
    """Statistics of a write."""

    __slots__ = ()
    kind = "write"


class OpenOperation(Operation):
    """Statistics of an opening, with all that it reads and creates."""

    __slots__ = ()
    kind = "opening"


class _ProcessStatistics(Statistics):
    """Statistics of the process; amounts count for the operation of the calling thread too."""

    __slots__ = ()

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTERS, 0)

    def add(self, **amounts: int) -> None:
        operation = current()
        with _lock:
            counts = self._counts
            for name in amounts:
                counts[name] += amounts[name]
            if operation is None:
                return
            if operation._counts:
                _add(operation._counts, amounts)
            else:  # Small reads are many, and add once before they wait.
                operation._counts = amounts


class _Current(threading.local):
    """Operation that a thread works for.

    As long as nobody has needed it, it may be the kind of it, or the Future that is to have it: of
    small reads, which are many, few people look at the statistics.
    """

    operation: Any = None


CURRENT: Final = _Current()

STATISTICS: Final[Statistics] = _ProcessStatistics()
"""Counters of all operations of this process."""


def current() -> Operation | None:
    """Return the operation that this thread works for; it is made if nobody has needed it yet."""
    operation = CURRENT.operation
    if operation is None or isinstance(operation, Operation):
        return operation
    made = operation() if isinstance(operation, type) else operation_of(operation)
    CURRENT.operation = made
    return made


def operation_of(future: Any) -> Operation | None:
    """Return the operation that a Future is a part of, which is made now if nobody has seen it.

    Until then the Future knows its kind or, once it has begun with others, the Division.
    """
    with _lock:
        counted = future._counted
        if isinstance(counted, type):
            counted = future._counted = counted()
        elif type(counted) is Division:
            counted = future._counted = counted.operation(id(future))
    operation: Operation | None = counted
    return operation


def operation(begin: Callable[[], T], kind: type[Operation] = ReadOperation) -> T:
    """Call `begin`, which begins an operation or, within another one, a part of that one."""
    if CURRENT.operation is not None:
        return begin()
    CURRENT.operation = kind
    try:
        return begin()
    finally:
        CURRENT.operation = None


def attributed(operation: Operation | None, begin: Callable[[], T]) -> T:
    """Call `begin` as a part of `operation`, of none if that is None."""
    outer, CURRENT.operation = CURRENT.operation, operation
    try:
        return begin()
    finally:
        CURRENT.operation = outer


def begin_amount(
    name: str, amount: Callable[[], int], operations: Sequence[Operation | None] = ()
) -> Callable[[Callable[[], object]], None]:
    """Let a counter include what work under way has done, before that is added to it.

    Parameters
    ----------
    name : str
        Counter of the operations.
    amount : callable
        Called by whoever looks at the counter.
    operations : sequence of Operation or None, optional
        By default that of the calling thread.

    Returns
    -------
    callable
        To be called once when the work is over, with a function that adds what it has done.
    """
    entry = name, amount
    some = [one for one in operations or (current(),) if one is not None]
    with _lock:
        for one in some:
            one._running = (*one._work_under_way(), entry)

    def end(count: Callable[[], object]) -> None:
        with _lock:
            for one in some:
                one._running = tuple([other for other in one._running if other is not entry])
            count()

    return end
