"""``gpustore view``: a slice of an array as a picture, in the terminal or as a PNG file.

1. Open the array; of an image in OME-Zarr the level with just enough pixels.
2. Choose the slice: ``--index``, or the middle of all dimensions but the last two.
3. Read every n-th element along both dimensions, as many as the picture has pixels: chunks without
   one of them are not read.
4. Stretch the contrast between two percentiles, or over ``--range``, and draw. Channels of an image
   in OME-Zarr are added in their colours, each between the ends of its window.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.ome import composed, find_image
from gpustore.cli.options import add_place_options, index_expression, integer, value_range
from gpustore.cli.picture import (
    contrast_of,
    fitted,
    half_blocks,
    numbers_of,
    ramp_lines,
    require_pillow,
    save_png,
    stretch,
)
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.cli.selection import element_ranges, format_index
from gpustore.display.elements import Elements
from gpustore.display.text import format_shape

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpustore.cli.picture import Pixels


_STRIP = 8
"""Height of the picture of a slice of one dimension, in pixels."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Shows a slice of an array in the terminal, or writes it to a PNG file. "
        "Large slices are shown with every n-th element; only the chunks that hold one of these "
        "are read. Of an image in OME-Zarr the level is chosen that has just enough pixels, and "
        "its channels are shown together, in their colours, each over its window of contrast."
    )
    command.add_argument(
        "url", metavar="URL_OR_PATH", help="URL or path of an array, or of an image in OME-Zarr"
    )
    command.add_argument(
        "-i",
        "--index",
        type=index_expression,
        metavar="INDEX",
        help="indices as in NumPy, e.g. 3,:,100:200 (default: the middle of all dimensions but the "
        "last two)",
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
    command.add_argument("--field", metavar="NAME", help="show this field of records")
    add_place_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    screen = Screen()
    if arguments.png is not None:
        require_pillow()
    width, height = _limits(arguments, screen)
    node = open_node(
        arguments.url, arguments, reading_context(arguments), field=arguments.field, read=True
    )
    group = None
    if isinstance(node, gpustore.Group):
        group = node
        store, name = _level(group, arguments.url, width, height)
    else:
        store, name = node, arguments.url
    if Elements.of(store).fields:
        names = ", ".join(field.name for field in Elements.of(store).fields)
        raise CommandError(f"{name} holds records: choose one of their fields by --field: {names}")
    by_itself = arguments.index is None and arguments.range is None
    found = _channels(group, store, width, height) if group is not None and by_itself else None
    if found is None:
        chosen = choose(arguments.index, store.shape, store.dtype.name)
        where = format_index(chosen, store.shape)
        strided = _strided(chosen, width, height)
        elements = np.asarray(store.numpy[tuple(map(_subscript, strided))])
        if not elements.ndim:
            if arguments.png is not None:
                raise CommandError(f"the slice is one element, not a picture: {elements}")
            screen.line(str(elements))
            return 0
        is_colour = sum(isinstance(one, range) for one in strided) == 3
        pixels, shown = _pixels(elements, arguments.range, is_colour=is_colour)
        about = f"black {shown[0]:g}, white {shown[1]:g}" if shown else ""
    else:
        pixels, where, about = found
    pixels = fitted(pixels, width, height, enlarge=arguments.png is None)
    lines = [
        f"{name}  {format_shape(store.shape)} {store.dtype.name}",
        f"slice {where} at {pixels.shape[1]} x {pixels.shape[0]} pixels"
        + (f", {about}" if about else ""),
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


def _channels(
    group: gpustore.Group, store: gpustore.TensorStore, width: int, height: int
) -> tuple[Pixels, str, str] | None:
    """Return all channels of an image in their colours, the slice, and what is shown.

    None if the image has no axis of channels, or states no colours.
    """
    image = find_image(group.attrs)
    types = [axis.type for axis in image.axes] if image is not None else []
    axis = types.index("channel") if "channel" in types else -1
    if not 0 <= axis < len(store.shape) - 2:
        return None
    middle: list[int | slice] = [int(extent) // 2 for extent in store.shape[:-2]]
    middle[axis] = 0
    # As if there were no channels; the axis of these is filled in below.
    chosen = choose(middle, store.shape, store.dtype.name)
    strided = _strided(chosen, width, height)
    planes = []
    for channel in range(int(store.shape[axis])):
        strided[axis] = channel
        planes.append(np.asarray(store.numpy[tuple(map(_subscript, strided))]))
    found = composed(group, planes)
    if found is None:
        return None
    chosen[axis] = range(int(store.shape[axis]))
    return found[0], format_index(chosen, store.shape), found[1]


def _limits(arguments: argparse.Namespace, screen: Screen) -> tuple[int, int]:
    """Return the largest width and height of the picture in pixels."""
    if arguments.png is not None:
        return (arguments.size or 1024,) * 2
    width, height = screen.width, max(2, 2 * (screen.height - 4))
    return (width, height) if arguments.size is None else (arguments.size,) * 2


def _level(
    group: gpustore.Group, name: str, width: int, height: int
) -> tuple[gpustore.TensorStore, str]:
    """Open the smallest level of an image that has at least the pixels of the picture."""
    image = find_image(group.attrs)
    if image is None:
        arrays = ", ".join(path for path, node in group.walk() if node.is_array) or "none"
        raise CommandError(f"{name} is a group: name one of its arrays: {arrays:.200}")
    chosen: tuple[gpustore.TensorStore, str] | None = None
    for path in image.levels:
        store = group[path]
        if not isinstance(store, gpustore.TensorStore):
            raise CommandError(f"{name}: level {path} of the image is a group, not an array")
        rows, columns = (1, 1, *store.shape)[-2:]
        if chosen is not None and rows < height and columns < width:
            break
        chosen = store, f"{name.rstrip('/')}/{path}"
    assert chosen is not None  # An image has a level.
    return chosen


def choose(
    index: Sequence[int | slice] | None, shape: Sequence[int], dtype: str
) -> list[int | range]:
    """Choose a slice of two dimensions, or of three of which the last is red, green, blue.

    Parameters
    ----------
    index : sequence of int or slice, or None
        Indices of the user; None chooses the middle of the leading dimensions.
    shape : sequence of int
    dtype : str
        Name of the data type; three or four bytes are a colour.

    Returns
    -------
    list of int or range
        An int for each dimension that is not shown.

    Raises
    ------
    CommandError
        The slice has no elements, or not two dimensions.

    Examples
    --------
    >>> choose(None, (9, 4, 6), "uint16")
    [4, range(0, 4), range(0, 6)]
    >>> choose((2,), (9, 4, 6), "uint16")
    [2, range(0, 4), range(0, 6)]
    """
    is_colour = dtype == "uint8" and len(shape) > 2 and shape[-1] in (3, 4)
    if index is None:
        leading = len(shape) - (3 if is_colour else 2)
        index = [int(extent) // 2 for extent in shape[: max(0, leading)]]
    ranges = element_ranges(index, shape)
    if not all(ranges):
        axis = next(axis for axis, along in enumerate(ranges) if not along)
        raise CommandError(f"the slice has no elements along dimension {axis}")
    chosen: list[int | range] = [
        along[0] if axis < len(index) and isinstance(index[axis], int) else along
        for axis, along in enumerate(ranges)
    ]
    kept = [one for one in chosen if isinstance(one, range)]
    if len(kept) == 3 and is_colour and kept[-1] == range(int(shape[-1])):
        return chosen
    if len(kept) > 2:
        raise CommandError(
            f"the slice has {len(kept)} dimensions of a picture's 2: give --index numbers for "
            f"{len(kept) - 2} more of the {len(shape)} dimensions"
        )
    return chosen


def _strided(chosen: Sequence[int | range], width: int, height: int) -> list[int | range]:
    """Take every n-th element of the two dimensions of the picture: no fewer than its pixels."""
    shown = [n for n, one in enumerate(chosen) if isinstance(one, range)][:2]
    limits = dict(zip(shown, (height, width)[2 - len(shown) :], strict=True))
    sizes = {n: len(one) for n, one in enumerate(chosen) if isinstance(one, range)}
    step = max([1, *(sizes[n] // limit for n, limit in limits.items())])
    return [
        one[::step] if isinstance(one, range) and n in limits else one
        for n, one in enumerate(chosen)
    ]


def _subscript(one: int | range) -> int | slice:
    if isinstance(one, int):
        return one
    return slice(one.start, None if one.stop < 0 else one.stop, one.step)


def _pixels(
    elements: np.ndarray[Any, Any], wanted: tuple[float, float] | None, *, is_colour: bool
) -> tuple[Pixels, tuple[float, float] | None]:
    """Return pixels, and the values shown black and white; None for colours as they are."""
    if is_colour:
        elements = elements[..., :3]
        if wanted is None:
            return elements, None
    elif elements.ndim < 2:
        elements = np.broadcast_to(elements.reshape(1, -1), (_STRIP, elements.size))
    numbers = numbers_of(elements)
    dark, bright = wanted or contrast_of(numbers)
    return stretch(numbers, dark, bright), (dark, bright)


COMMANDS = {"view": add_options}
