"""Output index maps: the computation of one output dimension from the input indices.

Three methods: a constant; ``offset + stride * input[input_dimension]``; or
``offset + stride * index_array[input]``, with the array broadcast over the input domain.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from gpustore.errors import OutOfBoundsError
from gpustore.index_space.dim import Dim
from gpustore.index_space.interval import (
    INF,
    INF_STOP,
    MAX_RANK,
    format_interval,
    index_argument,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    IndexArray = npt.NDArray[np.int64]


class OutputIndexMethod(enum.Enum):
    """Method of an :class:`OutputIndexMap`: constant, single input dimension or index array."""

    constant = 0
    single_input_dimension = 1
    array = 2

    def __index__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class OutputIndexMap:
    """Output index map of one output dimension; immutable.

    Parameters
    ----------
    offset : int
        Added to the result; the whole result if neither of the next two is given.
    input_dimension : int, optional
        The input dimension whose index is multiplied by `stride`.
    index_array : array_like of int, optional
        Indexed by the input indices, relative to the origin of the input domain; one dimension
        per input dimension, of the size of that dimension or of size 1. Copied.
    stride : int
        Factor for either of them; None in a constant map.
    index_range : Dim
        Values of `index_array` outside this interval are errors.

    Examples
    --------
    >>> OutputIndexMap(3)
    OutputIndexMap(offset=3)
    >>> OutputIndexMap(input_dimension=1, stride=2).method
    <OutputIndexMethod.single_input_dimension: 1>
    """

    offset: int
    stride: int | None
    input_dimension: int | None
    index_array: IndexArray | None
    bounds: tuple[int, int]

    @overload
    def __init__(self, offset: SupportsIndex = 0) -> None: ...
    @overload
    def __init__(
        self,
        input_dimension: SupportsIndex,
        offset: SupportsIndex = 0,
        stride: SupportsIndex = 1,
    ) -> None: ...
    @overload
    def __init__(
        self,
        index_array: npt.ArrayLike,
        offset: SupportsIndex = 0,
        stride: SupportsIndex = 1,
        index_range: Dim | None = None,
    ) -> None: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _name_positional(args, kwargs)
        offset = index_argument(given.get("offset", 0), "offset")
        stride: int | None = index_argument(given.get("stride", 1), "stride")
        dimension: int | None = None
        array: IndexArray | None = None
        bounds = (-INF, INF_STOP)
        if "index_array" in given:
            array = _freeze(given["index_array"])
            index_range = given.get("index_range")
            if index_range is not None:
                bounds = (index_range.inclusive_min, index_range.exclusive_max)
        elif "input_dimension" in given:
            dimension = index_argument(given["input_dimension"], "input_dimension")
        else:
            stride = None
        _fill(self, offset, stride, dimension, array, bounds)

    @property
    def method(self) -> OutputIndexMethod:
        """Method of this map."""
        if self.input_dimension is not None:
            return OutputIndexMethod.single_input_dimension
        if self.index_array is not None:
            return OutputIndexMethod.array
        return OutputIndexMethod.constant

    @property
    def index_range(self) -> Dim | None:
        """Interval of legal values of the index array; None for the other methods."""
        if self.index_array is None:
            return None
        return Dim(inclusive_min=self.bounds[0], exclusive_max=self.bounds[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OutputIndexMap):
            return NotImplemented
        if self._key() != other._key():
            return False
        a, b = self.index_array, other.index_array
        return a is None or b is None or np.array_equal(a, b)

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        shape = None if self.index_array is None else self.index_array.shape
        return self.offset, self.stride, self.input_dimension, self.bounds, shape

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.offset, self.stride, self.input_dimension, self.index_array, self.bounds)
        return (_rebuild, fields)

    def __repr__(self) -> str:
        text = f"OutputIndexMap(offset={self.offset}"
        if self.stride is not None:
            text += f", stride={self.stride}"
        if self.input_dimension is not None:
            text += f", input_dimension={self.input_dimension}"
        if self.index_array is not None:
            text += f", index_array={format_array(self.index_array)}"
            text += f", index_range={format_interval(*self.bounds)}"
        return text + ")"


def _name_positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name; their types tell the constructor that is meant."""
    first = "offset"
    if "index_array" in kwargs or "index_range" in kwargs:
        first = "index_array"
    elif "input_dimension" in kwargs or len(args) > 1 or kwargs.keys() & {"offset", "stride"}:
        first = "input_dimension"
    # NumPy arrays have __index__ even if they have many elements.
    if args and (not hasattr(args[0], "__index__") or np.ndim(args[0])):
        first = "index_array"
    names = {
        "offset": ("offset",),
        "input_dimension": ("input_dimension", "offset", "stride"),
        "index_array": ("index_array", "offset", "stride", "index_range"),
    }[first]
    if first == "input_dimension" and not args and "input_dimension" not in kwargs:
        names = ("offset",)
    given = dict(zip(names, args))
    wrong = (kwargs.keys() - set(names)) | (kwargs.keys() & given.keys())
    if wrong or len(args) > len(names):
        raise TypeError(f"OutputIndexMap: unexpected arguments {sorted(wrong) or args}")
    return given | kwargs


