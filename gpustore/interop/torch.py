"""PyTorch: tensors as results of reads, and data sets for its DataLoader.

A tensor shares the memory of the array that was read. A data set holds stores by their specs when
it goes to another process, and each process opens them itself.

Source: https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

import gpustore
from gpustore.interop import checked, extra
from gpustore.interop.reopened import Reopened

with extra("torch"):
    import torch
    from torch.utils.data import Dataset

_TYPES: Final = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
}
"""Data types that have one name and one meaning here and in PyTorch."""


@cache
def conversion(dtype: gpustore.dtype) -> Callable[[Any], torch.Tensor]:
    """Return a function that makes a tensor of an array of NumPy or CuPy, in its memory.

    Raises
    ------
    UnsupportedError
        If PyTorch lacks the data type.
    """
    elements = dtype.array_dtype
    target = getattr(torch, elements.name, None) if elements.name in _TYPES else None
    if target is None:
        raise gpustore.UnsupportedError(
            f"PyTorch {torch.__version__} has no data type for {dtype.name}: {_advice(elements)}"
        )
    if elements.isbuiltin != 2:
        return _tensor
    # A type of ml_dtypes, which neither NumPy nor CuPy exports.
    carrier = f"int{8 * elements.itemsize}"
    return lambda array: _tensor(array.view(carrier)).view(target)


def current_stream(device: str) -> Any:
    """Return the current stream of the calling thread on a GPU, such as ``"cuda:0"``."""
    return torch.cuda.current_stream(device)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def _advice(elements: np.dtype[Any]) -> str:
    """Say what to do about a data type that PyTorch lacks."""
    if elements.kind in "mM":
        return 'read it as NumPy, and take .view("int64") of that'
    if elements.kind in "OSUTV" and elements.isbuiltin != 2:
        return "read it as NumPy"
    # Releases before 2.3 lack unsigned integers of more than a byte.
    wider = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}.get(elements.name)
    if wider is None:
        wider = "int8" if "int" in elements.name else "float32"
    return f'read the store as another: gpustore.cast(store, "{wider}")'


class ArrayDataset(Dataset[Any]):
    """Map-style data set of the parts of stores along one axis, each a tensor.

    A DataLoader reads the samples of a batch together: chunks that several of them touch are
    fetched and decoded once. Its workers may be started by ``spawn``, ``forkserver`` or ``fork``:
    a data set is pickled as the specs of its stores, which each process opens when it first reads.

    Parameters
    ----------
    stores : TensorStore, or mapping of str to TensorStore
        Stores of equal size along `axis`. Those on a GPU give tensors there; use them without
        worker processes.
    axis : int
        Dimension that counts the samples, which do not have it.
    transform : callable, optional
        Called with each sample, in the process that reads it; gives what the data set returns.

    Raises
    ------
    TypeError
        If what is given is no store.
    ValueError
        If there are no stores, `axis` is not one of their dimensions, or their sizes differ.
    UnsupportedError
        If PyTorch lacks a data type.

    Examples
    --------
    >>> images = gpustore.array([[0, 1], [2, 3], [4, 5]])
    >>> dataset = ArrayDataset({"image": images, "label": gpustore.array([7, 8, 9])})
    >>> len(dataset), dataset[1]
    (3, {'image': tensor([2, 3]), 'label': tensor(8)})
    """

    def __init__(
        self,
        stores: gpustore.TensorStore | Mapping[str, gpustore.TensorStore],
        axis: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._is_single = not isinstance(stores, Mapping)
        named = dict(stores) if isinstance(stores, Mapping) else {"": stores}
        if not named:
            raise ValueError("a data set needs at least one store")
        self._columns = {
            name: _Column(checked(store, f"stores[{name!r}]" if name else "stores"), axis)
            for name, store in named.items()
        }
        sizes = {name: column.size for name, column in self._columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"stores of different size along axis {axis}: {sizes}")
        self._size = next(iter(sizes.values()))
        self._transform = transform

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        """Read one sample; negative indices count from the end.

        Raises
        ------
        OutOfBoundsError
            An IndexError, if there is no such sample.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read some samples together; they may repeat and come in any order.

        Raises
        ------
        OutOfBoundsError
            An IndexError, if there is no such sample.
        CorruptChunkError, StoreIOError
            If a chunk cannot be decoded or fetched.
        MismatchError, NotFoundError
            In another process, if the array has changed or is not there.
        """
        positions = [self._position(index) for index in indices]
        begun = {name: column.read(positions) for name, column in self._columns.items()}
        read = {name: column.samples(begun[name]) for name, column in self._columns.items()}
        if self._is_single:
            samples = list(read[""])
        else:
            samples = [dict(zip(read, row, strict=True)) for row in zip(*read.values())]
        return samples if self._transform is None else [self._transform(one) for one in samples]

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -self._size <= position < self._size:
            raise gpustore.OutOfBoundsError(
                f"index {position} is out of bounds for a data set of {self._size} samples"
            )
        return position % self._size


class _Column:
    """One store of a data set."""

    def __init__(self, store: gpustore.TensorStore, axis: int) -> None:
        if not -store.rank <= axis < store.rank:
            raise ValueError(f"axis {axis}: the store has the shape {store.shape}")
        conversion(store.dtype)
        self._axis = axis % store.rank
        self.size = store.shape[self._axis]
        self._store = Reopened(store.translate_to[0])

    def read(self, positions: Sequence[int]) -> gpustore.Future[torch.Tensor]:
        """Begin to read samples together."""
        selected = (*[slice(None)] * self._axis, positions)
        return self._store.opened().oindex[selected].read(to="torch")

    def samples(self, read: gpustore.Future[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the samples of :meth:`read`, once they are there."""
        return read.result().movedim(self._axis, 0).unbind()
