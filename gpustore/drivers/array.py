"""The ``array`` driver: a NumPy array in host memory as a TensorStore.

JSON example::

    {"driver": "array", "array": [[1, 2], [3, 4]], "dtype": "int32"}

Bounds are explicit and cannot be resized. ``gpustore.array(a)`` wraps an existing array without
copying it, where its data type and memory allow.

Source: TensorStore's ``driver/array``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore._json import JsonValue, Members, expect_list, in_member
from gpustore.backends.host import HostBackend
from gpustore.context import Context
from gpustore.drivers.base import Driver, DriverSpec, Opening, OpenRequest
from gpustore.dtype import dtype as dtype_
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.executor import Executor
from gpustore.future import Future, WriteFutures
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstore import KvStore
from gpustore.metadata.fill_value import parse_v3_fill_value, v3_fill_value_to_json
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout

__all__ = ["DRIVER", "ArrayDriver", "ArraySpec"]


@dataclass(frozen=True)
class ArrayDriver:
    """A wrapped array."""

    array: NDArray[Any]
    dtype: dtype_
    executor: Executor
    backend: HostBackend
    resources: Mapping[str, Context.Resource]
    readable: bool
    writable: bool

    id = "array"
    kvstore = None
    codec = None
    fill_value = None
    device = "cpu"

    @property
    def domain(self) -> IndexDomain:
        """Explicit bounds, origin zero."""
        return IndexDomain(shape=self.array.shape)

    @property
    def dimension_units(self) -> tuple[None, ...]:
        """None for each dimension."""
        return (None,) * self.array.ndim

    @property
    def chunk_layout(self) -> ChunkLayout:
        """One chunk; the inner order is that of the array's strides."""
        return _layout(self.array)

    def spec(self, *, minimal: bool) -> DriverSpec:
        """With a copy of the elements, also if `minimal`."""
        del minimal
        return ArraySpec(self.array.copy(), Schema(dtype=self.dtype, rank=self.array.ndim))

    def _view(self, transform: IndexTransform) -> NDArray[Any]:
        """The elements `transform` selects, as a view."""
        domain = transform.domain
        low = domain.inclusive_min
        offset, strides = 0, [0] * len(low)
        for o, byte_stride in enumerate(self.array.strides):
            map_ = transform.output[o]
            if map_.index_array is not None:
                raise UnsupportedError(
                    f"Reading or writing through an index array (output dimension {o}) is not "
                    f"supported"
                )
            offset += map_.offset * byte_stride
            d, stride = map_.input_dimension, map_.stride
            if d is not None and stride is not None:
                strides[d] += stride * byte_stride
                offset += stride * low[d] * byte_stride
        if 0 in domain.shape:
            return np.empty(domain.shape, self.array.dtype)
        memory = self.backend.destination(self.array, self.array.shape, self.array.dtype)
        view: NDArray[Any] = np.ndarray(
            tuple(domain.shape),
            self.array.dtype,
            memory.flat,
            memory.offset + offset,
            strides,
        )
        return view

    def read(self, transform: IndexTransform, *, out: Any, order: str) -> Future[Any]:
        """Copy the domain of `transform`."""
        view = self._view(transform)
        if out is None:
            memory = self.backend.empty(view.shape, view.dtype, order)
        else:
            memory = self.backend.destination(out, view.shape, view.dtype)

        def run() -> Any:
            memory.array[...] = view
            return memory.array if out is None else out

        return Future.deferred(run, self.executor)

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Overwrite the domain of `transform`."""
        memory = self.backend.source(source, transform.domain, self.array.dtype)
        view = self._view(transform)

        def run() -> None:
            view[...] = memory.array

        future: Future[None] = self.executor.submit(run, drain=True)
        return WriteFutures(future, future)

    def resolve(self) -> Driver:
        """Itself: the bounds never change."""
        return self

    def resize(self, exclusive_max: tuple[int | None, ...], **flags: bool) -> Driver:
        """Not possible."""
        raise UnsupportedError("Resize not supported")


def _layout(array: NDArray[Any]) -> ChunkLayout:
    order = sorted(range(array.ndim), key=lambda d: -abs(array.strides[d]))
    return ChunkLayout(grid_origin=[0] * array.ndim, inner_order=order)


@dataclass(frozen=True)
class ArraySpec:
    """An array to be opened."""

    array: NDArray[Any]
    constraints: Schema

    id = "array"
    kvstore = None

    @property
    def schema(self) -> Schema:
        """Data type, rank and domain of the array."""
        schema = self.constraints.copy()
        schema.update(domain=IndexDomain(shape=self.array.shape), chunk_layout=_layout(self.array))
        return schema

    @property
    def url(self) -> str:
        """There is none."""
        raise UnsupportedError("URL representation not supported")

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """The elements as nested lists, and the data type."""
        del include_defaults
        dtype = self.constraints.dtype
        assert dtype is not None  # Checked by from_json and set by ArrayDriver.spec.
        return {"array": _to_lists(self.array, dtype), "dtype": dtype.to_json()}

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """The spec with more constraints merged in."""
        if kvstore is not None:
            raise MetadataError('"kvstore" not supported by "array" driver')
        if schema is None:
            return self
        merged = self.constraints.copy()
        merged.update(schema=schema)
        return replace(self, constraints=merged)

    def open(self, request: OpenRequest) -> Opening:
        """Wrap the array."""
        driver = wrap(
            self.array,
            request.context,
            readable=request.readable,
            writable=request.writable,
        )
        transform = request.transform or IndexTransform(driver.domain)
        return Opening(driver.executor, lambda: (driver, transform), may_defer=True)


def wrap(
    array: NDArray[Any], context: Context, *, readable: bool = True, writable: bool = True
) -> ArrayDriver:
    """An opened driver over `array` itself."""
    resource = context.resource("data_copy_concurrency")
    return ArrayDriver(
        array,
        dtype_(array.dtype),
        resource.value,
        registry.find("backends", "host"),
        {"data_copy_concurrency": resource},
        readable=readable,
        writable=writable and array.flags.writeable,
    )


def _from_lists(value: JsonValue, dtype: dtype_, rank: int | None) -> NDArray[Any]:
    shape: list[int] = []
    level = value
    while isinstance(level, list) and dtype.name not in ("json",) and len(shape) < 32:
        shape.append(len(level))
        if not level:
            break
        level = level[0]
    if dtype.name == "json":
        # Lists are legal elements: only the rank says where the array ends.
        while isinstance(level, list) and (rank is None or len(shape) < rank):
            shape.append(len(level))
            if not level:
                break
            level = level[0]
    if rank is not None and rank != len(shape):
        raise MetadataError(f"Array rank ({len(shape)}) does not match expected rank ({rank})")
    array = np.empty(shape, dtype.array_dtype)
    _fill(array, value, dtype, ())
    return array


def _fill(array: NDArray[Any], value: JsonValue, dtype: dtype_, at: tuple[int, ...]) -> None:
    if len(at) == array.ndim:
        if array.dtype == object:
            array[at] = value
            return
        position = "{" + ", ".join(map(str, at)) + "}"
        try:
            array[at] = parse_v3_fill_value(value, dtype)
        except MetadataError as error:
            raise error.prefixed(f"Error parsing array element at position {position}") from error
        return
    elements = expect_list(value)
    if len(elements) != array.shape[len(at)]:
        position = "{" + ", ".join(map(str, at)) + "}"
        shape = "{" + ", ".join(map(str, array.shape)) + "}"
        raise MetadataError(
            f"Expected array of shape {shape}, but found array element {elements} of length "
            f"{len(elements)} at position {position}."
        )
    for i, element in enumerate(elements):
        _fill(array, element, dtype, (*at, i))


def _to_lists(array: NDArray[Any], dtype: dtype_) -> JsonValue:
    if array.ndim:
        return [_to_lists(part, dtype) for part in array]
    if array.dtype == object:
        return array.item()
    return v3_fill_value_to_json(array, dtype)


class _ArrayKind:
    id = "array"

    def from_json(self, members: Members, schema: Schema) -> ArraySpec:
        """Take ``array``; the data type must be known."""
        value = members.take("array")
        if schema.dtype is None:
            raise MetadataError("dtype must be specified")
        with in_member("array"):
            array = _from_lists(value, schema.dtype, schema.rank)
        return ArraySpec(array, schema)

    def from_url(self, base: KvStore.Spec, path: str) -> ArraySpec:
        """There is no URL of an array."""
        raise UnsupportedError('unsupported URL scheme: "array"')

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """There are no codecs."""
        raise MetadataError("array driver has no codec")


DRIVER = _ArrayKind()
