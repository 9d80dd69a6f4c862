"""Channels of an image: names, colours and windows of contrast.

Source: OME-NGFF 0.4 to 0.6, "omero" metadata (transitional).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore import MetadataError
from gpustore.ome.members import at, items, json_object, kind, number, optional, text


@dataclass(frozen=True, slots=True)
class Window:
    """Values between black and full colour.

    Attributes
    ----------
    start, end : float
        Value shown black, and value shown in full colour.
    min, max : float
        Range of values that an adjustment offers.
    """

    start: float
    end: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Channel:
    """Name and display of a channel.

    Attributes
    ----------
    name : str
        Label; empty if there is none.
    color : str or None
        Six hexadecimal digits, red, green and blue.
    window : Window or None
        Window of contrast.
    active : bool
        Whether it is shown at first.
    """

    name: str
    color: str | None
    window: Window | None
    active: bool

    def chosen_window(self, dtype: Any) -> Window | None:
        """Return the window if somebody chose one, for elements of a data type of NumPy.

        Writers that have none state the whole range of the data type, which shows most images
        black: that is no choice, and neither is a window without extent.
        """
        window, dtype = self.window, np.dtype(dtype)
        if window is None or not window.start < window.end:
            return None
        if dtype.kind in "iu" and dtype.itemsize > 1:
            limits = np.iinfo(dtype)
            if window.start <= limits.min and window.end >= limits.max:
                return None
        return window


@dataclass(frozen=True, slots=True)
class Omero:
    """Rendering settings of an image.

    Attributes
    ----------
    channels : tuple of Channel
        One for each index of the channel axis.
    json : dict
        The member ``omero`` as it is stored.
    """

    channels: tuple[Channel, ...]
    json: Mapping[str, Any]

    def window(self, channel: str) -> Window | None:
        """Return the window of contrast of a channel by name.

        Raises
        ------
        ValueError
            If there is no channel of that name, or more than one.
        """
        found = [one.window for one in self.channels if one.name == channel]
        if len(found) != 1:
            there = ", ".join(repr(one.name) for one in self.channels)
            raise ValueError(f"{len(found) or 'no'} channels {channel!r}; channels: {there}")
        return found[0]


def omero(ome: Mapping[str, Any], where: str) -> Omero | None:
    """Return the rendering settings among the OME members of a group, None if there are none.

    Raises
    ------
    MetadataError
        If a member is not as the specification has it.
    """
    if "omero" not in ome:
        return None
    where = at(where, "omero")
    stored = json_object(ome["omero"], where)
    channels = []
    for position, one in enumerate(items(stored, "channels", where)):
        place = f"{where}.channels[{position}]"
        channel = json_object(one, place)
        color = optional(channel, "color", str, place)
        if color is not None and not re.fullmatch("#?[0-9A-Fa-f]{6}", color):
            raise MetadataError(
                f"{place}.color: expected six hexadecimal digits, got {kind(color)}"
            )
        window = None
        if channel.get("window") is not None:
            inner = json_object(channel["window"], f"{place}.window")
            bounds = [
                number(inner, name, f"{place}.window") for name in ("start", "end", "min", "max")
            ]
            window = Window(*bounds)
        active = optional(channel, "active", bool, place)
        channels.append(
            Channel(
                *(text(channel, "label", place, ""), color and color.lstrip("#").upper()),
                *(window, active is not False),
            )
        )
    return Omero(tuple(channels), stored)
