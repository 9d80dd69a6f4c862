"""A hierarchy as text: :class:`Tree` and :func:`tree_text`."""

from __future__ import annotations

from collections.abc import Iterable

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

    def add(parent: str, indent: str) -> None:
        nodes = below.get(parent, [])
        for i, (name, node) in enumerate(nodes):
            last = i + 1 == len(nodes)
            text = name
            if node.error is not None:
                text += f" (unreadable: {node.error.text})"
            elif node.is_array:
                text += f" {describe(node)}"
            lines.append(f"{indent}{'└── ' if last else '├── '}{text}")
            add(join(parent, name), indent + ("    " if last else "│   "))

    add("", "")
    return "\n".join(lines)
