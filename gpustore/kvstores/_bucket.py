"""The objects of a bucket, through obstore, for the kvstores ``s3`` and ``gcs``.

obstore signs, finds credentials and knows the dialects; what is promised of every kvstore is made
here: ranges that lie close together are one request, all requests of a batch are under way at
once, on threads of their own, and what fails in a way that may pass is repeated and counted.

1. The rows of a batch become requests (:func:`~gpustore.kvstores._remote_read.plan_reads`).
2. Each is tried on a thread, and tried again; obstore itself repeats nothing.
3. A body is read up to the length that its head has announced and one byte more, so an endless one
   is an error. The version of the object is compared with the conditions of the rows.
"""

from __future__ import annotations

import builtins
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from gpustore.errors import (
    GpustoreError,
    InvalidKeyError,
    LimitError,
    StoreIOError,
)
from gpustore.executor import CancelToken, Executor
from gpustore.kvstores._columns import (
    ABSENT,
    Buffer,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
)
from gpustore.kvstores._obstore import (
    Hints,
    Missing,
    NotInRange,
    Passing,
    Unfulfilled,
    begin_use,
    called,
)
from gpustore.kvstores._remote_read import PlannedRead, part_of, plan_reads
from gpustore.kvstores.base import check_nbytes, condition_holds, invalid_key, prefix_end
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.statistics import STATISTICS

__all__ = [
    "WHOLE_NBYTES",
    "Bucket",
    "check_object_key",
    "check_object_path",
]

T = TypeVar("T")

_GENERATIONS: Final = {
    "e_tag": re.compile(rb"[ -~]{1,1024}"),
    "version": re.compile(rb"[1-9][0-9]{0,18}"),
}
_TICK_S: Final = 0.25
WHOLE_NBYTES: Final = 64 << 20
"""A longer value is written in parts, if there is no condition."""

_THREADS = Executor(32)
"""They only wait for requests; no more of these are under way than the permits allow."""

_NEAR_S: Final = 2e-3
_FEW: Final = 4
"""A server that answers within this time is asked by so many threads: with more of them the
interpreter lock is what is waited for (4 KiB ranges on loopback, 2 cores: 75 us each, with 32
threads 104)."""


def check_object_path(path: str) -> None:
    """Raise InvalidKeyError unless `path` can begin a key that obstore does not change."""
    parts = path.split("/")
    if not {".", ".."}.isdisjoint(parts):
        raise invalid_key(path, 'contains "." or ".." as a path component')
    if "" in parts[:-1]:
        raise invalid_key(path, "contains an empty path component")
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise invalid_key(path, "contains a control character")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise invalid_key(path, "is not Unicode") from None


def check_object_key(key: str) -> None:
    """Raise InvalidKeyError unless `key` is legal in a bucket and obstore does not change it."""
    check_object_path(key)
    nbytes = len(key.encode())
    if not 0 < nbytes <= 1024:
        raise invalid_key(key, f"has {nbytes} bytes, expected 1 to 1024")
    if key.endswith("/"):
        raise invalid_key(key, "ends with a slash")


