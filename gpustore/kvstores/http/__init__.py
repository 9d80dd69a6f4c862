"""The ``http`` kvstore: values on an HTTP or HTTPS server, read-only.

JSON ``{"driver": "http", "base_url": "https://host/data?query", "path": "x.zarr/"}``, URL
``https://host/data/x.zarr/``. A key is a path on that server; the query of the base URL is added to
every request. Ranges that lie close together are one request, many requests are under way at once
(:mod:`~gpustore.kvstores.http.range_reader`), errors that may pass are retried and all waits are
bounded (:mod:`~gpustore.kvstores.http.client`).

The generation is the ``ETag`` if it is a strong one (RFC 9110, section 8.8.3). Values of a server
without strong entity tags have no generation, so a change between two reads of parts of a value is
not detected. Values are not trusted: see ``gpu_decode_trust``. A spec holds no secrets: the context
resource ``http_authorization`` names the place of one.

Source: TensorStore ``kvstore/http/index.rst``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote_to_bytes

from gpustore.errors import InvalidKeyError, MetadataError
from gpustore.kvstores.base import KvStoreDriver, references_json, take_references
from gpustore.kvstores.columns import ReadColumns, ReadRequest
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, HttpResponse, Origin
from gpustore.kvstores.http.range_reader import RemoteReader
from gpustore.strict_json.parsing import at_position, expect_list, expect_str, quote
from gpustore.url import check_segments, encode_path

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent


_RESOURCES: Final = (
    "data_copy_concurrency",
    "http_authorization",
    "http_request_concurrency",
    "http_request_retries",
    "http_request_timeouts",
)
_URL: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?")
_TAG: Final = re.compile(rb'"[!#-~\x80-\xff]+"')
_PLAIN: Final = re.compile(r"[A-Za-z0-9/._~-]*")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]*)(:(.*))?", re.DOTALL)
# Names of secrets: a spec is shown and stored.
_SECRET: Final = re.compile(
    "auth(?!ors?(?:$|[-_]))|cookie|credential|passw|secret|session|signature|token|(?:^|[-_]|api)key(?:$|[-_])"
)
# Fields that frame or condition a request are set by the client alone.
_RESERVED: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "if-match"),
        *("if-none-match", "if-range", "range", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class HttpKvStore(KvStoreDriver):
    """An opened http kvstore.

    Parameters
    ----------
    spec : HttpSpec
    resources : mapping
        Resolved context resources, by identifier.
    """

    id = "http"
    can_write = False
    can_list = False
    is_trusted = False
    batch_nbytes = 32 << 20

    def __init__(self, spec: HttpSpec, resources: Mapping[str, Context.Resource]) -> None:
        self._spec = spec
        self._resources = resources
        self.executor = resources["data_copy_concurrency"].value
        client = HttpClient(
            spec.origin,
            permits=resources["http_request_concurrency"].value,
            retries=resources["http_request_retries"].value,
            timeouts=resources["http_request_timeouts"].value,
        )
        sent_as = resources["http_authorization"].value.sent_as.lower()
        if sent_as in _RESERVED or any(
            line.lower().startswith(f"{sent_as}:") for line in spec.headers
        ):
            raise MetadataError(
                f"http_authorization: HTTP header {quote(sent_as)} is set by the spec, or by "
                f"gpustore itself"
            )
        self._reader = RemoteReader(
            client=client,
            requests=self._requests,
            generation=_generation,
            not_if=_not_if,
            describe=self.describe,
            check_key=self.check_key,
        )

    @property
    def spec(self) -> HttpSpec:
        return self._spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._resources

    @property
    def identity(self) -> Hashable:
        authorization = self._resources["http_authorization"].value
        return "http", self._spec.base_url, self._spec.headers, authorization

    def describe(self, key: str) -> str:
        # Without the query, which may hold a token.
        try:
            path = self._spec.target(key).partition("?")[0]
        except InvalidKeyError:
            path = key
        return quote(f"{self._spec.origin}{path}")

    def check_key(self, key: str) -> None:
        check_path(key)

    def read_many(self, request: ReadRequest) -> ReadColumns:
        return self._reader.read_many(request)

    def _requests(self, asked: Sequence[tuple[str, str]]) -> Iterator[HttpRequest]:
        headers: dict[str, str] = {}
        for line in self._spec.headers:
            name, _, value = line.partition(":")
            headers[name] = (
                f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
            )
        source = self._resources["http_authorization"].value
        authorization = source.read()
        query = ""
        if authorization and source.sent_as == "query":
            separator = "?" if self._spec.query is None else "&"
            query = separator + encode_query(authorization.removeprefix("?")).replace("#", "%23")
        elif authorization:
            headers[source.sent_as] = authorization
        target = self._spec.target
        return (
            HttpRequest(method, target(key) + query, headers.copy(), follows_redirects=True)
            for method, key in asked
        )


def _generation(response: HttpResponse) -> bytes:
    """Return the strong entity tag of a response; ``b""`` if it is weak or absent."""
    tag = response.headers.get("etag", "")
    return tag.encode("latin-1") if tag.startswith('"') and len(tag) > 2 else b""


def _not_if(generation: bytes) -> tuple[str, str] | None:
    """Return the field ``If-None-Match``; None if `generation` is not a strong entity tag."""
    if not _TAG.fullmatch(generation):
        return None
    return "If-None-Match", generation.decode("latin-1")


def check_path(path: str) -> None:
    """Raise InvalidKeyError unless `path` is a URL path without NUL, ``.`` and ``..`` segments."""
    if _PLAIN.fullmatch(path) and "/." not in path and not path.startswith("."):
        return
    check_segments(path)
    if "\0" in path or not {".", ".."}.isdisjoint(path.split("/")):
        raise InvalidKeyError(
            f'Invalid key: {quote(path)}: expected a path without NUL, "." and ".."', key=path
        )
    encode_path(path)


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """Parsed spec of an http kvstore.

    Attributes
    ----------
    origin : Origin
        Scheme, host and port of ``base_url``.
    base_path : str
        Percent-encoded prefix of every path; empty unless decoding it would change its meaning.
    query : str or None
        Query added to every request, as given in ``base_url``.
    headers : tuple of str
        Header fields of every request, as lines ``name: value``.
    references : mapping
        Context resources that are not the default ones, by identifier.
    """

    origin: Origin
    base_path: str = ""
    query: str | None = None
    headers: tuple[str, ...] = ()
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "http"
    base = None

    @property
    def base_url(self) -> str:
        """The member ``base_url``."""
        query = "" if self.query is None else f"?{self.query}"
        return f"{self.origin}{self.base_path}{query}"

    def target(self, path: str) -> str:
        """Path and query of a request for `path`."""
        separator = "" if path.startswith("/") or (not path and self.base_path) else "/"
        query = "" if self.query is None else f"?{encode_query(self.query)}"
        encoded = path if _PLAIN.fullmatch(path) else encode_path(path)
        # A path that stays encoded is as typed otherwise, with line ends for instance.
        return f"{encode_query(self.base_path)}{separator}{encoded}{query}"

    def without_references(self) -> HttpSpec:
        return HttpSpec(self.origin, self.base_path, self.query, self.headers)

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        json = references_json(_RESOURCES, self.references, include_defaults=include_defaults)
        json["base_url"] = self.base_url
        if include_defaults or self.headers:
            json["headers"] = list(self.headers)
        return json

    def to_url(self, path: str) -> str:
        query = "" if self.query is None else f"?{self.query}"
        separator = "/" if path and not path.startswith("/") else ""
        return f"{self.origin}{self.base_path}{separator}{encode_path(path)}{query}"

    def open(self, context: Context, path: str) -> HttpKvStore:
        del path
        resources = {id: context.resource(id, self.references.get(id)) for id in _RESOURCES}
        return HttpKvStore(self, resources)


def encode_query(query: str) -> str:
    """Percent-encode the characters of a query or path that a request line cannot hold."""
    return "".join(
        char
        if char.isascii() and char.isprintable() and char not in ' "<>`'
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in query
    )


def _parse_url(url: str) -> HttpSpec:
    """Parse a URL into a spec whose ``base_path`` is the path of the URL."""
    match = _URL.fullmatch(url)
    if match is None:
        raise MetadataError(f"Expected a URL, but received: {quote(url)}")
    scheme, authority, encoded, query, fragment = match.groups()
    if fragment is not None:
        raise MetadataError("Fragment identifier not supported")
    for parameter in re.split("[&;]", query or ""):
        name = unquote_to_bytes(parameter.partition("=")[0]).decode("latin-1")
        if name == "sig" or _SECRET.search(name.lower()):
            raise MetadataError(
                f"A query with {quote(name)} is not allowed in a URL, which is shown and stored; "
                f'the context resource "http_authorization" says where a secret is'
            )
    return HttpSpec(Origin.parse(scheme or "", authority), encoded, query)


def _decode(encoded: str) -> str | None:
    """Decode a path; None if the decoded path would have another meaning."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", encoded):
        raise MetadataError(f"Invalid percent-encoding: {quote(encoded)}")
    try:
        decoded = unquote_to_bytes(encoded).decode()
    except UnicodeError:
        return None
    return None if "%2f" in encoded.lower() else decoded


