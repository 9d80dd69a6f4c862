"""Pictures of chunk grids as SVG: :func:`picture`.

Up to three dimensions are one picture: a bar, a rectangle or a box, with the last dimension from
left to right, the one before it from top to bottom, and the third last one into the depth. Further
dimensions are pictures of their own, before it. Short dimensions are drawn longer than they are,
and of many boundaries only some are drawn; the labels tell the extents.

There is no script and no colour of text: text and lines have the colour of the page's own text, so
that a picture is readable on light and on dark ground.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from gpustore.display.extents import Edges, edges_of

_LONGEST = 170.0
"""Pixels of the longest dimension of the last picture."""

_LEADING = 80.0
"""The same of the pictures before it."""

_DEPTH = 0.35
"""Horizontal and vertical pixels of a pixel in the depth."""

_GAP = 4.0
"""Fewest pixels between boundaries that are drawn."""

_LETTER = 6.6
"""Pixels of a letter of a label, at most."""

_LINE = 16.0
"""Pixels of a line of text."""

_FILL: Final = "#1f9e89"


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of a chunk grid.

    Attributes
    ----------
    name : str
        Label, or empty.
    extent : int
        Number of elements.
    chunks, shards : sequence of int
        Boundaries inside, in elements from the begin, ascending.
    """

    name: str
    extent: int
    chunks: Sequence[int]
    shards: Sequence[int] = ()

    @property
    def text(self) -> str:
        """Label and extent."""
        return f"{self.name} {self.extent:,}".strip()


def axes_of(store: Any) -> list[Axis]:
    """Return the dimensions of an opened array or a part of it, with their chunks and shards."""
    layout, domain = store.chunk_layout, store.domain
    edges = edges_of(store) if store._is_identity else None
    origins = layout.grid_origin or (None,) * store.rank
    found = []
    for n, (name, first, extent) in enumerate(zip(domain.labels, domain.origin, domain.shape)):
        read, written = (
            _boundaries(first, extent, one.shape[n] if one.shape else None, origins[n])
            for one in (layout.read_chunk, layout.write_chunk)
        )
        if edges is not None and n < len(edges):
            read = written = Edges(edges[n], extent)[1:-1]
        found.append(Axis(name, extent, read, () if written == read else written))
    return found


def _boundaries(first: int, extent: int, chunk: int | None, origin: int | None) -> Sequence[int]:
    """Return the boundaries of regular chunks within an interval, from its begin.

    >>> list(_boundaries(10, 20, 8, 0))
    [6, 14]
    """
    if not chunk:
        return ()
    begin = ((origin or 0) - first) % chunk or chunk
    return range(begin, extent, chunk)


def picture(axes: Sequence[Axis]) -> str:
    """Return pictures of a chunk grid as one SVG element; empty without dimensions or elements.

    Parameters
    ----------
    axes : sequence of Axis
        Dimensions in order.
    """
    if not axes or not all(axis.extent for axis in axes):
        return ""
    begin = len(axes) % 3 or 3
    groups = [axes[:begin], *(axes[n : n + 3] for n in range(begin, len(axes), 3))]
    drawings = []
    for group in groups:
        drawing = _Drawing(_LONGEST if group is groups[-1] else _LEADING)
        drawing.draw(group)
        drawings.append(drawing)
    height = max(drawing.height for drawing in drawings)
    parts: list[str] = []
    left = 0.0
    for drawing in drawings:
        if parts:
            parts.append(_text(left + 14, height / 2, "\N{MULTIPLICATION SIGN}", "middle"))
            left += 28
        parts.append(f'<g transform="translate({left:.1f} {(height - drawing.height) / 2:.1f})">')
        parts += [*drawing.parts, "</g>"]
        left += drawing.width
    title = " x ".join(axis.text for axis in axes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {left:.1f} {height:.1f}" role="img" fill="none" stroke="currentColor" '
        f'style="color:inherit"><title>chunk grid of {escape(title)}</title>{"".join(parts)}</svg>'
    )


def lengths(extents: Sequence[int], longest: float) -> list[float]:
    """Return pixels of dimensions; ratios above 3 are drawn smaller than they are.

    >>> [round(length) for length in lengths([1, 50, 100, 10_000], 100)]
    [21, 21, 21, 100]
    """
    most = max(extents)
    return [longest / _response(most / extent) for extent in extents]


def _response(ratio: float) -> float:
    """Return a ratio of extents as one of lengths, the same up to e and 4.7 at most.

    Source: ``ratio_response`` of dask, ``dask/array/svg.py``.
    """
    return ratio if ratio < math.e else math.log(min(ratio, 100.0) + 12.4)


