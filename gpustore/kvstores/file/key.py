"""Paths and keys of a file kvstore: parsing of URLs, and checks."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gpustore.errors import InvalidKeyError
from gpustore.kvstores.base import invalid_key
from gpustore.kvstores.file.lock import LOCK_SUFFIX
from gpustore.strict_json.parsing import quote
from gpustore.url import require_slashes

if TYPE_CHECKING:
    from gpustore.url import UrlComponent


def path_from_url(component: UrlComponent) -> str:
    """Return the path of ``file:///absolute``, ``file://relative`` or a path in shell notation."""
    path = component.path
    if component.plain:
        path = _typed(path)
    else:
        require_slashes(component)
        # The only authority that is not taken for the first part of a relative path.
        if path.startswith("localhost/"):
            path = path.removeprefix("localhost")
    return path


def _typed(path: str) -> str:
    """Expand a typed path as the shell does."""
    if "\0" in path or not _is_encodable(path):
        return path  # The system takes no such path, and `check_path` refuses it.
    path = os.path.expanduser(path)  # noqa: PTH111  keeps a slash at the end
    first, *rest = path.split("/")
    if first == ".." or ".." in rest:
        # A link is followed before ".." leaves its target.
        return os.path.realpath(path) + "/" * path.endswith("/")
    # "./x" is printed as it was typed, but "." is a directory.
    below = [name for name in rest[:-1] if name not in ("", ".")]
    last = "" if rest and rest[-1] == "." else "/".join(rest[-1:])
    return "/".join([first, *below, last]) if rest or first == "." else path


# Most paths, told legal by one call of C.
_is_plain_path: Final = re.compile(
    r"/?[0-9A-Za-z_-][0-9A-Za-z_.-]*(?:/[0-9A-Za-z_-][0-9A-Za-z_.-]*)*/?"
).fullmatch


def check_path(path: str) -> None:
    """Raise InvalidKeyError unless `path` can begin the keys of a store."""
    if _is_plain_path(path):
        return
    if not path:
        raise InvalidKeyError('Invalid file path: "": a path is needed, for example "./"')
    parts = path.removeprefix("/").removesuffix("/").split("/")
    # "./x" is how people say that a path is relative.
    if not path.startswith("/") and parts[0] == ".":
        parts[0] = "current directory"
    if (
        "\0" in path
        or not _is_encodable(path)
        or (not {"", ".", ".."}.isdisjoint(parts) and path != "/")
    ):
        raise InvalidKeyError(f"Invalid file path: {quote(path)}", key=path)


# Keys of chunks and most others, told legal by one call of C; no lock file has such a name.
is_plain: Final = re.compile(
    r"[0-9A-Za-z-][0-9A-Za-z.-]*(?:/[0-9A-Za-z-][0-9A-Za-z.-]*)*"
).fullmatch


_DOCUMENTS: Final = frozenset({".zarray", ".zattrs", ".zgroup"})


def check_tail(tail: str, key: str) -> None:
    """Raise InvalidKeyError if the part of a key below the root is illegal."""
    if tail in _DOCUMENTS:
        return
    if (
        tail[:1] in ("", "/", ".")
        or tail[-1] == "/"
        or "/." in tail
        or "//" in tail
        or "\\" in tail
        or "\0" in tail
        or tail.endswith(LOCK_SUFFIX)
        or not (tail.isascii() or _is_encodable(tail))
    ):
        _explain(tail, key)


def _explain(tail: str, key: str) -> None:
    """Raise InvalidKeyError with the reason, unless it was a false alarm (``.zarray``)."""
    if "\0" in tail:
        raise invalid_key(key, "contains NUL")
    if "\\" in tail:
        raise invalid_key(key, "contains a backslash")
    if not _is_encodable(tail):
        raise invalid_key(key, "contains a surrogate that stands for no byte")
    if tail.endswith(LOCK_SUFFIX):
        raise invalid_key(key, f'names ending in "{LOCK_SUFFIX}" are reserved')
    for part in tail.split("/"):
        if part in ("", ".", ".."):
            raise invalid_key(key, f"contains {quote(part)} as a path component")


def _is_encodable(path: str) -> bool:
    """Whether the system has a name for it; JSON can contain halves of surrogate pairs."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def parent_of(path: str) -> str:
    """Return the directory part, with its slash; ``""`` for a name in the current directory.

    >>> parent_of("/a/b/"), parent_of("/a"), parent_of("a")
    ('/a/', '/', '')
    """
    return path[: path.rstrip("/").rfind("/") + 1]
