"""Groups as HTML for notebooks: a table of facts above a tree that opens and closes by itself."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import islice
from typing import Any

from gpustore.display.array_html import page
from gpustore.display.group_info import place_of
from gpustore.display.text import shortened
from gpustore.errors import GpustoreError
from gpustore.metadata.logical_path import join
from gpustore.metadata.node import Node, describe

_MOST = 300
"""Most members that are shown."""


def group_html(group: Any) -> str:
    """Describe a :class:`gpustore.Group`, whose members are listed but not opened."""
    facts = [("format", f"Zarr v{group.zarr_format}")]
    if group.is_consolidated:
        facts.append(("members", "known from consolidated metadata"))
    try:
        names = shortened(", ".join(group.attrs))
        found = dict(islice(group.walk(), _MOST + 1))
    except GpustoreError as error:
        return page("gpustore.Group", place_of(group), [*facts, ("unreadable", str(error))], "")
    facts.append(("attributes", names or "none"))
    more = len(found) > _MOST
    if more:
        found.popitem()
    below: dict[str, dict[str, Node]] = {}
    for path, node in found.items():
        parent, _, name = path.rpartition("/")
        below.setdefault(parent, {})[name] = node
    end = "<div>... and more: <code>print(group.tree())</code> shows all</div>" * more
    tree = _list("", below) if found else "<div>no members</div>"
    return page(
        "gpustore.Group", place_of(group), facts, f'<div style="width:100%">{tree}{end}</div>'
    )


def _list(parent: str, below: Mapping[str, Mapping[str, Node]]) -> str:
    items = []
    for name, node in below.get(parent, {}).items():
        path = join(parent, name)
        text = escape(name)
        if node.error is not None:
            text += f' <span style="opacity:.7">unreadable: {escape(node.error.text)}</span>'
        elif node.is_array:
            text += f' <span style="opacity:.7">{escape(describe(node))}</span>'
        if path in below:
            inside = f"<summary>{text}</summary>{_list(path, below)}"
            text = f'<details open="open">{inside}</details>'
        elif node.is_group:
            text += "/"
        items.append(f"<li>{text}</li>")
    style = "list-style:none;margin:0;padding-left:1.2em"
    return f'<ul style="{style}">{"".join(items)}</ul>'


DISPLAY = group_html
