"""Syntax of URL pipelines: ``root://path|adapter:path|driver:path|cast:dtype``.

A pipeline is a root and the adapters and drivers applied to it, from left to right, separated by
``|``. Each component is ``scheme:path?query#fragment``; the root has ``//`` before its path, the
others may leave out the colon. Paths are percent-encoded UTF-8. Instead of a root there may be a
plain file path, which is taken literally: ``/data/50%.zarr|zarr3:``.

This module knows the syntax only. Callers know which schemes exist and what their paths mean, and
pass their errors through :func:`about_url`.

Source: TensorStore's page "URLs", :rfc:`3986` for percent-encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote as percent_encode
from urllib.parse import unquote, unquote_to_bytes

from gpustore.errors import GpustoreError, InvalidKeyError, MetadataError
from gpustore.strict_json.parsing import quote

# Never encoded by TensorStore, besides letters, digits and -._~ .
_UNENCODED = "!$&'()*+,/:;="

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_+.-]*")
# A single letter is a drive: C:\data.
_ROOT = re.compile(r"([A-Za-z][A-Za-z0-9_+.-]+):(//)?")
# Parts that may be secret: user name and password, and the query sent to a web server.
_USER = re.compile(r"(?<=//)[^/|?#]*@")
_QUERY = re.compile(r"\Ahttps?://[^|?#]*(\?[^|]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UrlComponent:
    """One component of a URL pipeline.

    Attributes
    ----------
    scheme : str
        Scheme as typed; ``"file"`` for a plain path.
    path : str
        Text behind the colon and slashes, percent-decoded; of ``http://host/p`` with the host.
    slashes : bool
        Whether ``//`` preceded the path.
    query, fragment : str or None
        Text behind ``?`` and ``#``, as typed; None if the component has none.
    plain : bool
        Whether the component is a plain file path, not a URL.
    raw : str
        The whole component as typed, empty if it was not parsed; not compared by ``==``.
    """

    scheme: str
    path: str = ""
    slashes: bool = False
    query: str | None = None
    fragment: str | None = None
    plain: bool = False
    raw: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Format the component as a URL whose parsing gives an equal component."""
        if self.plain:
            return self.path
        path = encode_path(self.path)
        if not self.slashes and path.startswith("//"):
            path = "/%2F" + path[2:]
        query = "" if self.query is None else f"?{self.query}"
        fragment = "" if self.fragment is None else f"#{self.fragment}"
        return f"{self.scheme}:{'//' if self.slashes else ''}{path}{query}{fragment}"

    @property
    def text(self) -> str:
        """Text of the component as typed, with its colon."""
        return self.raw if ":" in self.raw else str(self)

    def require_path_only(self, kind: str) -> None:
        """Raise MetadataError if there is a query or a fragment.

        Parameters
        ----------
        kind : str
            Kind of the scheme, for the message: ``"kvstore"`` or ``"TensorStore"``.
        """
        if self.query is not None:
            raise self.error(kind, "Query string not supported")
        if self.fragment is not None:
            raise self.error(kind, "Fragment identifier not supported")

    def error(self, kind: str, reason: str) -> MetadataError:
        """Return the error for an invalid component; `kind` as in :meth:`require_path_only`."""
        return _invalid(kind, self.text, reason)


def _invalid(kind: str, component: str, reason: str) -> MetadataError:
    return MetadataError(f"Invalid {kind} URL component {quote(component)}: {reason}")


def parse_pipeline(
    url: str, is_kvstore: Callable[[str], bool] = lambda _: False
) -> tuple[UrlComponent, ...]:
    """Split `url` into its components, the root first.

    Parameters
    ----------
    url : str
    is_kvstore : callable
        ``is_kvstore(scheme)`` is whether messages call the scheme a kvstore; all others but the
        root are TensorStores.

    Returns
    -------
    tuple of UrlComponent, length at least 1

    Raises
    ------
    MetadataError
        If the syntax is wrong.
    InvalidKeyError
        If a decoded path contains ``..``: it is never normalised away.

    Examples
    --------
    >>> for component in parse_pipeline("file:///tmp/x%20y.zarr/|zarr3:a/b|cast:float32"):
    ...     print(component.scheme, component.slashes, component.path)
    file True /tmp/x y.zarr/
    zarr3 False a/b
    cast False float32
    >>> parse_pipeline("./50%.zarr|zarr3")[0].path
    './50%.zarr'
    """
    if not url:
        raise MetadataError("URL must be non-empty")
    root, *rest = url.split("|")
    return (_parse_root(root), *(_parse_applied(text, is_kvstore) for text in rest))


