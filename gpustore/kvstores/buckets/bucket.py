"""Objects of a bucket: reading, writing, deleting and listing.

:mod:`~gpustore.kvstores.buckets.authorization` adds credentials to requests;
:mod:`~gpustore.kvstores.http.client` sends them: it bounds bodies and waits, retries transient
failures, obeys ``Retry-After``, follows no redirect and works in forked processes. The server
compares the condition of a request in the same step in which it writes or deletes.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote

from gpustore.errors import GpustoreError, InvalidKeyError, StoreIOError
from gpustore.kvstores.base import invalid_key, prefix_end
from gpustore.kvstores.buckets.authorization import Authorization
from gpustore.kvstores.buckets.listing import Listing
from gpustore.kvstores.buckets.multipart import MultipartUpload
from gpustore.kvstores.columns import ABSENT, ReadColumns, ReadRequest, WriteColumns, WriteRequest
from gpustore.kvstores.http.client import PASSING, HttpClient
from gpustore.kvstores.http.message import HttpRequest, HttpResponse
from gpustore.kvstores.http.range_reader import RemoteReader
from gpustore.runtime.buffer import Buffer

CONFLICT_PASSES: Final = PASSING | {409}
"""Statuses that are retried; 409 reports another writer at the same moment."""

WHOLE_NBYTES: Final = 64 << 20
"""Longest value that is written by one request, in bytes."""

_GENERATIONS: Final = {
    "etag": re.compile(rb"[ -~]{1,1024}"),
    "x-goog-generation": re.compile(rb"[1-9][0-9]{0,18}"),
}
_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


_LISTABLE: Final = re.compile("[^\0-\x1f\x7f\ud800-\udfff]*")


def check_object_path(path: str) -> None:
    """Raise InvalidKeyError unless `path` can begin a key of a bucket.

    Components ``.`` and ``..`` are refused: proxies would resolve them.
    """
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise invalid_key(path, 'contains "." or ".." as a path component')
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise invalid_key(path, "contains a control character")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise invalid_key(path, "is not Unicode") from None


def check_object_key(key: str) -> None:
    """Raise InvalidKeyError unless `key` is legal in a bucket: 1 to 1024 bytes of UTF-8."""
    check_object_path(key)
    nbytes = len(key.encode())
    if not 0 < nbytes <= 1024:
        raise invalid_key(key, f"has {nbytes} bytes, expected 1 to 1024")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Reads, writes and lists the objects of one bucket.

    Attributes
    ----------
    client : HttpClient
        Client of the bucket's server, made with :func:`code_of` and :data:`CONFLICT_PASSES`.
    authorization : Authorization
        Adds credentials to requests.
    root : str
        Prefix of the keys in request paths, percent-encoded; ends with a slash.
    generation : {"etag", "x-goog-generation"}
        Header field of a response that holds the generation.
    describe : callable
        Method of that name of :class:`~gpustore.kvstores.base.KvStoreDriver`.
    looks, sends : bool
        Whether the generation is read and compared before a conditional write, and whether the
        condition is sent with the write.
    """

    client: HttpClient = field(repr=False)
    authorization: Authorization = field(repr=False)
    root: str
    generation: str
    describe: Callable[[str], str]
    looks: bool = False
    sends: bool = True

    def is_possible(self, condition: bytes) -> bool:
        """Whether `condition` is empty, ABSENT or a well-formed generation; others are not sent."""
        possible = _GENERATIONS[self.generation]
        return condition in (b"", ABSENT) or bool(possible.fullmatch(condition))

    def requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        """Make requests from methods and legal keys; errors are those of the authorization."""
        return self.authorization.requests((method, self._path(key), "") for method, key in asked)

    def _path(self, key: str) -> str:
        return self.root + quote(key)

    # ------------------------------------------------------------------ generations

    def _seen(self, response: HttpResponse) -> bytes:
        return response.headers.get(self.generation, "").encode("latin-1")

    def _not_if(self, generation: bytes) -> tuple[str, str] | None:
        if not self.is_possible(generation):
            return None
        name = "If-None-Match" if self.generation == "etag" else "x-goog-if-generation-not-match"
        return name, generation.decode("latin-1")

    def _if_equal(self, condition: bytes) -> tuple[str, str]:
        text = condition.decode("latin-1")
        if self.generation != "etag":
            return "x-goog-if-generation-match", "0" if condition == ABSENT else text
        return ("If-None-Match", "*") if condition == ABSENT else ("If-Match", text)

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        return RemoteReader(
            client=self.client,
            requests=self.requests,
            generation=self._seen,
            not_if=self._not_if,
            describe=self.describe,
            check_key=check_object_key,
            misses_more=_misses_bucket,
            keeps_encodings=True,
        ).read_many(request)

    # ------------------------------------------------------------------ writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """Write or delete the rows of `request`, those of the same key one after the other."""
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
        found = self._settled(request, rows)
        left = [row for row in rows if row not in found]
        large = [row for row in left if self._is_large(request, row)]
        for row in large:
            found[row] = self._write_in_parts(request, row)
        left = [row for row in left if row not in found]
        asked = [
            ("DELETE" if request.values[row] is None else "PUT", request.keys[row]) for row in left
        ]
        responses: Sequence[HttpResponse | GpustoreError]
        try:
            requests = self.requests(asked)
        except GpustoreError as error:
            responses = [error] * len(left)
        else:
            prepared = map(partial(self._prepared, request), left, requests)
            responses = self.client.send(prepared)
        for row, response in zip(left, responses, strict=True):
            if isinstance(response, HttpResponse):
                try:
                    found[row] = self._written(request, row, response)
                except GpustoreError as error:
                    found[row] = error
            else:
                found[row] = response
        return [found[row] for row in rows]

    def _settled(
        self, request: WriteRequest, rows: Sequence[int]
    ) -> dict[int, bytes | GpustoreError]:
        """Return the outcomes that need no write: illegal keys and conditions that do not hold."""
        found: dict[int, bytes | GpustoreError] = {}
        looked: builtins.list[int] = []
        for row in rows:
            condition = _condition(request, row)
            # If the response to a deletion is lost, only this tells whether the key was there.
            deletes = request.values[row] is None
            try:
                check_object_key(request.keys[row])
            except GpustoreError as error:
                found[row] = error
                continue
            if not self.is_possible(condition):
                found[row] = b""
            elif condition and (self.looks or deletes):
                looked.append(row)
        zeros = [0] * len(looked)
        columns = self.read_many(
            ReadRequest([request.keys[row] for row in looked], start=zeros, stop=zeros)
        )
        for at, row in enumerate(looked):
            condition = _condition(request, row)
            if at in columns.error:
                found[row] = columns.error[at]
            elif columns.generation[at] != condition:
                found[row] = b""
            elif condition == ABSENT and request.values[row] is None:
                found[row] = ABSENT
        return found

    def _write_in_parts(self, request: WriteRequest, row: int) -> bytes | GpustoreError:
        """Write a value by a multipart upload; its new generation or the error."""
        key, value, condition = request.keys[row], request.values[row], _condition(request, row)
        assert value is not None
        upload = MultipartUpload(self.client, self.authorization.requests)
        sent = self._if_equal(condition) if condition and self.sends else None
        try:
            response = upload.store(self._path(key), memoryview(value).cast("B"), sent)
            if code_of(response) != "NoSuchUpload":
                return self._written(request, row, response)
            # The parts may have been joined and the response lost: then the stored value is ours.
            found = self._stored(key, value)
        except GpustoreError as error:
            return error
        return found or self.client.status_error(response)

    def _is_large(self, request: WriteRequest, row: int) -> bool:
        value = request.values[row]
        if value is None or len(value) <= WHOLE_NBYTES:
            return False
        # Google compares no condition where parts are put together, and takes values of any length.
        return self.generation == "etag" or not _condition(request, row)

    def _prepared(self, request: WriteRequest, row: int, wanted: HttpRequest) -> HttpRequest:
        value, condition = request.values[row], _condition(request, row)
        wanted.body = b"" if value is None else memoryview(value).cast("B")
        # A server that does not know conditions of deletions may reject them.
        if condition and self.sends and not (self.looks and value is None):
            name, text = self._if_equal(condition)
            wanted.headers[name] = text
        return wanted

    def _written(self, request: WriteRequest, row: int, response: HttpResponse) -> bytes:
        """Return the generation that the response of a write or deletion reports."""
        key, value = request.keys[row], request.values[row]
        condition = _condition(request, row)
        gone = response.status == 404 and not _misses_bucket(response)
        if value is None and (gone or 200 <= response.status < 300):
            return b"" if gone and condition and not response.lost else ABSENT
        if value is not None and 200 <= response.status < 300:
            generation = self._seen(response)
            if condition and not generation:
                raise StoreIOError("the response does not say what was written", status="UNKNOWN")
            return generation
        if not condition or not (gone or response.status == 412):
            raise self.client.status_error(response)
        if not response.lost:
            return b""
        # The response to an attempt may have been lost: then the stored value is ours.
        if value is not None:
            return self._stored(key, value)
        columns = self.read_many(ReadRequest([key], start=[0], stop=[0]))
        columns.raise_first()
        return ABSENT if columns.generation[0] == ABSENT else b""

    def _stored(self, key: str, value: Buffer) -> bytes:
        """Return the generation of the stored value if it equals `value`, else ``b""``."""
        found = self.read_many(ReadRequest([key]))
        found.raise_first()
        ours = found.value[0] is not None and found.value[0] == value
        return found.generation[0] if ours else b""

    # ------------------------------------------------------------------ ranges

    def list_nbytes(self, inclusive_min: str, exclusive_max: str | None) -> dict[str, int]:
        """List the keys in a range, in ascending order, with the sizes of their values in bytes."""
        low, high = inclusive_min, exclusive_max
        if high is not None and low >= high:
            return {}
        prefix = _listable(low if high == prefix_end(low) else _common(low, high or ""))
        # Lists begin behind `after`, and the greatest key below `low` cannot be written down.
        after = "" if prefix == low else _listable(low[:-1] + chr(max(ord(low[-1]), 1) - 1))
        found: dict[str, int] = {}
        try:
            for page in self._listing.pages(prefix, after):
                found |= {
                    key: nbytes
                    for key, nbytes in page.nbytes.items()
                    if low <= key and (high is None or key < high)
                }
                if high is not None and max(page.nbytes, default="") >= high:
                    break
        except GpustoreError as error:
            where = f"Error listing {self.describe(low)}"
            raise error.prefixed(where, key=low) from error.__cause__
        return dict(sorted(found.items()))

    @property
    def _listing(self) -> Listing:
        path = self.root.rstrip("/") or "/"
        return Listing(self.client, self.authorization.requests, path)

    def list_names(self, prefix: str) -> builtins.list[str]:
        """List the names directly below `prefix`, sorted; those of directories end with a slash."""
        names: builtins.list[str] = []
        try:
            for page in self._listing.pages(_listable(prefix), delimiter="/"):
                names += page.nbytes
                names += page.directories
        except GpustoreError as error:
            where = f"Error listing {self.describe(prefix)}"
            raise error.prefixed(where, key=prefix) from error.__cause__
        return sorted(
            name.removeprefix(prefix)
            for name in names
            if name != prefix and name.startswith(prefix)
        )

    def delete_range(self, inclusive_min: str, exclusive_max: str | None) -> int:
        """Delete the keys in a range and return their number; raises the first error."""
        keys = list(self.list_nbytes(inclusive_min, exclusive_max))
        self.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()
        return len(keys)


def _condition(request: WriteRequest, row: int) -> bytes:
    return b"" if request.if_equal is None else request.if_equal[row]


def _misses_bucket(response: HttpResponse) -> bool:
    return code_of(response) == "NoSuchBucket"


def code_of(response: HttpResponse) -> str:
    """Return the element ``Code`` of an error response; empty if there is none."""
    match = _CODE.search(response.body)
    return match[1].decode() if match else ""


def _listable(text: str) -> str:
    """Return the longest prefix of `text` without control characters and surrogates."""
    match = _LISTABLE.match(text)
    return match[0] if match else ""


def _common(first: str, second: str) -> str:
    """Return the longest common prefix."""
    end = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), None)
    return first[: min(len(first), len(second)) if end is None else end]
