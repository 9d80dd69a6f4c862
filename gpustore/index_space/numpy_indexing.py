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

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from gpustore.errors import GpustoreError, MetadataError, OutOfBoundsError
from gpustore.index_space.bounds import Box, check_constant, explicitly_empty, propagate
from gpustore.index_space.composition import compose_maps
from gpustore.index_space.domain import IndexDomain, make_domain
from gpustore.index_space.interval import INF, INF_STOP, check_rank, strided_slice
from gpustore.index_space.numpy_index import Arrays, Joint, Slice, Term, joint_of, parse_terms
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    identity_maps,
    input_map,
)

if TYPE_CHECKING:
    from gpustore.index_space.output_map import IndexArray


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
    terms, with_arrays = parse_terms(index)
    try:
        if with_arrays:
            return _index_arrays(domain, maps, terms, mode)
        return _index_affine(domain, maps, terms)
    except MetadataError as error:
        raise OutOfBoundsError(error.text, status="") from None


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


class Builder:
    """Builder of the new domain and the maps from it to the old one, dimension by dimension.

    Parameters
    ----------
    domain : IndexDomain
        The old domain.
    numbers : sequence of int, optional
        Number of each of its dimensions in messages; its position by default.
    """

    __slots__ = ("domain", "high", "il", "iu", "labels", "low", "maps", "numbers")

    def __init__(self, domain: IndexDomain, numbers: Sequence[int] | None = None) -> None:
        self.domain = domain
        self.numbers = numbers
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
            number = dim if self.numbers is None else self.numbers[dim]
            raise error.prefixed(f"Computing interval slice for dimension {number}") from None
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

    def add_terms(self, terms: Sequence[Term], joint: Joint | None, extra: int) -> None:
        """Add terms that may be arrays, and `extra` dimensions for the ellipsis."""
        pending: list[tuple[int, IndexArray, int]] = []
        joint_start = self._add_array_dims(joint.shape) if joint and joint.is_first else -1
        for term in terms:
            if not isinstance(term, Arrays):
                self.add_term(term, extra)
                continue
            if joint is None:
                start = self._add_array_dims(term.shape)
            else:
                if joint_start < 0:
                    joint_start = self._add_array_dims(joint.shape)
                start = joint_start + len(joint.shape) - len(term.shape)
            for array in term.arrays:
                pending.append((len(self.maps), array, start))
                self.maps.append(constant_map(0))
        self.add_identity(len(self.domain.labels) - len(self.maps))
        if not explicitly_empty(self.box()):
            rank = len(self.low)
            for dim, array, start in pending:
                after = rank - start - array.ndim
                spread = array.reshape((1,) * start + array.shape + (1,) * after)
                self.maps[dim] = array_map(0, 1, spread, (-INF, INF_STOP))

    def _add_array_dims(self, shape: tuple[int, ...]) -> int:
        start = len(self.low)
        for size in shape:
            self.add(0, size, False, False, "")
        return start

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
    builder = Builder(domain)
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


def _index_arrays(
    domain: IndexDomain, maps: OutputIndexMaps, terms: Sequence[Term], mode: str
) -> tuple[IndexDomain, OutputIndexMaps]:
    joint = joint_of(terms, mode)
    consumed, added = 0, len(joint.shape) if joint else 0
    for term in terms:
        if isinstance(term, Arrays):
            consumed += len(term.arrays)
            added += 0 if joint else len(term.shape)
        elif term is not Ellipsis:
            consumed += term is not None
            added += type(term) is not int
    builder = Builder(domain)
    builder.add_terms(terms, joint, _extra_dims(domain, consumed, added))
    box = propagate(domain.box, builder.box(), builder.maps)
    composed = compose_maps(maps, domain.box, builder.maps, box)
    return make_domain(box, tuple(builder.labels)), composed
