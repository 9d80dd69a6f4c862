"""Facts about a group: :class:`GroupInfo`, which ``group.info`` returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpustore.display.text import Fact, shortened, text_of
from gpustore.errors import GpustoreError
from gpustore.hierarchy.tree import tree_text
from gpustore.metadata.node import Node
from gpustore.strict_json.parsing import JsonValue

_LINES = 40
"""Most lines of the tree in the text."""


@dataclass(frozen=True, slots=True, repr=False)
class GroupInfo:
    """Facts about a group and its members, as text on one screen and as JSON.

    Attributes
    ----------
    url : str
        URL that opens the group, or its kvstore if that has none.
    name : str
        Path from the root of the hierarchy, with a leading slash.
    format : str
        ``"Zarr v2 group"`` or ``"Zarr v3 group"``.
    consolidated : bool
        Whether the members are known from consolidated metadata.
    attributes : dict
        User attributes.
    nodes : dict of str to Node
        Members at any depth by path relative to the group, level by level.
    """

    url: str
    name: str
    format: str
    consolidated: bool
    attributes: Mapping[str, JsonValue]
    nodes: Mapping[str, Node]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the facts as JSON.

        Returns
        -------
        dict
            ``members`` has all nodes at any depth, by path. For an array, ``dtype`` is that of the
            metadata and ``chunk`` the shape of a stored chunk (with sharding, of a shard); None if
            the chunk grid is not regular. For an unreadable member, ``error`` is the reason.
        """
        return {
            "format": self.format,
            "consolidated": self.consolidated,
            "attributes": dict(self.attributes),
            "members": {path: dict(_member(node)) for path, node in self.nodes.items()},
        }

    def facts(self) -> list[Fact]:
        """Return names and values as short texts; further lines of a value follow newlines."""
        nodes = self.nodes.values()
        counts = [(kind, sum(node.node_type == kind for node in nodes)) for kind in _KINDS]
        unread = sum(any(name == "error" for name, _ in _member(node)) for node in nodes)
        found = [f"{n:,} {kind}{'s' * (n != 1)}" for kind, n in counts]
        found += [f"{unread:,} that cannot be read"] * (unread > 0)
        found += ["known from consolidated metadata"] * self.consolidated
        attributes = "\n".join(
            f"{name}: {shortened(json.dumps(value, ensure_ascii=False))}"
            for name, value in self.attributes.items()
        )
        return [
            ("format", self.format),
            ("attributes", attributes or "none"),
            ("below it", ", ".join(found)),
        ]

    def tree(self) -> str:
        """Draw the members as text, with shapes and data types of arrays."""
        return tree_text(self.name, self.nodes.items())

    def __repr__(self) -> str:
        lines = self.tree().split("\n")
        more = len(lines) - _LINES
        if more > 0:
            lines[_LINES:] = [f"... {more:,} more: print(group.tree()) shows all"]
        return "\n".join([text_of(self.url, self.facts()), "", *lines])


_KINDS = ("array", "group")


def group_info(group: Any) -> GroupInfo:
    """Describe a :class:`gpustore.Group`, without opening its arrays.

    Raises
    ------
    StoreIOError, UnsupportedError
        If the members cannot be listed.
    """
    return GroupInfo(
        url=place_of(group),
        name=group.name,
        format=f"Zarr v{group.zarr_format} group",
        consolidated=group.is_consolidated,
        attributes=dict(group.attrs),
        nodes=dict(group.walk()),
    )


def _member(node: Node) -> Iterator[tuple[str, JsonValue]]:
    yield "type", node.node_type
    if node.error is not None:
        yield "error", str(node.error)
        return
    try:
        attributes = dict(node.attributes)
        if node.is_array:
            yield "shape", list(node.shape)
            yield "dtype", node.document.get("data_type", node.document.get("dtype"))
            yield "chunk", _chunk(node)
        yield "attributes", attributes
    except GpustoreError as error:
        yield "error", str(error)


def _chunk(node: Node) -> list[int] | None:
    grid = node.document.get("chunk_grid")
    if isinstance(grid, dict) and grid.get("name") == "rectilinear":
        return None
    return list(node.chunk_shape)


DISPLAY = group_info


def place_of(group: Any) -> str:
    """Return the URL of a group, or its kvstore if that has none."""
    try:
        url: str = group.url
    except GpustoreError:
        return repr(group.kvstore)
    return url
