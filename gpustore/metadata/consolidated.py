"""Consolidated metadata: the documents of a whole hierarchy in one.

Zarr v2 (a convention of zarr-python)::

    .zmetadata: {"zarr_consolidated_format": 1, "metadata": {".zgroup": {..}, "a/.zarray": {..}}}

Zarr v3, a member of the root group's ``zarr.json``::

    "consolidated_metadata": {"kind": "inline", "must_understand": false,
                              "metadata": {"a": {..}, "a/b": {..}}}

Source: zarr-python's documentation of consolidated metadata; Zarr v3 core specification, which
tolerates the member. Members that zarr-python adds inside entries are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpustore._json import JsonValue, expect_object, in_member, quote, text
from gpustore.errors import InvalidKeyError, MetadataError
from gpustore.limits import Limits
from gpustore.metadata.logical_path import logical_path
from gpustore.metadata.node import Node, parse_node

__all__ = ["V2_KEY", "V3_MEMBER", "ConsolidatedMetadata", "consolidated_document"]

V2_KEY: Final = ".zmetadata"
V3_MEMBER: Final = "consolidated_metadata"

_DOCUMENT: Final = {".zarray", ".zgroup", ".zattrs"}


class ConsolidatedMetadata:
    """What one document says about all nodes below a group.

    Parameters
    ----------
    zarr_format : {2, 3}
    value : JsonValue
        The whole ``.zmetadata``, or the member ``consolidated_metadata``.
    where : str
        What messages call the document.
    limits : Limits

    Raises
    ------
    MetadataError
        If it is not consolidated metadata. A wrong entry spoils only its node.
    """

    __slots__ = ("_children", "_documents", "_limits", "_nodes", "where", "zarr_format")

    def __init__(self, zarr_format: int, value: JsonValue, *, where: str, limits: Limits) -> None:
        self.zarr_format = zarr_format
        self.where = where
        self._limits = limits
        self._nodes: dict[str, Node] = {}
        document = expect_object(value)
        member, expected = (
            ("zarr_consolidated_format", 1) if zarr_format == 2 else ("kind", "inline")
        )
        if document.get(member) != expected:
            raise MetadataError(
                f"{quote(member)}: expected {text(expected)}, "
                f"but received: {text(document.get(member))}"
            )
        with in_member("metadata"):
            entries = expect_object(document.get("metadata"))
        self._documents = entries if zarr_format == 3 else _by_path(entries)
        self._children: dict[str, list[str]] | None = None

    def node(self, path: str) -> Node | None:
        """The node at a normalised path; None if there is none."""
        node = self._nodes.get(path)
        if node is None and path in self._documents:
            node = self._nodes[path] = self._parsed(path)
        return node

    def children(self, path: str) -> list[Node]:
        """Nodes directly below a normalised path, by name."""
        if self._children is None:
            self._children = {}
            for below in sorted(filter(None, self._documents)):
                self._children.setdefault(below.rpartition("/")[0], []).append(below)
        found = (self.node(below) for below in self._children.get(path, ()))
        return [node for node in found if node is not None]

    def _parsed(self, path: str) -> Node:
        value = self._documents[path]
        documents = {"zarr.json": value} if self.zarr_format == 3 else value
        if self.zarr_format == 2 and not documents.keys() & {".zarray", ".zgroup"}:
            documents = {**documents, ".zgroup": None}
        where = f"{quote(path)} in {self.where}"
        node = parse_node(path, self.zarr_format, documents, where=where, limits=self._limits)
        if not _is_normalised(path):
            node.node_type = None
            node.error = InvalidKeyError(f"Invalid path: {quote(path)} (in {self.where})", key=path)
        return node


def _is_normalised(path: str) -> bool:
    try:
        return logical_path(path) == path
    except InvalidKeyError:
        return False


def _by_path(entries: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Documents of Zarr v2 by path and name; keys that are none of theirs are dropped."""
    found: dict[str, JsonValue] = {}
    for key, value in entries.items():
        path, _, name = key.rpartition("/")
        if name in _DOCUMENT:
            found.setdefault(path, {})[name] = value
    return found


def consolidated_document(
    zarr_format: int, nodes: Iterable[tuple[str, Node]], root: Node
) -> dict[str, JsonValue]:
    """What to store: the whole ``.zmetadata``, or the member ``consolidated_metadata``.

    Parameters
    ----------
    zarr_format : {2, 3}
    nodes : iterable of (str, Node)
        All nodes below the group, readable ones, with their paths from it.
    root : Node
        The group itself.
    """
    if zarr_format == 3:
        metadata = {
            path: {name: value for name, value in node.document.items() if name != V3_MEMBER}
            for path, node in nodes
        }
        return {"kind": "inline", "must_understand": False, "metadata": metadata}
    keys: dict[str, JsonValue] = {}
    for path, node in (("", root), *nodes):
        prefix = f"{path}/" if path else ""
        keys[prefix + (".zarray" if node.is_array else ".zgroup")] = dict(node.document)
        keys[prefix + ".zattrs"] = dict(node.attributes)
    return {"zarr_consolidated_format": 1, "metadata": keys}
