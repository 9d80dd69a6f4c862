"""``gpustore info`` of a group: its members, without opening its arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.ome import find_image
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


def find_group(
    place: str | dict[str, Any],
    failure: gpustore.GpustoreError,
    *,
    context: gpustore.Context | None = None,
) -> gpustore.Group:
    """Open the group at a URL or path at which opening an array failed.

    Parameters
    ----------
    place : str or dict
        URL, path or JSON.
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
    info = group.info
    image = find_image(info.attributes)
    if arguments.json:
        ome = {} if image is None else {"ome": str(image)}
        print(json.dumps(info.to_json() | ome, indent=2))
        return 0
    facts = info.facts()
    if image is not None:
        facts.insert(1, ("image", str(image)))
    screen = Screen()
    screen.facts(arguments.url, facts)
    screen.line(f"\n{info.tree()}")
    return 0
