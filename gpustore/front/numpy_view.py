"""NumPy's way of indexing a store: :class:`NumpyView`, which ``store.numpy`` returns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import dtype
from gpustore.errors import OutOfBoundsError
from gpustore.index_space.accessor import Accessor
from gpustore.runtime.future import Future
from gpustore.runtime.write_futures import WriteFutures

_NUMPY: Final = "numpy"


class Store(Protocol):
    """Members of a TensorStore that the view needs."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> dtype: ...
    @property
    def translate_to(self) -> Accessor[Self]: ...
    @property
    def read(self) -> Callable[[], Future[Any]]: ...
    @property
    def write(self) -> Callable[[Any], WriteFutures]: ...
    def __getitem__(self, index: Any) -> Self: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __len__(self) -> int: ...


class NumpyView:
    """A store that is indexed as a NumPy array is, each index being a read at once.

    Indices count from zero, negative ones from the end, and slices are clipped; whatever the origin
    of the store's domain. There is no Future: indexing waits for the elements, and assignment until
    they are stored. :attr:`TensorStore.numpy` returns it.

    Parameters
    ----------
    store : TensorStore
        Store with finite bounds.

    Examples
    --------
    >>> import gpustore
    >>> view = gpustore.array([[0, 1, 2], [3, 4, 5]]).numpy
    >>> view[-1, ::-1]
    array([5, 4, 3])
    >>> view[0, :99].sum()
    np.int64(3)
    >>> view.oindex[[1, 0], [-1]]
    array([[5],
           [2]])
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store.translate_to[0] if store.rank else store

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension, in elements."""
        return self._store.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._store.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._store.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy data type of the elements, in native byte order."""
        return self._store.dtype.array_dtype

    @property
    def nbytes(self) -> int:
        """Decoded size in bytes."""
        return self._store.nbytes

    def __getitem__(self, index: Any) -> Any:
        """Read the elements that NumPy would select.

        Parameters
        ----------
        index : int, slice, Ellipsis, None, integer or boolean array-like, or tuple of them

        Returns
        -------
        ndarray or scalar
            New array in native byte order, NumPy in host memory or CuPy on the store's GPU; a NumPy
            scalar if every dimension is indexed by an integer.

        Raises
        ------
        OutOfBoundsError
            An IndexError, if an integer is outside the bounds, or there are too many indices.
        CorruptChunkError, StoreIOError
            If a chunk cannot be decoded or fetched.
        """
        return self._read(_NUMPY, index)

    def __setitem__(self, index: Any, source: Any) -> None:
        """Write `source`, broadcast to the elements that NumPy would select, and wait for it."""
        self._select(_NUMPY, index).write(source).result()

    @property
    def oindex(self) -> Accessor[Any]:
        """Accessor ``view.oindex[...]``: each index array selects along its own dimension."""
        return _Elements(self, "oindex")

    @property
    def vindex(self) -> Accessor[Any]:
        """Accessor ``view.vindex[...]``: index arrays are broadcast; their dimensions come first.

        Slices keep their dimensions, behind those of the arrays.
        """
        return _Elements(self, "vindex")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read it whole into a NumPy array; only for stores in host memory."""
        return self._store.__array__(dtype, copy)

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        return f"{self._store!r}.numpy"

    def _read(self, mode: str, index: Any) -> Any:
        terms = index if isinstance(index, tuple) else (index,)
        elements = self._select(mode, index).read().result()
        if isinstance(elements, np.ndarray) and elements.ndim == 0 and Ellipsis not in terms:
            return elements[()]
        return elements

    def _select(self, mode: str, index: Any) -> Store:
        terms = _terms(index, self.shape, joint=mode == _NUMPY)
        store = self._store
        selected: Store = (store if mode == _NUMPY else getattr(store, mode))[terms]
        return selected


