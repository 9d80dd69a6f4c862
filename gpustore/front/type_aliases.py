"""Names for annotations of programs, those of TensorStore.

Source: TensorStore ``python/tensorstore/__init__.py``.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, Union

from gpustore.data_types.dtype import dtype
from gpustore.front.spec import Spec
from gpustore.front.store import TensorStore
from gpustore.index_space import IndexTransform
from gpustore.index_space.dimension_expression import DimSelection
from gpustore.runtime.future import Future

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

T = TypeVar("T", covariant=True)
"""Type of the result of a Future."""

FutureLike = Union[Future[T], Awaitable[T], T]  # noqa: UP007 - mypy knows no other form
"""Value, Future or awaitable with a result of type `T`."""

DTypeLike = Union[dtype, str, type, "np.dtype[Any]"]
"""Data type, its name, or a type of NumPy or Python that stands for one."""

DownsampleMethod = Literal["stride", "median", "mode", "mean", "min", "max"]
"""Methods of :func:`gpustore.downsample`."""

RecheckCacheOption = bool | Literal["open"] | float
"""Conditions for checking cached values again; see :func:`gpustore.open`."""

DimSelectionLike = Union[
    DimSelection,
    SupportsIndex,
    str,
    bytes,
    "slice[SupportsIndex | None]",
    "Sequence[DimSelectionLike]",
]
"""Dimensions of a dimension expression, ``gpustore.d[...]``."""

NumpyIndexTerm = Union[
    SupportsIndex,
    "slice[SupportsIndex | Sequence[SupportsIndex | None] | None]",
    None,
    EllipsisType,
    "ArrayLike",
]
"""One index of an index expression."""

NumpyIndexingSpec = NumpyIndexTerm | tuple[NumpyIndexTerm, ...]
"""Index expression."""


class Indexable(abc.ABC):  # noqa: B024 - classes are registered, and it asks nothing of them
    """Abstract base of what index expressions apply to: TensorStore, Spec and IndexTransform."""


for _indexable in (TensorStore, Spec, IndexTransform):
    Indexable.register(_indexable)
