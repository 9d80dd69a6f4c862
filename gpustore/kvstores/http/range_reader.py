"""Reads batches of keys over HTTP: ranges that lie close together are one request.

1. Rows of one key whose ranges have at most 4095 bytes between them are merged, up to 16 MiB; also
   those with up to 64 KiB between them, if that is no more than the range behind, so that at most
   twice as much is read. Rows that want the same, once. A row of no bytes asks only for the head.
2. All requests are sent at once (:mod:`~gpustore.kvstores.http.client`).
3. The head of a response says which version of the value it is, how long that is, and which part
   follows; only if this is what was asked for is memory taken, and exactly as much.
4. The rows cut their parts out of it.

A server that does not know ranges sends the whole value: what precedes the range is passed over
as long as the time lasts, and the connection is closed where the range ends. After a
refused range (416) the size is asked for; where a 404 has no body that tells a missing value from a
missing bucket, the first byte is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpustore.errors import GpustoreError, LimitError, StoreIOError
from gpustore.kvstores.columns import (
    ABSENT,
    ReadColumns,
    ReadRequest,
    ReadState,
    check_byte_range,
    check_nbytes,
    condition_holds,
)
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import BodyPlan, HttpRequest, HttpResponse, content_range
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import quote

GAP_NBYTES: Final = 4095
"""Longest gap that is always merged, in bytes; TensorStore's value."""

LONG_GAP_NBYTES: Final = 1 << 16
"""Longest gap merged before a range of at least that length, in bytes: 6 ms at 10 MB/s."""

MERGED_NBYTES: Final = 16 << 20
UNDECLARED_NBYTES: Final = 1 << 31
"""Longest body of undeclared length that is read without a limit of the caller, in bytes."""

