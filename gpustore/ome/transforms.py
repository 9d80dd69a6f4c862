"""Coordinate transformations that keep axes apart: scales and translations.

They take the index of an element along each axis to the coordinate of its centre. 0.4 and 0.5 have
lists of scales and translations; 0.6 has one object, with sequences of others inside.

Source: OME-NGFF 0.4 and 0.5, "coordinateTransformations"; 0.6, "coordinateTransformations" (RFC-5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpustore import MetadataError, UnsupportedError
from gpustore.ome.members import is_finite, kind

MAX_DEPTH: Final = 16
"""Sequences inside each other; deeper ones are not made by any writer."""


@dataclass(frozen=True, slots=True)
class AxisTransform:
    """A scale and then a translation along each axis.

    Attributes
    ----------
    scale : tuple of float
        Positive distance of two elements along each axis.
    translation : tuple of float
        Coordinate of the first element along each axis.
    """

    scale: tuple[float, ...]
    translation: tuple[float, ...]

    @classmethod
    def identity(cls, rank: int) -> AxisTransform:
        """Return the transform that changes nothing."""
        return cls((1.0,) * rank, (0.0,) * rank)

    def then(self, after: AxisTransform) -> AxisTransform:
        """Return this transform followed by another.

        >>> AxisTransform((2.0,), (1.0,)).then(AxisTransform((3.0,), (0.5,)))
        AxisTransform(scale=(6.0,), translation=(3.5,))
        """
        return AxisTransform(
            tuple(a * b for a, b in zip(self.scale, after.scale, strict=True)),
            tuple(
                t * b + u
                for t, b, u in zip(self.translation, after.scale, after.translation, strict=True)
            ),
        )

    def checked(self, where: str) -> AxisTransform:
        """Return this transform.

        Raises
        ------
        MetadataError
            If a scale is no positive number, or one is too large for a float.
        """
        if not all(map(math.isfinite, self.scale + self.translation)) or min(self.scale) <= 0:
            raise MetadataError(f"{where}: the product of all scales is too large or too small")
        return self

    def inverse(self) -> AxisTransform:
        """Return the transform back."""
        return AxisTransform(
            tuple(1 / a for a in self.scale),
            tuple(-t / a for a, t in zip(self.scale, self.translation, strict=True)),
        )


def parsed(transformations: Any, rank: int, where: str) -> AxisTransform:
    """Return a list of transformations, applied one after the other, as one.

    Parameters
    ----------
    transformations : list of dict
        Identities, scales, translations, and sequences of them.
    rank : int
        Number of axes.
    where : str
        File and member, for errors.

    Raises
    ------
    MetadataError
        If they are not as the specification has them.
    UnsupportedError
        If one is of a type that does not keep the axes apart, or has its numbers in an array.
    """
    if not isinstance(transformations, list):
        raise MetadataError(f"{where}: expected a list, got {kind(transformations)}")
    return _parsed(transformations, rank, where, MAX_DEPTH)


def _parsed(transformations: Iterable[Any], rank: int, where: str, depth: int) -> AxisTransform:
    result = None
    for number, one in enumerate(transformations):
        step = _one(one, rank, f"{where}[{number}]", depth)
        result = step if result is None else result.then(step).checked(where)
    return AxisTransform.identity(rank) if result is None else result


def _one(one: Any, rank: int, where: str, depth: int) -> AxisTransform:
    if not isinstance(one, Mapping) or not isinstance(one.get("type"), str):
        raise MetadataError(f'{where}: expected an object with a "type", got {kind(one)}')
    type_ = one["type"]
    if type_ == "identity":
        return AxisTransform.identity(rank)
    if type_ == "sequence":
        inner = one.get("transformations")
        if not isinstance(inner, list):
            raise MetadataError(f"{where}.transformations: expected a list, got {kind(inner)}")
        if not depth:
            raise MetadataError(f"{where}: more than {MAX_DEPTH} sequences inside each other")
        return _parsed(inner, rank, f"{where}.transformations", depth - 1)
    if type_ not in ("scale", "translation"):
        raise UnsupportedError(
            f"{where}: a transformation of type {type_!r} is not applied, which would resample the "
            "image; identity, scale, translation and sequence are"
        )
    if type_ not in one and "path" in one:
        raise UnsupportedError(f"{where}: numbers in an array (path {one['path']!r})")
    numbers = _numbers(one.get(type_), rank, f"{where}.{type_}")
    if type_ == "translation":
        return AxisTransform((1.0,) * rank, numbers)
    if min(numbers, default=1.0) <= 0:
        raise MetadataError(f"{where}.scale: expected positive numbers, got {list(numbers)}")
    return AxisTransform(numbers, (0.0,) * rank)


def _numbers(values: Any, rank: int, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != rank:
        got = f"{len(values)} of them" if isinstance(values, list) else kind(values)
        raise MetadataError(f"{where}: expected {rank} numbers, one for each axis, got {got}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MetadataError(f"{where}: expected numbers, got {kind(value)}")
        if not is_finite(value):
            raise MetadataError(f"{where}: expected finite numbers, got {kind(value)}")
    return tuple(map(float, values))
