"""What an HTTP/1.1 request and the head of its response are.

Responses are read strictly: what two readers could understand in two ways is refused (RFC 9112).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpustore.errors import MetadataError, StoreIOError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import quote

_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: .*)?")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19}|\*)")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Fields that two values make ambiguous.
_SINGLE: Final = frozenset({"content-length", "content-range", "etag", "location"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Who answers: scheme, host and port.

    Attributes
    ----------
    scheme : {"http", "https"}
    host : str
        Name or address, without brackets.
    port : int
    """

    scheme: str
    host: str
    port: int
    authority: str = field(init=False, compare=False)
    """What the field ``Host`` says: the port only if it is not the usual one."""

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _DEFAULT_PORTS[self.scheme]
        object.__setattr__(self, "authority", host if usual else f"{host}:{self.port}")

    @classmethod
    def parse(cls, scheme: str, authority: str) -> Origin:
        """Of ``host``, ``host:port`` or ``[address]:port``.

        Raises
        ------
        MetadataError
            If it is none of these; a user name and password in it are refused, since specs and
            messages would show them.
        """
        if scheme not in _DEFAULT_PORTS:
            raise MetadataError(
                f'Expected scheme of "http" or "https" but received: {quote(scheme)}'
            )
        if "@" in authority:
            raise MetadataError(
                "A user name and password are not allowed in a URL; use the context resource "
                '"http_authorization"'
            )
        if not _HOST.fullmatch(authority):
            raise MetadataError(f"Expected a host and perhaps a port, but received: {authority!r}")
        host, port = authority, ""
        if not authority.endswith("]") and ":" in authority:
            host, _, port = authority.rpartition(":")
        number = int(port) if port else _DEFAULT_PORTS[scheme]
        if not 0 < number < 65536:
            raise MetadataError(f"Expected a port below 65536, but received: {port}")
        return cls(scheme, host.strip("[]").lower(), number)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(slots=True)
class BodyPlan:
    """What to do with the body of a response.

    Attributes
    ----------
    memory : memoryview or None
        Filled with the body from byte `skip` on; what follows is not read. A shorter body is an
        error that may pass.
    skip : int
        How many bytes are passed over first.
    max_nbytes : int
        Without `memory`: the longest body that is kept whole.
    too_long : callable, optional
        Makes the error for a longer one of (at least) so many bytes; without it what is kept is
        cut.
    """

    memory: memoryview | None = None
    skip: int = 0
    max_nbytes: int = 0
    too_long: Callable[[int], Exception] | None = None


@dataclass(slots=True)
class HttpResponse:
    """A response.

    Attributes
    ----------
    status : int
    headers : dict
        Names in lower case.
    body : buffer
        As its plan said.
    attempts : int
        How many requests it took.
    lost : bool
        Whether the server may have obeyed one of them and the answer was lost.
    """

    status: int
    headers: dict[str, str]
    body: Buffer = b""
    attempts: int = 1
    lost: bool = False

    @property
    def nbytes(self) -> int | None:
        """The length that the head declares; None if it declares none."""
        length = self.headers.get("content-length")
        return None if length is None else int(length)

    @property
    def retried(self) -> str:
        """How often it was asked for, as the end of a message; empty if once."""
        return f"; {self.attempts} attempts were made" if self.attempts > 1 else ""


Planner: TypeAlias = Callable[[HttpResponse], BodyPlan]


def collect(response: HttpResponse) -> BodyPlan:
    """Keep at most 64 KiB: for responses of which only the status or a short text matters."""
    del response
    return BodyPlan(max_nbytes=1 << 16)


@dataclass(slots=True)
class HttpRequest:
    """A request, which may be sent several times.

    Attributes
    ----------
    method : str
    target : str
        Path and query, percent-encoded.
    headers : dict
        Without ``Host``, ``Accept-Encoding``, ``User-Agent`` and ``Content-Length``.
    body : buffer
    plan : callable
        What to do with the body of a successful response; its error ends the request.
    follows_redirects : bool
        Within its origin; never beyond.
    """

    method: str
    target: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    body: Buffer = field(default=b"", repr=False)
    plan: Planner = collect
    follows_redirects: bool = False

    def head(self, origin: Origin, for_proxy: str | None = None) -> bytes:
        """What is sent before the body.

        Parameters
        ----------
        origin : Origin
        for_proxy : str, optional
            If a proxy is asked to send it on: lines for it, each with its end.
        """
        target = self.target
        if for_proxy is not None:
            target = f"{origin}{target}"
        length = ""
        if len(self.body) or self.method in ("PUT", "POST"):
            length = f"Content-Length: {len(self.body)}\r\n"
        own = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        return (
            f"{self.method} {target} HTTP/1.1\r\nHost: {origin.authority}\r\n"
            f"Accept-Encoding: identity\r\nUser-Agent: gpustore\r\n{length}{own}"
            f"{for_proxy or ''}\r\n"
        ).encode("latin-1")


def parse_head(data: bytes) -> HttpResponse:
    """The response that a head without its empty line announces.

    Raises
    ------
    StoreIOError
        If it is not one of HTTP/1.0 or 1.1, or ambiguous.
    """
    text = data.decode("latin-1")
    first, *lines = text.split("\r\n")
    # Ends of lines that other readers might not take for some, and the other way round.
    if "\0" in text or not text.count("\r") == text.count("\n") == len(lines):
        raise _malformed("NUL or half of an end of line in it")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise _malformed(f"status line {first[:50]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, value = _known_field(line) if len(line) < _USUAL_NBYTES else _field(line)
        if name in headers:
            if name in _SINGLE and headers[name] != value:
                raise _malformed(f"two different fields {name!r}")
            value = value if name in _SINGLE else f"{headers[name]}, {value}"
        headers[name] = value
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 20):
        raise _malformed(f"Content-Length: {length[:50]!r}")
    coding = headers.get("transfer-encoding")
    if coding is not None and (length is not None or coding.lower() != "chunked"):
        raise _malformed(f"Transfer-Encoding: {coding[:50]!r}")
    if status[1] == "0":
        headers.setdefault("connection", "close")
    return HttpResponse(int(status[2]), headers)


def _field(line: str) -> tuple[str, str]:
    """Name, in lower case, and value of a line."""
    name, colon, value = line.partition(":")
    if not colon or not name or " " in name or "\t" in name:
        raise _malformed("a line is not a field")  # Perhaps it goes on with the one before.
    return name.lower(), value.strip(" \t")


_known_field = functools.lru_cache(256)(_field)  # Most lines are in every response of a server.
_USUAL_NBYTES: Final = 200


def _malformed(what: str) -> StoreIOError:
    # Values of other fields than those that say how long a body is are not shown.
    return StoreIOError(f"the head of the HTTP response is malformed: {what}", status="UNKNOWN")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What a field ``Content-Range`` says: ``start`` and ``stop`` are None for none; ``total``."""

    start: int | None
    stop: int | None
    total: int | None


def content_range(response: HttpResponse) -> ContentRange | None:
    """The range a response holds; None if it does not say, or not in a way that makes sense."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None:
        return None
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return ContentRange(None, None, total)
    start, stop = int(match[1]), int(match[2]) + 1
    if start >= stop or (total is not None and stop > total):
        return None
    return ContentRange(start, stop, total)
