"""Pictures of images in OME-Zarr: :func:`picture_of`.

1. Choose the slice, in indices of the finest level; all channels together if they have colours.
2. Choose the coarsest level that has the pixels of the picture, which has the proportions of the
   sample.
3. Add the channels in their colours, each between the ends of its window, or stretch the contrast;
   labels have a colour each.
4. Draw a label image over them, if asked.

Source: OME-NGFF 0.4, 0.5 and 0.6, "omero" and "image-label" metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.ome import find_image
from gpustore.cli.picture import Picture, contrast_of, fitted, numbers_of, pixels_of, size_of
from gpustore.cli.selection import choose, format_index, subscripts
from gpustore.display.text import format_shape
from gpustore.ome.channels import Channel
from gpustore.ome.image import Image
from gpustore.ome.level import Level

if TYPE_CHECKING:
    from gpustore.cli.picture import Pixels

_FILL = 0.35
"""Share of a label's colour inside it; its border has the colour alone."""
_GOLDEN = 0.618033988749895


@dataclass(frozen=True, slots=True)
class _Slice:
    """Part of a level that is shown.

    Attributes
    ----------
    level : Level
    chosen : list of int or range
        Indices by dimension, in elements of the level.
    shown : list of int or range
        The same, of the two dimensions of the picture every n-th element.
    channels : int
        Dimension of the channels that are shown together, -1 for none.
    """

    level: Level
    chosen: list[int | range]
    shown: list[int | range]
    channels: int

    @property
    def steps(self) -> tuple[float, float]:
        """Distances of two rows and of two columns."""
        found = [
            self.level.scale[axis] * abs(one.step)
            for axis, one in zip(self.level.axes, self.shown, strict=True)
            if isinstance(one, range)
        ]
        return (found[0], found[1]) if len(found) > 1 else (1.0, 1.0)


def picture_of(
    group: gpustore.Group,
    name: str,
    *,
    index: Sequence[int | slice] | None,
    contrast: tuple[float, float] | None,
    labels: str | None,
    width: int,
    height: int,
    enlarge: bool,
) -> Picture | str:
    """Return the picture of an image, or its only element as text.

    Parameters
    ----------
    group : Group
    name : str
        Path or URL of the group.
    index : sequence of int or slice, or None
        Indices of the user, in elements of the finest level.
    contrast : (float, float) or None
        Values to show black and white.
    labels : str or None
        Name of the label image to draw; empty for the first one.
    width, height : int
        Largest size of the picture in pixels.
    enlarge : bool
        Whether a small picture becomes up to 8 times as large.

    Raises
    ------
    CommandError
        If the group is no image, or has no such slice or label image.
    """
    image = _image(group, name)
    together = contrast is None and _has_colours(image)
    found = _slice(image, index, together, width, height, enlarge=enlarge)
    store = found.level.store
    is_label = "image-label" in group.attrs.get("ome", group.attrs)
    about = ""
    if found.channels >= 0:
        pixels, about = _composed(image, found)
    else:
        elements = np.asarray(store.numpy[subscripts(found.shown)])
        if not elements.ndim:
            return str(elements)
        if is_label and elements.ndim == 2 and contrast is None:
            pixels = _coloured(elements, _colors_of(image))
        else:
            is_colour = len(_ranges(found.shown)) == 3
            pixels, ends = pixels_of(elements, contrast, is_colour=is_colour)
            about = f"black {ends[0]:g}, white {ends[1]:g}" if ends else ""
    if labels is not None:
        chosen = labels or next(iter(image.labels), "")
        if chosen not in image.labels:
            there = ", ".join(image.labels) or "there are none"
            raise CommandError(f"{name}: no label image {chosen!r}; label images: {there}")
        pixels = _labelled(pixels, image.labels[chosen], found)
        about = f"{about}, labels {chosen}"
    chosen_there: list[int | range] = list(found.chosen)
    if found.channels >= 0:
        chosen_there[found.channels] = range(int(store.shape[found.channels]))
    return Picture(
        fitted(pixels, width, height, enlarge=enlarge, steps=found.steps),
        f"{name.rstrip('/')}/{found.level.path}",
        f"{format_shape(store.shape)} {store.dtype.name}",
        format_index(chosen_there, store.shape),
        about,
    )


