"""``gpustore info`` of a group: its members, without opening its arrays.

In OME-Zarr an image shows its levels, channels and label images first, a plate its wells: these are
found through the metadata, so that a web server, which lists nothing, shows them too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli.ome import facts_of
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace, group: gpustore.Group) -> int:
    """Run the command for a group; return the exit code."""
    about = facts_of(group)
    try:
        info = group.info
    except gpustore.UnsupportedError:
        if not about:
            raise
        info = None  # The server lists nothing; what the metadata name has been found.
    if arguments.json:
        ome = {}
        if about:
            kind, line = about[0]
            ome = {"ome": line, kind: dict(about[1:])}
        print(json.dumps(({} if info is None else info.to_json()) | ome, indent=2))
        return 0
    facts = [("format", f"Zarr v{group.zarr_format} group")] if info is None else info.facts()
    facts[1:1] = about
    screen = Screen()
    screen.facts(arguments.url, facts)
    if info is not None:
        screen.line(f"\n{info.tree()}")
    return 0