def _freeze(values: npt.ArrayLike) -> IndexArray:
    """Return a read-only int64 copy of `values`, broadcast elements stored once."""
    array = np.asarray(values)
    if array.dtype.kind not in "iub" and array.size:
        raise TypeError(f"index_array: expected integers, got dtype {array.dtype}")
    repeated = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for stride, size in zip(array.strides, array.shape)
    )
    frozen = np.array(array[repeated], dtype=np.int64, order="C")
    frozen.setflags(write=False)
    return frozen


def format_array(array: IndexArray) -> str:
    """Format an array in nested braces; of more than 1000 elements 3 at each end of a dimension.

    >>> format_array(np.array([[1, 2], [3, 4]]))
    '{{1, 2}, {3, 4}}'
    """
    return _braces(array, summarize=array.size > 1000)


def _braces(array: IndexArray, *, summarize: bool) -> str:
    if array.ndim == 0:
        return str(int(array))
    edge = 3
    if summarize and array.shape[0] > 2 * edge:
        parts = [_braces(a, summarize=True) for a in array[:edge]] + ["..."]
        parts += [_braces(a, summarize=True) for a in array[-edge:]]
    else:
        parts = [_braces(a, summarize=summarize) for a in array]
    return "{" + ", ".join(parts) + "}"


_new = object.__new__
_set = object.__setattr__


def _fill(
    target: OutputIndexMap,
    offset: int,
    stride: int | None,
    dimension: int | None,
    array: IndexArray | None,
    bounds: tuple[int, int],
) -> None:
    _set(target, "offset", offset)
    _set(target, "stride", stride)
    _set(target, "input_dimension", dimension)
    _set(target, "index_array", array)
    _set(target, "bounds", bounds)


_UNBOUNDED = (-INF, INF_STOP)


def constant_map(offset: int) -> OutputIndexMap:
    """Return a constant map, without checks."""
    result = _new(OutputIndexMap)
    _fill(result, offset, None, None, None, _UNBOUNDED)
    return result


def input_map(offset: int, stride: int, dimension: int) -> OutputIndexMap:
    """Return a single input dimension map, without checks; `stride` must not be 0."""
    if stride == 1 and offset == 0:
        return _IDENTITY[dimension]
    result = _new(OutputIndexMap)
    _fill(result, offset, stride, dimension, None, _UNBOUNDED)
    return result


def array_map(
    offset: int, stride: int, array: IndexArray, bounds: tuple[int, int]
) -> OutputIndexMap:
    """Return an index array map, without checks; `array` is int64 of the input domain's rank."""
    array = array.view()
    array.setflags(write=False)
    result = _new(OutputIndexMap)
    _fill(result, offset, stride, None, array, bounds)
    return result


def _rebuild(
    offset: int,
    stride: int | None,
    dimension: int | None,
    array: IndexArray | None,
    bounds: tuple[int, int],
) -> OutputIndexMap:
    result = _new(OutputIndexMap)
    if array is not None:
        array.setflags(write=False)
    _fill(result, offset, stride, dimension, array, bounds)
    return result


_IDENTITY = tuple(_rebuild(0, 1, dimension, None, _UNBOUNDED) for dimension in range(MAX_RANK))


class OutputIndexMaps(tuple[OutputIndexMap, ...]):
    """Output index maps of a transform: an immutable sequence, one per output dimension."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """Number of output dimensions."""
        return len(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> OutputIndexMap: ...
    @overload
    def __getitem__(self, index: slice) -> OutputIndexMaps: ...
    def __getitem__(self, index: SupportsIndex | slice) -> OutputIndexMap | OutputIndexMaps:
        if isinstance(index, slice):
            return OutputIndexMaps(tuple.__getitem__(self, index))
        number, rank = operator.index(index), len(self)
        if not -rank <= number < rank:
            raise OutOfBoundsError(
                f"Index {number} is outside valid range [{-rank}, {rank})", status=""
            )
        return tuple.__getitem__(self, number)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (tuple, list)):
            return tuple.__eq__(self, tuple(other))
        return NotImplemented

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self))}]"


_IDENTITIES = tuple(OutputIndexMaps(_IDENTITY[:rank]) for rank in range(MAX_RANK + 1))


def identity_maps(rank: int) -> OutputIndexMaps:
    """Return the maps of output dimension i to input dimension i; one object for each rank."""
    return _IDENTITIES[rank]
