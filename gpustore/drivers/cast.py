"""The ``cast`` driver: the elements of another TensorStore as another data type.

JSON example::

    {"driver": "cast", "dtype": "float32", "base": "file:///data/x.zarr/|zarr3:"}

Reads convert from the base's data type, writes to it (:mod:`gpustore.data_types.conversion`); where
only one of them is possible the store is read-only, or can only be written. Domain, layout, codec
and units are those of the base, the fill value is converted. On a device kernels convert numbers;
the host converts wider numbers to floats of one byte, and numbers for an output array in another
order, and counts these.

Source: TensorStore's ``driver/cast``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore import registry
from gpustore.backends.base import Backend, Output
from gpustore.data_types.conversion import Converter, converter
from gpustore.data_types.dtype import DTYPES
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import object_array
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import (
    Driver,
    DriverSpec,
    Opening,
    OpenRequest,
    OverBase,
    latest_of,
    placed_again,
    schema_members,
)
from gpustore.errors import MetadataError, prefixing
from gpustore.hierarchy.attributes import Attributes
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.then import then
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, Members, quote

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation


@dataclass(frozen=True)
class CastDriver(OverBase):
    """An opened view of a driver with another data type.

    Attributes
    ----------
    base : Driver
    dtype : dtype
    decode, encode : Converter or None
        Converters from the base's data type, and to it; None if there is none.
    """

    base: Driver
    dtype: dtype_
    decode: Converter | None
    encode: Converter | None
    readable: bool
    writable: bool

    id = "cast"

    @property
    def domain(self) -> IndexDomain:
        return self.base.domain

    @property
    def device(self) -> str:
        return self.backend.device

    @property
    def backend(self) -> Backend:
        """Backend of the base; the host's for elements that are Python objects."""
        if self.dtype.array_dtype.hasobject:
            host: Backend = registry.find("backends", "host")
            return host
        base: Backend = self.base.backend
        return base

    @property
    def chunk_layout(self) -> ChunkLayout:
        return self.base.chunk_layout

    @property
    def fill_value(self) -> Any:
        """Converted fill value of the base; None if undefined or not convertible."""
        fill = self.base.fill_value
        if fill is None or self.decode is None:
            return None
        return self.decode(np.asarray(fill))

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        return self.base.dimension_units

    @property
    def attributes(self) -> Attributes | None:
        return self.base.attributes

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return the spec of the base with the data type."""
        return CastSpec(self.base.spec(minimal=minimal), self.dtype)

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read the base, then convert the elements."""
        read = partial(self.base.read, transform, batch=batch)
        return self._read(read, tuple(transform.domain.shape), output)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Preload the base, whose chunks the reads convert."""
        return self.base.preload(transform, progress)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Look up which chunks of the base are stored."""
        return self.base.stored_chunks(transform)

    def explain(self, transform: IndexTransform) -> Explanation:
        """Explain the read of the base, of whose elements the converted ones are returned."""
        return self._converted(self.base.explain(transform))

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Explain the crops of the base, of whose elements the converted ones are returned."""
        return self._converted(self.base.explain_many(transform, starts, shape))

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Explain the write of converted elements to the base."""
        found = self.base.explain_write(transform)
        nbytes = self._nbytes(found.bytes_written)
        return replace(found, device=self.device, dtype=self.dtype.name, bytes_written=nbytes)

    def _converted(self, found: Explanation) -> Explanation:
        nbytes = self._nbytes(found.bytes_returned)
        return replace(found, device=self.device, dtype=self.dtype.name, bytes_returned=nbytes)

    def _nbytes(self, of_base: int) -> int:
        return of_base // self.base.dtype.itemsize * self.dtype.itemsize

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Read crops of the base, then convert the elements."""
        read = partial(self.base.read_many, transform, starts, shape)
        return self._read(read, (len(starts), *shape), output)

    def _read(
        self, read: Callable[..., Future[Any]], shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        decode, backend, dtype = self.decode, self.backend, self.dtype.array_dtype
        assert decode is not None  # The store checks that it is readable.
        if self.dtype == self.base.dtype:
            return read(output=output)
        memory = output.memory(backend, shape, dtype)
        source = self.base.backend

        def convert(elements: Any) -> Any:
            if source is not backend:
                elements = source.to_host(elements)
            found = tuple(elements.shape)
            # Other bounds may be stored by now.
            into = memory if found == shape else output.memory(backend, found, dtype)
            backend.convert(elements, decode, into)
            return output.filled(into)

        return then(read(output=output._replace(array=None)), convert, self.executor)

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Convert `source`, then write to the base."""
        latest = self.latest
        if latest is not self:  # Elements are as many as the base has now.
            return latest.write(placed_again(transform, latest), source)
        encode, domain = self.encode, transform.domain
        assert encode is not None  # The store checks that it is writable.
        if self.dtype.array_dtype.hasobject:
            source = object_array(source, self.dtype, max_rank=domain.rank)
        memory = self.backend.source(source, domain, self.dtype.array_dtype)
        elements = self.backend.elements(memory)
        if any(step == 0 and size > 1 for step, size in zip(elements.strides, elements.shape)):
            # Broadcast elements are converted once.
            first = tuple(slice(None if step else 1) for step in elements.strides)
            converted = np.broadcast_to(encode(elements[first]), elements.shape)
        else:
            converted = encode(elements)
        return self.base.write(transform, converted)

    @property
    def latest(self) -> CastDriver:
        """View of the base with the shape that it was given last in its context; no I/O."""
        base = latest_of(self.base)
        return self if base is self.base else replace(self, base=base)

    def resolve(self) -> Driver:
        """Return the view over the base with its currently stored bounds."""
        return replace(self, base=self.base.resolve())

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Resize the base; return the view over it."""
        if not self.writable:
            raise MetadataError("Destination does not support writing.")
        return replace(self, base=self.base.resize(transform, request))


def cast_driver(
    base: Driver, dtype: dtype_, *, read: bool | None = None, write: bool | None = None
) -> CastDriver:
    """Make a view of an opened driver with another data type.

    Parameters
    ----------
    base : Driver
    dtype : dtype
    read, write : bool, optional
        Required access.

    Raises
    ------
    MetadataError
        If there is no conversion in a required direction, or in any.
    """
    decode, encode = converter(base.dtype, dtype), converter(dtype, base.dtype)
    if decode is None and encode is None:
        raise MetadataError(f"Cannot convert {base.dtype.name} <-> {dtype.name}")
    if read and decode is None:
        raise MetadataError(
            f"Read access requires unsupported {base.dtype.name} -> {dtype.name} conversion"
        )
    if write and encode is None:
        raise MetadataError(
            f"Write access requires unsupported {dtype.name} -> {base.dtype.name} conversion"
        )
    readable = base.readable and decode is not None
    return CastDriver(base, dtype, decode, encode, readable, base.writable and encode is not None)


@dataclass(frozen=True)
class CastSpec:
    """A view with another data type, to be opened.

    Attributes
    ----------
    base : DriverSpec
    dtype : dtype or None
        Data type of the view; None if it is not known yet.
    context : Context.Spec or None
        Context of the base's own spec.
    """

    base: DriverSpec
    dtype: dtype_ | None
    context: Context.Spec | None = None

    id = "cast"

    @property
    def kvstore(self) -> KvStore.Spec | None:
        return self.base.kvstore

    @property
    def schema(self) -> Schema:
        """Schema of the base with the data type and the fill value converted."""
        base = self.base.schema
        schema = base.without_elements()
        if self.dtype is None:
            return schema
        fill = _converted_fill(base, self.dtype)
        schema.update(dtype=self.dtype)
        if fill is not None:
            schema.update(fill_value=fill)
        return schema

    @property
    def url(self) -> str:
        """URL ``<base>|cast:<dtype>``."""
        if self.dtype is None:
            raise MetadataError("cast URL requires target dtype to be specified")
        return f"{self.base.url}|cast:{self.dtype.name}"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the data type and rank; the caller adds the base, which carries the open mode."""
        said = Schema()
        if self.dtype is not None:
            said.update(dtype=self.dtype)
        rank = self.base.schema.rank
        if rank is not None:
            said.update(rank=rank)
        return schema_members(said, include_defaults=include_defaults)

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints: the data type's own, all others on the base."""
        spec = self
        if schema is not None:
            dtype = schema.dtype
            if dtype is not None and self.dtype not in (None, dtype):
                raise MetadataError(
                    f"dtype of {dtype.name} does not match existing dtype of "
                    f"{self.dtype and self.dtype.name}"
                )
            rest = schema.without_elements()
            base_dtype = self.base.schema.dtype
            fill = schema.fill_value
            if fill is not None and base_dtype is not None and dtype is not None:
                fill = _converted_fill(schema, base_dtype)
            if fill is not None:
                rest.update(fill_value=fill)
            spec = replace(spec, dtype=dtype or self.dtype, base=self.base.updated(schema=rest))
        if kvstore is not None or options:
            spec = replace(spec, base=spec.base.updated(kvstore=kvstore, **options))
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Open the base, then wrap it in a driver that converts its elements."""
        dtype = self.dtype
        with prefixing('Error opening "cast" driver'):
            if dtype is None:
                raise MetadataError("dtype must be specified")
            if self.context is not None:
                request = request._replace(context=Context(self.context, request.context))
            opening = self.base.open(request)

        def run() -> tuple[Driver, IndexTransform]:
            with prefixing('Error opening "cast" driver'):
                base, transform = opening.run()
                return cast_driver(base, dtype, read=request.read, write=request.write), transform

        return opening._replace(run=run)


def _converted_fill(schema: Schema, dtype: dtype_) -> Any:
    """Return the fill value of a schema as an element of another type; None if it cannot be."""
    fill = schema.fill_value
    if fill is None:
        return None
    if schema.dtype is None:
        try:
            return Schema(dtype=dtype, fill_value=fill).fill_value
        except (TypeError, ValueError, OverflowError):
            return None
    convert = converter(schema.dtype, dtype)
    return None if convert is None else convert(np.asarray(fill))


class _CastKind:
    id = "cast"
    is_adapter = True
    schemes = ("cast",)
    shares_members = False
    keeps_dtype = False

    of_driver = staticmethod(cast_driver)

    def from_base(
        self,
        base: DriverSpec,
        transform: IndexTransform | None,
        context: Context.Spec | None,
        members: Members,
        schema: Schema,
    ) -> tuple[DriverSpec, IndexTransform | None]:
        """A spec over that of its base, which was taken from `members`; there are no others."""
        del members
        return CastSpec(base, None, context).updated(schema=schema), transform

    def from_url(self, base: DriverSpec, path: str) -> CastSpec:
        """``<base>|cast:<dtype>``."""
        if path not in DTYPES:  # Codes of NumPy are no names.
            raise MetadataError(
                f'Invalid TensorStore URL component "cast:{path}": Unsupported data type: '
                f"{quote(path)}"
            )
        return CastSpec(base, DTYPES[path])


DRIVER = _CastKind()
