"""HTTP/1.1 requests and the heads of responses.

Heads are parsed strictly: ambiguous framing is refused (RFC 9112, sections 2.2, 5 and 6).
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
# Fields whose values are not a list.
_SINGLE: Final = frozenset({"content-length", "content-range", "etag", "location"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a server (RFC 9110, section 4.3.1).

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
    """Value of the field ``Host``: the host, and the port unless it is the default one."""

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _DEFAULT_PORTS[self.scheme]
        object.__setattr__(self, "authority", host if usual else f"{host}:{self.port}")

    @classmethod
    def parse(cls, scheme: str, authority: str) -> Origin:
        """Parse ``host``, ``host:port`` or ``[address]:port``.

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
    """Destination and bounds of the body of a response.

    Attributes
    ----------
    memory : memoryview or None
        Host memory, filled with the body from byte `skip` on; the bytes after that are not read. A
        shorter body is a transient failure.
    skip : int
        Bytes of the body to skip first.
    max_nbytes : int
        Length of the longest body that is kept whole, in bytes; only without `memory`.
    too_long : callable, optional
        Makes the error for a longer body from a lower bound of its length in bytes; without it the
        body is truncated.
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
        Body as kept by the :class:`BodyPlan`.
    attempts : int
        Number of requests sent for it.
    lost : bool
        Whether the server may have executed an earlier request whose response was lost.
    """

    status: int
    headers: dict[str, str]
    body: Buffer = b""
    attempts: int = 1
    lost: bool = False

    @property
    def nbytes(self) -> int | None:
        """Value of ``Content-Length`` in bytes; None if there is none."""
        length = self.headers.get("content-length")
        return None if length is None else int(length)

    @property
    def retried(self) -> str:
        """End of a message with the number of attempts; empty after a single one."""
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
        Fields, without ``Host``, ``Accept-Encoding``, ``User-Agent`` and ``Content-Length``.
    body : buffer
    plan : callable
        Makes the :class:`BodyPlan` of a successful response; its error ends the request.
    follows_redirects : bool
        Whether redirects within the origin are followed; others never are.
    """

    method: str
    target: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    body: Buffer = field(default=b"", repr=False)
    plan: Planner = collect
    follows_redirects: bool = False

    def head(self, origin: Origin, for_proxy: str | None = None) -> bytes:
        """Encode request line and header fields (RFC 9112, sections 3 and 5).

        Parameters
        ----------
        origin : Origin
        for_proxy : str, optional
            Header lines for a forwarding proxy, each with its line end; None without one.
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
    """Parse the head of a response, given without its empty line (RFC 9112, section 4).

    Raises
    ------
    StoreIOError
        If it is not one of HTTP/1.0 or 1.1, or ambiguous.
    """
    text = data.decode("latin-1")
    first, *lines = text.split("\r\n")
    # Other readers might split lines at a bare CR or LF.
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
    """Split a header line into its name, in lower case, and its value."""
    name, colon, value = line.partition(":")
    if not colon or not name or " " in name or "\t" in name:
        raise _malformed("a line is not a field")  # Perhaps it goes on with the one before.
    return name.lower(), value.strip(" \t")


_known_field = functools.lru_cache(256)(_field)  # Most lines are in every response of a server.
_USUAL_NBYTES: Final = 200


def _malformed(what: str) -> StoreIOError:
    # Only fields that frame the body are shown; others may hold secrets.
    return StoreIOError(f"the head of the HTTP response is malformed: {what}", status="UNKNOWN")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Value of ``Content-Range`` (RFC 9110, section 14.4), in bytes; None for parts it lacks.

    Attributes
    ----------
    start, stop : int or None
        Half-open range of the bytes that follow; None for an unsatisfied range.
    total : int or None
        Length of the whole value; None if the server does not tell it.
    """

    start: int | None
    stop: int | None
    total: int | None


def content_range(response: HttpResponse) -> ContentRange | None:
    """Parse ``Content-Range`` of a response; None if the field is absent or inconsistent."""
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
