"""Signatures of requests to S3 in header fields (AWS Signature Version 4).

A signature covers neither the body (``UNSIGNED-PAYLOAD``) nor range and conditions. Requests of the
same method, path and query therefore share one for a minute.

Source: Amazon S3 API reference, "Authenticating Requests: Using the Authorization Header (AWS
Signature Version 4)".
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
"""Seconds for which a signature is reused; it is valid for 15 minutes."""

_MOST: Final = 1 << 14
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Keys that sign requests; `token` is empty for long-term keys."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(slots=True)
class _Signer:
    """Signer for one pair of keys and one time stamp, with a cache of its signatures."""

    keys: AwsKeys
    since: float
    sign: Callable[[Asked], dict[str, str]]
    known: dict[Asked, dict[str, str]] = field(default_factory=dict)

    def is_fit(self, keys: AwsKeys, now: float) -> bool:
        """Whether signatures with `keys` can be sent at `now`, in seconds since 1970."""
        fresh = abs(now - self.since) <= _USED_S and len(self.known) <= _MOST
        return fresh and keys == self.keys


@dataclass(slots=True)
class SignedFields:
    """Authorization that signs requests to one host of one region.

    Attributes
    ----------
    keys : callable
        Returns the present keys; None for anonymous requests.
    region : str
        Region of the bucket, as ``"us-east-1"``.
    host : str
        Value of the field ``Host``.
    fields : mapping
        Header fields of each request; their names, in lower case, begin with ``x-amz-``.
    is_anonymous : bool
        Whether the last batch was sent without keys.
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
        """Make the function that signs requests sent at `now`, in seconds since 1970."""
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