def _image(group: gpustore.Group, name: str) -> Image:
    if find_image(group.attrs) is not None:
        return Image.of_group(group)
    ome = group.attrs.get("ome", group.attrs)
    if isinstance(ome, Mapping) and "plate" in ome:
        raise CommandError(f"{name} is a plate: name a field of it, such as {name}/A/1/0")
    arrays = ", ".join(path for path, node in group.walk() if node.is_array) or "none"
    raise CommandError(f"{name} is a group: name one of its arrays: {arrays:.200}")


def _has_colours(image: Image) -> bool:
    """Whether channels can be shown together."""
    axis = _channel_axis(image)
    if image.omero is None or axis < 0:
        return False
    channels = image.omero.channels
    return len(channels) == image.level(0).store.shape[axis] and all(one.color for one in channels)


def _channel_axis(image: Image) -> int:
    """Return the dimension of channels, -1 if there is none before the last two."""
    types = [axis.type for axis in image.all_axes][:-2]
    return types.index("channel") if "channel" in types else -1


def _slice(
    image: Image,
    index: Sequence[int | slice] | None,
    together: bool,
    width: int,
    height: int,
    *,
    enlarge: bool,
) -> _Slice:
    """Choose the slice and the level."""
    finest = image.level(0).store
    channels = _channel_axis(image) if together else -1
    if index is not None and channels < len(index) and index[channels] != slice(None):
        channels = -1
    if channels >= 0:
        # As if there were one channel.
        given: list[int | slice] = [n // 2 for n in finest.shape[:-2]]
        if index is not None:
            given = [*index, *[slice(None)] * (channels + 1 - len(index))]
        given[channels] = 0
        index = given
    chosen = choose(index, finest.shape, finest.dtype.name)
    axes = [n for n, one in enumerate(chosen) if isinstance(one, range)][:2]
    level = image.level(0)
    here = chosen
    if len(axes) == 2:
        ranges = _ranges(chosen)[:2]
        sizes = [len(one) for one in ranges]
        scales = (level.scale[image.axes[n]] for n in axes)
        steps = [scale * abs(one.step) for scale, one in zip(scales, ranges, strict=True)]
        rows, columns = (n * step / min(steps) for n, step in zip(sizes, steps, strict=True))
        wanted = size_of(rows, columns, width, height, enlarge=enlarge)
        for other in image.levels:
            there = _scaled(chosen, finest.shape, other.store.shape)
            counts = [len(along) for along in _ranges(there)[:2]]
            if all(n >= min(w, s) for n, w, s in zip(counts, wanted, sizes, strict=True)):
                level, here = other, there
    else:
        wanted = (height, width)
    shown = list(here)
    for n, pixels in zip(axes, wanted[2 - len(axes) :], strict=True):
        along = here[n]
        assert isinstance(along, range)
        shown[n] = along[:: max(1, len(along) // pixels)]
    return _Slice(level, here, shown, channels)


def _ranges(chosen: Sequence[int | range]) -> list[range]:
    return [one for one in chosen if isinstance(one, range)]


def _scaled(
    chosen: Sequence[int | range], before: Sequence[int], after: Sequence[int]
) -> list[int | range]:
    """Return indices of an array as those of a smaller or larger one of the same extent."""
    found: list[int | range] = []
    for one, n, m in zip(chosen, before, after, strict=True):
        if n == m:
            found.append(one)
        elif isinstance(one, int):
            found.append(min(one * m // n, m - 1))
        else:
            low, high = sorted((one[0], one[-1]))
            first, last = low * m // n, min(high * m // n, m - 1)
            step = max(1, abs(one.step) * m // n)
            ascending = range(first, last + 1, step)
            found.append(ascending if one.step > 0 else ascending[::-1])
    return found


def _composed(image: Image, found: _Slice) -> tuple[Pixels, str]:
    """Return all channels in their colours, and names, colours and windows."""
    assert image.omero is not None  # _has_colours
    some = any(channel.active for channel in image.omero.channels)
    total, about = None, []
    for number, channel in enumerate(image.omero.channels):
        if not channel.active and some:
            continue
        at = list(found.shown)
        at[found.channels] = number
        plane = np.asarray(found.level.store.numpy[subscripts(at)])
        start, end = _window(channel, plane)
        share = np.nan_to_num(((numbers_of(plane) - start) / (end - start)).clip(0, 1))
        color = channel.color or "FFFFFF"
        light = share[..., None] * [int(color[at : at + 2], 16) for at in (0, 2, 4)]
        total = light if total is None else total + light
        about.append(f"{channel.name or 'channel'} #{color} {start:g} to {end:g}")
    assert total is not None
    return (total.clip(0, 255) + 0.5).astype(np.uint8), ", ".join(about)


def _window(channel: Channel, plane: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the values shown black and in full colour: the window if somebody chose one."""
    window = channel.chosen_window(plane.dtype)
    if window is not None:
        return window.start, window.end
    numbers = numbers_of(plane)
    dark, bright = contrast_of(numbers)
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        middle, most = float(np.median(finite)), float(finite.max())
        # Few bright spots over noise: the percentiles are those of the noise.
        if bright - middle <= 2 * (middle - dark) and most - middle > 5 * (bright - middle):
            return middle, most
    return dark, bright


def _colors_of(label: Image) -> dict[float, Sequence[int]]:
    """Return the colours that a label image states; those that are damaged are left out."""
    attributes = label.group.attrs
    stated = attributes.get("ome", attributes).get("image-label", {})
    colors = stated.get("colors") if isinstance(stated, Mapping) else None
    found: dict[float, Sequence[int]] = {}
    for one in colors if isinstance(colors, list) else ():
        match one:
            case {"label-value": int() | float() as value, "rgba": [*rgba]} if len(rgba) == 4:
                if all(type(part) is int and 0 <= part < 256 for part in rgba):
                    found[value] = rgba[:3]
    return found


def _coloured(elements: np.ndarray[Any, Any], colors: Mapping[float, Sequence[int]]) -> Pixels:
    """Return labels in their colours: those stated, or hues far from those of labels near by."""
    values, places = np.unique(elements, return_inverse=True)
    hue = 6 * ((values.astype(np.float64) * _GOLDEN) % 1)[:, None]
    wheel = np.abs((hue + np.array([0, 4, 2])) % 6 - 3) - 1
    palette = 255 * (0.25 + 0.75 * wheel.clip(0, 1))
    palette[values == 0] = 0
    for n, value in enumerate(values.tolist()):
        if value in colors:
            palette[n] = colors[value]
    pixels: Pixels = (palette[places.reshape(elements.shape)] + 0.5).astype(np.uint8)
    return pixels


def _labelled(pixels: Pixels, label: Image, found: _Slice) -> Pixels:
    """Return the picture with labels drawn over it: thin colours, and borders in full colour."""
    shape = dict(zip(found.level.axes, found.level.store.shape, strict=True))
    places = dict(zip(found.level.axes, found.shown, strict=True))
    missing = [name for name in label.axes if name not in places]
    if missing:
        raise CommandError(f"the label image has an axis {missing[0]}, which the image has not")
    names = label.axes
    level = next(
        (one for one in label.levels if one.store.shape == tuple(shape[n] for n in names)),
        label.level(0),
    )
    extents = [shape[name] for name in names]
    at = _scaled([places[name] for name in names], extents, level.store.shape)
    elements = np.asarray(level.store.numpy[subscripts(at)])
    if elements.ndim != 2:
        raise CommandError("the label image has no such slice of two dimensions")
    rows, columns = pixels.shape[:2]
    tall, wide = elements.shape
    elements = elements[np.arange(rows) * tall // rows][:, np.arange(columns) * wide // columns]
    colours = _coloured(elements, _colors_of(label)).astype(np.float64)
    border = np.zeros(elements.shape, bool)
    for axis in (0, 1):
        differs = np.diff(elements, axis=axis) != 0
        border[tuple(slice(1, None) if d == axis else slice(None) for d in (0, 1))] |= differs
        border[tuple(slice(None, -1) if d == axis else slice(None) for d in (0, 1))] |= differs
    share = np.where(border, 1.0, _FILL) * (elements != 0)
    base = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    mixed: Pixels = (base * (1 - share[..., None]) + colours * share[..., None] + 0.5).astype(
        np.uint8
    )
    return mixed
