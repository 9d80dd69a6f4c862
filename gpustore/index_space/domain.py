"""Domain of an index space: bounds, implicit flags and labels of all dimensions.

Source: ``IndexDomain`` of TensorStore (``tensorstore/index_space/index_domain.h``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, overload

import gpustore.index_space.interval as interval
from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.accessor import Accessor
from gpustore.index_space.bounds import Box, box_from_arguments, check_labels, propagate
from gpustore.index_space.crop import crop_box
from gpustore.index_space.dim import Dim
from gpustore.index_space.dimension_operation import operated
from gpustore.index_space.interval import INF, INF_SIZE, INF_STOP, MAX_RANK
from gpustore.index_space.json import box_from_json, box_to_json
from gpustore.index_space.output_map import OutputIndexMaps
from gpustore.index_space.selection import (
    Expression,
    dimension_by_index,
    dimension_by_label,
    dimension_terms,
    permutation,
    selected_dimensions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


_NAMES = {
    name: name
    for name in ("rank", "inclusive_min", "exclusive_max", "inclusive_max", "shape", "labels")
}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class IndexDomain:
    """Product of :class:`Dim` intervals; immutable and hashable.

    Parameters
    ----------
    rank : int, optional
        Number of dimensions; needed only if nothing else tells it. Alternatively an
        :class:`IndexDomain` or a sequence of :class:`Dim` (keyword `dimensions`).
    inclusive_min, exclusive_max, inclusive_max, shape : sequence of int, optional
        Bounds; at most one of the last three. Without `inclusive_min` the lower bounds are 0 if
        `shape` is given, else unbounded.
    implicit_lower_bounds, implicit_upper_bounds : sequence of bool, optional
        Default: implicit where no bound is given.
    labels : sequence of str or None, optional
        Unique, or empty.
    json : dict, optional
        The JSON form, as the only argument.

    Attributes
    ----------
    labels : tuple of str, length rank
    inclusive_min : tuple of int, length rank
        First index of each dimension, ``-inf`` if unbounded.
    shape : tuple of int, length rank
        Size of each dimension, in elements.

    Raises
    ------
    ValueError
        If the arguments contradict each other or are out of range.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> IndexDomain(shape=[100, 200], labels=["x", "y"])
    { "x": [0, 100), "y": [0, 200) }
    >>> IndexDomain([Dim(3), Dim("t")])["t"]
    Dim(label="t")
    """

    box: Box
    labels: tuple[str, ...]
    shape: tuple[int, ...] = field(init=False, compare=False)
    inclusive_min: tuple[int, ...] = field(init=False, compare=False)

    @overload
    def __init__(
        self,
        rank: int | None = None,
        *,
        inclusive_min: Iterable[int] | None = None,
        implicit_lower_bounds: Iterable[bool] | None = None,
        exclusive_max: Iterable[int] | None = None,
        inclusive_max: Iterable[int] | None = None,
        shape: Iterable[int] | None = None,
        implicit_upper_bounds: Iterable[bool] | None = None,
        labels: Iterable[str | None] | None = None,
    ) -> None: ...
    @overload
    def __init__(self, dimensions: IndexDomain | Iterable[Dim], /) -> None: ...
    @overload
    def __init__(self, *, json: Any) -> None: ...
    def __init__(self, rank: Any = None, **kwargs: Any) -> None:
        if "dimensions" in kwargs and rank is None:
            rank = kwargs.pop("dimensions")
        if kwargs.keys() - _KEYWORDS:
            raise TypeError(f"IndexDomain: unexpected {sorted(kwargs.keys() - _KEYWORDS)}")
        if "json" in kwargs or isinstance(rank, Iterable):
            if len(kwargs) + (rank is not None) > 1:
                raise TypeError("IndexDomain: `json` and `dimensions` exclude other arguments")
            box, labels = _from_json(kwargs["json"]) if kwargs else _from_dims(rank)
        else:
            box, labels = box_from_arguments(_NAMES, rank, kwargs)
        _fill(self, box, labels)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.labels)

    ndim = rank

    @property
    def origin(self) -> tuple[int, ...]:
        """First index of each dimension, ``-inf`` if unbounded."""
        return self.inclusive_min

    @property
    def exclusive_max(self) -> tuple[int, ...]:
        """One more than the last index of each dimension, ``inf + 1`` if unbounded."""
        return self.box.exclusive_max

    @property
    def inclusive_max(self) -> tuple[int, ...]:
        """Last index of each dimension, ``inf`` if unbounded."""
        return tuple([stop - 1 for stop in self.box.exclusive_max])

    @property
    def size(self) -> int:
        """Number of elements, at most ``2**63 - 1``."""
        return min(prod(self.shape), INF_SIZE)

    @property
    def implicit_lower_bounds(self) -> tuple[bool, ...]:
        """Whether each lower bound is implicit."""
        return self.box.implicit_lower

    @property
    def implicit_upper_bounds(self) -> tuple[bool, ...]:
        """Whether each upper bound is implicit."""
        return self.box.implicit_upper

    @property
    def index_exp(self) -> tuple[slice, ...]:
        """Slices that select the domain in a NumPy array; None stands for an infinite bound.

        >>> IndexDomain(inclusive_min=[2], exclusive_max=[5]).index_exp
        (slice(2, 5, None),)

        Raises
        ------
        ValueError
            If a finite bound is negative, which NumPy would count from the end.
        """
        finite = [low for low in self.box.inclusive_min if low != -INF]
        if min((*finite, *self.box.exclusive_max), default=0) < 0:
            raise MetadataError(
                f"Cannot convert domain {self} with negative bounds to index expression"
            )
        return tuple(
            slice(None if low == -INF else low, None if stop == INF_STOP else stop)
            for low, stop in zip(self.box.inclusive_min, self.box.exclusive_max)
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Dim]:
        return (self._dim(i) for i in range(len(self.labels)))

    def _dim(self, i: int) -> Dim:
        return Dim._from_bounds((*(part[i] for part in self.box), self.labels[i]))  # type: ignore[arg-type]

    @overload
    def __getitem__(self, key: int | str) -> Dim: ...
    @overload
    def __getitem__(self, key: Any) -> IndexDomain: ...
    def __getitem__(self, key: Any) -> Dim | IndexDomain:
        """Return one :class:`Dim` for an index or label, a domain for other keys.

        Parameters
        ----------
        key : int, str, slice, DimSelection, sequence of these, DimExpression, IndexDomain or \
