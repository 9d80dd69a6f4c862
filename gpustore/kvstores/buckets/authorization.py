"""How requests for objects of a bucket show who asks: not at all, in their URLs, or in a field.

Both kinds of credentials are found by obstore (:mod:`~gpustore.kvstores.buckets.obstore`) and used
for a minute: after that they may have been replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpustore.errors import StoreIOError
from gpustore.kvstores.buckets.obstore import ObstoreBucket
from gpustore.kvstores.http.message import HttpRequest
from gpustore.url import encode_path

_USED_S: Final = 60.0
_MOST: Final = 1 << 14


class Authorization(Protocol):
    """Makes requests that show who asks."""

    def requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        """A request for each pair of a method and a key, which is legal.

        Raises
        ------
        StoreIOError
            If there are no credentials, or they cannot be fetched.
        ForkError
            If they would have to be fetched in a process in which obstore does not work.
        """


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Nobody is named.

    Attributes
    ----------
    root : str
        What precedes the keys in paths, percent-encoded.
    headers : dict
        Sent with each request.
    """

    root: str
    headers: dict[str, str] = field(default_factory=dict)

    def requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        for method, key in asked:
            yield HttpRequest(method, self.root + encode_path(key), dict(self.headers))


@dataclass(slots=True)
class BearerToken:
    """Each request has the same field ``Authorization``, for a while.

    Attributes
    ----------
    obstore : ObstoreBucket
    unsigned : Anonymous
        The requests without that field.
    """

    obstore: ObstoreBucket
    unsigned: Anonymous
    _known: tuple[str, float] = field(default=("", 0.0), repr=False)

    def requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        token, since = self._known
        now = time.monotonic()
        if not token or now - since > _USED_S:
            token = self.obstore.authorization()
            self._known = token, now
        return self._with(token, asked)

    def _with(self, token: str, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        for request in self.unsigned.requests(asked):
            request.headers["Authorization"] = token
            yield request


@dataclass(slots=True)
class SignedUrls:
    """URLs are signed, those of a batch in one call; ranges and conditions need not be.

    Attributes
    ----------
    obstore : ObstoreBucket
    fetches : bool
        Whether obstore may have to fetch the credentials.
    """

    obstore: ObstoreBucket
    fetches: bool
    _known: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    _since: float = 0.0

    def requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        now = time.monotonic()
        if now - self._since > _USED_S or len(self._known) > _MOST:
            self._known, self._since = {}, now
        known = self._known  # Another thread may begin a new one.
        missing: dict[str, list[str]] = {}
        for method, key in dict.fromkeys(asked):
            if (method, key) not in known:
                missing.setdefault(method, []).append(key)
        for method, keys in missing.items():
            urls = self.obstore.sign(method, keys, fetches=self.fetches)
            for key, url in zip(keys, urls, strict=True):
                known[method, key] = self._target(url)
        return (HttpRequest(method, known[method, key]) for method, key in asked)

    def _target(self, url: str) -> str:
        origin = self.obstore.origin
        if not url.startswith(f"{origin}/"):
            raise StoreIOError("obstore signs for another server", status="INTERNAL")
        return url[len(origin) :]
