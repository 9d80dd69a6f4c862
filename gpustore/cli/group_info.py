"""``gpustore info`` of a group: its members, without opening its arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli.ome import find_image
from gpustore.cli.screen import Screen

if TYPE_CHECKING:
    import argparse


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
