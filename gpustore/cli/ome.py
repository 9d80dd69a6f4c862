"""OME-Zarr metadata, as far as commands show them: axes, levels and scales of an image.

Attributes come from files of others: what does not have the expected form is left out.

Source: OME-NGFF 0.4, 0.5 and 0.6, "multiscales" metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SYMBOLS = {
    "angstrom": "Å", "nanometer": "nm", "micrometer": "µm", "millimeter": "mm",
    "centimeter": "cm", "meter": "m", "microsecond": "µs", "millisecond": "ms", "second": "s",
    "minute": "min", "hour": "h",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Image:
    """An image of several levels.

    Attributes
    ----------
    version : str
        Version of OME-NGFF, empty where it is not stated.
    axes : tuple of (str, str)
        Name and unit of each axis; empty where an axis has none.
    levels : mapping of str to tuple of float or None
        Scale along each axis of each level, by path of the array; None where it is not known.
    """

    version: str
    axes: tuple[tuple[str, str], ...]
    levels: Mapping[str, tuple[float, ...] | None]

    def scale_text(self, path: str) -> str:
        """Format the scale of a level, without axes that have neither unit nor step.

        >>> image = Image("", (("c", ""), ("y", "micrometer")), {"0": (1.0, 0.5)})
        >>> image.scale_text("0")
        'y 0.5 µm'
        """
        scale = self.levels[path]
        if scale is None:
            return "unknown"
        parts = [
            f"{name} {step:g} {_SYMBOLS.get(unit, unit)}".rstrip()
            for (name, unit), step in zip(self.axes, scale, strict=True)
            if unit or step != 1
        ]
        return ", ".join(parts) or "1 along each axis"

    def __str__(self) -> str:
        names = "".join(name for name, _ in self.axes)
        if any(len(name) != 1 for name, _ in self.axes):
            names = " ".join(name for name, _ in self.axes)
        version = f" {self.version}" if self.version else ""
        count = len(self.levels)
        return f"OME-Zarr{version}, axes {names}, {count} level{'s' * (count != 1)}"


def find_image(attributes: Mapping[str, Any]) -> Image | None:
    """Return the first image that the attributes of a group describe, None if there is none."""
    ome = attributes.get("ome")
    ome = ome if isinstance(ome, dict) else attributes
    try:
        one = ome["multiscales"][0]
        described = one["axes"] if "axes" in one else one["coordinateSystems"][0]["axes"]
        axes = tuple((str(axis["name"]), str(axis.get("unit") or "")) for axis in described)
        outer = _scale(one.get("coordinateTransformations") or (), len(axes))
        levels = {
            str(level["path"]): _product(
                _scale(level.get("coordinateTransformations") or (), len(axes)), outer
            )
            for level in one["datasets"]
        }
        version = ome.get("version") or one.get("version") or ""
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None
    return Image(str(version), axes, levels) if levels else None


def _scale(transformations: Iterable[Mapping[str, Any]], rank: int) -> tuple[float, ...] | None:
    """Return the product of all scales; None if there is anything but scales and translations."""
    scale: tuple[float, ...] | None = (1.0,) * rank
    for one in transformations:
        if one["type"] == "scale":
            scale = _product(scale, _numbers(one["scale"], rank))
        elif one["type"] == "sequence":
            scale = _product(scale, _scale(one["transformations"], rank))
        elif one["type"] not in ("translation", "identity"):
            return None
    return scale


def _numbers(values: Sequence[Any], rank: int) -> tuple[float, ...] | None:
    return tuple(map(float, values)) if len(values) == rank else None


def _product(
    one: tuple[float, ...] | None, other: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    if one is None or other is None:
        return None
    return tuple(a * b for a, b in zip(one, other, strict=True))