def _parse_headers(json: JsonValue) -> tuple[str, ...]:
    lines = []
    for position, value in enumerate(expect_list(json)):
        with at_position(position):
            line = expect_str(value)
            name, colon, _ = line.partition(":")
            if _SECRET.search(name.lower()):
                raise MetadataError(
                    f"HTTP header {quote(name)} is not allowed in a spec, which is shown and "
                    f'stored; the context resource "http_authorization" says where a secret is'
                )
            match = _HEADER.fullmatch(line)
            if match is None or match[2] is None:
                raise MetadataError(f"Invalid HTTP header: {quote(name + colon)}")
            if not match[1]:
                raise MetadataError("Empty HTTP header field name")
            if not all(char == "\t" or " " <= char <= "~" for char in match[3]):
                raise MetadataError(f"Invalid HTTP header field value: {quote(match[3])}")
            name = name.lower()
            if name in _RESERVED:
                raise MetadataError(f"HTTP header {quote(match[1])} is set by gpustore itself")
            lines.append(line)
    return tuple(lines)


class _Kind:
    """Parses both forms of an http spec."""

    id = "http"
    is_adapter: Literal[False] = False
    schemes = ("http", "https")

    def from_json(self, members: Members) -> HttpSpec:
        spec = members.take_with("base_url", lambda value: _parse_url(expect_str(value)))
        headers = members.take_with("headers", _parse_headers, ())
        references = take_references(members, _RESOURCES)
        return replace(spec, headers=headers, references=references)

    def joined(self, driver: HttpSpec, path: str) -> tuple[HttpSpec, str]:
        base = _decode(driver.base_path)
        if base is None:
            return driver, path
        if path.startswith("/") and base not in ("", "/"):
            raise MetadataError(
                f"Cannot specify absolute path {quote(path)} in conjunction with base URL "
                f"{quote(driver.base_url)} which already includes the path component {quote(base)}"
            )
        if path.startswith("/") or not base:
            base = ""
        elif path and not base.endswith("/"):
            base += "/"
        return replace(driver, base_path=""), base + path

    def from_url(self, component: UrlComponent) -> tuple[HttpSpec, str]:
        if component.fragment is not None:
            raise component.error("kvstore", "Fragment identifier not supported")
        if not component.slashes:
            scheme = component.scheme
            raise component.error("kvstore", f'Scheme "{scheme}://" not present in url')
        return self.joined(_parse_url(component.text), "")

    def check_path(self, path: str) -> None:
        check_path(path)


DRIVER = _Kind()
