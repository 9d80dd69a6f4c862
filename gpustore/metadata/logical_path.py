"""Logical paths of nodes in a hierarchy: ``"foo/bar"``; the root is ``""``.

Source: Zarr v2 specification, "Logical storage paths"; Zarr v3 core specification, "Node names".
"""

from __future__ import annotations

import re

from gpustore.errors import InvalidKeyError
from gpustore.strict_json.parsing import quote

_SLASHES = re.compile(r"[/\\]+")

# Names of metadata documents: a node of that name would take the place of its parent's document.
_DOCUMENTS = {
    2: frozenset({".zarray", ".zgroup", ".zattrs", ".zmetadata"}),
    3: frozenset({"zarr.json"}),
}


def logical_path(path: str) -> str:
    r"""Normalise a path as the Zarr v2 specification demands.

    Backslashes become slashes, repeated slashes one, leading and trailing ones are dropped.

    Raises
    ------
    InvalidKeyError
        If a segment of the result is ``.`` or ``..``.

    Examples
    --------
    >>> logical_path("\\foo//bar/")
    'foo/bar'
    """
    normalised = path
    if "/" in path or "\\" in path:
        normalised = _SLASHES.sub("/", path).strip("/")
    if "." in normalised:
        for segment in normalised.split("/"):
            if segment in (".", ".."):
                raise InvalidKeyError(
                    f'Invalid path: {quote(path)}: "{segment}" is not allowed in a logical path, '
                    f"write the path without it",
                    key=path,
                )
    return normalised


def join(parent: str, path: str) -> str:
    """Return the normalised path of `path` below the normalised path `parent`."""
    return f"{parent}/{path}" if parent and path else parent or path


def ancestors(path: str) -> list[str]:
    """Return the paths of all groups above a normalised path, the root first.

    >>> ancestors("a/b/c")
    ['', 'a', 'a/b']
    """
    segments = path.split("/") if path else []
    return ["/".join(segments[:n]) for n in range(len(segments))]


def check_node_names(path: str, zarr_format: int) -> None:
    """Raise InvalidKeyError if no node may be created at a normalised path.

    Names of metadata documents are not allowed, and in v3 the names that the specification
    reserves: those that begin with ``__`` or consist of dots.
    """
    for name in path.split("/") if path else []:
        reason = ""
        if name in _DOCUMENTS[zarr_format]:
            reason = "is the name of a metadata document"
        elif zarr_format == 3 and name.startswith("__"):
            reason = 'begins with "__", which Zarr v3 reserves'
        elif zarr_format == 3 and not name.strip("."):
            reason = "consists of dots, which Zarr v3 does not allow"
        if reason:
            raise InvalidKeyError(
                f"Invalid path: {quote(path)}: the name {quote(name)} {reason}; choose another",
                key=path,
            )
