"""``gpustore view``: a slice of an array as a picture, in the terminal or as a PNG file.

1. Open the array, or an image in OME-Zarr (:mod:`gpustore.cli.image_picture`).
2. Choose the slice: ``--index``, or the middle of all dimensions but the last two.
3. Read every n-th element along both dimensions, as many as the picture has pixels: chunks without
   one of them are not read.
4. Stretch the contrast between two percentiles, or over ``--range``, and draw.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.image_picture import picture_of
from gpustore.cli.options import add_place_options, index_expression, integer, value_range
from gpustore.cli.picture import (
    Picture,
    fitted,
    half_blocks,
    pixels_of,
    ramp_lines,
    require_pillow,
    save_png,
)
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.cli.selection import choose, format_index, strided, subscripts
from gpustore.display.elements import Elements
from gpustore.display.text import format_shape

if TYPE_CHECKING:
    import argparse


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Shows a slice of an array in the terminal, or writes it to a PNG file. "
        "Large slices are shown with every n-th element; only the chunks that hold one of these "
        "are read. Of an image in OME-Zarr the level is chosen that has just enough pixels, and "
        "its channels are shown together, in their colours, each over its window of contrast; "
        "pixels have the proportions of the sample."
    )
    command.add_argument(
        "url", metavar="URL_OR_PATH", help="URL or path of an array, or of an image in OME-Zarr"
    )
    command.add_argument(
        "-i",
        "--index",
        type=index_expression,
        metavar="INDEX",
        help="indices as in NumPy, e.g. 3,:,100:200, of an image those of its finest level "
        "(default: the middle of all dimensions but the last two)",
    )
    command.add_argument("--png", metavar="FILE", help="write a PNG file, show nothing")
    command.add_argument(
        "--size",
        type=integer(1, 20_000),
        metavar="PIXELS",
        help="longest side of the picture (default: 1024 for a file, else the terminal's)",
    )
    command.add_argument(
        "--range",
        type=value_range,
        metavar="LOW,HIGH",
        help="values to show black and white (default: the 1st and the 99.8th percentile)",
    )
    command.add_argument(
        "--labels",
        nargs="?",
        const="",
        metavar="NAME",
        help="draw a label image over the image in OME-Zarr (default: the first one)",
    )
    command.add_argument("--field", metavar="NAME", help="show this field of records")
    add_place_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    screen = Screen()
    if arguments.png is not None:
        if Path(arguments.png).suffix.lower() not in ("", ".png"):
            raise CommandError(f"--png writes PNG files, which {arguments.png} is not named as")
        require_pillow()
    width, height = _limits(arguments, screen)
    node = open_node(
        arguments.url, arguments, reading_context(arguments), field=arguments.field, read=True
    )
    if isinstance(node, gpustore.Group):
        found = picture_of(
            node,
            arguments.url,
            index=arguments.index,
            contrast=arguments.range,
            labels=arguments.labels,
            width=width,
            height=height,
            enlarge=arguments.png is None,
        )
    elif arguments.labels is not None:
        raise CommandError("--labels is for images in OME-Zarr")
    else:
        found = _picture_of_array(node, arguments, width, height)
    if isinstance(found, str):
        if arguments.png is not None:
            raise CommandError(f"the slice is one element, not a picture: {found}")
        screen.line(found)
        return 0
    pixels = found.pixels
    lines = [
        f"{found.name}  {found.array}",
        f"slice {found.slice} at {pixels.shape[1]} x {pixels.shape[0]} pixels"
        + (f", {found.about}" if found.about else ""),
    ]
    if arguments.png is not None:
        save_png(Path(arguments.png), pixels)
        lines.append(f"written to {arguments.png}")
    else:
        if screen.has_colours:
            screen.show(half_blocks(pixels))
        else:
            for line in ramp_lines(pixels):
                screen.line(line)
    for line in lines:
        screen.line(line, style="dim")
    return 0


def _limits(arguments: argparse.Namespace, screen: Screen) -> tuple[int, int]:
    """Return the largest width and height of the picture in pixels."""
    if arguments.png is not None:
        return (arguments.size or 1024,) * 2
    width, height = screen.width, max(2, 2 * (screen.height - 4))
    return (width, height) if arguments.size is None else (arguments.size,) * 2


def _picture_of_array(
    store: gpustore.TensorStore, arguments: argparse.Namespace, width: int, height: int
) -> Picture | str:
    """Return the picture of an array, or its only element as text."""
    name = arguments.url
    if Elements.of(store).fields:
        names = ", ".join(field.name for field in Elements.of(store).fields)
        raise CommandError(f"{name} holds records: choose one of their fields by --field: {names}")
    chosen = choose(arguments.index, store.shape, store.dtype.name)
    shown = strided(chosen, width, height)
    elements = np.asarray(store.numpy[subscripts(shown)])
    if not elements.ndim:
        return str(elements)
    is_colour = sum(isinstance(one, range) for one in shown) == 3
    pixels, ends = pixels_of(elements, arguments.range, is_colour=is_colour)
    return Picture(
        fitted(pixels, width, height, enlarge=arguments.png is None),
        name,
        f"{format_shape(store.shape)} {store.dtype.name}",
        format_index(chosen, store.shape),
        f"black {ends[0]:g}, white {ends[1]:g}" if ends else "",
    )


COMMANDS = {"view": add_options}