IndexTransform
            A selection of dimensions, a domain to crop to, or what is applied: a dimension
            expression or a transform.

        Raises
        ------
        IndexError
            If the dimension does not exist, or the crop or transform is out of bounds.
        ValueError
            If a selection names a dimension twice, or one that does not exist.
        """
        maps = getattr(key, "output", None)
        if isinstance(key, (IndexDomain, str)) or hasattr(key, "__index__") or maps is not None:
            try:
                if isinstance(key, str):
                    return self._dim(dimension_by_label(key, self.labels))
                if isinstance(key, IndexDomain):
                    return self._cropped(key)
                if isinstance(maps, OutputIndexMaps):
                    inner: IndexDomain = key.domain
                    return make_domain(propagate(self.box, inner.box, maps), inner.labels)
                return self._dim(dimension_by_index(operator.index(key), self.rank))
            except MetadataError as error:
                raise OutOfBoundsError(error.text, status="") from None
        if isinstance(key, Expression) and key._has_operations():
            return make_domain(*key._applied(self.box, self.labels, OutputIndexMaps())[:2])
        return self._take(selected_dimensions(dimension_terms(key), self.labels))

    def _cropped(self, crop: IndexDomain) -> IndexDomain:
        return make_domain(*crop_box(self.box, self.labels, crop.box, crop.labels))

    def _take(self, dims: Iterable[int]) -> IndexDomain:
        dims = tuple(dims)
        box = Box(*(tuple([part[i] for i in dims]) for part in self.box))  # type: ignore[arg-type]
        return make_domain(box, tuple([self.labels[i] for i in dims]))

    def hull(self, other: IndexDomain) -> IndexDomain:
        """Return the smallest domain that contains both."""
        return self._merge(other, interval.hull, "hull")

    def intersect(self, other: IndexDomain) -> IndexDomain:
        """Return the domain of the indices in both."""
        return self._merge(other, interval.intersect, "intersect")

    def _merge(self, other: IndexDomain, merge: Any, verb: str) -> IndexDomain:
        text = f"Cannot {verb} index domain {self} with index domain {other}"
        if self.rank != other.rank:
            raise MetadataError(f"{text}: Ranks do not match")
        merged = []
        for i, (a, b) in enumerate(zip(self, other)):
            try:
                merged.append(merge(a._bounds(), b._bounds()))
            except MetadataError as error:
                raise error.prefixed(f"{text}: Mismatch in dimension {i}") from None
        low, stop, il, iu, labels = zip(*merged) if merged else ((),) * 5
        check_labels(labels)
        return make_domain(Box(low, stop, il, iu), labels)

    @property
    def translate_to(self) -> Accessor[IndexDomain]:
        """Accessor ``domain.translate_to[origins]``: the domain moved to begin at `origins`."""
        return self._accessor("translate_to")

    @property
    def translate_by(self) -> Accessor[IndexDomain]:
        """Accessor ``domain.translate_by[offsets]``: the domain with `offsets` added."""
        return self._accessor("translate_by")

    @property
    def translate_backward_by(self) -> Accessor[IndexDomain]:
        """Accessor ``domain.translate_backward_by[offsets]``: the domain minus `offsets`."""
        return self._accessor("translate_backward_by")

    @property
    def label(self) -> Accessor[IndexDomain]:
        """Accessor ``domain.label["x", "y"]``: the domain with these labels.

        >>> IndexDomain(2).label["x", "y"]
        { "x": (-inf*, +inf*), "y": (-inf*, +inf*) }
        """
        return self._accessor("label")

    @property
    def mark_bounds_implicit(self) -> Accessor[IndexDomain]:
        """Accessor ``domain.mark_bounds_implicit[lower:upper]``: the domain with these flags.

        One bool sets both flags, None leaves a flag unchanged.
        """
        return self._accessor("mark_bounds_implicit")

    def _accessor(self, name: str) -> Accessor[IndexDomain]:
        def apply(index: Any) -> IndexDomain:
            new = operated(self.box, self.labels, OutputIndexMaps(), name, index)
            return make_domain(new.box, new.labels)

        return Accessor(self, name, apply)

    def transpose(self, axes: Any = None) -> IndexDomain:
        """Return the domain with its dimensions in the order `axes`, reversed by default.

        `axes` are indices, labels or slices.

        >>> IndexDomain(labels=["x", "y"]).transpose(["y", "x"]).labels
        ('y', 'x')
        """
        return self._take(permutation(axes, self.labels))

    @property
    def T(self) -> IndexDomain:
        """Domain with its dimensions in reverse order."""
        return self.transpose()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form.

        >>> IndexDomain(shape=[4]).to_json()
        {'exclusive_max': [4], 'inclusive_min': [0]}
        """
        return box_to_json(self.box, self.labels)

    def __repr__(self) -> str:
        return f"{{ {', '.join(map(str, self))} }}"


