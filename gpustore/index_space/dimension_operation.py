"""Operations on selected dimensions of a transform, other than NumPy-style indexing.

Each is data, whose text is that behind the selection: ``.translate_by[4,None]``. Methods of domains
and transforms apply them to all dimensions.
Source: TensorStore ``index_space/internal/*_op.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np

from gpustore.errors import MetadataError
from gpustore.index_space.accessor import implicit_argument, labels_argument, offsets_argument
from gpustore.index_space.bounds import Box, check_labels, explicitly_empty
from gpustore.index_space.composition import crop_arrays, simplified_array_map
from gpustore.index_space.interval import (
    INF,
    INF_STOP,
    MAX_RANK,
    affine_domain,
    check_rank,
    fits_int64,
    quote,
    shift,
    shift_to,
)
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    input_map,
)
from gpustore.index_space.selection import (
    DimTerm,
    dimension_by_index,
    dimension_range,
    dimension_terms,
    format_range,
)

if TYPE_CHECKING:
    from gpustore.index_space.output_map import IndexArray


class Selected(NamedTuple):
    """Domain and output maps of a transform, and dimensions of the domain that are selected."""

    box: Box
    labels: tuple[str, ...]
    maps: OutputIndexMaps
    dims: tuple[int, ...]

    def with_bounds(
        self, bounds: dict[int, tuple[int, int]], implicit: dict[int, tuple[bool, bool]]
    ) -> Box:
        """Return the box with other bounds and implicit flags of some dimensions."""
        lows, stops, il, iu = (list(part) for part in self.box)
        for dim, (low, stop) in bounds.items():
            lows[dim], stops[dim] = low, stop
        for dim, (lower, upper) in implicit.items():
            il[dim], iu[dim] = lower, upper
        return Box(tuple(lows), tuple(stops), tuple(il), tuple(iu))  # type: ignore[arg-type]


class Operation(Protocol):
    """Operation on selected dimensions; its text is that of the brackets and its name."""

    def apply(self, to: Selected) -> Selected:
        """Return the transform after the operation, and the dimensions selected then."""


Indices = int | tuple[int | None, ...] | None
"""One index for all selected dimensions, or one for each; None leaves a dimension unchanged."""


def _spread(indices: Indices, count: int) -> Sequence[int | None]:
    if not isinstance(indices, tuple):
        return (indices,) * count
    if not indices:
        return (0,) * count  # An empty index means 0 for all dimensions in TensorStore, too.
    if len(indices) != count:
        raise MetadataError(
            f"Number of dimensions ({count}) does not match number of indices ({len(indices)})"
        )
    return indices


def _format(indices: Indices) -> str:
    if not isinstance(indices, tuple):
        return str(indices)
    return f"{indices[0]}," if len(indices) == 1 else ",".join(map(str, indices)) or "()"


@dataclass(frozen=True, slots=True)
class Translation:
    """Translation by `name`, one of translate_to, translate_by and translate_backward_by."""

    name: str
    indices: Indices

    @classmethod
    def of(cls, name: str, index: Any) -> Self:
        """Return the operation of an accessor's name and the object between its brackets."""
        return cls(name, offsets_argument(index, name))

    def __str__(self) -> str:
        return f".{self.name}[{_format(self.indices)}]"

    def apply(self, to: Selected) -> Selected:
        box, labels, maps, dims = to
        lows, stops = list(box[0]), list(box[1])
        moved = [0] * len(labels)
        to_origin, backward = self.name == "translate_to", self.name == "translate_backward_by"
        for dim, index in zip(dims, _spread(self.indices, len(dims))):
            if index is None:
                continue
            low, stop = lows[dim], stops[dim]
            if to_origin:
                lows[dim], stops[dim] = shift_to(low, stop, index)
                moved[dim] = lows[dim] - low
            else:
                moved[dim] = -index if backward else index
                lows[dim], stops[dim] = shift(low, stop, moved[dim])
        box = Box(tuple(lows), tuple(stops), box[2], box[3])
        maps = OutputIndexMaps([_translated(i, one, moved) for i, one in enumerate(maps)])
        return Selected(box, labels, maps, dims)