def about_url(error: GpustoreError, url: str) -> GpustoreError:
    """Return `error` with `url` in its message, the secrets that `url` may hold left out.

    >>> print(about_url(MetadataError("Not known"), "https://me:secret@host/x?token=1|zip:"))
    Parsing spec from url: "https://***@host/x?***|zip:": Not known
    """
    text = error.prefixed(f"Parsing spec from url: {quote(url)}").text
    for secret in (*_USER.findall(url), *_QUERY.findall(url)):
        hidden = "?***" if secret.startswith("?") else "***@"
        for form in (secret, unquote(secret)):
            text = text.replace(form, hidden).replace(quote(form)[1:-1], hidden)
    return error.reworded(text)


def encode_path(path: str) -> str:
    """Return `path` percent-encoded as TensorStore does, as UTF-8.

    >>> encode_path("/tmp/x y@z")
    '/tmp/x%20y%40z'
    """
    try:
        return percent_encode(path, safe=_UNENCODED)
    except UnicodeEncodeError:
        raise InvalidKeyError(f"Invalid key: {quote(path)}: not Unicode") from None


def check_segments(path: str) -> None:
    """Raise InvalidKeyError if a segment of `path` is ``..``; a backslash separates as well."""
    if ".." in path and ".." in re.split(r"[/\\]", path):
        raise InvalidKeyError(
            f'Invalid key: {quote(path)}: ".." is not allowed, write the path without it'
        )


def _parse_root(text: str) -> UrlComponent:
    match = _ROOT.match(text)
    if match:
        return _parse_rest(match[1], match[2] is not None, text, match.end(), "kvstore")
    if not text or "://" in text:
        scheme = text.split(":", 1)[0]
        raise MetadataError(f"unsupported URL scheme: {quote(scheme)}")
    # A person typed this path, so ".." means what it means in a shell; see `path_from_url`.
    return UrlComponent("file", text, plain=True, raw=text)


def _parse_applied(text: str, is_kvstore: Callable[[str], bool]) -> UrlComponent:
    scheme, colon, rest = text.partition(":")
    if not _SCHEME.fullmatch(scheme):
        raise MetadataError(f"unsupported URL scheme: {quote(scheme)}")
    slashes = rest.startswith("//")
    start = len(scheme) + len(colon) + (2 if slashes else 0)
    kind = "kvstore" if is_kvstore(scheme) else "TensorStore"
    return _parse_rest(scheme, slashes, text, start, kind)


def _parse_rest(scheme: str, slashes: bool, text: str, start: int, kind: str) -> UrlComponent:
    rest, hash_mark, fragment = text[start:].partition("#")
    path, question_mark, query = rest.partition("?")
    try:
        path = _decode(path)
    except ValueError as error:
        raise _invalid(kind, text, str(error)) from None
    check_segments(path)
    return UrlComponent(
        scheme,
        path,
        slashes,
        query if question_mark else None,
        fragment if hash_mark else None,
        raw=text,
    )


def _decode(path: str) -> str:
    wrong = re.search(r"%(?![0-9A-Fa-f]{2})", path)
    if wrong:
        raise ValueError(f"Invalid percent-encoding at position {wrong.start()}: {quote(path)}")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeError:
        raise ValueError(f"Invalid UTF-8 percent-encoding sequence: {quote(path)}") from None


def require_slashes(component: UrlComponent) -> None:
    """Raise MetadataError unless a URL component is ``scheme://path``, without query."""
    component.require_path_only("kvstore")
    if not component.slashes:
        scheme = component.scheme
        raise component.error("kvstore", f'Scheme "{scheme}://" not present in url')


def require_no_slashes(component: UrlComponent) -> None:
    """Raise MetadataError unless a URL component is ``scheme:path``, without query."""
    component.require_path_only("kvstore")
    if component.slashes:
        scheme = component.scheme
        raise component.error("kvstore", f'Scheme "{scheme}:" not present in url')
