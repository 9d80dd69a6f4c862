"""What an opened array is, without reading or writing it: :class:`OpenedArray`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import Driver
from gpustore.errors import UnsupportedError
from gpustore.hierarchy.attributes import Attributes
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMethod
from gpustore.index_space.view import IndexedView
from gpustore.kvstores.kvstore import KvStore
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec


class OpenedArray(IndexedView):
    """A driver seen through an index transform, described. Nothing here is read or written."""

    __slots__ = ("_driver", "_transform")

    _driver: Driver
    _transform: IndexTransform

    @property
    def domain(self) -> IndexDomain:
        """Its domain; upper bounds that can be resized are implicit."""
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
        """Value of elements never written, of shape (); None if undefined."""
        fill = self._driver.fill_value
        return None if fill is None else np.asarray(fill)

    @property
    def codec(self) -> CodecSpec | None:
        """How chunks are encoded."""
        return self._driver.codec

    @property
    def schema(self) -> Schema:
        """All of its properties that a new array could be asked to have."""
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
        """How it is stored, in terms of its own dimensions."""
        return self._driver.chunk_layout if self._is_identity else self.schema.chunk_layout

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        """Physical size of a step in each dimension, None where unknown."""
        if self._is_identity:
            return self._driver.dimension_units
        return tuple(self.schema.dimension_units or (None,) * self.rank)

    @property
    def kvstore(self) -> KvStore | None:
        """Where its bytes lie; None for an array in memory."""
        return self._driver.kvstore

    @property
    def attrs(self) -> Attributes:
        """The attributes of the stored array, as a mapping; see :class:`gpustore.Attributes`.

        Those of Zarr v2 are read when they are first looked at.

        Raises
        ------
        UnsupportedError
            If it is no Zarr array.
        """
        attributes = self._driver.attributes
        if attributes is None:
            raise UnsupportedError(f'driver "{self._driver.id}" has no attributes')
        return attributes

    @property
    def url(self) -> str:
        """A URL that opens it, as far as a URL can tell."""
        return self._driver.spec(minimal=True).url

    @property
    def device(self) -> str:
        """Where the arrays live that :meth:`read` returns: ``"cpu"``, or ``"cuda:N"``."""
        return self._driver.device

    @property
    def readable(self) -> bool:
        """Whether it can be read."""
        return self._driver.readable

    @property
    def writable(self) -> bool:
        """Whether it can be written."""
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
