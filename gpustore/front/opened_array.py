"""Properties of an opened array: :class:`OpenedArray`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import Driver, placed_again
from gpustore.errors import UnsupportedError
from gpustore.hierarchy.attributes import Attributes
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMethod
from gpustore.index_space.view import IndexedView
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.transaction import Transaction, check_rebinding
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec

_new = object.__new__


class OpenedArray(IndexedView):
    """A driver seen through an index transform, without the operations that read or write."""

    __slots__ = ("__weakref__", "_driver", "_transform")

    _driver: Driver
    _transform: IndexTransform

    @classmethod
    def _of(cls, driver: Driver, transform: IndexTransform) -> Self:
        store = _new(cls)
        store._driver = driver
        store._transform = transform
        return store

    def _indexed(self) -> IndexTransform:
        return self._transform

    def _through(self, transform: IndexTransform) -> Self:
        return self._of(self._driver, transform)

    @property
    def base(self) -> Self | None:
        """Store that an adapter such as ``cast`` adapts; None otherwise.

        Its domain is the same, or for ``downsample`` that of the elements of the cells.
        """
        driver = self._driver
        if driver.base is None:
            return None
        below = getattr(driver, "below", None)
        transform = self._transform if below is None else below(self._transform)
        return self._of(driver.base, transform)

    @property
    def domain(self) -> IndexDomain:
        """Domain of the array; upper bounds that can be resized are implicit."""
        return self._transform.domain

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self._transform.input_rank

    ndim = rank

    @property
    def dtype(self) -> dtype_:
        """Data type of the elements."""
        return self._driver.dtype

    @property
    def fill_value(self) -> NDArray[Any] | None:
        """Value of elements never written, an ndarray of shape (); None if undefined."""
        fill = self._driver.fill_value
        return None if fill is None else np.asarray(fill)

    @property
    def codec(self) -> CodecSpec | None:
        """Codec of the chunks; None for arrays without codecs."""
        return self._driver.codec

    @property
    def schema(self) -> Schema:
        """Schema with all properties that a new array could have."""
        driver = self._driver
        keywords: dict[str, Any] = {
            "dtype": driver.dtype,
            "domain": driver.domain,
            "chunk_layout": driver.chunk_layout,
            "codec": driver.codec,
            "fill_value": driver.fill_value,
        }
        if any(unit is not None for unit in driver.dimension_units):
            keywords["dimension_units"] = driver.dimension_units
        schema = Schema(**{name: value for name, value in keywords.items() if value is not None})
        return schema if self._is_identity else schema[self._transform]

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Storage layout in terms of the array's own dimensions."""
        return self._driver.chunk_layout if self._is_identity else self.schema.chunk_layout

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Shape of the chunks that are decoded one by one, those within a shard.

        A dimension of a view without regular chunks counts as one chunk; None if there are no
        chunks, or none of one shape.
        """
        return self._extents(self.chunk_layout.read_chunk.shape)

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Shape of the shards, each of several chunks in one stored value; None without shards."""
        layout = self.chunk_layout
        shard = self._extents(layout.write_chunk.shape)
        return None if shard == self._extents(layout.read_chunk.shape) else shard

    def _extents(self, extents: Sequence[int | None] | None) -> tuple[int, ...] | None:
        if not extents or not any(extents):
            return () if self.rank == 0 else None
        return tuple(
            max(1, n) if extent is None else extent
            for extent, n in zip(extents, self.shape, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Decoded size in bytes; strings and JSON values count as a pointer each, as in NumPy."""
        return self.size * self.dtype.itemsize

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        """Physical size of a step in each dimension, None where unknown."""
        if self._is_identity:
            return self._driver.dimension_units
        return tuple(self.schema.dimension_units or (None,) * self.rank)

    @property
    def kvstore(self) -> KvStore | None:
        """Kvstore with the array's path; None for an array in memory."""
        return self._driver.kvstore

    @property
    def transaction(self) -> Transaction | None:
        """Transaction to which reads and writes belong; None if there is none."""
        return self._driver.transaction

    def with_transaction(self, transaction: Transaction | None) -> Self:
        """Return the store with all operations in a transaction, or in none.

        Writes are staged: their Futures are done at once, and the source may be changed. Elements
        on a device are copied to host memory for that.

        Raises
        ------
        TransactionError
            If the store belongs to a transaction that is not committed.
        """
        check_rebinding(self.transaction, transaction)
        driver = self._driver.in_transaction(transaction)
        transform = self._transform
        if driver.domain is not self._driver.domain:  # Another object has resized it.
            transform = placed_again(transform, driver)
        return self._of(driver, transform)

    @property
    def attrs(self) -> Attributes:
        """User attributes of the stored array, a mutable mapping; see :class:`gpustore.Attributes`.

        Attributes of Zarr v2 are read on the first lookup.

        Raises
        ------
        UnsupportedError
            If the array is not a Zarr array.
        """
        attributes = self._driver.attributes
        if attributes is None:
            raise UnsupportedError(f'driver "{self._driver.id}" has no attributes')
        return attributes

    @property
    def url(self) -> str:
        """URL that opens the array again, without the parts that no URL has."""
        return self._driver.spec(minimal=True).url

    @property
    def device(self) -> str:
        """Device of the arrays that :meth:`read` returns: ``"cpu"`` or ``"cuda:N"``."""
        return self._driver.device

    @property
    def readable(self) -> bool:
        """Whether the array can be read."""
        return self._driver.readable

    @property
    def writable(self) -> bool:
        """Whether the array can be written."""
        return self._driver.writable

    @property
    def mode(self) -> str:
        """``"r"``, ``"w"``, ``"rw"`` or ``""``."""
        return "r" * self.readable + "w" * self.writable

    @property
    def _is_identity(self) -> bool:
        return self._transform.domain == self._driver.domain and all(
            map_.method == OutputIndexMethod.single_input_dimension
            and (map_.input_dimension, map_.offset, map_.stride) == (i, 0, 1)
            for i, map_ in enumerate(self._transform.output)
        )
