"""The ``array`` driver: a NumPy array in host memory as a TensorStore.

JSON example::

    {"driver": "array", "array": [[1, 2], [3, 4]], "dtype": "int32"}

Bounds are explicit and cannot be resized. ``gpustore.array(a)`` wraps an existing array without
copying it, where its data type and memory allow.

Source: TensorStore's ``driver/array``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import Backend, Output
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import array_from_json, array_to_json, object_array, shape_text
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import (
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    Unexplained,
    Unresizable,
    schema_members,
)
from gpustore.drivers.options import with_defaults
from gpustore.errors import (
    MetadataError,
    MismatchError,
    UnsupportedError,
    prefixing,
)
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.kvstores.kvstore import KvStore
from gpustore.planning.chunk_plan import check_bounds
from gpustore.planning.crop_plan import check_starts
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context, resource_json
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, Members, in_member

_CONCURRENCY = "data_copy_concurrency"


@dataclass(frozen=True)
class ArrayDriver(Unexplained, Unresizable):
    """An opened NumPy array in host memory."""

    array: NDArray[Any]
    dtype: dtype_
    dimension_units: tuple[Unit | None, ...]
    executor: Executor
    backend: Backend
    resources: Mapping[str, Context.Resource]
    readable: bool
    writable: bool
    transaction: Transaction | None = None

    id = "array"
    unexplained = 'explain is not supported by the "array" driver: its elements are in memory'
    base = None
    kvstore = None
    codec = None
    fill_value = None
    device = "cpu"
    open_mode = OpenMode()
    attributes = None

    @property
    def domain(self) -> IndexDomain:
        """Domain with explicit bounds and origin zero."""
        return IndexDomain(shape=self.array.shape)

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Layout of a single chunk; the inner order is that of the array's strides."""
        return _layout(self.array)

    def in_transaction(self, transaction: Transaction | None) -> ArrayDriver:
        """Return the array in a transaction, in which it cannot be written."""
        return replace(self, transaction=transaction)

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return a spec with a copy of the elements, also if `minimal`."""
        del minimal
        schema = Schema(dtype=self.dtype, rank=self.array.ndim)
        if any(self.dimension_units):
            schema.update(dimension_units=self.dimension_units)
        return ArraySpec(self.array.copy(), schema)

    def narrowed(self, transform: IndexTransform) -> tuple[ArrayDriver, IndexTransform]:
        """Return a driver over the elements of `transform` alone, each stored once.

        Dimensions along which elements repeat, or that have one element, are left out of the
        array. An array with units keeps its dimensions, which have them.

        Returns
        -------
        ArrayDriver
        IndexTransform
            From the domain of `transform` to the new driver's.
        """
        if any(self.dimension_units):
            return self, transform
        domain = transform.domain
        array = selected(self.array, transform)
        if array.size == 0:
            one = replace(self, array=array.reshape(-1)[:0], dimension_units=(None,))
            return one, IndexTransform(domain, [OutputIndexMap(0)])
        kept = [d for d, n in enumerate(array.shape) if n > 1 and array.strides[d] != 0]
        array = array[(*(slice(None) if d in kept else 0 for d in range(array.ndim)), ...)]
        maps = [OutputIndexMap(d, offset=-domain.inclusive_min[d]) for d in kept]
        one = replace(self, array=array, dimension_units=(None,) * array.ndim)
        return one, IndexTransform(domain, maps)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """All elements are stored."""
        return Future(StoredChunks(none=False, every=True))

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Copy the elements of the domain of `transform`."""
        del batch  # Reads of arrays in memory share no chunks.
        STATISTICS.add(reads=1)
        view = _view(self.array, transform)
        memory = output.memory(self.backend, tuple(transform.domain.shape), self.array.dtype)

        def run() -> Any:
            memory.array[...] = self.array[_numpy_index(transform)] if view is None else view
            return output.filled(memory)

        return Future.deferred(run, self.executor)

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Copy the crops one after the other."""
        STATISTICS.add(reads=1)
        checked = check_starts(transform, starts, shape, self.array.shape)
        view = _view(self.array, transform)
        assert view is not None  # There are no index arrays.
        memory = output.memory(self.backend, (len(checked), *shape), self.array.dtype)
        corners = (checked - np.array(transform.domain.origin, np.int64)).tolist()

        def run() -> Any:
            for crop, corner in enumerate(corners):
                index = tuple(slice(at, at + size) for at, size in zip(corner, shape))
                memory.array[(crop, ...)] = view[index]
            return output.filled(memory)

        return Future.deferred(run, self.executor)

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Overwrite the elements of the domain of `transform`."""
        if self.transaction is not None:
            raise UnsupportedError('"array" driver does not support transactions')
        STATISTICS.add(writes=1)
        domain = transform.domain
        if self.array.dtype == object:
            source = object_array(source, self.dtype, max_rank=domain.rank)
        elements = self.backend.elements(self.backend.source(source, domain, self.array.dtype))
        view = _view(self.array, transform)

        def run() -> None:
            if view is None:
                self.array[_numpy_index(transform)] = elements
            else:
                view[...] = elements

        future: Future[None] = self.executor.submit(run, drain=True)
        return WriteFutures(future, future)


