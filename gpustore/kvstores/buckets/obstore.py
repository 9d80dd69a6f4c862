"""A bucket as obstore knows it: who finds credentials, signs, lists and stores in parts.

What it sends goes through :mod:`~gpustore.kvstores.buckets.relay`.

obstore's threads do not live on in a forked process, where a call would wait for ever. So a child
of a process that has used it gets a ForkError.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from gpustore import registry
from gpustore.errors import (
    ForkError,
    GpustoreError,
    MetadataError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.buckets.relay import RELAY, Route, shows_who
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import Origin

_STATUS: Final = re.compile(r"status code: ([0-9]{3})")
_RETRIES: Final = re.compile(r"after ([0-9]{1,9}) retries")
_SERVICES: Final = ("container_credentials_full_uri", "metadata_endpoint")
"""What obstore calls the URLs of services that hand out credentials."""
_NUMBER: Final = re.compile("[0-9]+|0[xX][0-9a-fA-F]*")
_VALID: Final = timedelta(hours=1)
_PART_NBYTES: Final = 16 << 20
_PARTS: Final = 4
"""So many are under way at once."""
_PAGE_KEYS: Final = 1000

_user = 0
"""The process that has started obstore's threads, 0 if none has."""


def require_obstore() -> None:
    """Raise UnsupportedError unless the package obstore is installed."""
    if not registry.is_installed("obstore"):
        raise UnsupportedError("buckets need the package obstore: pip install 'gpustore[cloud]'")


def _begin_use(*, waits: bool) -> Any:
    """The package obstore, for what starts its threads and, if it `waits`, needs them.

    Raises
    ------
    ForkError
        If they are needed and were those of the process this one was forked from.
    """
    global _user
    if not _user:
        _user = os.getpid()
    if waits and _user != os.getpid():
        raise ForkError(
            "a bucket was used before this process was forked, and obstore does not work in it: "
            'start workers with "spawn" or "forkserver", or open buckets in the workers only'
        )
    import obstore

    return obstore


