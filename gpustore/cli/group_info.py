"""``gpustore info`` of a group: its members, without opening its arrays.

An image in OME-Zarr shows its levels, channels and label images first: these are found through its
metadata, so that a web server, which lists nothing, shows them too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli.ome import facts_of, find_image, line_of
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace, group: gpustore.Group) -> int:
    """Run the command for a group; return the exit code."""
    image = find_image(group.attrs)
    about = [] if image is None else [("image", line_of(image)), *facts_of(group)]
    try:
        info = group.info
    except gpustore.UnsupportedError:
        if image is None:
            raise
        info = None  # The server lists nothing; what the metadata name has been found.
    if arguments.json:
        ome = {} if image is None else {"ome": line_of(image), "image": dict(about[1:])}
        print(json.dumps(({} if info is None else info.to_json()) | ome, indent=2))
        return 0
    facts = [("format", f"Zarr v{group.zarr_format} group")] if info is None else info.facts()
    facts[1:1] = about
    screen = Screen()
    screen.facts(arguments.url, facts)
    if info is not None:
        screen.line(f"\n{info.tree()}")
    return 0
