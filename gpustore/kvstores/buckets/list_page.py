"""What is looked at in a page of a list before obstore reads it.

obstore asks for pages until one says that it is the last, whatever they contain, and takes the key
``a/``, with which consoles make a directory visible, for ``a``, and ``/a`` too.

Source: Amazon S3 API reference, ListObjectsV2; Google's XML API answers in the same words.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode

from gpustore.errors import StoreIOError
from gpustore.strict_json.parsing import quote

_MOST_IDLE: Final = 100
"""So many pages in succession may have nothing new: each may be empty, but not all."""
_MOST_LISTS: Final = 1024
_TOKEN_NBYTES: Final = 1 << 14
_NAME_NBYTES: Final = 2048


@dataclass(slots=True)
class ListPages:
    """Pages of all lists of a bucket. Thread-safe.

    The next page of a list is known by the token that names it.
    """

    _known: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)

    def checked(self, query: str, page: bytes) -> bytes:
        """What obstore is given instead of a page.

        Parameters
        ----------
        query : str
            What was asked for.
        page : bytes

        Raises
        ------
        StoreIOError
            If the list does not get on, or has a key that obstore would change.
        """
        self._check_progress(query, page)
        if b"/</Key>" in page:
            page = _without_directories(page)
        at = page.find(b"<Key>/")
        if at >= 0:
            key = html.unescape(page[at + 5 :].partition(b"<")[0][:_NAME_NBYTES].decode("latin-1"))
            raise StoreIOError(
                f"the bucket has the key {quote(key)}, which begins with a slash and cannot be "
                "named here",
                status="FAILED_PRECONDITION",
            )
        return page

    def _check_progress(self, query: str, page: bytes) -> None:
        token = _last(page, b"NextContinuationToken")
        if not token:
            return
        members = dict(parse_qsl(query))
        asked = members.pop("continuation-token", "")
        list_ = urlencode(members)
        last, idle = self._known.get((list_, asked), ("", 0)) if asked else ("", 0)
        name = max(_last(page, b"Key")[:_NAME_NBYTES], _last(page, b"Prefix")[:_NAME_NBYTES])
        idle = 0 if name > last else idle + 1
        if idle > _MOST_IDLE or len(token) > _TOKEN_NBYTES:
            raise StoreIOError("the list of keys does not get on", status="UNKNOWN")
        self._known[list_, token] = max(last, name), idle
        for old in list(self._known)[:-_MOST_LISTS]:
            self._known.pop(old, None)


def _last(page: bytes, name: bytes) -> str:
    """What the last element of that name contains; empty if there is none."""
    end = page.rfind(b"</" + name + b">")
    begin = page.rfind(b"<" + name + b">", 0, max(0, end))
    text = page[begin + len(name) + 2 : end] if begin >= 0 else b""
    return html.unescape(text[: 8 * _TOKEN_NBYTES].decode("utf-8", "replace"))


def _without_directories(page: bytes) -> bytes:
    """A page without keys that end with a slash."""
    first, *rest = page.split(b"<Contents>")
    kept = [first]
    for part in rest:
        entry, _, behind = part.partition(b"</Contents>")
        kept.append(behind if b"/</Key>" in entry else b"<Contents>" + part)
    return b"".join(kept)