def _provide(route: Route, provider: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Credentials; an error of ours comes back by its number."""
    try:
        return provider()
    except GpustoreError as error:
        number = route.remember(route.no_credentials(f": {error.text}"))
    raise RuntimeError(number)


def _check_origin(origin: Origin) -> None:
    """Raise UnsupportedError unless obstore asks for this origin by its name."""
    if origin.scheme == "https" and origin.port == 80:
        raise UnsupportedError(f"{origin}: TLS at port 80 is not supported")
    if not _is_canonical(origin.host):
        raise UnsupportedError(
            f"{origin}: an address in another form than the usual one is not supported"
        )


def _is_canonical(host: str) -> bool:
    """Whether `host` is what obstore makes of it: it rewrites what it takes for an address."""
    if ":" not in host and not _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return True
    try:
        return str(ipaddress.ip_address(host)) == host
    except ValueError:
        return False


def _seconds(seconds: float) -> timedelta:
    """As obstore wants it, to which nothing is endless."""
    return timedelta(seconds=min(seconds, 1e8))


@dataclass(slots=True)
class ObstoreBucket:
    """A bucket as obstore knows it. Thread-safe.

    Attributes
    ----------
    kind : {"S3Store", "GCSStore"}
        The class of obstore's module ``store``.
    name : str
    config : dict
        What it is told, but not how the bucket is reached.
    headers : dict
        Sent with each request.
    provider : callable, optional
        Is asked for credentials, in obstore's form, whenever those known are about to end.
    client : HttpClient
        Sends to the bucket.
    keyless : str
        How a public bucket is opened, for the error that there are no credentials.
    """

    kind: str
    name: str
    config: dict[str, Any] = field(repr=False)
    client: HttpClient
    keyless: InitVar[str]
    headers: dict[str, str] = field(default_factory=dict)
    provider: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    _route: Route = field(init=False, repr=False)
    _store: Any = field(init=False, default=None, repr=False)

    def __post_init__(self, keyless: str) -> None:
        _check_origin(self.client.origin)
        self._route = Route(self.client, keyless, not self.config.get("skip_signature"))
        for name in _SERVICES:
            if self.config.get(name):
                self.config[name] = self._in_clear(name, self.config[name])

    def _in_clear(self, name: str, url: str) -> str:
        """The URL by which obstore asks a service, and the relay then as it is meant."""
        try:
            parts = urlsplit(url)
            origin = Origin.parse(parts.scheme, parts.netloc)
        except ValueError as error:  # Its text may show the URL.
            text = error.text if isinstance(error, MetadataError) else "it is not a URL"
            raise MetadataError(f"Invalid {name} for credentials: {text}") from None
        _check_origin(origin)
        if origin.scheme == "https":
            self._route.encrypted[origin.authority] = origin
        return parts._replace(scheme="http", netloc=origin.authority).geturl()

    @property
    def origin(self) -> str:
        """What obstore takes for scheme, host and port."""
        return f"http://{self.client.origin.authority}"

    # ------------------------------------------------------------------ calls

    def sign(self, method: str, keys: Sequence[str], *, fetches: bool) -> list[str]:
        """URLs that are valid for an hour; `fetches`: whether it may have to ask for credentials.

        Raises
        ------
        StoreIOError
            If there are no credentials, or they cannot be fetched.
        ForkError
            If they would have to be fetched in a process in which obstore does not work.
        """
        obstore = _begin_use(waits=fetches)
        urls: list[str] = self._call(
            lambda: obstore.sign(self._opened(), method, list(keys), _VALID)
        )
        return urls

    def authorization(self) -> str:
        """The field ``Authorization`` of requests, which is good for some minutes.

        Raises
        ------
        StoreIOError, ForkError
            As from :meth:`sign`.
        """
        obstore = _begin_use(waits=True)
        try:
            self._call(lambda: obstore.head(self._opened(), self._route.unsent))
        except FileNotFoundError:
            found = self._route.authorization
            if not shows_who(found):
                raise self._route.no_credentials("") from None
            return found
        raise StoreIOError("obstore found what is not there", status="INTERNAL")

    def pages(self, directory: str, offset: str | None) -> Iterator[dict[str, int]]:
        """Pages of keys in a directory, behind `offset`, and the sizes of their values."""
        obstore = _begin_use(waits=True)
        options = {"offset": offset, "chunk_size": _PAGE_KEYS}
        pages = self._call(lambda: obstore.list(self._opened(), directory or None, **options))
        while (page := self._call(lambda: next(pages, None))) is not None:
            yield {one["path"]: one["size"] for one in page}

    def list_directory(self, directory: str) -> list[str]:
        """The keys in a directory, and the directories with a slash at their ends."""
        obstore = _begin_use(waits=True)
        page = self._call(lambda: obstore.list_with_delimiter(self._opened(), directory or None))
        return [one["path"] for one in page["objects"]] + [
            f"{name}/" for name in page["common_prefixes"]
        ]

    def put_in_parts(self, key: str, value: memoryview) -> Mapping[str, str | None]:
        """Store a value in parts, whatever was there; its ``e_tag`` and ``version``."""
        obstore = _begin_use(waits=True)
        options = {"use_multipart": True, "chunk_size": _PART_NBYTES, "max_concurrency": _PARTS}
        found: Mapping[str, str | None] = self._call(
            lambda: obstore.put(self._opened(), key, value, **options)
        )
        return found

    # ------------------------------------------------------------------ outcomes

    def _opened(self) -> Any:
        """Obstore's own; two threads may make one each."""
        if self._store is None:
            from obstore import store

            own = {}
            if self.provider is not None:
                own["credential_provider"] = partial(_provide, self._route, self.provider)
            client, ours = self.client, timedelta(days=1)  # The relay ends what takes too long.
            self._store = getattr(store, self.kind)(
                self.name,
                config=self.config,
                **own,
                client_options={
                    "proxy_url": RELAY.open(self._route),
                    "allow_http": True,  # As far as the relay.
                    "default_headers": self.headers,
                    "connect_timeout": _seconds(max(client.timeouts.connect_s, 5.0)),
                    "timeout": ours,
                    "read_timeout": ours,
                },
                retry_config={  # Where the relay is not reached, as in a crowd of strangers.
                    "max_retries": client.retries.max_retries,
                    "retry_timeout": _seconds(client.timeouts.total_s),
                },
            )
        return self._store

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call obstore, whose errors become ours; none of its text is shown that might be secret.

        Raises
        ------
        FileNotFoundError
            If a request that was not sent was answered.
        GpustoreError
        """
        from obstore.exceptions import BaseError

        try:
            return function()
        except GpustoreError:  # The relay cannot listen.
            raise
        except (BaseError, ValueError, OSError, RuntimeError) as error:
            text = str(error)
            if self._route.unsent in text and isinstance(error, FileNotFoundError):
                raise
            failure = self._route.failure(text) or self._explained(text)
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":
                raise
            failure = self._explained("panic")  # Of Rust, whose class nobody can name.
        raise failure

    def _explained(self, text: str) -> GpustoreError:
        """What an error of obstore means that the relay knows nothing of."""
        said = text.partition("Debug source")[0]
        if self.origin in said:
            return StoreIOError("obstore could not send the request", status="UNAVAILABLE")
        if "Error performing" in said or "token request" in text or "credentials" in said:
            status, retries = _STATUS.search(text), _RETRIES.search(text)
            asked = f" [HTTP code {status[1]}]" if status else ""
            attempts = f"; {int(retries[1]) + 1} attempts were made" if retries else ""
            return self._route.no_credentials(f"{asked}{attempts}")
        kind = re.match(r"[A-Za-z0-9 ]{1,60}", text)
        return StoreIOError(
            f"obstore does not accept it: {kind[0] if kind else 'error'} (its text is left out, "
            "as it may hold secrets)",
            status="FAILED_PRECONDITION",
        )
