"""Layouts of decoded chunks: :class:`ChunkBytes`, where the bytes of each element are.

The codecs ``transpose`` and ``bytes``, Zarr v2's ``order`` and its byte order do no work per chunk:
they are a layout, and the copy between chunk and array does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpustore.metadata.component import Component


@dataclass(frozen=True, slots=True)
class ChunkBytes:
    """Layout of the elements of a decoded chunk in its bytes.

    Attributes
    ----------
    dtype : numpy.dtype
        Type of the stored elements, with the stored byte order.
    shape : tuple of int
        Elements of a whole chunk along each array dimension.
    strides : tuple of int
        Bytes between neighbours along each array dimension.
    nbytes : int
        Bytes of a whole chunk.
    offset : int
        First byte of the first element.
    record : int
        Bytes of a stored element that is a record, a string or raw bytes of which `dtype` is a
        part; 0 if `dtype` is the whole element.
    is_dense : bool
        Whether all bytes of a chunk are elements.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    offset: int = 0
    record: int = 0
    is_dense: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        is_dense = math.prod(self.shape) * self.dtype.itemsize == self.nbytes
        object.__setattr__(self, "is_dense", is_dense)

    @classmethod
    def contiguous(
        cls, dtype: np.dtype[Any], shape: tuple[int, ...], *, order: str = "C"
    ) -> ChunkBytes:
        """Return the layout of elements without gaps in C order, or F order (first one innermost).

        >>> ChunkBytes.contiguous(np.dtype("<u2"), (3, 4)).strides
        (8, 2)
        >>> ChunkBytes.contiguous(np.dtype("<u2"), (3, 4), order="F").strides
        (2, 6)
        """
        strides = []
        nbytes = dtype.itemsize
        for size in shape if order == "F" else reversed(shape):
            strides.append(nbytes)
            nbytes *= size
        return cls(dtype, shape, tuple(strides if order == "F" else reversed(strides)), nbytes)

    @classmethod
    def of_component(
        cls, component: Component, shape: tuple[int, ...], *, order: str = "C"
    ) -> ChunkBytes:
        """Return the layout of a component of contiguous stored elements.

        `shape` is that of the chunk without the inner dimensions of the component.
        """
        if component.is_element:
            return cls.contiguous(component.stored, shape, order=order)
        outer = cls.contiguous(np.dtype(f"V{component.nbytes}"), shape, order=order)
        inner = cls.contiguous(component.stored, component.shape)
        return cls(
            component.stored,
            (*shape, *component.shape),
            (*outer.strides, *inner.strides),
            outer.nbytes,
            component.offset,
            component.nbytes,
        )

    def transposed(self, order: Sequence[int]) -> ChunkBytes:
        """Return the layout of the same bytes with dimension i as dimension ``order[i]``.

        >>> stored = ChunkBytes.contiguous(np.dtype("<u2"), (4, 3))
        >>> found = stored.transposed((1, 0))
        >>> found.shape, found.strides
        ((3, 4), (2, 6))
        """
        where = sorted(range(len(order)), key=order.__getitem__)
        shape = tuple(self.shape[i] for i in where)
        strides = tuple(self.strides[i] for i in where)
        return replace(self, shape=shape, strides=strides)
