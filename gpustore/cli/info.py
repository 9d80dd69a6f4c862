"""``gpustore info``: description of an array, as text or, with ``--json``, for programs.

:mod:`gpustore.cli.group_info` describes a group. The description of an array has four steps:

1. Open the array, which reads its metadata only.
2. List the stored values, with sizes where the kvstore is a folder of files.
3. Estimate a read and a write of the array: the decoders and encoders here and on a GPU.
   ``--explain`` prints the whole estimates.
4. Print the facts. All but the last step are those of ``store.info_complete()``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gpustore
from gpustore.cli import group_info
from gpustore.cli.ome import find_image, line_of, scale_text
from gpustore.cli.options import add_json_option, add_place_options
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.display.text import shortened

if TYPE_CHECKING:
    import argparse

    from gpustore.ome.multiscale import Multiscale


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Describes an array (shape, data type, chunks, codecs, units, attributes, "
        "stored values) or a group (attributes, members)."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="for example volume.zarr")
    command.add_argument(
        "--explain", action="store_true", help="estimate a read and a write of the whole array"
    )
    command.add_argument(
        "--device",
        metavar="NAME",
        help="say who decodes on a GPU: cuda, cuda:N or auto; also where there is none",
    )
    add_json_option(command)
    add_place_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    store = _open(arguments)
    if isinstance(store, gpustore.Group):
        return group_info.run(arguments, store)
    info = store.info_complete()
    image, level = _image(store) or (None, "")
    if arguments.json:
        facts = info.to_json()
        if image is not None:
            facts["ome_scale"] = list(image.levels[level].scale)
        if arguments.explain:
            facts["explanation"] = store.explain().to_json()
            facts["write_explanation"] = store.explain_write().to_json()
        print(json.dumps(facts, indent=2))
        return 0
    pairs = info.facts(gpu=None if arguments.device in (None, "cpu") else True)
    if info.further_attributes:
        texts = (
            f"{name}: {shortened(json.dumps(value, ensure_ascii=False))}"
            for name, value in info.further_attributes.items()
        )
        whole = "attributes", "\n".join(texts)
        pairs = [whole if pair[0] == "attributes" else pair for pair in pairs]
    if image is not None:
        pairs.insert(2, ("scale", f"{scale_text(image, level)} ({line_of(image)})"))
    screen = Screen()
    screen.facts(arguments.url, pairs)
    if arguments.explain:
        screen.line(f"\n{store.explain()}\n\n{store.explain_write()}")
    return 0


def _open(arguments: argparse.Namespace) -> gpustore.TensorStore | gpustore.Group:
    """Open the node, on ``--device`` if that can be used here."""
    context = reading_context(arguments)
    if arguments.device is None:
        return open_node(arguments.url, arguments, context)
    try:
        return open_node(arguments.url, arguments, context, device=arguments.device)
    except gpustore.DeviceError:
        return open_node(arguments.url, arguments, context, device="cpu")


def _image(store: gpustore.TensorStore) -> tuple[Multiscale, str] | None:
    """Find the image in OME-Zarr that has the array as a level, in the two folders above it."""
    kvstore = store.kvstore
    path = kvstore.path.rstrip("/") if kvstore is not None else ""
    level = ""
    for _ in range(2):
        path, slash, name = path.rpartition("/")
        level = f"{name}/{level}".rstrip("/")
        if not slash or kvstore is None:
            return None
        place = kvstore.copy()
        try:
            place.path = f"{path}/"
            image = find_image(gpustore.open_group(place).result().attrs)
        except gpustore.GpustoreError:
            continue
        if image is not None:
            return (image, level) if level in image.levels else None
    return None


COMMANDS = {"info": add_options}
