"""Lists of the keys in a bucket, page by page.

A page is XML of bounded length without a document type. Each page must name later keys than the one
before, so that a list ends.

Sources: Amazon S3 API reference, "ListObjectsV2"; Google Cloud Storage XML API, "List objects".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes
from xml.etree.ElementTree import Element, ParseError, fromstring

from gpustore.errors import LimitError, StoreIOError
from gpustore.kvstores.buckets.authorization import Asked
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import BodyPlan, HttpRequest, HttpResponse

PAGE_NBYTES: Final = 16 << 20
"""Longest page in bytes, enough for 1000 keys of 1 KiB with every byte percent-encoded."""

_MOST_EMPTY: Final = 100
"""Most pages without a key in succession."""

_TOKEN_NBYTES: Final = 1 << 14


@dataclass(slots=True)
class Page:
    """One page of a list of keys.

    Attributes
    ----------
    nbytes : dict
        Sizes of values in bytes, by key.
    directories : list of str
        Distinct beginnings of the other keys, up to and with the delimiter behind the prefix.
    token : str
        Continuation token of the next page; empty on the last one.
    """

    nbytes: dict[str, int] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    token: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Lists the keys of one bucket.

    Attributes
    ----------
    client : HttpClient
    requests : callable
        Makes requests with credentials, :meth:`Authorization.requests`.
    path : str
        Path of the bucket, percent-encoded.
    """

    client: HttpClient
    requests: Callable[[Iterable[Asked]], Iterator[HttpRequest]]
    path: str

    def pages(self, prefix: str, after: str = "", delimiter: str = "") -> Iterator[Page]:
        """List the keys that begin with `prefix` and come behind `after`, in ascending order.

        Raises
        ------
        StoreIOError, LimitError
            If the server refuses, repeats keys, sends too many bytes or a malformed page.
        """
        asked = {"encoding-type": "url", "list-type": "2"}
        given = {"prefix": prefix, "start-after": after, "delimiter": delimiter}
        asked |= {name: value for name, value in given.items() if value}
        last, empty = "", 0
        while True:
            # Signatures require this order and encoding.
            query = "&".join(f"{name}={quote(asked[name], safe='')}" for name in sorted(asked))
            [request] = self.requests([("GET", self.path, query)])
            request.plan = _page
            response = self.client.send_one(request)
            if not 200 <= response.status < 300:
                raise self.client.status_error(response)
            page = parse_page(bytes(response.body))
            latest = max([*page.nbytes, *page.directories], default="")
            empty = 0 if latest else empty + 1
            if (latest and latest <= last) or empty > _MOST_EMPTY:
                raise StoreIOError("the list of keys does not get on", status="UNKNOWN")
            last = latest or last
            yield page
            if not page.token:
                return
            asked["continuation-token"] = page.token


def _page(response: HttpResponse) -> BodyPlan:
    del response

    def too_long(nbytes: int) -> LimitError:
        return LimitError(
            f"the response has {nbytes} bytes or more, at most {PAGE_NBYTES} are expected"
        )

    return BodyPlan(max_nbytes=PAGE_NBYTES, too_long=too_long)


def parse_page(body: bytes) -> Page:
    """Parse a page, the body of a response to ListObjectsV2.

    Raises
    ------
    StoreIOError
        If `body` is malformed, or truncated without a continuation token.
    """
    page = Page()
    try:
        root = parse_xml(body, "ListBucketResult")
        kind = root.tag.removesuffix("ListBucketResult")  # The namespace.
        encoded = root.findtext(f"{kind}EncodingType") == "url"
        for child in root.iter(f"{kind}Contents"):
            key = _name(_text(child, f"{kind}Key"), encoded)
            page.nbytes[key] = _nbytes(_text(child, f"{kind}Size"))
        for child in root.iter(f"{kind}CommonPrefixes"):
            page.directories.append(_name(_text(child, f"{kind}Prefix"), encoded))
        page.token = root.findtext(f"{kind}NextContinuationToken") or ""
        is_cut = root.findtext(f"{kind}IsTruncated") == "true"
    except (ValueError, UnicodeDecodeError):
        raise StoreIOError("the response is not a list of keys", status="UNKNOWN") from None
    if (is_cut and not page.token) or len(page.token) > _TOKEN_NBYTES:
        raise StoreIOError("the list of keys does not get on", status="UNKNOWN")
    return page


def parse_xml(body: bytes, name: str) -> Element:
    """Parse a short document with the root element `name`; ValueError if it has another one.

    A document type is refused: entities it declares could expand without bound. The search for it
    is valid because documents with NUL are refused as well: in all other encodings of the parser,
    ASCII letters are ASCII bytes.
    """
    if b"\0" in body or b"<!DOCTYPE" in body:
        raise ValueError("document type")
    try:
        root = fromstring(body.strip())
    except (ParseError, LookupError) as error:  # LookupError: of the encoding.
        raise ValueError("not XML") from error
    if root.tag.rpartition("}")[2] != name:
        raise ValueError("another element")
    return root


def _text(element: Element, tag: str) -> str:
    text = element.findtext(tag)
    if not text:
        raise ValueError(tag)
    return text


def _nbytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _name(text: str, encoded: bool) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode() if encoded else text
