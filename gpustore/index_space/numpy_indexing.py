"""NumPy-style indexing of a domain and its output maps.

Steps:

1. Parse the index into terms: integers, slices, newaxis, ellipsis, integer and boolean arrays.
2. Without arrays each old dimension becomes a constant or an affine function of one new
   dimension; the bounds follow from the slices alone.
3. With arrays, build the transform from the new to the old domain and compose with it.

Unlike in NumPy negative indices do not wrap and slices keep their origin.
Source: TensorStore ``index_space/internal/numpy_indexing_spec.cc``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore.errors import GpustoreError, MetadataError, OutOfBoundsError
from gpustore.index_space.bounds import Box, check_constant, explicitly_empty, propagate
from gpustore.index_space.composition import compose_maps
from gpustore.index_space.domain import IndexDomain, make_domain
from gpustore.index_space.interval import (
    INF,
    INF_STOP,
    INT64_MIN,
    MAX_RANK,
    check_rank,
    fits_int64,
    strided_slice,
)
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    identity_maps,
    input_map,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpustore.index_space.output_map import IndexArray


Slice = tuple[int | None, int | None, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """Array term of an index: one index array per old dimension it consumes, all of one shape."""

    shape: tuple[int, ...]
    arrays: tuple[IndexArray, ...]


Term = int | Slice | None | EllipsisType | _Arrays

_NOT_AN_INDEX = (
    "Only integers, slices (`:`), ellipsis (`...`), tensorstore.newaxis (`None`) and integer or "
    "boolean arrays are valid indices"
)


def index_maps(
    domain: IndexDomain, maps: OutputIndexMaps, index: Any, mode: str = "default"
) -> tuple[IndexDomain, OutputIndexMaps]:
    """Return domain and output maps of a transform after NumPy-style indexing.

    Parameters
    ----------
    domain, maps : IndexDomain, OutputIndexMaps
        Domain and maps of the transform that is indexed.
    index : object
        Index expression, the object between the brackets.
    mode : {"default", "oindex", "vindex"}
        Combination of several index arrays: as in NumPy, each with dimensions of its own, or
        jointly with their dimensions first.

    Raises
    ------
    IndexError
        If the index is out of bounds or no index expression.
    """
    rank = len(maps)
    if type(index) is tuple and len(index) == rank and maps is identity_maps(rank):
        found = _index_inside(domain, index)
        if found is not None:
            return found
    terms: list[Term] = []
    with_arrays = False
    for item in index if type(index) is tuple else (index,):
        kind = type(item)
        if kind is slice:
            terms.extend(_parse_slice(item))
        elif (kind is int and fits_int64(item)) or item is None or item is Ellipsis:
            terms.append(item)
        else:
            term = _parse_other(item)
            with_arrays = with_arrays or isinstance(term, _Arrays)
            terms.append(term)
    if terms.count(Ellipsis) > 1:
        raise OutOfBoundsError("An index can only have a single ellipsis (`...`)", status="")
    try:
        if with_arrays:
            return _index_arrays(domain, maps, terms, mode)
        return _index_affine(domain, maps, terms)
    except MetadataError as error:
        raise OutOfBoundsError(error.text, status="") from None


def _index_inside(
    domain: IndexDomain, index: tuple[Any, ...]
) -> tuple[IndexDomain, OutputIndexMaps] | None:
    """Index each dimension by an integer or ``start:stop`` inside its bounds; None for others.

    Most indices are of this kind. Others, and those outside, take the steps above.
    """
    low: list[int] = []
    high: list[int] = []
    constants = False
    box = domain.box
    for item, first, end in zip(index, box[0], box[1]):
        if type(item) is slice:
            start, stop = item.start, item.stop
            if item.step is not None or type(start) is not int or type(stop) is not int:
                return None
            if not _NEGATIVE < first <= start <= stop <= end < INF:
                return None
            low.append(start)
            high.append(stop)
        elif type(item) is int and _NEGATIVE < first <= item < end < INF:
            constants = True
        else:
            return None
    labels, rank = domain.labels, len(low)
    maps = identity_maps(rank)
    if constants:
        labels = tuple([one for one, item in zip(labels, index) if type(item) is slice])
        kept = iter(maps)
        maps = OutputIndexMaps(
            [next(kept) if type(item) is slice else constant_map(item) for item in index]
        )
    explicit = _EXPLICIT[rank]
    return make_domain(Box(tuple(low), tuple(high), explicit, explicit), labels), maps


_NEGATIVE = -INF

_EXPLICIT = tuple((False,) * rank for rank in range(MAX_RANK + 1))


def _slice_bound(value: Any) -> Any:
    if value is None or (type(value) is int and INT64_MIN < value < -INT64_MIN):
        return value
    if isinstance(value, str | bytes):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    if isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return [_slice_bound(item) for item in value]
    try:
        number = operator.index(value)
    except TypeError:
        number = -INT64_MIN
    if not fits_int64(number):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    # TensorStore's internal value for "not given".
    return None if number == INT64_MIN else number


def _parse_slice(term: slice) -> list[Slice]:
    start, stop = _slice_bound(term.start), _slice_bound(term.stop)
    step = _slice_bound(term.step)
    rank: int | None = None
    for name, value in (("start", start), ("stop", stop), ("step", step)):
        if isinstance(value, list):
            if rank is not None and rank != len(value):
                raise OutOfBoundsError(
                    f"{name}={value} (rank {len(value)}) is incompatible with rank {rank}",
                    status="",
                )
            rank = len(value)
    if rank is None:
        return [(start, stop, 1 if step is None else step)]
    columns = [v if isinstance(v, list) else [v] * rank for v in (start, stop, step)]
    return [(a, b, 1 if c is None else c) for a, b, c in zip(*columns)]


def _parse_other(term: Any) -> int | _Arrays:
    """Parse an integer-like object, or one that NumPy converts to an integer or boolean array."""
    is_array = isinstance(term, np.ndarray)
    if not is_array and not isinstance(term, bool):
        try:
            number = operator.index(term)
        except TypeError:
            number = INT64_MIN - 1
        if fits_int64(number):
            return number
    array: npt.NDArray[Any] = np.asarray(term)
    if array.size == 0 and not is_array:
        array = array.astype(np.int64)
    if array.dtype.kind == "b":
        if array.ndim == 0:
            return _Arrays((int(array),), ())
        found = array.nonzero()
        return _Arrays((len(found[0]),), tuple(axis.astype(np.int64) for axis in found))
    if array.dtype.kind in "iu":
        indices = np.array(array.astype(np.int64, casting="safe"), order="C", copy=True)
        return _Arrays(indices.shape, (indices,))
    raise OutOfBoundsError(
        "Arrays used as indices must be of integer (or boolean) type"
        if is_array
        else _NOT_AN_INDEX,
        status="",
    )


def _extra_dims(domain: IndexDomain, consumed: int, added: int) -> int:
    """Return the number of dimensions that an ellipsis stands for."""
    extra = domain.rank - consumed
    if extra < 0:
        raise MetadataError(
            f"Indexing expression requires {consumed} dimensions, and cannot be applied to a "
            f"domain of rank {domain.rank}"
        )
    check_rank(added + extra)
    return extra


class _Builder:
    """Builder of the new domain and the maps from it to the old one, dimension by dimension."""

    __slots__ = ("domain", "high", "il", "iu", "labels", "low", "maps")

    def __init__(self, domain: IndexDomain) -> None:
        self.domain = domain
        self.low: list[int] = []
        self.high: list[int] = []
        self.il: list[bool] = []
        self.iu: list[bool] = []
        self.labels: list[str] = []
        self.maps: list[OutputIndexMap] = []

    def add(self, low: int, high: int, il: bool, iu: bool, label: str) -> None:
        self.low.append(low)
        self.high.append(high)
        self.il.append(il)
        self.iu.append(iu)
        self.labels.append(label)

    def add_identity(self, count: int) -> None:
        first = len(self.maps)
        last = first + count
        at = len(self.low)
        box = self.domain.box
        self.low += box[0][first:last]
        self.high += box[1][first:last]
        self.il += box[2][first:last]
        self.iu += box[3][first:last]
        self.labels += self.domain.labels[first:last]
        self.maps += tuple.__getitem__(identity_maps(at + count), slice(at, None))

    def add_slice(self, term: Slice) -> None:
        dim = len(self.maps)
        low, high, il, iu = self.domain.box
        try:
            new_low, new_high, new_il, new_iu, offset = strided_slice(
                (low[dim], high[dim], il[dim], iu[dim]), *term
            )
        except GpustoreError as error:
            raise error.prefixed(f"Computing interval slice for dimension {dim}") from None
        self.maps.append(input_map(offset, term[2], len(self.low)))
        self.add(new_low, new_high, new_il, new_iu, self.domain.labels[dim])

    def add_term(self, term: int | Slice | EllipsisType | None, extra: int) -> None:
        if type(term) is tuple:
            self.add_slice(term)
        elif type(term) is int:
            self.maps.append(constant_map(term))
        elif term is None:
            self.add(0, 1, True, True, "")
        else:
            self.add_identity(extra)

    def box(self) -> Box:
        return Box._make((tuple(self.low), tuple(self.high), tuple(self.il), tuple(self.iu)))


def _index_affine(
    domain: IndexDomain, maps: OutputIndexMaps, terms: Sequence[Any]
) -> tuple[IndexDomain, OutputIndexMaps]:
    new_dims = terms.count(None)
    ellipsis = Ellipsis in terms
    consumed = len(terms) - new_dims - ellipsis
    constants = [type(term) for term in terms].count(int)
    extra = _extra_dims(domain, consumed, consumed - constants + new_dims)
    builder = _Builder(domain)
    for term in terms:
        builder.add_term(term, extra)
    if not ellipsis and extra:
        builder.add_identity(extra)
    box = builder.box()
    # Slices are within bounds already, and the bounds they give are those that follow.
    if constants and not explicitly_empty(box):
        for dim, mapping in enumerate(builder.maps):
            if mapping.stride is None:
                low, stop, il, iu = domain.box
                check_constant(dim, mapping.offset, low[dim], stop[dim], il[dim], iu[dim])
    if maps is identity_maps(domain.rank):
        composed = OutputIndexMaps(builder.maps)
    else:
        composed = compose_maps(maps, domain.box, builder.maps, box)
    return make_domain(box, tuple(builder.labels)), composed


@dataclass(slots=True)
class _Joint:
    """Index arrays that are broadcast against each other."""

    shape: tuple[int, ...] = ()
    consecutive: bool = True
    seen: bool = False
    interrupted: bool = False
    start: int = field(default=-1)

    def note(self, term: Term) -> None:
        if isinstance(term, _Arrays):
            self.broadcast(term.shape)
            self.seen = True
            self.consecutive = self.consecutive and not self.interrupted
        elif type(term) is not int:
            self.interrupted = self.seen

    def broadcast(self, shape: tuple[int, ...]) -> None:
        known = [1] * (len(shape) - len(self.shape)) + list(self.shape)
        for dim, size in enumerate(shape, len(known) - len(shape)):
            if known[dim] == 1:
                known[dim] = size
            elif size not in (1, known[dim]):
                raise MetadataError(
                    f"Incompatible index array shapes: {_braced(shape)} vs {_braced(known)}"
                )
        self.shape = tuple(known)


def _braced(shape: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, shape)) + "}"


def _index_arrays(
    domain: IndexDomain, maps: OutputIndexMaps, terms: Sequence[Term], mode: str
) -> tuple[IndexDomain, OutputIndexMaps]:
    joint = _Joint(consecutive=mode == "default")
    outer = mode == "oindex"
    consumed = added = 0
    for term in terms:
        if not outer:
            joint.note(term)
        if isinstance(term, _Arrays):
            consumed += len(term.arrays)
            added += len(term.shape) if outer else 0
        elif term is not Ellipsis:
            consumed += term is not None
            added += type(term) is not int
    extra = _extra_dims(domain, consumed, added + len(joint.shape))
    builder = _Builder(domain)
    pending: list[tuple[int, IndexArray, int]] = []

    def add_array_dims(shape: tuple[int, ...]) -> int:
        start = len(builder.low)
        for size in shape:
            builder.add(0, size, False, False, "")
        return start

    if not outer and not joint.consecutive:
        joint.start = add_array_dims(joint.shape)
    for term in terms:
        if not isinstance(term, _Arrays):
            builder.add_term(term, extra)
            continue
        if outer:
            start = add_array_dims(term.shape)
        else:
            if joint.start < 0:
                joint.start = add_array_dims(joint.shape)
            start = joint.start + len(joint.shape) - len(term.shape)
        for array in term.arrays:
            pending.append((len(builder.maps), array, start))
            builder.maps.append(constant_map(0))
    if Ellipsis not in terms:
        builder.add_identity(extra)
    a_box = builder.box()
    if not explicitly_empty(a_box):
        rank = len(builder.low)
        for dim, array, start in pending:
            after = rank - start - array.ndim
            spread = array.reshape((1,) * start + array.shape + (1,) * after)
            builder.maps[dim] = array_map(0, 1, spread, (-INF, INF_STOP))
    box = propagate(domain.box, a_box, builder.maps)
    composed = compose_maps(maps, domain.box, builder.maps, box)
    return make_domain(box, tuple(builder.labels)), composed