def _translated(dim: int, mapping: OutputIndexMap, moved: Sequence[int]) -> OutputIndexMap:
    """Return an output index map for the translated input domain.

    Index arrays stay as they are: they are relative to the origin of the domain.
    """
    source, stride = mapping.input_dimension, mapping.stride
    if source is None or stride is None or not moved[source]:
        return mapping
    change = moved[source] * stride
    offset = mapping.offset - change
    if not (fits_int64(change) and fits_int64(offset)):
        raise MetadataError(f"Integer overflow computing output offset for dimension {dim}.")
    return input_map(offset, stride, source)


@dataclass(frozen=True, slots=True)
class Stride:
    """Domain of the indices whose multiples by a stride are in the domain before."""

    indices: Indices

    @classmethod
    def of(cls, name: str, index: Any) -> Self:
        return cls(offsets_argument(index, name))

    def __str__(self) -> str:
        return f".stride[{_format(self.indices)}]"

    def apply(self, to: Selected) -> Selected:
        bounds, implicit = {}, {}
        strides = [1] * len(to.labels)
        for dim, stride in zip(to.dims, _spread(self.indices, len(to.dims))):
            if stride is None:
                continue
            low, stop = to.box.inclusive_min[dim], to.box.exclusive_max[dim]
            il, iu = to.box.implicit_lower[dim], to.box.implicit_upper[dim]
            about = f"Applying stride to input dimension {dim}"
            if stride == 0:
                raise MetadataError(f"{about}: Stride must be non-zero")
            try:
                bounds[dim] = affine_domain(low, stop, 0, stride)
            except MetadataError as error:
                raise error.prefixed(about) from None
            implicit[dim] = (iu, il) if stride < 0 else (il, iu)
            strides[dim] = stride
        box = to.with_bounds(bounds, implicit)
        maps = [_strided(i, one, strides, to.box, box) for i, one in enumerate(to.maps)]
        return Selected(box, to.labels, OutputIndexMaps(maps), to.dims)