_KEYWORDS = {*_NAMES, "implicit_lower_bounds", "implicit_upper_bounds", "json"} - {"rank"}

_new = object.__new__
_set = object.__setattr__


def make_domain(box: Box, labels: tuple[str, ...]) -> IndexDomain:
    """Return a domain of bounds and labels that were checked."""
    domain = _new(IndexDomain)
    _fill(domain, box, labels)
    return domain


def _fill(domain: IndexDomain, box: Box, labels: tuple[str, ...]) -> None:
    _set(domain, "box", box)
    _set(domain, "labels", labels)
    # Every read asks for these some times.
    _set(domain, "inclusive_min", box.inclusive_min)
    _set(domain, "shape", tuple(map(operator.sub, box.exclusive_max, box.inclusive_min)))


def _from_dims(dims: Iterable[Any]) -> tuple[Box, tuple[str, ...]]:
    dims = tuple(dims)
    if not all(isinstance(dim, Dim) for dim in dims):
        raise TypeError("dimensions: expected a sequence of Dim")
    if len(dims) > MAX_RANK:
        raise MetadataError(f"Rank {len(dims)} is outside valid range [0, {MAX_RANK}]")
    labels = tuple(dim.label for dim in dims)
    check_labels(labels)
    box = Box(
        tuple(dim.inclusive_min for dim in dims),
        tuple(dim.exclusive_max for dim in dims),
        tuple(dim.implicit_lower for dim in dims),
        tuple(dim.implicit_upper for dim in dims),
    )
    return box, labels


def _from_json(value: Any) -> tuple[Box, tuple[str, ...]]:
    try:
        box, labels, _ = box_from_json(value)
    except MetadataError as error:
        raise error.prefixed("Error parsing index domain from JSON") from None
    return box, labels
