"""Signatures of requests to S3 in header fields (Signature Version 4).

The body is no part of a signature (``UNSIGNED-PAYLOAD``), nor are range and conditions; so requests
for the same object share one for a minute.

Source: Amazon S3 API reference, "Authenticating Requests: Using the Authorization Header".
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from gpustore.errors import GpustoreError
from gpustore.kvstores.buckets.authorization import Asked, request_for
from gpustore.kvstores.http.message import HttpRequest

_USED_S: Final = 60.0
"""So long a signature is used again; it is valid for 15 minutes."""

_MOST: Final = 1 << 14
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Keys with which requests are signed; `token` is empty for lasting ones."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(slots=True)
class _Signer:
    """Signs with some keys for a while, and remembers what it has signed."""

    keys: AwsKeys
    since: float
    sign: Callable[[Asked], dict[str, str]]
    known: dict[Asked, dict[str, str]] = field(default_factory=dict)

    def is_fit(self, keys: AwsKeys, now: float) -> bool:
        """Whether it signs with `keys`, and so that it can be sent at `now`."""
        fresh = abs(now - self.since) <= _USED_S and len(self.known) <= _MOST
        return fresh and keys == self.keys


@dataclass(slots=True)
class SignedFields:
    """Signs requests to one host of one region.

    Attributes
    ----------
    keys : callable
        Returns the present keys; None if nobody is shown.
    region : str
    host : str
        What the field ``Host`` says.
    fields : mapping
        Sent with each request; their names, in lower case, begin with ``x-amz-``.
    """

    keys: Callable[[], AwsKeys | None] = field(repr=False)
    region: str
    host: str
    fields: Mapping[str, str]
    is_anonymous: bool = False
    _last: _Signer | None = field(default=None, repr=False)

    def requests(self, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        keys = self.keys()
        self.is_anonymous = keys is None
        if keys is None:
            return (request_for(one, self.fields) for one in asked)
        return self._signed(keys, asked)

    def _signed(self, keys: AwsKeys, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        signer = self._last  # Another thread may begin a new one.
        for one in asked:
            now = time.time()
            if signer is None or not signer.is_fit(keys, now):
                if signer is not None:  # A batch may last longer than its keys.
                    with contextlib.suppress(GpustoreError):  # The old ones may still be good.
                        keys = self.keys() or keys
                signer = self._last = _Signer(keys, now, self._signature(keys, now))
            fields = signer.known.get(one)
            if fields is None:
                fields = signer.known[one] = signer.sign(one)
            yield request_for(one, fields)

    def _signature(self, keys: AwsKeys, now: float) -> Callable[[Asked], dict[str, str]]:
        """Make what signs requests that are sent at `now`, in seconds since 1970."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        day = stamp[:8]
        sent = {**self.fields, "x-amz-content-sha256": _UNSIGNED, "x-amz-date": stamp}
        if keys.token:
            sent["x-amz-security-token"] = keys.token
        covered = sorted(sent)
        names = ";".join(["host", *covered])
        lines = "".join([f"{name}:{sent[name]}\n" for name in covered])
        end = f"\nhost:{self.host}\n{lines}\n{names}\n{_UNSIGNED}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        begin = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n"
        shown = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
            "Signature="
        )
        key = f"AWS4{keys.secret_key}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")

        def sign(asked: Asked) -> dict[str, str]:
            method, path, query = asked
            digest = sha256(f"{method}\n{path}\n{query}{end}".encode()).hexdigest()
            signature = hmac.digest(key, f"{begin}{digest}".encode(), "sha256").hex()
            return {**sent, "Authorization": shown + signature}

        return sign
