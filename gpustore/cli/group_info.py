"""``gpustore info`` of a group: its members, without opening its arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


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
    info = group.info
    if arguments.json:
        print(json.dumps(info.to_json(), indent=2))
        return 0
    screen = Screen()
    screen.facts(arguments.array, info.facts())
    screen.line(f"\n{info.tree()}")
    return 0
