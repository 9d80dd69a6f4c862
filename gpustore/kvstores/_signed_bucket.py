"""A bucket whose objects are asked for by URLs, signed or public, so that the requests are our own.

obstore finds the credentials and signs; :mod:`~gpustore.kvstores._http_client` sends, which bounds
bodies and waits, obeys ``Retry-After``, follows no redirect, works in forked processes and takes
half the time for a small range. Lists, and values that are stored in parts, are left to obstore.

1. The keys of a batch are signed in one call. A signed URL is valid for an hour and used for a
   minute: after that the credentials may have been replaced.
2. Ranges and conditions are fields of the request, which a signature need not cover.
"""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from gpustore.errors import GpustoreError, StoreIOError
from gpustore.kvstores._bucket import (
    WHOLE_NBYTES,
    Bucket,
    check_object_key,
)
from gpustore.kvstores._columns import ABSENT, ReadColumns, ReadRequest, WriteRequest
from gpustore.kvstores._http_client import PASSING, HttpClient
from gpustore.kvstores._http_message import HttpRequest, HttpResponse
from gpustore.kvstores._obstore import begin_use, called
from gpustore.kvstores._remote_read import RemoteReader
from gpustore.url import encode_path

__all__ = ["CONFLICT_PASSES", "SignedBucket", "code_of"]

_VALID: Final = timedelta(hours=1)
_USED_S: Final = 60.0
_MOST: Final = 1 << 14
_GENERATIONS: Final = {"e_tag": "etag", "version": "x-goog-generation"}
"""Which field of a response is what obstore calls so."""

_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


