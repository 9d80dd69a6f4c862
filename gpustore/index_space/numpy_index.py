"""NumPy-style indices as data: integers, slices, newaxis, ellipsis, and arrays of indices.

Source: TensorStore ``index_space/internal/numpy_indexing_spec.cc``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.interval import INT64_MIN, fits_int64

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpustore.index_space.output_map import IndexArray


Slice = tuple[int | None, int | None, int]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """Array term of an index: one index array per old dimension it consumes, all of one shape.

    Those of a boolean array are the indices of its true elements; of one without dimensions there
    are none, and the shape is ``(0,)`` or ``(1,)``.
    """

    shape: tuple[int, ...]
    arrays: tuple[IndexArray, ...]
    is_mask: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arrays):
            return NotImplemented
        return (self.shape, self.is_mask, len(self.arrays)) == (
            other.shape,
            other.is_mask,
            len(other.arrays),
        ) and all(map(np.array_equal, self.arrays, other.arrays))

    def __str__(self) -> str:
        if not self.is_mask:
            return repr(self.arrays[0])
        mask = np.zeros([int(axis.max(initial=0)) + 1 for axis in self.arrays], bool)
        mask[self.arrays] = self.shape != (0,)
        return repr(mask)


Term = int | Slice | None | EllipsisType | Arrays

_NOT_AN_INDEX = (
    "Only integers, slices (`:`), ellipsis (`...`), tensorstore.newaxis (`None`) and integer or "
    "boolean arrays are valid indices"
)

_CHAINED_NEWAXIS = "tensorstore.newaxis (`None`) not valid in chained indexing operations"
_OUTER_ZERO_RANK = "Zero-rank bool array incompatible with outer indexing of a dimension selection"


def parse_terms(index: Any) -> tuple[list[Term], bool]:
    """Return the terms of an index, the object between brackets, and whether one is an array.

    Raises
    ------
    IndexError
        If it is no index expression.
    """
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
            with_arrays = with_arrays or isinstance(term, Arrays)
            terms.append(term)
    if terms.count(Ellipsis) > 1:
        raise OutOfBoundsError("An index can only have a single ellipsis (`...`)", status="")
    return terms, with_arrays


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
    lists = [
        (name, value)
        for name, value in (("start", start), ("stop", stop), ("step", step))
        if isinstance(value, list)
    ]
    if not lists:
        return [(start, stop, 1 if step is None else step)]
    for (before, known), (name, value) in pairwise(lists):
        if len(known) != len(value):
            raise OutOfBoundsError(
                f"{name}={_list(value)} (rank {len(value)}) is incompatible with "
                f"{before}={_list(known)} (rank {len(known)})",
                status="",
            )
    rank = len(lists[0][1])
    columns = [v if isinstance(v, list) else [v] * rank for v in (start, stop, step)]
    return [(a, b, 1 if c is None else c) for a, b, c in zip(*columns)]


def _list(values: Sequence[int | None]) -> str:
    return "[" + ",".join(map(str, values)) + "]"


def _parse_other(term: Any) -> int | Arrays:
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
            return Arrays((int(array),), (), is_mask=True)
        found = array.nonzero()
        true = tuple(axis.astype(np.int64) for axis in found)
        return Arrays((len(found[0]),), true, is_mask=True)
    if array.dtype.kind in "iu":
        indices = np.array(array.astype(np.int64, casting="safe"), order="C", copy=True)
        return Arrays(indices.shape, (indices,))
    raise OutOfBoundsError(
        "Arrays used as indices must be of integer (or boolean) type"
        if is_array
        else _NOT_AN_INDEX,
        status="",
    )


@dataclass(slots=True)
class Joint:
    """Index arrays that are broadcast against each other.

    Attributes
    ----------
    shape : tuple of int
        Shape that all arrays are broadcast to.
    is_first : bool
        Whether its dimensions come before all others, not in place of the first array.
    """

    shape: tuple[int, ...] = ()
    is_first: bool = False
    _seen: bool = False
    _interrupted: bool = False

    def add(self, term: Term) -> None:
        """Take the next term of the index; MetadataError if an array does not fit the others."""
        if isinstance(term, Arrays):
            self._broadcast(term.shape)
            self._seen = True
            self.is_first = self.is_first or self._interrupted
        elif type(term) is not int:
            self._interrupted = self._seen

    def _broadcast(self, shape: tuple[int, ...]) -> None:
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


def joint_of(terms: Sequence[Term], mode: str) -> Joint | None:
    """Return how the arrays among `terms` are broadcast; None if each has dimensions of its own.

    Raises
    ------
    MetadataError
        If their shapes do not fit each other.
    """
    if mode == "oindex":
        return None
    joint = Joint(is_first=mode == "vindex")
    for term in terms:
        joint.add(term)
    return joint


@dataclass(frozen=True, slots=True)
class NumpyIndex:
    """Index of selected dimensions, as in ``d["x", "y"][1:5, 3]``.

    Attributes
    ----------
    terms : tuple
        Terms in the order of the selected dimensions.
    mode : {"default", "oindex", "vindex"}
        Combination of several index arrays.
    is_scalar : bool
        Whether there is one term, which is applied to each selected dimension.
    joint : Joint or None
        Arrays that are broadcast against each other.
    """

    terms: tuple[Term, ...]
    mode: str
    is_scalar: bool
    joint: Joint | None = field(compare=False)

    @classmethod
    def parse(cls, index: Any, mode: str, *, is_chained: bool) -> Self:
        """Return the index in the brackets; IndexError if it is none.

        Only the first operation on a selection, one that `is_chained` is not, may add dimensions.
        """
        terms, _ = parse_terms(index)
        joint = None if mode == "oindex" else Joint(is_first=mode == "vindex")
        for term in terms:
            if term is None and is_chained:
                raise OutOfBoundsError(_CHAINED_NEWAXIS, status="")
            is_zero_rank = isinstance(term, Arrays) and not term.arrays
            if joint is None:
                if is_zero_rank:
                    raise OutOfBoundsError(_OUTER_ZERO_RANK, status="")
                continue
            try:
                joint.add(term)
            except MetadataError as error:
                raise OutOfBoundsError(error.text, status="") from None
            joint.is_first = joint.is_first or is_zero_rank
        is_scalar = type(index) is not tuple and len(terms) == 1 and _is_scalar(index, terms[0])
        return cls(tuple(terms), mode, is_scalar, joint)

    def __str__(self) -> str:
        text = ",".join(map(_text, self.terms))
        if len(self.terms) == 1 and not self.is_scalar:
            text += ","
        name = "" if self.mode == "default" else f".{self.mode}"
        return f"{name}[{text or '()'}]"


def _is_scalar(index: Any, term: Term) -> bool:
    if isinstance(term, Arrays):
        return not term.shape and not term.is_mask
    if isinstance(index, slice):
        return not any(np.ndim(part) for part in (index.start, index.stop, index.step))
    return term is not Ellipsis


def _text(term: Term) -> str:
    if isinstance(term, tuple):
        start, stop, step = ("" if part is None else str(part) for part in term)
        return f"{start}:{stop}" if step == "1" else f"{start}:{stop}:{step}"
    return "..." if term is Ellipsis else str(term)
