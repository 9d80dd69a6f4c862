"""``gpustore info`` of a group: its members, without opening its arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence


def find_group(
    place: str, failure: gpustore.GpustoreError, *, context: gpustore.Context | None = None
) -> gpustore.Group:
    """Open the group at a URL or path at which opening an array failed.

    Parameters
    ----------
    place : str
    failure : GpustoreError
        Error of opening an array.
    context : Context, optional

    Raises
    ------
    GpustoreError
        `failure`; or, if `failure` reports a group, the error of opening the group.
    """
    if isinstance(failure, gpustore.StoreIOError) and failure.status == "ABORTED":
        raise failure  # All retries have failed.
    try:
        return gpustore.open_group(place, context=context).result()
    except gpustore.GpustoreError as error:
        raise (error if "gpustore.open_group" in str(failure) else failure) from None


def run(arguments: argparse.Namespace, group: gpustore.Group) -> int:
    """Run the command for a group; return the exit code."""
    facts = describe(group)
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    screen = Screen()
    screen.facts(arguments.array, _for_people(facts))
    screen.line(f"\n{group.tree()}")
    return 0


def describe(group: gpustore.Group) -> dict[str, Any]:
    """Return everything that the command knows about a group, as JSON.

    Returns
    -------
    dict
        ``members`` has all nodes at any depth, by path. For an array, ``dtype`` is that of the
        metadata and ``chunk`` the shape of a stored chunk (with sharding, of a shard); None if the
        chunk grid is not regular. For an unreadable member, ``error`` is the reason.
    """
    return {
        "format": f"Zarr v{group.zarr_format} group",
        "consolidated": group.is_consolidated,
        "attributes": dict(group.attrs),
        "members": {path: dict(_member(node)) for path, node in group.walk()},
    }


def _member(node: gpustore.Node) -> Iterator[tuple[str, Any]]:
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
    except gpustore.GpustoreError as error:
        yield "error", str(error)


def _chunk(node: gpustore.Node) -> list[int] | None:
    grid = node.document.get("chunk_grid")
    if isinstance(grid, dict) and grid.get("name") == "rectilinear":
        return None
    return list(node.chunk_shape)


def _for_people(facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the facts as pairs of short texts."""
    members = facts["members"].values()
    counts = [(kind, sum(m["type"] == kind for m in members)) for kind in ("array", "group")]
    unread = sum("error" in member for member in members)
    found = [f"{n:,} {kind}{'s' * (n != 1)}" for kind, n in counts]
    found += [f"{unread:,} that cannot be read"] * (unread > 0)
    found += ["known from consolidated metadata"] * facts["consolidated"]
    attributes = "\n".join(
        f"{name}: {_shortened(value)}" for name, value in facts["attributes"].items()
    )
    return [
        ("format", facts["format"]),
        ("attributes", attributes or "none"),
        ("below it", ", ".join(found)),
    ]


def _shortened(value: Any) -> str:
    """An attribute in a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