def selected(array: NDArray[Any], transform: IndexTransform) -> NDArray[Any]:
    """Return the elements that a transform selects of an array; a view where it can be one."""
    view = _view(array, transform)
    return array[_numpy_index(transform)] if view is None else view


def _view(array: NDArray[Any], transform: IndexTransform) -> NDArray[Any] | None:
    """Return a view of the elements of `transform`; None if an index array selects them."""
    # Only this check keeps the strides below inside the array.
    check_bounds(transform, array.shape)
    domain = transform.domain
    if 0 in domain.shape:
        return np.empty(domain.shape, array.dtype)
    if any(map_.index_array is not None for map_ in transform.output):
        return None
    strides = [0] * domain.rank
    for byte_stride, map_ in zip(array.strides, transform.output):
        if map_.input_dimension is not None and map_.stride is not None:
            strides[map_.input_dimension] += map_.stride * byte_stride
    index: list[Any] = [slice(i, i + 1) for i in transform(domain.inclusive_min)]
    first = array[(*index, ...)]  # With "..." it is a view of rank-0 arrays too.
    # as_strided hands types on by name, which NumPy does not know of float8_e5m2.
    plain = first.view(np.uint8) if first.itemsize == 1 else first
    view: NDArray[Any] = np.lib.stride_tricks.as_strided(plain, tuple(domain.shape), strides)
    return view.view(first.dtype)


def _numpy_index(transform: IndexTransform) -> tuple[NDArray[np.int64], ...]:
    """Return the index arrays that select the same elements in NumPy, each of the domain's rank."""
    domain = transform.domain
    index = []
    for map_ in transform.output:
        position: NDArray[np.int64] = np.full((1,) * domain.rank, map_.offset)
        if map_.index_array is not None and map_.stride is not None:
            position = position + map_.stride * map_.index_array
        elif map_.input_dimension is not None and map_.stride is not None:
            d = map_.input_dimension
            along = [-1 if i == d else 1 for i in range(domain.rank)]
            steps = np.arange(domain.shape[d]) + domain.inclusive_min[d]
            position = position + map_.stride * steps.reshape(along)
        index.append(np.broadcast_to(position, domain.shape))
    return tuple(index)


def _layout(array: NDArray[Any]) -> ChunkLayout:
    order = sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))
    return ChunkLayout(rank=array.ndim, grid_origin=[0] * array.ndim, inner_order=order)