@dataclass(slots=True)
class _Targets:
    """Paths and queries that were signed, by method and key, and when the first of them was."""

    known: dict[tuple[str, str], str] = field(default_factory=dict)
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBucket(Bucket):
    """A bucket of which only lists are obstore's.

    Attributes
    ----------
    client : HttpClient
        Made with :func:`code_of` and :data:`CONFLICT_PASSES`.
    root : str
        What precedes the keys in paths, percent-encoded.
    signs : bool
        False: requests are anonymous.
    fetches : bool
        Whether obstore may have to fetch the credentials.
    """

    client: HttpClient = field(repr=False)
    root: str
    signs: bool
    fetches: bool
    _targets: _Targets = field(default_factory=_Targets, repr=False)

    # ------------------------------------------------------------------ signing

    def _requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        """A request for each pair of a method and a key, which is legal.

        Raises
        ------
        StoreIOError
            If there are no credentials, or they cannot be fetched.
        ForkError
            If they would have to be fetched in a process in which obstore does not work.
        """
        if not self.signs:
            return (HttpRequest(method, self.root + encode_path(key)) for method, key in asked)
        now = time.monotonic()
        if now - self._targets.since > _USED_S or len(self._targets.known) > _MOST:
            self._targets.known, self._targets.since = {}, now
        known = self._targets.known  # Another thread may begin a new one.
        missing: dict[str, builtins.list[str]] = {}
        for method, key in dict.fromkeys(asked):
            if (method, key) not in known:
                missing.setdefault(method, []).append(key)
        for method, keys in missing.items():
            obstore = begin_use(waits=self.fetches)
            sign = partial(called, self.hints, obstore.sign, self.store, method, keys, _VALID)
            for key, url in zip(keys, self._repeat(sign), strict=True):
                known[method, key] = self._target(url)
        return (HttpRequest(method, known[method, key]) for method, key in asked)

    def _target(self, url: str) -> str:
        origin = str(self.client.origin)
        if not url.startswith(f"{origin}/"):
            raise StoreIOError("obstore signs for another server", status="INTERNAL")
        return url[len(origin) :]

    # ------------------------------------------------------------------ generations

    def _seen(self, response: HttpResponse) -> bytes:
        return response.headers.get(_GENERATIONS[self.version], "").encode("latin-1")

    def _not_if(self, generation: bytes) -> tuple[str, str] | None:
        if not self.is_possible(generation):
            return None
        name = "If-None-Match" if self.version == "e_tag" else "x-goog-if-generation-not-match"
        return name, generation.decode("latin-1")

    def _if_equal(self, condition: bytes) -> tuple[str, str]:
        text = condition.decode("latin-1")
        if self.version == "version":
            return "x-goog-if-generation-match", "0" if condition == ABSENT else text
        return ("If-None-Match", "*") if condition == ABSENT else ("If-Match", text)

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        return RemoteReader(
            client=self.client,
            requests=self._requests,
            generation=self._seen,
            not_if=self._not_if,
            describe=self.describe,
            check_key=check_object_key,
            misses_more=_misses_bucket,
            keeps_encodings=True,
        ).read_many(request)

    # ------------------------------------------------------------------ writing

    def _write_rows(
        self, request: WriteRequest, rows: Sequence[int]
    ) -> builtins.list[bytes | GpustoreError]:
        found = self._refused(request, rows)
        left = [row for row in rows if row not in found]
        large = [row for row in left if self._is_large(request, row)]
        parts = [partial(self._write_row, request, row) for row in large]
        found.update(zip(large, self._all(parts), strict=True))
        left = [row for row in left if row not in found]
        asked = [
            ("DELETE" if request.values[row] is None else "PUT", request.keys[row]) for row in left
        ]
        responses: Sequence[HttpResponse | GpustoreError]
        try:
            requests = self._requests(asked)
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

    def _refused(
        self, request: WriteRequest, rows: Sequence[int]
    ) -> dict[int, bytes | GpustoreError]:
        """What is known of rows before anything is sent: wrong keys, and conditions looked at."""
        found: dict[int, bytes | GpustoreError] = {}
        looked: builtins.list[int] = []
        for row in rows:
            try:
                check_object_key(request.keys[row])
            except GpustoreError as error:
                found[row] = error
                continue
            if not self.is_possible(_condition(request, row)):
                found[row] = b""
            elif self.looks and _condition(request, row):
                looked.append(row)
        zeros = [0] * len(looked)
        columns = self.read_many(
            ReadRequest([request.keys[row] for row in looked], start=zeros, stop=zeros)
        )
        for at, row in enumerate(looked):
            if at in columns.error:
                found[row] = columns.error[at]
            elif columns.generation[at] != _condition(request, row):
                found[row] = b""
        for row in rows:  # Only what is not there is wanted, and that is how it is to be.
            if request.values[row] is None and _condition(request, row) == ABSENT:
                found.setdefault(row, ABSENT)
        return found

    def _is_large(self, request: WriteRequest, row: int) -> bool:
        value = request.values[row]
        return value is not None and len(value) > WHOLE_NBYTES and not _condition(request, row)

    def _prepared(self, request: WriteRequest, row: int, wanted: HttpRequest) -> HttpRequest:
        value, condition = request.values[row], _condition(request, row)
        wanted.body = b"" if value is None else memoryview(value).cast("B")
        # Who may not know the condition of a deletion may refuse it.
        if condition and self.sends and not (self.looks and value is None):
            name, text = self._if_equal(condition)
            wanted.headers[name] = text
        return wanted

    def _written(self, request: WriteRequest, row: int, response: HttpResponse) -> bytes:
        """The new generation that a response says."""
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
            raise self.client.refusal(response)
        if not response.lost:
            return b""
        # The answer to an attempt may have been lost: then what is there now is ours.
        if value is not None:
            return self._stored(key, value)
        columns = self.read_many(ReadRequest([key], start=[0], stop=[0]))
        columns.raise_first()
        return ABSENT if columns.generation[0] == ABSENT else b""


def _condition(request: WriteRequest, row: int) -> bytes:
    return b"" if request.if_equal is None else request.if_equal[row]


def _misses_bucket(response: HttpResponse) -> bool:
    return code_of(response) == "NoSuchBucket"


def code_of(response: HttpResponse) -> str:
    """The code of an error that S3 describes; empty if there is none."""
    match = _CODE.search(response.body)
    return match[1].decode() if match else ""


CONFLICT_PASSES: Final = PASSING | {409}
"""Another writer at the same moment is no reason to give up."""