_ROUNDS: Final = 4
_MISSING: Final = frozenset({404, 410})


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """Reads batches of keys of one kvstore.

    Attributes
    ----------
    client : HttpClient
    requests : callable
        Makes the requests of a batch, each from a method (``"GET"``, ``"HEAD"``) and a key.
    generation : callable
        Returns the generation in a response; ``b""`` for none.
    not_if : callable
        Makes the header field that asks for a value only if its generation differs; None if there
        is no such field.
    describe, check_key : callable
        Methods of that name of :class:`~gpustore.kvstores.base.KvStoreDriver`.
    misses_more : callable, optional
        Whether the body of a 404 reports an error, such as a missing bucket, and no missing value.
    keeps_encodings : bool
        Whether ``Content-Encoding`` is metadata of the stored value, whose bytes are kept as they
        are.
    """

    client: HttpClient
    requests: Callable[[Sequence[tuple[str, str]]], Iterable[HttpRequest]]
    generation: Callable[[HttpResponse], bytes]
    not_if: Callable[[bytes], tuple[str, str] | None]
    describe: Callable[[str], str]
    check_key: Callable[[str], None]
    misses_more: Callable[[HttpResponse], bool] | None = None
    keeps_encodings: bool = False

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Read the rows of `request` into host memory; errors are put into their rows."""
        result = ReadColumns.blank(len(request.keys))
        reads = plan_reads(request, result, self.check_key)
        for _ in range(_ROUNDS):
            if not reads:
                return result
            self._receive(request, result, reads)
            reads = [read for read in reads if read.again]
        changed = StoreIOError("it changed while it was being read", status="ABORTED")
        for read in reads:
            self._fail(read, changed, result)
        return result

    def _receive(self, request: ReadRequest, result: ReadColumns, reads: list[PlannedRead]) -> None:
        def prepared(read: PlannedRead, wanted: HttpRequest) -> HttpRequest:
            if read.other and read.other != ABSENT:
                condition = self.not_if(read.other)
                if condition is not None:
                    wanted.headers[condition[0]] = condition[1]
            if (span := read.field) is not None:
                wanted.headers["Range"] = span
            wanted.plan = _Begin(self, read, request)
            return wanted

        asked = [("HEAD" if read.is_empty else "GET", read.key) for read in reads]
        responses: Sequence[HttpResponse | GpustoreError]
        try:
            requests = self.requests(asked)
        except GpustoreError as error:  # Of what they would need: keys, tokens.
            responses = [error] * len(reads)
        else:
            responses = self.client.send(map(prepared, reads, requests))
        for read, response in zip(reads, responses, strict=True):
            read.again = False
            if isinstance(response, HttpResponse):
                failure = self._judge(read, response, request, result)
            else:
                failure = response
            if failure is not None:
                self._fail(read, failure, result)

    def _fail(self, read: PlannedRead, error: GpustoreError, result: ReadColumns) -> None:
        error = error.prefixed(f"Error reading {self.describe(read.key)}", key=read.key)
        result.error.update(dict.fromkeys(read.rows, error))

    def _judge(
        self,
        read: PlannedRead,
        response: HttpResponse,
        request: ReadRequest,
        result: ReadColumns,
    ) -> GpustoreError | None:
        """Fill the rows of one read."""
        status = response.status
        if status in _MISSING:
            if self.misses_more is not None:
                if read.is_empty:
                    read.low, read.high, read.again = 0, 1, True
                    return None
                if self.misses_more(response):
                    return self.client.status_error(response)
            holds = condition_holds(read.equal, ABSENT)
            for row in read.rows:
                result.generation[row] = ABSENT
                if holds:
                    result.state[row] = ReadState.MISSING
            return None
        if status == 304:
            for row in read.rows:
                result.generation[row] = self.generation(response) or read.other
            return None
        if status == 416 and not read.is_empty:
            read.low, read.high, read.again = 0, 0, True
            return None
        if not 200 <= status < 300:
            return self.client.status_error(response)
        if read.is_empty:
            # Nothing follows the head; what it says is checked all the same.
            try:
                _Begin(self, read, request)(response)
            except GpustoreError as error:
                return error
        elif read.holds and read.is_undeclared:
            read.body = response.body
            if request.into is not None:
                read.body = request.into.take(len(response.body))
                read.body[:] = response.body
        for row in read.rows:
            result.generation[row] = read.generation
            result.total[row] = read.total
            if not read.holds:
                continue
            try:
                result.value[row] = part_of(read, row, request)
                result.state[row] = ReadState.VALUE
            except GpustoreError as error:
                if error.key is None:
                    error = error.prefixed(f"Error reading {self.describe(read.key)}", key=read.key)
                result.error[row] = error
        return None


@dataclass(slots=True)
class PlannedRead:
    """One HTTP request for the rows of a key whose ranges were merged.

    Attributes
    ----------
    key, equal, other
        Key, ``if_equal`` and ``if_not_equal`` of all its rows.
    low, high : int, int or None
        Byte range, as in a ReadRequest; both 0 to receive the head alone.
    rows : list of int
        Positions in the batch.
    body : buffer
        Bytes of the value from byte `first` on, in host memory.
    total : int
        Length of the value in bytes; -1 if the head does not tell it.
    generation : bytes
        Generation in the head; empty for none.
    holds : bool
        Whether the conditions hold.
    is_undeclared : bool
        Whether the whole value follows, of a length that the head does not tell.
    again : bool
        Whether another request, for `low` and `high`, is needed.
    """

    key: str
    equal: bytes
    other: bytes
    low: int
    high: int | None
    rows: list[int] = field(default_factory=list)
    body: Buffer = b""
    first: int = 0
    total: int = -1
    generation: bytes = b""
    holds: bool = True
    is_undeclared: bool = False
    again: bool = False

    @property
    def is_empty(self) -> bool:
        return self.low == 0 and self.high == 0

    @property
    def field(self) -> str | None:
        """Value of the field ``Range`` (RFC 9110, section 14.2); None for the whole value."""
        if self.is_empty or (self.low == 0 and self.high is None):
            return None
        if self.high is None:
            return f"bytes={self.low}-" if self.low >= 0 else f"bytes={self.low}"
        return f"bytes={self.low}-{self.high - 1}"


def plan_reads(
    request: ReadRequest, result: ReadColumns, check_key: Callable[[str], None]
) -> list[PlannedRead]:
    """Merge the rows of a batch into requests; rows with illegal keys get their errors."""
    reads: list[PlannedRead] = []
    ranges: dict[tuple[str, bytes, bytes], list[tuple[int, int, int]]] = {}
    others: dict[tuple[str, bytes, bytes, int, int | None], PlannedRead] = {}
    checked: set[str] = set()
    for row, key in enumerate(request.keys):
        if key not in checked:
            try:
                check_key(key)
            except GpustoreError as error:
                result.error[row] = error
                continue
            checked.add(key)
        equal = b"" if request.if_equal is None else request.if_equal[row]
        other = b"" if request.if_not_equal is None else request.if_not_equal[row]
        start = 0 if request.start is None else int(request.start[row])
        stop = None if request.stop is None else request.stop[row]
        most = request.max_nbytes
        if stop is not None and 0 <= start < int(stop) and (most is None or stop - start <= most):
            ranges.setdefault((key, equal, other), []).append((start, int(stop), row))
            continue
        if stop is not None and start >= 0:
            # No bytes of it are wanted, if the range is legal at all, or too many.
            start, stop = 0, 0
        high = None if start < 0 else stop  # A suffix is read to its end, whatever is cut out.
        same = others.get((key, equal, other, start, high))
        if same is None:
            same = PlannedRead(key, equal, other, start, high)
            others[key, equal, other, start, high] = same
            reads.append(same)
        same.rows.append(row)
    for (key, equal, other), members in ranges.items():
        members.sort()
        read: PlannedRead | None = None
        for start, stop, row in members:
            end = 0 if read is None or read.high is None else read.high
            if (
                read is None
                or start - end > max(GAP_NBYTES, min(stop - start, LONG_GAP_NBYTES))
                or max(end, stop) - read.low > MERGED_NBYTES
            ):
                end = stop
                read = PlannedRead(key, equal, other, start, end)
                reads.append(read)
            read.high = max(end, stop)
            read.rows.append(row)
    return reads


class _Begin:
    """Checks the head of a response and takes memory for the body."""

    __slots__ = ("_read", "_reader", "_request")

    def __init__(self, reader: RemoteReader, read: PlannedRead, request: ReadRequest) -> None:
        self._reader = reader
        self._read = read
        self._request = request

    def __call__(self, response: HttpResponse) -> BodyPlan:
        read, request = self._read, self._request
        encoding = response.headers.get("content-encoding", "")
        same = encoding.lower() in ("", "identity", "aws-chunked")
        if not same and not self._reader.keeps_encodings:
            raise StoreIOError(
                f"the response has Content-Encoding {quote(encoding[:50])}, although identity was "
                f"asked for; a body that grows when it is decoded is not read",
                status="FAILED_PRECONDITION",
            )
        read.generation = self._reader.generation(response)
        read.holds = condition_holds(read.equal, read.generation)
        if read.other and read.other == read.generation:
            read.holds = False
        start, stop = self._extent(response)
        read.is_undeclared = False
        if not read.holds or read.is_empty:
            return BodyPlan(max_nbytes=1 << 16)  # Read, but for the connection's sake.
        if stop is None:
            return self._undeclared()
        low = read.low if read.low >= 0 else max(0, stop + read.low)
        read.first = max(start, low)
        if read.high is not None:
            stop = min(stop, read.high)
        nbytes = max(0, stop - read.first)
        if read.high is None:
            # A part of a value that is not as long as promised is judged row by row.
            check_nbytes(nbytes, request.max_nbytes, read.key)
        memory = self._take(nbytes)
        read.body = memory
        return BodyPlan(memory=memoryview(memory), skip=read.first - start)

    def _extent(self, response: HttpResponse) -> tuple[int, int | None]:
        """Return the byte range of the value that follows; its end is None if unknown."""
        read = self._read
        if response.status != 206:
            nbytes = response.nbytes
            read.total = -1 if nbytes is None else nbytes
            return 0, nbytes
        sent = content_range(response)
        asked = read.low or read.high is not None
        if sent is None or sent.start is None or sent.stop is None or not asked:
            raise self._wrong(response)
        read.total = -1 if sent.total is None else sent.total
        nbytes = response.nbytes
        if nbytes is not None and nbytes != sent.stop - sent.start:
            raise self._wrong(response)
        if read.low >= 0:
            end = read.total if read.high is None else read.high
            if read.total >= 0:
                end = min(end, read.total)
            right = sent.start == read.low and (sent.stop == end or end < 0)
        else:
            right = read.total >= 0 and sent.stop == read.total
            right = right and sent.start == max(0, read.total + read.low)
        if not right:
            raise self._wrong(response)
        return sent.start, sent.stop

    def _wrong(self, response: HttpResponse) -> StoreIOError:
        found = response.headers.get("content-range", "none")[:100]
        nbytes = "no" if response.nbytes is None else response.nbytes
        return StoreIOError(
            f"the response holds another range than was asked for: Range {self._read.field}, "
            f"Content-Range {found}, Content-Length {nbytes}",
            status="UNKNOWN",
        )

    def _undeclared(self) -> BodyPlan:
        """Plan the body of a whole value whose head does not tell its length."""
        read, request = self._read, self._request
        if read.high is not None:
            memory = self._take(read.high - read.low)
            read.body, read.first = memory, read.low
            return BodyPlan(memory=memoryview(memory), skip=read.low)
        if read.low:
            raise StoreIOError(
                "the server knows neither ranges nor how long the value is",
                status="FAILED_PRECONDITION",
            )
        read.is_undeclared, read.first = True, 0
        most = UNDECLARED_NBYTES if request.max_nbytes is None else request.max_nbytes

        def too_long(nbytes: int) -> LimitError:
            return LimitError(
                f"{quote(read.key)} has {nbytes} bytes or more, at most {most} are expected",
                key=read.key,
            )

        return BodyPlan(max_nbytes=most, too_long=too_long)

    def _take(self, nbytes: int) -> bytearray | memoryview:
        """Take host memory for a body; LimitError if there is not enough."""
        try:
            into = self._request.into
            return bytearray(nbytes) if into is None else into.take(nbytes)
        except (MemoryError, OverflowError, ValueError) as error:
            raise LimitError(
                f"{quote(self._read.key)}: no memory for {nbytes} bytes; read ranges of it",
                key=self._read.key,
            ) from error


def part_of(read: PlannedRead, row: int, request: ReadRequest) -> Buffer:
    """Cut the byte range of one row out of the bytes received, without a copy.

    Raises
    ------
    LimitError
        If it exceeds ``max_nbytes``.
    StoreIOError
        If fewer bytes were received than the range has.
    """
    start = 0 if request.start is None else int(request.start[row])
    wanted = None if request.stop is None else request.stop[row]
    stop = None if wanted is None else int(wanted)
    whole = memoryview(read.body)
    if read.total < 0 and stop is None:
        read.total = read.first + len(whole)  # It has come to its end.
    if read.total >= 0:
        begin, end = check_byte_range(read.total, start, stop, read.key)
    else:
        assert stop is not None
        begin, end = start, stop
    check_nbytes(end - begin, request.max_nbytes, read.key)
    if end - begin > len(whole):
        raise StoreIOError(
            f"{quote(read.key)} became longer while it was being read", status="ABORTED"
        )
    if begin == end:
        return memoryview(bytearray()) if request.into is None else request.into.take(0)
    return whole[begin - read.first : end - read.first]
