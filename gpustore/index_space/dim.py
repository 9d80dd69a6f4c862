"""One dimension of an index space: an interval, its implicit flags and its label.

Source: ``Dim`` of TensorStore (``tensorstore/index_interval.h``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, overload

import gpustore.index_space.interval as interval
from gpustore.errors import MetadataError
from gpustore.index_space.interval import INF, INF_SIZE, INF_STOP, INT64_MIN, index_argument

if TYPE_CHECKING:
    from collections.abc import Iterator


_BOUNDS = {"size", "inclusive_min", "exclusive_max", "inclusive_max"}
_OTHERS = {"label", "implicit_lower", "implicit_upper"}


def _optional(name: str, value: Any) -> int | None:
    index = None if value is None else index_argument(value, name)
    return None if index == INT64_MIN else index  # TensorStore's value for "not given"


class Dim:
    """Interval of indices with optionally implicit (resizable) bounds and a label.

    As in TensorStore, the label and the two flags may be assigned; the interval may not. A
    :class:`Dim` taken out of an :class:`IndexDomain` is a copy.

    Parameters
    ----------
    size : int, optional
        Number of indices, counted from `inclusive_min`, or from 0. None is unbounded above.
    label : str, optional
        Name of the dimension, ``""`` for none. May be the first positional argument.
    inclusive_min, exclusive_max, inclusive_max : int, optional
        The bounds; at most one upper bound. Two positional integers are `inclusive_min` and
        `exclusive_max`.
    implicit_lower, implicit_upper : bool, optional
        Whether a bound is implicit. Defaults to True for each bound that is not given.

    Raises
    ------
    ValueError
        The bounds are not an interval within ``(-inf, inf)``.
    TypeError
        The arguments belong to no constructor.

    Examples
    --------
    >>> Dim(5), Dim("x"), Dim(inclusive_min=2, exclusive_max=4, label="y")
    (Dim(inclusive_min=0, exclusive_max=5), Dim(label="x"), \
Dim(inclusive_min=2, exclusive_max=4, label="y"))
    >>> print(Dim("x", implicit_upper=False))
    "x": (-inf*, +inf)
    """

    __slots__ = ("_lower", "_stop", "implicit_lower", "implicit_upper", "label")

    implicit_lower: bool
    implicit_upper: bool
    label: str

    @overload
    def __init__(
        self,
        label: str | None = None,
        *,
        implicit_lower: bool = True,
        implicit_upper: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        size: int | None,
        label: str | None = None,
        *,
        inclusive_min: int | None = None,
        implicit_lower: bool = False,
        implicit_upper: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        inclusive_min: int | None = None,
        exclusive_max: int | None = None,
        *,
        label: str | None = None,
        implicit_lower: bool | None = None,
        implicit_upper: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        inclusive_min: int | None = None,
        inclusive_max: int | None = None,
        label: str | None = None,
        implicit_lower: bool | None = None,
        implicit_upper: bool | None = None,
    ) -> None: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _name_positional(args, kwargs)
        label = given.get("label")
        if label is not None and not isinstance(label, str):
            raise TypeError(f"label: expected a string, got {label!r}")
        bounds = {k: _optional(k, given[k]) for k in _BOUNDS if k in given}
        lower = bounds.get("inclusive_min")
        implicit_lower: Any
        if "size" in bounds:
            if len(bounds) > 1 + ("inclusive_min" in bounds):
                raise TypeError("Dim: `size` cannot be combined with another upper bound")
            size = bounds["size"]
            start = 0 if lower is None else lower
            if size is None or size == INF_SIZE:
                self._lower, self._stop = interval.half_open(start, INF_STOP)
            else:
                self._lower, self._stop = interval.sized(start, size)
            implicit_lower, implicit_upper = False, size is None
        elif "inclusive_max" in bounds:
            if "exclusive_max" in bounds:
                raise TypeError("Dim: `inclusive_max` cannot be combined with `exclusive_max`")
            upper = bounds["inclusive_max"]
            self._lower, self._stop = interval.closed(
                -INF if lower is None else lower, INF if upper is None else upper
            )
            implicit_lower, implicit_upper = lower is None, upper is None
        else:
            stop = bounds.get("exclusive_max")
            self._lower, self._stop = interval.half_open(
                -INF if lower is None else lower, INF_STOP if stop is None else stop
            )
            implicit_lower, implicit_upper = lower is None, stop is None
        flags = given.get("implicit_lower"), given.get("implicit_upper")
        self.implicit_lower = implicit_lower if flags[0] is None else bool(flags[0])
        self.implicit_upper = implicit_upper if flags[1] is None else bool(flags[1])
        self.label = label or ""

    @classmethod
    def _from_bounds(cls, bounds: interval.Bounds) -> Self:
        """Return a Dim of bounds that were checked."""
        dim = cls.__new__(cls)
        dim._lower, dim._stop, dim.implicit_lower, dim.implicit_upper, dim.label = bounds
        return dim

    def _bounds(self) -> interval.Bounds:
        return self._lower, self._stop, self.implicit_lower, self.implicit_upper, self.label

    @property
    def inclusive_min(self) -> int:
        """First index, ``-inf`` if unbounded below."""
        return self._lower

    @property
    def exclusive_max(self) -> int:
        """One more than the last index, ``inf + 1`` if unbounded above."""
        return self._stop

    @property
    def inclusive_max(self) -> int:
        """Last index, ``inf`` if unbounded above."""
        return self._stop - 1

    @property
    def exclusive_min(self) -> int:
        """One less than the first index, ``-inf - 1`` if unbounded below."""
        return self._lower - 1

    @property
    def size(self) -> int:
        """``exclusive_max - inclusive_min``, also if a bound is infinite."""
        return self._stop - self._lower

    @property
    def empty(self) -> bool:
        """Whether the size is zero."""
        return self._stop == self._lower

    @property
    def finite(self) -> bool:
        """Whether both bounds are finite."""
        return self._lower != -INF and self._stop != INF_STOP

    def hull(self, other: Dim) -> Dim:
        """Return the smallest Dim that contains both; labels must agree, or one be empty.

        >>> Dim(5).hull(Dim(7, implicit_upper=True))
        Dim(inclusive_min=0, exclusive_max=7, implicit_upper=True)
        """
        return Dim._from_bounds(interval.hull(self._bounds(), other._bounds()))

    def intersect(self, other: Dim) -> Dim:
        """Return the Dim of the indices in both; labels must agree, or one be empty.

        >>> Dim(5, "x").intersect(Dim(inclusive_min=3))
        Dim(inclusive_min=3, exclusive_max=5, label="x")
        """
        return Dim._from_bounds(interval.intersect(self._bounds(), other._bounds()))

    def __contains__(self, other: int | Dim) -> bool:
        if isinstance(other, Dim):
            return interval.contains(self._lower, self._stop, other._lower, other._stop)
        index = index_argument(other, "index")
        return self._lower <= index < self._stop and -INF < index < INF

    def __iter__(self) -> Iterator[int]:
        if not self.finite:
            raise MetadataError("Cannot iterate over infinite interval")
        return iter(range(self._lower, self._stop))

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self._stop != self._lower

    def __eq__(self, other: object) -> bool:
        return self._bounds() == other._bounds() if isinstance(other, Dim) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # label and flags may be assigned

    def __reduce__(self) -> tuple[Any, ...]:
        return (Dim._from_bounds, (self._bounds(),))

    def __str__(self) -> str:
        prefix = f"{interval.quote(self.label)}: " if self.label else ""
        return prefix + interval.format_interval(*self._bounds()[:4])

    def __repr__(self) -> str:
        parts = []
        if self._lower != -INF:
            parts.append(f"inclusive_min={self._lower}")
        if self.implicit_lower != (self._lower == -INF):
            parts.append(f"implicit_lower={self.implicit_lower}")
        if self._stop != INF_STOP:
            parts.append(f"exclusive_max={self._stop}")
        if self.implicit_upper != (self._stop == INF_STOP):
            parts.append(f"implicit_upper={self.implicit_upper}")
        if self.label:
            parts.append(f"label={interval.quote(self.label)}")
        return f"Dim({', '.join(parts)})"


def _name_positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name; the positional ones tell the constructor that is meant."""
    names: tuple[str, ...] = ("size", "label")
    if args and isinstance(args[0], str):
        names = ("label",)
    elif len(args) == 2 and args[1] is not None and not isinstance(args[1], str):
        names = ("inclusive_min", "exclusive_max")
    elif len(args) == 1 and "exclusive_max" in kwargs:
        names = ("inclusive_min",)
    elif args and args[0] is None and len(args) == 1 and not _BOUNDS & kwargs.keys():
        names = ("label",)
    given = dict(zip(names, args))
    wrong = (kwargs.keys() - _BOUNDS - _OTHERS) | (kwargs.keys() & given.keys())
    if wrong or len(args) > len(names):
        raise TypeError(f"Dim: unexpected arguments {sorted(wrong) or args[len(names) :]}")
    return given | kwargs
