"""Accessors: attributes that are indexed, as ``x.oindex[...]`` and ``x.translate_to[...]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpustore.index_space.interval import INT64_MIN, index_argument

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Accessor(Generic[T]):
    """Attribute ``subject.name`` that is indexed.

    Parameters
    ----------
    subject : object
        Object that has the attribute; printed in front of its name.
    name : str
        Name of the attribute.
    apply : callable
        ``apply(index)`` is the result of indexing.
    """

    __slots__ = ("_apply", "_name", "_subject")

    def __init__(self, subject: object, name: str, apply: Callable[[Any], T]) -> None:
        self._subject = subject
        self._name = name
        self._apply = apply

    def __getitem__(self, index: Any) -> T:
        return self._apply(index)

    __iter__ = None

    def __repr__(self) -> str:
        return f"{self._subject!r}.{self._name}"


def labels_argument(index: Any) -> tuple[str, ...]:
    """Return the labels in ``label["x", "y"]`` or ``label[["x", "y"]]``."""
    labels = (index,) if isinstance(index, str) else index
    if isinstance(labels, Iterable):
        result = tuple(labels)
        if all(isinstance(label, str) for label in result):
            return result
    raise TypeError(f"label: expected a string or a sequence of strings, got {index!r}")


def offsets_argument(index: Any, name: str) -> int | tuple[int | None, ...] | None:
    """Return the offsets in ``translate_by[1]`` or ``translate_by[1, None]``.

    None leaves a dimension, or all of them, unchanged.
    """

    def one(value: Any) -> int | None:
        if value is None:
            return None
        number = index_argument(value, name)
        return None if number == INT64_MIN else number

    if isinstance(index, Iterable) and not isinstance(index, (str, bytes)):
        return tuple(one(value) for value in index)
    return one(index)


def implicit_argument(index: Any) -> tuple[bool | None, bool | None]:
    """Return lower and upper flag of ``mark_bounds_implicit[True]`` or ``[lower:upper]``.

    None leaves the flag of that side unchanged.
    """
    lower, upper = index, index
    if isinstance(index, slice):
        if index.step is not None:
            raise TypeError("mark_bounds_implicit: a step is not allowed")
        lower, upper = index.start, index.stop
    for value in (lower, upper):
        if value is not None and not hasattr(value, "__bool__"):
            raise TypeError(f"mark_bounds_implicit: expected bool, None or a slice, got {index!r}")
    return (
        None if lower is None else bool(lower),
        None if upper is None else bool(upper),
    )