class _Elements(Accessor[Any]):
    """``view.oindex[...]`` reads, and assignment to it writes."""

    __slots__ = ("_mode", "_view")

    def __init__(self, view: NumpyView, mode: str) -> None:
        super().__init__(view, mode, lambda index: view._read(mode, index))
        self._view, self._mode = view, mode

    def __setitem__(self, index: Any, source: Any) -> None:
        self._view._select(self._mode, index).write(source).result()


def _terms(index: Any, shape: Sequence[int], *, joint: bool) -> tuple[Any, ...]:
    """Return NumPy's index as one of TensorStore's that selects the same of zero-based bounds.

    Parameters
    ----------
    index : object
        Index expression of NumPy.
    shape : sequence of int
        Size of each dimension.
    joint : bool
        Whether all index arrays are broadcast together as in NumPy's own indexing, where an integer
        beside an index array counts as one, and a mask as the arrays of its true elements.
    """
    given = [_term(term) for term in (index if isinstance(index, tuple) else (index,))]
    consumed = sum(_rank(term) for term in given)
    if consumed > len(shape):
        raise OutOfBoundsError(
            f"too many indices: the array has {len(shape)} dimensions, but {consumed} are indexed"
        )
    if sum(term is Ellipsis for term in given) > 1:
        raise OutOfBoundsError("an index can only have a single ellipsis ('...')")
    terms: list[Any] = []
    axis = 0
    for term in given:
        if term is Ellipsis:
            axis += len(shape) - consumed
            terms.append(Ellipsis)
            continue
        terms += _bounded(term, axis, shape, joint)
        axis += _rank(term)
    if joint and any(isinstance(term, np.ndarray) for term in terms):
        terms = [np.array([term]) if isinstance(term, int) else term for term in terms]
    return tuple(terms)


def _term(term: Any) -> Any:
    """Return `term` as an int, slice, Ellipsis, None, or an array of integers or booleans."""
    if term is Ellipsis or term is None or isinstance(term, slice):
        return term
    if not isinstance(term, bool | np.bool_):
        try:
            return operator.index(term)
        except TypeError:
            pass
    array = np.asarray(term)
    if array.size == 0 and not isinstance(term, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iub":
        raise OutOfBoundsError(
            "only integers, slices (`:`), ellipsis (`...`), newaxis (`None`) and integer or "
            f"boolean arrays are valid indices, but received: {term!r:.100}"
        )
    return array


def _rank(term: Any) -> int:
    """Return the number of dimensions that a term of :func:`_term` indexes."""
    if term is Ellipsis or term is None:
        return 0
    if isinstance(term, np.ndarray) and term.dtype.kind == "b":
        return term.ndim
    return 1


def _bounded(term: Any, axis: int, shape: Sequence[int], joint: bool) -> list[Any]:
    """Return the terms that select from `axis` on what `term` does, none of them negative."""
    if term is None:
        return [None]
    if isinstance(term, slice):
        start, stop, step = term.indices(shape[axis])
        # TensorStore checks the bounds of empty slices too.
        return [slice(start, stop, step) if range(start, stop, step) else slice(0, 0)]
    if isinstance(term, int):
        return [_from_start(np.asarray(term), axis, shape[axis]).item()]
    if term.dtype.kind == "b":
        for dimension, (found, expected) in enumerate(zip(term.shape, shape[axis:], strict=False)):
            if found != expected:
                raise OutOfBoundsError(
                    f"boolean index did not match the array along axis {axis + dimension}: its "
                    f"size is {expected}, but that of the index is {found}"
                )
        return [*np.nonzero(term)] if joint and term.ndim else [term]
    return [_from_start(term, axis, shape[axis])]


def _from_start(indices: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
    """Return `indices` with the negative ones, which count from the end, counted from zero."""
    outside = (indices < -extent) | (indices >= extent)
    if outside.any():
        raise OutOfBoundsError(
            f"index {indices[outside].flat[0]} is out of bounds for axis {axis} with size {extent}"
        )
    return np.where(indices < 0, indices + extent, indices).astype(np.int64)