def _strided(
    dim: int, mapping: OutputIndexMap, strides: Sequence[int], old: Box, new: Box
) -> OutputIndexMap:
    source, array, stride = mapping.input_dimension, mapping.index_array, mapping.stride
    if stride is None:
        return mapping
    if source is not None:
        if not fits_int64(stride * strides[source]):
            raise MetadataError(f"Integer overflow computing stride for output dimension {dim}")
        return input_map(mapping.offset, stride * strides[source], source)
    assert array is not None
    if explicitly_empty(new):
        return constant_map(0)
    cut = []
    for size, by, old_low, low, stop in zip(array.shape, strides, old[0], new[0], new[1]):
        first, end = by * low - old_low, by * stop - old_low
        cut.append(slice(None) if size == 1 else slice(first, end if end >= 0 else None, by))
    view = array[tuple(cut)]
    return simplified_array_map(mapping.offset, stride, view, mapping.bounds)


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of the selected dimensions."""

    labels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, index: Any) -> Self:
        return cls(labels_argument(index))

    def __str__(self) -> str:
        return f".label[{format_terms(self.labels) or '()'}]"

    def apply(self, to: Selected) -> Selected:
        if len(self.labels) != len(to.dims):
            raise MetadataError(
                f"Number of dimensions ({len(to.dims)}) does not match number of labels "
                f"({len(self.labels)})."
            )
        labels = list(to.labels)
        for dim, label in zip(to.dims, self.labels):
            labels[dim] = label
        check_labels(labels)
        return Selected(to.box, tuple(labels), to.maps, to.dims)


@dataclass(frozen=True, slots=True)
class ImplicitBounds:
    """Whether lower and upper bounds are implicit; None leaves them unchanged."""

    lower: bool | None
    upper: bool | None

    @classmethod
    def of(cls, name: str, index: Any) -> Self:
        return cls(*implicit_argument(index))

    def __str__(self) -> str:
        lower, upper = ("" if flag is None else str(flag) for flag in (self.lower, self.upper))
        text = lower if lower and lower == upper else f"{lower}:{upper}"
        return f".mark_bounds_implicit[{text}]"

    def apply(self, to: Selected) -> Selected:
        # What becomes explicit may leave an empty domain, whose output maps have no arrays.
        for flag in (False, True):
            lower, upper = self.lower is flag, self.upper is flag
            if not lower and not upper:
                continue
            if flag:
                _check_no_array_depends(to)
            flags = {
                dim: (flag if lower else to.box[2][dim], flag if upper else to.box[3][dim])
                for dim in to.dims
            }
            box = to.with_bounds({}, flags)
            to = Selected(box, to.labels, crop_arrays(to.maps, box, box), to.dims)
        return to


def _check_no_array_depends(to: Selected) -> None:
    for output_dim, mapping in enumerate(to.maps):
        if mapping.index_array is None:
            continue
        for dim in to.dims:
            if mapping.index_array.shape[dim] != 1:
                raise MetadataError(
                    f"Cannot mark input dimension {dim} as having implicit bounds because "
                    f"it indexes the index array map for output dimension {output_dim}"
                )


@dataclass(frozen=True, slots=True)
class Transposition:
    """Selected dimensions moved to `target`, the others in their order to what is left."""

    target: tuple[DimTerm, ...]

    @classmethod
    def of(cls, name: str, index: Any) -> Self:
        return cls(dimension_terms(index))

    def __str__(self) -> str:
        return f".transpose[{format_terms(self.target) or '()'}]"

    def apply(self, to: Selected) -> Selected:
        targets = self._targets(len(to.labels), len(to.dims))
        source = dict(zip(targets, to.dims))
        others = iter([dim for dim in range(len(to.labels)) if dim not in to.dims])
        order = [source[dim] if dim in source else next(others) for dim in range(len(to.labels))]
        return reordered(to, order)._replace(dims=targets)

    def _targets(self, rank: int, count: int) -> tuple[int, ...]:
        first = self.target[0] if len(self.target) == 1 else None
        if isinstance(first, int):
            if not count:
                return ()
            start = dimension_by_index(first, rank - count + 1)
            return tuple(range(start, start + count))
        dims: list[int] = []
        for term in self.target:
            if isinstance(term, str):
                raise MetadataError("Target dimensions cannot be specified by label")
            dims.extend(dimension_range(term, rank) if isinstance(term, slice) else (term,))
        if len(dims) != count:
            raise MetadataError(
                f"Number of selected dimensions ({count}) must equal number of target dimensions "
                f"({len(dims)})"
            )
        targets: list[int] = []
        for dim in dims:
            target = dimension_by_index(dim, rank)
            if target in targets:
                raise MetadataError(f"Target dimension {target} occurs more than once")
            targets.append(target)
        return tuple(targets)


def reordered(to: Selected, order: Sequence[int]) -> Selected:
    """Return the transform whose dimension i is dimension ``order[i]``; none is selected."""
    box = Box(*(tuple([part[i] for i in order]) for part in to.box))  # type: ignore[arg-type]
    labels = tuple([to.labels[i] for i in order])
    return Selected(box, labels, OutputIndexMaps(reordered_maps(to.maps, order)), ())


def reordered_maps(maps: Sequence[OutputIndexMap], order: Sequence[int]) -> list[OutputIndexMap]:
    """Return the output maps of a domain whose dimension i is dimension ``order[i]``."""
    position = {old: new for new, old in enumerate(order)}
    result = []
    for m in maps:
        if m.input_dimension is not None and m.stride is not None:
            m = input_map(m.offset, m.stride, position[m.input_dimension])
        elif m.index_array is not None and m.stride is not None:
            m = array_map(m.offset, m.stride, m.index_array.transpose(order), m.bounds)
        result.append(m)
    return result


@dataclass(frozen=True, slots=True)
class Diagonal:
    """One dimension, the first, in place of the selected ones, whose indices are equal there."""

    def __str__(self) -> str:
        return ".diagonal"

    def apply(self, to: Selected) -> Selected:
        others = [dim for dim in range(len(to.labels)) if dim not in to.dims]
        check_rank(1 + len(others))
        lows, stops, il, iu = to.box
        low = max((lows[dim] for dim in to.dims), default=-INF)
        stop = max(low, min((stops[dim] for dim in to.dims), default=INF_STOP))
        box = Box(
            (low, *(lows[dim] for dim in others)),
            (stop, *(stops[dim] for dim in others)),
            (all(il[dim] for dim in to.dims), *(il[dim] for dim in others)),
            (all(iu[dim] for dim in to.dims), *(iu[dim] for dim in others)),
        )
        labels = ("", *(to.labels[dim] for dim in others))
        position = {dim: 1 + i for i, dim in enumerate(others)}
        maps = []
        for m in to.maps:
            if m.input_dimension is not None and m.stride is not None:
                m = input_map(m.offset, m.stride, position.get(m.input_dimension, 0))
            elif m.index_array is not None and explicitly_empty(box):
                m = constant_map(0)
            elif m.index_array is not None and m.stride is not None:
                array = _diagonal(m.index_array, to, others, low, stop)
                m = array_map(m.offset, m.stride, array, m.bounds)
            maps.append(m)
        return Selected(box, labels, OutputIndexMaps(maps), (0,))


def _diagonal(
    array: IndexArray, to: Selected, others: Sequence[int], low: int, stop: int
) -> IndexArray:
    # Dimensions that the array does not depend on have size 1 in it.
    along = [dim for dim in to.dims if array.shape[dim] != 1]
    array = array.transpose(*to.dims, *others)
    index = tuple(
        np.arange(low, stop) - to.box.inclusive_min[dim] if dim in along else 0 for dim in to.dims
    )
    view: IndexArray = array[index] if along else array[index][np.newaxis]
    return view


def format_terms(terms: Sequence[DimTerm]) -> str:
    """Format selected dimensions and labels as in ``d[1:3,'x']``.

    Escapes are those of TensorStore, but for characters beyond ASCII, which it prints as bytes: the
    text is Python that has the same value.

    >>> format_terms((2, slice(None, None, 2), "x"))
    "2,::2,'x'"
    """
    return ",".join(
        _quoted(term)
        if isinstance(term, str)
        else format_range(term)
        if isinstance(term, slice)
        else str(term)
        for term in terms
    )


def _quoted(label: str) -> str:
    return "'" + re.sub(r"[\x00-\x7f]+", lambda ascii: quote(ascii[0])[1:-1], label) + "'"


_OF_ALL: Final[dict[str, Any]] = {
    "label": Labels,
    "mark_bounds_implicit": ImplicitBounds,
    "translate_backward_by": Translation,
    "translate_by": Translation,
    "translate_to": Translation,
}

_EVERY = tuple(tuple(range(rank)) for rank in range(MAX_RANK + 1))


def operated(
    box: Box, labels: tuple[str, ...], maps: OutputIndexMaps, name: str, index: Any
) -> Selected:
    """Return the transform after ``.<name>[index]`` of all its dimensions.

    Raises
    ------
    MetadataError, OutOfBoundsError
        If the index does not fit the domain, or is out of bounds.
    TypeError
        If it is of a wrong type.
    """
    operation: Operation = _OF_ALL[name].of(name, index)
    return operation.apply(Selected(box, labels, maps, _EVERY[len(labels)]))
