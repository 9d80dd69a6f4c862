"""A hierarchy as text: :class:`Tree` and :func:`tree_text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpustore.metadata.logical_path import join
from gpustore.metadata.node import Node, describe


class Tree(str):
    """Text that shows itself as it is in a terminal and in a notebook, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def tree_text(name: str, members: Iterable[tuple[str, Node]]) -> str:
    """Draw a hierarchy with one line for each node; arrays with their shape and data type.

    Parameters
    ----------
    name : str
        Name of the group at the top.
    members : iterable of (str, Node)
        Path relative to the group, and node; groups in any order, the nodes of one group sorted.
    """
    below: dict[str, list[tuple[str, Node]]] = {}
    for path, node in members:
        parent, _, last = path.rpartition("/")
        below.setdefault(parent, []).append((last, node))
    lines = [name]

    # A stack in place of recursion: groups may be nested deeper than Python's calls.
    stack = _rows(below.get("", []), "", "")
    while stack:
        row = stack.pop()
        text = row.name
        if row.node.error is not None:
            text += f" (unreadable: {row.node.error.text})"
        elif row.node.is_array:
            text += f" {describe(row.node)}"
        lines.append(f"{row.indent}{'└── ' if row.is_last else '├── '}{text}")
        path = join(row.parent, row.name)
        stack += _rows(below.get(path, []), path, row.indent + ("    " if row.is_last else "│   "))
    return "\n".join(lines)


class _Row(NamedTuple):
    """A node that is still to be drawn, below the branches of `indent`."""

    name: str
    node: Node
    parent: str
    indent: str
    is_last: bool


def _rows(nodes: Sequence[tuple[str, Node]], parent: str, indent: str) -> list[_Row]:
    """Return the nodes of a group, the first one last."""
    return [
        _Row(name, node, parent, indent, is_last=number == 0)
        for number, (name, node) in enumerate(reversed(nodes))
    ]