class _Drawing:
    """Picture of one to three dimensions.

    Parameters
    ----------
    longest : float
        Pixels of its longest dimension.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def draw(self, axes: Sequence[Axis]) -> None:
        """Draw the box, its boundaries, the first chunk, and the labels."""
        sizes = lengths([axis.extent for axis in axes], self._longest)
        across, wide = axes[-1], sizes[-1]
        down, high = (axes[-2], sizes[-2]) if len(axes) > 1 else (None, 22.0)
        away, deep = (axes[-3], sizes[-3] * _DEPTH) if len(axes) > 2 else (None, 0.0)
        texts = [axis.text for axis in (down, away) if axis is not None]
        left = max((len(text) * _LETTER for text in texts), default=0.0) + 8
        top = deep + 4
        xs = _Ruler(across, left, wide)
        ys = _Ruler(down, top, high)
        zs = _Ruler(away, 0.0, deep)
        self._face([(left, top), (wide, 0), (0, high)], 0.22)
        if away is not None:
            self._face([(left, top), (wide, 0), (deep, -deep)], 0.10)
            self._face([(left + wide, top), (deep, -deep), (0, high)], 0.34)
        self.parts.append(
            f'<path d="M{left:.1f} {top:.1f}h{xs.first:.1f}v{ys.first:.1f}h{-xs.first:.1f}z" '
            f'fill="{_FILL}" fill-opacity="0.6" stroke="none"/>'
        )
        for shards in (False, True):
            into = f"l{deep:.1f} {-deep:.1f}"
            lines = [
                *(f"M{x:.1f} {top + high:.1f}v{-high:.1f}{into}" for x in xs.at(shards=shards)),
                *(f"M{left:.1f} {y:.1f}h{wide:.1f}{into}" for y in ys.at(shards=shards)),
                *(
                    f"M{left + z:.1f} {top - z:.1f}h{wide:.1f}v{high:.1f}"
                    for z in zs.at(shards=shards)
                ),
            ]
            self._lines(lines, 1.4 if shards else 0.7, 0.9 if shards else 0.45)
        self._label(across, left + wide / 2, top + high + _LINE - 2, "middle")
        if down is not None:
            self._label(down, left - 6, top + high / 2 + 4, "end")
        if away is not None:
            self._label(away, left + deep / 2 - 8, top - deep / 2 + 2, "end")
        self.width = max(left + wide + deep, left + wide / 2 + len(across.text) * _LETTER / 2) + 4
        self.height = top + high + _LINE + 4

    def _face(self, corner: Sequence[tuple[float, float]], opacity: float) -> None:
        """Draw a parallelogram from a corner along two sides."""
        (x, y), (a, b), (c, d) = corner
        self.parts.append(
            f'<path d="M{x:.1f} {y:.1f}l{a:.1f} {b:.1f} {c:.1f} {d:.1f} {-a:.1f} {-b:.1f}z" '
            f'fill="{_FILL}" fill-opacity="{opacity}" stroke-width="1.2"/>'
        )

    def _lines(self, lines: Iterable[str], width: float, opacity: float) -> None:
        path = "".join(lines)
        if path:
            self.parts.append(
                f'<path d="{path}" stroke-width="{width}" stroke-opacity="{opacity}"/>'
            )

    def _label(self, axis: Axis, x: float, y: float, anchor: str) -> None:
        self.parts.append(_text(x, y, axis.text, anchor))


class _Ruler:
    """Boundaries of a dimension in pixels.

    Parameters
    ----------
    axis : Axis or None
        None for a dimension that is not there.
    begin, length : float
        Pixels.
    """

    def __init__(self, axis: Axis | None, begin: float, length: float) -> None:
        self._axis, self._begin, self._length = axis, begin, length

    @property
    def first(self) -> float:
        """Length of the first chunk, at least a pixel."""
        axis = self._axis
        if axis is None or not axis.chunks:
            return self._length
        return max(1.0, axis.chunks[0] * self._length / axis.extent)

    def at(self, *, shards: bool) -> list[float]:
        """Return the positions of boundaries, as many as can be told apart."""
        axis = self._axis
        if axis is None:
            return []
        boundaries = axis.shards if shards else axis.chunks
        step = -(-len(boundaries) // max(1, int(self._length / _GAP)))
        return [
            self._begin + one * self._length / axis.extent for one in boundaries[:: max(1, step)]
        ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" '
        f'font-family="sans-serif" fill="currentColor" stroke="none">{escape(text)}</text>'
    )