@dataclass(frozen=True)
class ArraySpec:
    """An array in memory to be opened."""

    array: NDArray[Any]
    constraints: Schema
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """Reference to the resource ``data_copy_concurrency``, unless it is the default one."""

    id = "array"
    base = None
    kvstore = None

    @property
    def schema(self) -> Schema:
        """Schema of the caller without fill value, with domain and layout of the array."""
        said = self.constraints
        parts: dict[str, Any] = {
            "dtype": said.dtype,
            "domain": IndexDomain(shape=self.array.shape),
            "chunk_layout": _layout(self.array),
            "codec": said.codec,
            "dimension_units": said.dimension_units,
        }
        return Schema(**{name: part for name, part in parts.items() if part is not None})

    @property
    def url(self) -> str:
        """Raise UnsupportedError: an array in memory has no URL."""
        raise UnsupportedError("URL representation not supported")

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the elements as nested lists, and the data type."""
        dtype = self.constraints.dtype
        assert dtype is not None  # Checked by from_json and set by ArrayDriver.spec.
        with prefixing('Error converting object member "array"'):
            members: dict[str, JsonValue] = {"array": array_to_json(self.array, dtype)}
        members.update(self.options)
        if include_defaults:
            members.update(with_defaults(self.options, {}, (_CONCURRENCY,)))
        said = self.constraints.merged(rank=self.array.ndim)
        return {
            **members,
            **schema_members(said, rank_known=True, include_defaults=include_defaults),
        }

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in."""
        if kvstore is not None:
            raise MetadataError('"kvstore" not supported by "array" driver')
        if schema is None:
            return self
        merged = self.constraints.copy()
        merged.update(schema=schema)
        return replace(self, constraints=merged)

    def open(self, request: OpenRequest) -> Opening:
        """Open a driver over a copy of the array: what is written to it is not in the spec."""
        with prefixing('Error opening "array" driver'):
            self._check()
            driver = wrap(
                self.array.copy("K"),
                request.context,
                dtype=self.constraints.dtype,
                units=self.constraints.dimension_units,
                readable=request.readable,
                writable=request.writable,
                concurrency=self.options.get(_CONCURRENCY),
            ).in_transaction(request.transaction)
            transform = IndexTransform(driver.domain)
            if request.transform is not None:
                transform = transform[request.transform]
        return Opening(driver.executor, lambda: (driver, transform), may_defer=True)

    def _check(self) -> None:
        """Compare the array with the constraints."""
        said = self.constraints
        domain = IndexDomain(shape=self.array.shape)
        if said.domain is not None and (
            said.domain.inclusive_min != domain.inclusive_min
            or said.domain.exclusive_max != domain.exclusive_max
        ):
            raise MismatchError(
                f"Mismatch between domain in schema {{ {said.domain} }} and array "
                f"{{ {{origin={shape_text(domain.origin)}, shape={shape_text(domain.shape)}}} }}",
                status="",
            )
        for name, part in (("fill_value", said.fill_value), ("codec", said.codec)):
            if part is not None:
                raise MetadataError(f"{name} not supported")
        layout = said.chunk_layout
        if layout.rank != -1:
            if any(any(grid.shape or ()) for grid in (layout.read_chunk, layout.write_chunk)):
                raise MetadataError("chunking not supported")
            _layout(self.array).merged(layout)


def wrap(
    array: NDArray[Any],
    context: Context,
    *,
    dtype: dtype_ | None = None,
    units: Sequence[Unit | None] | None = None,
    readable: bool = True,
    writable: bool = True,
    concurrency: JsonValue = None,
) -> ArrayDriver:
    """Open a driver over `array` without a copy.

    Parameters
    ----------
    array : ndarray
    context : Context
    dtype : dtype, optional
        Data type of an array of objects: json, string or ustring.
    units : sequence of Unit or None, optional
    readable, writable : bool
        Required access; a read-only array is never writable.
    concurrency : JSON, optional
        Reference to the resource ``data_copy_concurrency``. Defaults to that of the context.
    """
    resource = context.resource(_CONCURRENCY, concurrency)
    return ArrayDriver(
        array,
        dtype_(array.dtype) if dtype is None else dtype,
        tuple(units or (None,) * array.ndim),
        resource.value,
        registry.find("backends", "host"),
        {_CONCURRENCY: resource},
        readable=readable,
        writable=writable and array.flags.writeable,
    )


class _ArrayKind:
    id = "array"
    is_adapter = False
    schemes = ()
    shares_members = False

    def from_json(self, members: Members, schema: Schema) -> ArraySpec:
        """Take ``array`` and ``data_copy_concurrency``; the data type must be known."""
        value = members.take("array")
        options = {}
        if _CONCURRENCY in members:
            given = members.take_with(_CONCURRENCY, partial(resource_json, _CONCURRENCY))
            if given != _CONCURRENCY:
                options[_CONCURRENCY] = given
        if schema.dtype is None:
            raise MetadataError("dtype must be specified")
        with in_member("array"):
            array = array_from_json(value, schema.dtype, rank=schema.rank)
        return ArraySpec(array, schema, options)


DRIVER = _ArrayKind()