@dataclass(slots=True)
class _Pace:
    """The shortest time that a request of the last batch took, in seconds."""

    fastest_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that is read and written.

    Attributes
    ----------
    store : object
        obstore's store, which repeats nothing.
    permits : Permits
    retries : Retries
    timeouts : Timeouts
    version : str
        The member of obstore's metadata that is the generation: ``"e_tag"`` or ``"version"``.
    describe : callable
        Of the driver.
    hints : Hints
    looks, sends : bool
        Whether conditions of writes are looked at before, and whether they are sent.
    """

    store: Any = field(repr=False)
    permits: Permits
    retries: Retries
    timeouts: Timeouts
    version: str
    describe: Callable[[str], str]
    hints: Hints = field(default_factory=Hints)
    looks: bool = False
    sends: bool = True
    _pace: _Pace = field(default_factory=_Pace)

    def is_possible(self, condition: bytes) -> bool:
        """Whether a condition may hold; what cannot be a generation is not sent to anybody."""
        return condition in (b"", ABSENT) or bool(_GENERATIONS[self.version].fullmatch(condition))

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """As the driver's."""
        result = ReadColumns.blank(len(request.keys))
        reads = plan_reads(request, result, check_object_key)
        found = self._all([partial(self._read, read, request) for read in reads])
        for read, state in zip(reads, found, strict=True):
            if isinstance(state, GpustoreError):
                where = f"Error reading {self.describe(read.key)}"
                error = state if state.key is not None else state.prefixed(where, key=read.key)
                result.error.update(dict.fromkeys(read.rows, error))
                continue
            if request.into is not None and len(read.body):
                memory = request.into.take(len(read.body))
                memory[:] = read.body
                read.body = memory
            for row in read.rows:
                result.generation[row] = read.generation
                result.total[row] = read.total
                if not read.holds:
                    continue
                if state is ReadState.MISSING:
                    result.state[row] = ReadState.MISSING
                    continue
                try:
                    result.value[row] = part_of(read, row, request)
                    result.state[row] = ReadState.VALUE
                except GpustoreError as error:
                    result.error[row] = error
        return result

    def _read(self, read: PlannedRead, request: ReadRequest) -> ReadState:
        """Read what one request reads; on a thread."""
        for _ in range(3):
            try:
                self._repeat(partial(self._read_once, read, request))
            except Missing as missing:
                if not missing.sure:  # A head has no body that says what is missing.
                    read.low, read.high = 0, 1
                    continue
                read.generation, read.total = ABSENT, -1
                read.holds = condition_holds(read.equal, ABSENT)
                return ReadState.MISSING
            except Unfulfilled:
                read.generation, read.holds = read.other, False
            except NotInRange:
                read.low, read.high = 0, 0  # Only the size is wanted: the rows judge it.
                continue
            return ReadState.VALUE
        raise StoreIOError("it changed while it was being read", status="ABORTED")

    def _read_once(self, read: PlannedRead, request: ReadRequest) -> None:
        obstore = begin_use()
        if read.is_empty:
            self._see(read, called(self.hints, obstore.head, self.store, read.key))
            return
        options: dict[str, Any] = {}
        if read.high is not None:
            options["range"] = (read.low, read.high)
        elif read.low:
            low = {"offset": read.low} if read.low > 0 else {"suffix": -read.low}
            options["range"] = low
        found = called(self.hints, obstore.get, self.store, read.key, options=options)
        self._see(read, found.meta)
        if not read.holds:
            return
        start, stop = found.range
        if not 0 <= start <= stop <= read.total:
            raise StoreIOError("the response has a malformed range", status="UNKNOWN")
        nbytes = stop - start
        if read.high is None:
            check_nbytes(nbytes, request.max_nbytes, read.key)
        read.first = start
        read.body = _body(self.hints, found, nbytes)

    def _see(self, read: PlannedRead, meta: Any) -> None:
        """What the head of a response says."""
        read.total = meta["size"]
        read.generation = self._generation(meta)
        read.holds = condition_holds(read.equal, read.generation)
        if read.other and read.other == read.generation:
            read.holds = False

    def _generation(self, meta: Any) -> bytes:
        return (meta[self.version] or "").encode("latin-1")

    # ------------------------------------------------------------------ writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """As the driver's; a key that occurs again waits for its turn."""
        result = WriteColumns.blank(len(request.keys))
        rows = list(range(len(request.keys)))
        while rows:
            now: builtins.list[int] = []
            later: builtins.list[int] = []
            seen: set[str] = set()
            for row in rows:
                (later if request.keys[row] in seen else now).append(row)
                seen.add(request.keys[row])
            for row, found in zip(now, self._write_rows(request, now), strict=True):
                if isinstance(found, GpustoreError):
                    key = request.keys[row]
                    what = "deleting" if request.values[row] is None else "writing"
                    where = f"Error {what} {self.describe(key)}"
                    illegal = isinstance(found, InvalidKeyError)
                    result.error[row] = found if illegal else found.prefixed(where, key=key)
                else:
                    result.generation[row] = found
            rows = later
        return result

    def _write_rows(
        self, request: WriteRequest, rows: Sequence[int]
    ) -> builtins.list[bytes | GpustoreError]:
        """Write or delete values of different keys; their new generations, or errors."""
        return self._all([partial(self._write_row, request, row) for row in rows])

    def _write_row(self, request: WriteRequest, row: int) -> bytes:
        """Write or delete one value; its new generation, ``b""`` if the condition did not hold."""
        key, value = request.keys[row], request.values[row]
        check_object_key(key)
        condition = b"" if request.if_equal is None else request.if_equal[row]
        if not self.is_possible(condition):
            return b""
        if condition and (self.looks or value is None):
            found = self.read_many(ReadRequest([key], start=[0], stop=[0]))
            found.raise_first()
            if found.generation[0] != condition:
                return b""
        if value is None:
            return ABSENT if condition == ABSENT else self._delete(key)
        lost: list[bool] = []
        try:
            return self._repeat(partial(self._put, key, value, condition), lost)
        except (Unfulfilled, Missing) as error:
            if not condition or (isinstance(error, Missing) and not error.sure):
                raise StoreIOError("the bucket is not there", status="NOT_FOUND") from None
            # The answer to an attempt may have been lost: then equal bytes are ours.
            return self._stored(key, value) if lost else b""

    def _put(self, key: str, value: Buffer, condition: bytes) -> bytes:
        obstore = begin_use()
        mode: Any = "overwrite"
        if not self.sends:
            condition = b""
        if condition == ABSENT:
            mode = "create"
        elif condition:
            mode = {self.version: condition.decode("latin-1")}
        data = memoryview(value).cast("B")
        options: dict[str, Any] = {"mode": mode, "use_multipart": False}
        if not condition and len(data) > WHOLE_NBYTES:
            options |= {"use_multipart": True, "chunk_size": 16 << 20}
        found = called(self.hints, obstore.put, self.store, key, data, **options)
        return self._generation(found)

    def _stored(self, key: str, value: Buffer) -> bytes:
        """The generation of the value if it is the one given, else ``b""``."""
        found = self.read_many(ReadRequest([key]))
        found.raise_first()
        ours = found.value[0] is not None and found.value[0] == value
        return found.generation[0] if ours else b""

    def _delete(self, key: str) -> bytes:
        try:
            self._repeat(partial(self._delete_once, key))
        except Missing as missing:
            if not missing.sure:
                raise StoreIOError("the bucket is not there", status="NOT_FOUND") from None
        return ABSENT

    def _delete_once(self, key: str) -> None:
        called(self.hints, begin_use().delete, self.store, key)

    # ------------------------------------------------------------------ ranges

    def list_nbytes(self, inclusive_min: str, exclusive_max: str | None) -> dict[str, int]:
        """The keys in a range, in ascending order, and the sizes of their values."""
        if exclusive_max is not None and inclusive_min >= exclusive_max:
            return {}
        whole = exclusive_max == prefix_end(inclusive_min)
        common = inclusive_min if whole else _common(inclusive_min, exclusive_max or "")
        # obstore lists directories: what begins with "a/b" is a part of what lies in "a".
        directory = common.rpartition("/")[0]
        # What is asked for comes behind; the key before the first one has no name.
        offset = inclusive_min[:-1].rstrip("/") or None
        try:
            listed = partial(self._list_once, directory, offset, inclusive_min, exclusive_max)
            found = self._repeat(listed)
        except GpustoreError as error:
            where = f"Error listing {self.describe(inclusive_min)}"
            raise error.prefixed(where, key=inclusive_min) from error.__cause__
        return dict(sorted(found.items()))

    def _list_once(
        self, directory: str, offset: str | None, low: str, high: str | None
    ) -> dict[str, int]:
        obstore = begin_use()
        wanted = CancelToken.current()
        found: dict[str, int] = {}
        pages = iter(obstore.list(self.store, directory or None, offset=offset, chunk_size=1000))
        last = ""
        while True:
            wanted.check()
            page = called(self.hints, next, pages, None)
            if page is None:
                return found
            sizes = {one["path"]: one["size"] for one in page}
            if sizes and max(sizes) <= last:
                raise StoreIOError("the list of keys does not get on", status="UNKNOWN")
            last = max([last, *sizes])
            found |= {
                key: nbytes
                for key, nbytes in sizes.items()
                if low <= key and (high is None or key < high)
            }
            if high is not None and last >= high:
                return found

    def list_names(self, prefix: str) -> builtins.list[str]:
        """As the driver's."""
        obstore = begin_use()
        try:
            directory = prefix.rstrip("/") or None
            page = self._repeat(
                partial(called, self.hints, obstore.list_with_delimiter, self.store, directory)
            )
        except GpustoreError as error:
            where = f"Error listing {self.describe(prefix)}"
            raise error.prefixed(where, key=prefix) from error.__cause__
        names = [one["path"] for one in page["objects"]]
        names += [f"{name}/" for name in page["common_prefixes"]]
        # obstore takes a directory for what lies in it, and an object that is named so for both.
        return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def delete_range(self, inclusive_min: str, exclusive_max: str | None) -> int:
        """As the driver's."""
        keys = list(self.list_nbytes(inclusive_min, exclusive_max))
        self.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()
        return len(keys)

    # ------------------------------------------------------------------ attempts

    def _all(self, tasks: Sequence[Callable[[], T]]) -> builtins.list[T | GpustoreError]:
        """Do all of them at once; errors are results."""
        if not tasks:
            return []
        found: builtins.list[Any] = [None] * len(tasks)
        wanted = CancelToken.current()
        rows = iter(range(len(tasks)))
        times: builtins.list[float] = []

        def run() -> None:
            for row in rows:  # Shared by the threads: each takes the next one.
                while not self.permits.take(_TICK_S):
                    wanted.check()
                begun = time.perf_counter()
                try:
                    wanted.check()
                    found[row] = tasks[row]()
                except GpustoreError as error:
                    found[row] = error
                finally:
                    self.permits.give_back()
                    times.append(time.perf_counter() - begun)

        begin_use()
        threads = _FEW if self._pace.fastest_s < _NEAR_S else _THREADS.limit
        threads = min(threads, len(tasks))
        if threads == 1:
            run()
        else:
            _THREADS.run_all([run] * threads, lambda: None).result()
            self._pace.fastest_s = min(times)
        return found

    def _repeat(self, attempt: Callable[[], T], lost: builtins.list[bool] | None = None) -> T:
        """The result of `attempt`, which is repeated after failures that may pass.

        `lost` is appended to if the server may have obeyed an attempt that failed.
        """
        begun = time.monotonic()
        wanted = CancelToken.current()
        for attempts in range(1, self.retries.max_retries + 2):
            wanted.check()
            try:
                return attempt()
            except Passing as error:
                failure = str(error)
                if error.sent and lost is not None:
                    lost.append(True)
            took = time.monotonic() - begun
            longest = self.retries.initial_delay_s * 2.0 ** min(attempts - 1, 60)
            pause = random.uniform(0.0, min(self.retries.max_delay_s, longest))
            if attempts > self.retries.max_retries or took + pause >= self.timeouts.total_s:
                break
            STATISTICS.add(retries=1)
            end = time.monotonic() + pause
            while (rest := end - time.monotonic()) > 0:
                wanted.check()
                time.sleep(min(rest, _TICK_S))
        if attempts > 1:
            failure = f"All {attempts - 1} retry attempts failed, within {took:.1f} s: {failure}"
        raise StoreIOError(failure, status="ABORTED")


def _body(hints: Hints, found: Any, nbytes: int) -> memoryview:
    """The body of a response, which has announced so many bytes."""
    stream = iter(found.stream(min_chunk_size=nbytes + 1))
    # It is shorter than that only if nothing follows.
    part = called(hints, next, stream, None)
    received = 0 if part is None else len(part)
    if received > nbytes:
        raise LimitError(f"the body is longer than the {nbytes} bytes that were announced")
    if received < nbytes:
        raise Passing(f"the body is {nbytes - received} bytes too short", sent=False)
    return memoryview(part or b"")


def _common(first: str, second: str) -> str:
    """What both begin with."""
    end = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), None)
    return first[: min(len(first), len(second)) if end is None else end]
