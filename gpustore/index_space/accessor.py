"""Accessors: attributes that are indexed, as ``x.oindex[...]`` and ``x.translate_to[...]``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpustore.index_space.interval import INT64_MIN, index_argument

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


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


class IndexAccessors:
    """Accessors of index transforms, and of objects that are seen through one."""

    __slots__ = ()

    def _accessed(self, name: str, index: Any) -> Self:
        """Return the result of ``self.<name>[index]``, `name` being that of an accessor."""
        raise NotImplementedError

    def _accessor(self, name: str) -> Accessor[Self]:
        return Accessor(self, name, partial(self._accessed, name))

    @property
    def oindex(self) -> Accessor[Self]:
        """Accessor ``x.oindex[...]``: each index array makes dimensions of its own.

        >>> from gpustore.index_space import IndexTransform
        >>> IndexTransform(input_shape=[9, 9]).oindex[[1, 2, 3], [4, 5]].domain
        { [0, 3), [0, 2) }
        """
        return self._accessor("oindex")

    @property
    def vindex(self) -> Accessor[Self]:
        """Accessor ``x.vindex[...]``: index arrays are broadcast, their dimensions come first.

        >>> from gpustore.index_space import IndexTransform
        >>> IndexTransform(input_shape=[9, 8]).vindex[:, [4, 5]].domain
        { [0, 2), [0, 9) }
        """
        return self._accessor("vindex")

    @property
    def translate_to(self) -> Accessor[Self]:
        """Accessor ``x.translate_to[origin]``: the domain moved to begin at `origin`."""
        return self._accessor("translate_to")

    @property
    def translate_by(self) -> Accessor[Self]:
        """Accessor ``x.translate_by[offset]``: the domain with `offset` added."""
        return self._accessor("translate_by")

    @property
    def translate_backward_by(self) -> Accessor[Self]:
        """Accessor ``x.translate_backward_by[offset]``: the domain minus `offset`."""
        return self._accessor("translate_backward_by")

    @property
    def label(self) -> Accessor[Self]:
        """Accessor ``x.label["a", "b"]``: the input dimensions with these labels."""
        return self._accessor("label")

    @property
    def mark_bounds_implicit(self) -> Accessor[Self]:
        """Accessor ``x.mark_bounds_implicit[lower:upper]``: bounds that can be resized, or not.

        One bool sets both flags, None leaves a flag unchanged.
        """
        return self._accessor("mark_bounds_implicit")

    def transpose(self, axes: Any = None) -> Self:
        """Return the object with its input dimensions in the order `axes`, reversed by default.

        `axes` are indices, labels or slices.
        """
        raise NotImplementedError

    @property
    def T(self) -> Self:
        """Object with its input dimensions in reverse order."""
        return self.transpose()


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
