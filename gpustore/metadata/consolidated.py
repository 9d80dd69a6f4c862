"""Consolidated metadata: one document that holds those of a whole hierarchy.

Zarr v2 (a convention of zarr-python)::

    .zmetadata: {"zarr_consolidated_format": 1, "metadata": {".zgroup": {..}, "a/.zarray": {..}}}

Zarr v3, a member of the root group's ``zarr.json``::

    "consolidated_metadata": {"kind": "inline", "must_understand": false,
                              "metadata": {"a": {..}, "a/b": {..}}}

Source: zarr-python's documentation of consolidated metadata; Zarr v3 core specification, which
tolerates the member. Members that zarr-python adds inside entries are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpustore.errors import InvalidKeyError, MetadataError
from gpustore.metadata.logical_path import logical_path
from gpustore.metadata.node import NODE_DOCUMENTS, Node, parse_node
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import REQUIRED, JsonValue, expect_object, in_member, quote, text

V2_KEY: Final = ".zmetadata"
V3_MEMBER: Final = "consolidated_metadata"


class ConsolidatedMetadata:
    """Metadata of all nodes below a group, from one document.

    Parameters
    ----------
    zarr_format : {2, 3}
        Version of the format.
    value : JsonValue
        The whole ``.zmetadata``, or the member ``consolidated_metadata``.
    where : str
        Name of the document, for messages.
    limits : Limits
        Limits of the documents in it.

    Raises
    ------
    MetadataError
        If `value` is not consolidated metadata. A wrong entry spoils only its node.
    """

    __slots__ = ("_children", "_entries", "_limits", "_nodes", "where", "zarr_format")

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
            self._entries = expect_object(document.get("metadata"))
        self._children: dict[str, list[str]] | None = None

    def node(self, path: str) -> Node | None:
        """Return the node at a normalised path, None if there is none."""
        node = self._nodes.get(path)
        if node is None:
            documents = self._documents(path)
            if documents:
                node = self._nodes[path] = self._parsed(path, documents)
        return node

    def children(self, path: str) -> list[Node]:
        """Return the nodes directly below a normalised path, sorted by name."""
        if self._children is None:
            self._children = {}
            for below in sorted(self._paths()):
                self._children.setdefault(below.rpartition("/")[0], []).append(below)
        found = (self.node(below) for below in self._children.get(path, ()))
        return [node for node in found if node is not None]

    def _paths(self) -> set[str]:
        """Return the paths of all nodes but the group itself."""
        if self.zarr_format == 3:
            paths = set(self._entries)
        else:
            parts = (key.rpartition("/") for key in self._entries)
            paths = {path for path, _, name in parts if name in (".zarray", ".zgroup")}
        paths.discard("")
        return paths

    def _documents(self, path: str) -> dict[str, JsonValue]:
        """Return the documents of one node by name; none if there is no such node."""
        if self.zarr_format == 3:
            value = self._entries.get(path, REQUIRED)
            return {} if value is REQUIRED else {"zarr.json": value}
        prefix = f"{path}/" if path else ""
        names = NODE_DOCUMENTS[2]
        return {
            name: self._entries[prefix + name] for name in names if prefix + name in self._entries
        }

    def _parsed(self, path: str, documents: dict[str, JsonValue]) -> Node:
        node = parse_node(
            path,
            self.zarr_format,
            documents,
            where=self.where,
            limits=self._limits,
            is_inside=True,
        )
        if not _is_normalised(path):
            node.node_type = None
            node.error = InvalidKeyError(f"Invalid path: {quote(path)} (in {self.where})", key=path)
        return node


def _is_normalised(path: str) -> bool:
    try:
        return logical_path(path) == path
    except InvalidKeyError:
        return False


def consolidated_document(
    zarr_format: int, nodes: Iterable[tuple[str, Node]], root: Node
) -> dict[str, JsonValue]:
    """Return the ``.zmetadata`` to store, or for v3 the member ``consolidated_metadata``.

    Parameters
    ----------
    zarr_format : {2, 3}
        Version of the format.
    nodes : iterable of (str, Node)
        All readable nodes below the group, with their paths from it.
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
