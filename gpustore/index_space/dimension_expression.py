"""Dimension expressions: operations on dimensions that are selected by index or label.

Applied to a domain, a transform, a store, a spec or a schema by indexing it:
``store[d["y", "x"].translate_to[0]]``.
Source: TensorStore ``python/tensorstore/dim_expression.cc``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.accessor import Accessor
from gpustore.index_space.dimension_operation import (
    Diagonal,
    ImplicitBounds,
    Labels,
    Operation,
    Selected,
    Stride,
    Translation,
    Transposition,
    format_terms,
)
from gpustore.index_space.numpy_index import NumpyIndex
from gpustore.index_space.selected_indexing import index_new_selection, index_selected
from gpustore.index_space.selection import (
    DimTerm,
    Expression,
    dimension_terms,
    selected_dimensions,
)

if TYPE_CHECKING:
    from gpustore.index_space.bounds import Box
    from gpustore.index_space.output_map import OutputIndexMaps


T = TypeVar("T", bound="DimExpression")


class DimExpression(Expression):
    """Selected dimensions and operations on them, which indexing applies from left to right.

    Each operation returns a longer expression; the text of an expression is Python that makes it.
    Its dimensions are those that the operation before it made, or left, of the selected ones.
    Applying one raises IndexError where it does not fit the domain. Immutable.

    Examples
    --------
    >>> from gpustore import IndexTransform, d
    >>> d["x", "y"].label["a", "b"][1:3, 5]
    d['x','y'].label['a','b'][1:3,5]
    >>> IndexTransform(input_shape=[9, 9, 9], input_labels=["x", "", "y"])[d["y", "x"][2:5, 3]]
    Rank 2 -> 3 index space transform:
      Input domain:
        0: [0, 9)
        1: [2, 5) "y"
      Output index maps:
        out[0] = 3
        out[1] = 0 + 1 * in[0]
        out[2] = 0 + 1 * in[1]
    <BLANKLINE>
    """

    __slots__ = ("_operations", "_terms")

    _terms: tuple[DimTerm, ...]
    _operations: tuple[Operation, ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("use gpustore.d[...] to get a dimension expression")

    def _then(self, operation: Operation) -> DimExpression:
        return _expression(self._terms, (*self._operations, operation))

    def _has_operations(self) -> bool:
        return bool(self._operations)

    def _selection(self) -> tuple[DimTerm, ...]:
        if self._operations:
            raise TypeError(f"expected dimensions without operations, got {self!r}")
        return self._terms

    def __getitem__(self, indices: Any) -> DimExpression:
        """Index the selected dimensions in the way of NumPy.

        A single integer, slice or newaxis is for each of them. Otherwise there is a term for every
        selected dimension, or an ellipsis. None adds dimensions, only directly behind a selection.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8, 7])[d[0, 2][1:5]]
        { [1, 5), [0, 8), [1, 5) }
        >>> IndexDomain(shape=[9, 8])[d[-1][None]]
        { [0, 9), [0, 8), [0*, 1*) }
        """
        return self._indexed("default", indices)

    # Python would count up from 0 for ever to iterate over an expression.
    __iter__ = None

    def _indexed(self, mode: str, indices: Any) -> DimExpression:
        index = NumpyIndex.parse(indices, mode, is_chained=bool(self._operations))
        return self._then(_Indexing(index))

    def _accessor(self, name: str, operation: Any) -> Accessor[DimExpression]:
        return Accessor(self, name, lambda index: self._then(operation.of(name, index)))

    @property
    def oindex(self) -> Accessor[DimExpression]:
        """Accessor ``x.oindex[...]``: each index array makes dimensions of its own.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8, 7])[d[2, 0].oindex[[1, 2, 3], [4, 5]]]
        { [0, 2), [0, 8), [0, 3) }
        """
        return Accessor(self, "oindex", partial(self._indexed, "oindex"))

    @property
    def vindex(self) -> Accessor[DimExpression]:
        """Accessor ``x.vindex[...]``: index arrays are broadcast, their dimensions come first.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8, 7])[d[2, 1].vindex[[1, 2, 3], [4, 5, 6]]]
        { [0, 3), [0, 9) }
        """
        return Accessor(self, "vindex", partial(self._indexed, "vindex"))

    @property
    def label(self) -> Accessor[DimExpression]:
        """Accessor ``x.label["a", "b"]``: labels of the selected dimensions.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(2)[d[1].label["x"]]
        { (-inf*, +inf*), "x": (-inf*, +inf*) }
        """
        return self._accessor("label", Labels)

    @property
    def translate_to(self) -> Accessor[DimExpression]:
        """Accessor ``x.translate_to[origin]``: selected dimensions begin at `origin`.

        One number is for each of them; None leaves a dimension unchanged.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8, 7])[d[0, 2].translate_to[5, None]]
        { [5, 14), [0, 8), [0, 7) }
        """
        return self._accessor("translate_to", Translation)

    @property
    def translate_by(self) -> Accessor[DimExpression]:
        """Accessor ``x.translate_by[offset]``: `offset` is added to the selected dimensions."""
        return self._accessor("translate_by", Translation)

    @property
    def translate_backward_by(self) -> Accessor[DimExpression]:
        """Accessor ``x.translate_backward_by[offset]``: `offset` is subtracted from them."""
        return self._accessor("translate_backward_by", Translation)

    @property
    def stride(self) -> Accessor[DimExpression]:
        """Accessor ``x.stride[strides]``: indices are divided by strides, remainders left out.

        Unlike ``x[::stride]`` it counts from index 0, not from the origin of the domain. One
        number is for each selected dimension; None leaves a dimension unchanged.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(inclusive_min=[1, 1], exclusive_max=[9, 9])[d[0].stride[3]]
        { [1, 3), [1, 9) }
        """
        return self._accessor("stride", Stride)

    @property
    def transpose(self) -> Accessor[DimExpression]:
        """Accessor ``x.transpose[target]``: selected dimensions move to `target`.

        `target` are indices or slices, or one index for the first of the selected dimensions; of
        a negative one, for the last. The other dimensions keep their order.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(labels=["x", "y", "z"])[d["z", "x"].transpose[0]].labels
        ('z', 'x', 'y')
        """
        return self._accessor("transpose", Transposition)

    @property
    def mark_bounds_implicit(self) -> Accessor[DimExpression]:
        """Accessor ``x.mark_bounds_implicit[lower:upper]``: bounds that can be resized, or not.

        One bool sets both flags, None leaves a flag unchanged.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8])[d[0].mark_bounds_implicit[:True]]
        { [0, 9*), [0, 8) }
        """
        return self._accessor("mark_bounds_implicit", ImplicitBounds)

    @property
    def diagonal(self) -> DimExpression:
        """Expression with one dimension, the first, where the indices of the selected are equal.

        >>> from gpustore import IndexDomain, d
        >>> IndexDomain(shape=[9, 8, 7], labels=["x", "y", "z"])[d["x", "z"].diagonal]
        { [0, 7), "y": [0, 8) }
        """
        return self._then(Diagonal())

    def _applied(
        self, box: Box, labels: tuple[str, ...], maps: OutputIndexMaps
    ) -> tuple[Box, tuple[str, ...], OutputIndexMaps]:
        if not self._operations:
            raise OutOfBoundsError(
                "Must specify at least one operation in dimension expression", status=""
            )
        to = Selected(box, labels, maps, ())
        first, *others = self._operations
        try:
            if isinstance(first, _Indexing):
                # Dimensions are counted with the new ones of the index.
                to = index_new_selection(to, first.index, self._terms)
            else:
                dims = selected_dimensions(self._terms, labels)
                to = first.apply(to._replace(dims=dims))
            for operation in others:
                to = operation.apply(to)
        except MetadataError as error:
            raise OutOfBoundsError(error.text, status="") from None
        return to.box, to.labels, to.maps

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DimExpression):
            return NotImplemented
        return (self._terms, self._operations) == (other._terms, other._operations)

    __hash__ = None  # type: ignore[assignment]  # Index arrays have none.

    def __reduce__(self) -> tuple[Any, ...]:
        return (_expression, (self._terms, self._operations))

    def __repr__(self) -> str:
        return f"d[{format_terms(self._terms) or '()'}]" + "".join(map(str, self._operations))


class DimSelection(DimExpression):
    """Dimensions selected by index, label or range, which a dimension expression begins with.

    >>> from gpustore import IndexDomain, d
    >>> d[0:1, 2, "x"], d[[0, 1], d[2, 3]]
    (d[0:1,2,'x'], d[0,1,2,3])
    >>> IndexDomain(labels=["x", "y", "z"])[d["z", 0]].labels
    ('z', 'x')
    """

    __slots__ = ()


def _expression(terms: tuple[DimTerm, ...], operations: tuple[Operation, ...]) -> DimExpression:
    """Return an expression of parts that were checked."""
    return _filled(DimExpression if operations else DimSelection, terms, operations)


def _filled(kind: type[T], terms: tuple[DimTerm, ...], operations: tuple[Operation, ...]) -> T:
    expression = object.__new__(kind)
    expression._terms = terms
    expression._operations = operations
    return expression


class _Indexing:
    """NumPy-style indexing of the dimensions that an earlier operation left selected."""

    __slots__ = ("index",)

    def __init__(self, index: NumpyIndex) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return self.index == other.index if isinstance(other, _Indexing) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.index)

    def apply(self, to: Selected) -> Selected:
        return index_selected(to, self.index)


class _Dimensions:
    """Dimensions by index, label or slice, such as ``d[0, "x", 1:3]``, a :class:`DimSelection`.

    Negative indices count from the last dimension. Selections nest: ``d["x", d[0, 1]]``.
    """

    __slots__ = ()

    def __getitem__(self, selection: Any) -> DimSelection:
        """Return the selection of dimensions by index, label or slice, or sequences of these."""
        return _filled(DimSelection, dimension_terms(selection), ())

    __iter__ = None

    def __reduce__(self) -> str:
        return "d"

    def __repr__(self) -> str:
        return "gpustore.d"


d: Final = _Dimensions()
