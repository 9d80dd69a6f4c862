"""The ``virtual_chunked`` driver: chunks that functions of the user compute and store.

It has no JSON: :func:`gpustore.virtual_chunked` makes such arrays. Their chunks pass the pipelines
of stored arrays as values of a kvstore (:mod:`gpustore.drivers.chunk_functions`), so that views,
batches, crops and reads into a device are the same. Partial writes read what the function computes
first.

Source: TensorStore's ``driver/virtual_chunked``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import Backend, Output
from gpustore.backends.selection import for_objects
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.vlen import VlenCodec
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import object_array
from gpustore.data_types.unit import Unit
from gpustore.drivers._cells import shifted
from gpustore.drivers._explained import explained_crops, explained_read, explained_write
from gpustore.drivers._setting import setting_of
from gpustore.drivers.base import (
    Driver,
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    Unresizable,
)
from gpustore.drivers.chunk_functions import ChunkFunctions, ChunkStore
from gpustore.drivers.format import check_codec_chunk
from gpustore.drivers.options import recheck_bound, take_options
from gpustore.errors import MetadataError, OutOfBoundsError, UnsupportedError, prefixing
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.interval import INF, INF_STOP, format_interval
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.transaction import TransactedKvStore
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.object_type import OBJECT_CODECS, empty_object, is_object
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.preload import preload
from gpustore.pipelines.read import read
from gpustore.pipelines.read_batch import read_in_batch
from gpustore.pipelines.read_many import read_many
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.pipelines.staged_writes import staged_write
from gpustore.pipelines.write import write
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cache import Space
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.limits import Limits
from gpustore.runtime.progress import Progress
from gpustore.runtime.transaction import Transaction, TransactionExecutor
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_single_chunk_shape
from gpustore.sharding.shard import ResolvedCodecs
from gpustore.strict_json.parsing import JsonValue, Members, dump, parse

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

_CHUNK_S: Final = 1e-3
"""Seconds that a function may take: each chunk is worth a task of its own."""

_FAR: Final = 1 << 60
"""Index beyond which an unbounded array has no elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JsonElements(VlenCodec):
    """JSON values of a chunk as one list."""

    def encode(self, elements: NDArray[Any]) -> Buffer:
        """Encode elements; MetadataError if one is no JSON."""
        return _listed(elements)

    def decode(self, encoded: Buffer, count: int) -> NDArray[Any]:
        """Decode `count` elements."""
        values: Any = parse(encoded, where="chunk", max_nbytes=len(encoded), max_depth=1000)
        elements = np.empty(count, object)
        for number, value in enumerate(values):
            elements[number] = value
        return elements


def _listed(elements: NDArray[Any]) -> Buffer:
    return dump(elements.tolist())


@dataclass(frozen=True, eq=False)
class VirtualChunkedDriver(Unresizable):
    """An array of chunks that functions compute and store.

    Attributes
    ----------
    functions : ChunkFunctions
    dtype : dtype
    domain : IndexDomain
        Domain with explicit bounds.
    chunk_layout : ChunkLayout
    dimension_units : tuple of Unit or None
    origin : tuple of int
        Index of the element of index zero of `array`.
    array : ChunkedArray
        Array of the pipelines.
    resources : mapping of str to Context.Resource
    options : mapping
        Options of the spec.
    readable, writable : bool
    transaction : Transaction or None
    plain_array : ChunkedArray or None
        Array of the pipelines outside of the transaction.
    """

    functions: ChunkFunctions
    dtype: dtype_
    domain: IndexDomain
    chunk_layout: ChunkLayout
    dimension_units: tuple[Unit | None, ...]
    origin: tuple[int, ...]
    array: ChunkedArray
    resources: Mapping[str, Context.Resource]
    options: Mapping[str, JsonValue]
    readable: bool
    writable: bool
    transaction: Transaction | None = None
    plain_array: ChunkedArray | None = None

    id = "virtual_chunked"
    base = None
    kvstore = None
    codec = None
    fill_value = None
    attributes = None
    open_mode = OpenMode()

    @property
    def backend(self) -> Backend:
        return self.array.backend

    @property
    def device(self) -> str:
        return self.array.backend.device

    @property
    def executor(self) -> Executor:
        return self.array.executor

    def in_transaction(self, transaction: Transaction | None) -> VirtualChunkedDriver:
        """Return the array with all operations in a transaction, or in none."""
        plain = self.plain_array or self.array
        if transaction is None:
            return replace(self, array=plain, transaction=None, plain_array=None)
        executor = TransactionExecutor(plain.executor, transaction)
        store = TransactedKvStore(plain.store, transaction)
        if plain.cache is not None:
            forget = partial(plain.cache.cache.forget_range, plain.store.identity, plain.key_prefix)
            store.stage.committed[id(plain)] = forget
        array = replace(plain, store=store, executor=executor, cache=None)
        return replace(self, array=array, transaction=transaction, plain_array=plain)

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return the spec, which is the same with and without `minimal`."""
        del minimal
        said = Schema(dtype=self.dtype, domain=self.domain, chunk_layout=self.chunk_layout)
        if any(unit is not None for unit in self.dimension_units):
            said.update(dimension_units=self.dimension_units)
        return VirtualChunkedSpec(self.functions, said, self.options)

    def _inside(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform to the array of the pipelines.

        Raises
        ------
        OutOfBoundsError
            If an index array has an index outside the domain; other maps have been checked.
        """
        for map_, low, stop in zip(
            transform.output, self.domain.inclusive_min, self.domain.exclusive_max, strict=True
        ):
            if map_.index_array is not None and map_.stride is not None:
                found = map_.offset + map_.stride * map_.index_array
                outside = found[(found < low) | (found >= stop)]
                if outside.size:
                    valid = format_interval(low, stop)
                    raise OutOfBoundsError(f"Index {outside[0]} is outside valid range {valid}")
        return shifted(transform, self.origin)

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Compute the chunks and copy their elements."""
        if batch is None or self.transaction is not None:
            return read(self.array, self._inside(transform), output)
        return read_in_batch(self._in_batches, self._inside(transform), batch, output)

    @cached_property
    def _in_batches(self) -> ChunkedArray:
        """Array whose functions are given a batch, by one thread that calls them all."""
        store: Any = self.array.store
        chain = copy(self.array.chain)
        chain.decode_s = 0.0
        return replace(self.array, store=store.in_batches(), chain=chain)

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Compute the chunks of all crops, each once."""
        return read_many(self.array, self._inside(transform), starts, shape, output)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Raise UnsupportedError: devices keep no chunks that functions compute."""
        return preload(self.array, self._inside(transform), progress)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Raise UnsupportedError: nothing is stored."""
        raise UnsupportedError("Storage statistics not supported")

    def explain(self, transform: IndexTransform) -> Explanation:
        """Explain the plan of the read."""
        return explained_read(self.array, self._inside(transform))

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Explain the plan of the write."""
        return explained_write(self.array, self._inside(transform))

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Explain the plan of the crops."""
        return explained_crops(self.array, self._inside(transform), starts, shape)

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Store the chunks; those of which a part is written are computed first."""
        if self.array.dtype.hasobject:
            source = object_array(source, self.dtype, max_rank=transform.domain.rank)
        store = self.array.store
        if self.plain_array is not None and isinstance(store, TransactedKvStore):
            return staged_write(self.plain_array, store, self._inside(transform), source)
        return write(self.array, self._inside(transform), source)

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise an error: the bounds are fixed."""
        if not self.writable:
            raise MetadataError("Destination does not support writing.")
        return super().resize(transform, request)


@dataclass(frozen=True)
class VirtualChunkedSpec:
    """An array of functions to be opened; it has no JSON, but can be pickled as its functions can.

    Attributes
    ----------
    functions : ChunkFunctions
    constraints : Schema
    options : mapping
        References to context resources, and ``recheck_cached_data``.
    """

    functions: ChunkFunctions
    constraints: Schema
    options: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "virtual_chunked"
    base = None
    kvstore = None

    @property
    def schema(self) -> Schema:
        """Constraints of the caller."""
        return self.constraints.copy()

    @property
    def url(self) -> str:
        """Raise UnsupportedError: functions have no URL."""
        raise UnsupportedError("URL representation not supported")

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Raise UnsupportedError: functions have no JSON."""
        raise UnsupportedError(
            'Error converting object member "driver": JSON representation not supported'
        )

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints."""
        if kvstore is not None:
            raise MetadataError("virtual_chunked driver does not support a kvstore")
        if "recheck_cached_metadata" in options:
            raise MetadataError("virtual_chunked driver does not support recheck_cached_metadata")
        options.pop("minimal", None)
        merged = self.constraints.copy()
        if schema is not None:
            merged.merge(schema)
        more = {**self.options, **take_options(Members(options))}
        return replace(self, constraints=merged, options=more)

    def open(self, request: OpenRequest) -> Opening:
        """Make the array; nothing is computed."""
        functions = self.functions
        with prefixing('Error opening "virtual_chunked" driver'):
            if request.read and functions.read is None:
                raise MetadataError("Reading not supported")
            if request.write and functions.write is None:
                raise MetadataError("Writing not supported")
            driver = virtual_driver(
                functions,
                self.constraints,
                request.context,
                self.options,
                readable=request.readable and functions.read is not None,
                writable=request.writable and functions.write is not None,
            )
        if request.transaction is not None:
            driver = driver.in_transaction(request.transaction)
        transform = IndexTransform(driver.domain)
        if request.transform is not None:
            transform = transform[request.transform]
        return Opening(driver.executor, lambda: (driver, transform), may_defer=True)


def virtual_driver(
    functions: ChunkFunctions,
    constraints: Schema,
    context: Context,
    options: Mapping[str, JsonValue],
    *,
    readable: bool,
    writable: bool,
) -> VirtualChunkedDriver:
    """Make an array of functions.

    Raises
    ------
    MetadataError
        If rank or data type are not known, or a constraint cannot be met.
    """
    rank, dtype = constraints.rank, constraints.dtype
    if rank is None:
        raise MetadataError("rank must be specified")
    if dtype is None:
        raise MetadataError("dtype must be specified")
    if constraints.fill_value is not None:
        raise MetadataError("fill_value not supported")
    domain = constraints.domain or IndexDomain(rank)
    domain = domain.mark_bounds_implicit[False]
    layout = constraints.chunk_layout
    check_codec_chunk(layout)
    with prefixing("Failed to compute chunk grid"):
        chunk = choose_single_chunk_shape(layout.read_write_chunk(), domain)
    order = layout.inner_order or layout.inner_order_soft_constraint or tuple(range(rank))
    grid_origin = _grid_origin(layout, domain, chunk)
    chosen = ChunkLayout(grid_origin=grid_origin, inner_order=order, chunk_shape=chunk)
    setting = setting_of(context, options)
    if not setting.is_bound:
        setting.bind()
    limits: Limits = setting.limits
    nbytes = math.prod(chunk) * dtype.array_dtype.itemsize
    limits.check("chunk_nbytes", nbytes, f"Chunk of shape {list(chunk)}")
    chain = partial(_chain, dtype, order, limits.chunk_nbytes)
    starts, edges = [], []
    for at, size, dim in zip(grid_origin, chunk, domain, strict=True):
        low, first = _first_chunk(at, size, dim.inclusive_min)
        starts.append(low)
        edges.append(_edges(first, size, low, dim.exclusive_max))
    origin = tuple(starts)
    shape = tuple([_last(dim.exclusive_max) - low for dim, low in zip(domain, origin, strict=True)])
    recheck = recheck_bound(options.get("recheck_cached_data", True), time.time())
    store = ChunkStore(
        functions,
        domain,
        tuple([partial(_place, low, one) for low, one in zip(origin, edges, strict=True)]),
        dtype,
        chain,
        setting.cache,
        Space(object(), b""),
        recheck,
    )
    is_regular = all(one.endless for one in edges)
    grid = None
    if not is_regular:
        grid = RectilinearGrid(
            tuple(edges), lambda some: ResolvedCodecs(chain(some), some, ()), inner_rank=0
        )
    fill = empty_object(dtype) if is_object(dtype) else np.zeros((), dtype.array_dtype)
    backend = setting.backend
    array = ChunkedArray(
        store=store,
        key_prefix="",
        key_separator="/",
        shape=shape,
        chunk_shape=chunk,
        inner_rank=0,
        dtype=dtype.array_dtype,
        fill_value=fill,
        blank=fill,
        chain=chain(chunk),
        levels=(),
        refiners=(),
        fill_missing=True,
        keep_fill=True,
        backend=for_objects(backend) if dtype.array_dtype.hasobject else backend,
        executor=setting.executor,
        limits=limits,
        decode_rule=setting.decode_rule,
        grid=grid,
    )
    units = constraints.dimension_units or (None,) * rank
    return VirtualChunkedDriver(
        functions,
        dtype,
        domain,
        chosen,
        tuple(units),
        origin,
        array,
        setting.resources,
        options,
        readable,
        writable,
    )


def _grid_origin(layout: ChunkLayout, domain: IndexDomain, chunk: Sequence[int]) -> tuple[int, ...]:
    """Return the origin of the grid: what is constrained, else the first index from 0 on at which a
    chunk begins if one does where the domain does.
    """
    given: list[Sequence[int | None]] = [
        origin
        for origin in (layout.grid_origin, layout.grid_origin_soft_constraint)
        if origin is not None
    ]
    found = []
    for d, (low, size) in enumerate(zip(domain.inclusive_min, chunk, strict=True)):
        said = [at for at in (origin[d] for origin in given) if at is not None]
        found.append(said[0] if said else 0 if low == -INF else low % size)
    return tuple(found)


def _first_chunk(origin: int, size: int, low: int) -> tuple[int, int]:
    """Return the first index of an array, and how many elements its first chunk has from there."""
    if low == -INF:
        low = origin - _FAR // size * size
    return low, size - (low - origin) % size


def _last(stop: int) -> int:
    """Return the end of the elements of a dimension that ends before `stop`."""
    return _FAR if stop == INF_STOP else stop


def _edges(first: int, size: int, low: int, stop: int) -> ChunkEdges:
    """Return the edges of chunks of one size, of which the first one may be cut off."""
    if first == size:
        return ChunkEdges.regular(size)
    more = max(0, _last(stop) - low - first)
    runs = [(first, 1), (size, -(-more // size))]
    return ChunkEdges(tuple(run for run in runs if run[1]))


def _place(low: int, edges: ChunkEdges, number: int) -> tuple[int, int]:
    """Return first index and extent of a cell."""
    size, _ = edges.runs[-1]
    first, _ = edges.runs[0]
    if number == 0:
        return low, first
    return low + first + (number - 1) * size, size


def _chain(
    dtype: dtype_, order: Sequence[int], objects_max: int, shape: tuple[int, ...]
) -> CodecChain:
    """Return the chain of decoded chunks of a shape."""
    stored = dtype.array_dtype
    strides = [0] * len(shape)
    nbytes = stored.itemsize
    for d in reversed(order):
        strides[d] = nbytes
        nbytes *= shape[d]
    layout = ChunkBytes(stored, shape, tuple(strides), nbytes)
    objects = None
    if is_object(dtype):
        objects = registry.find("codecs", OBJECT_CODECS[dtype.name])
    elif stored.hasobject:
        objects = _JsonElements(
            name="json", dtype=dtype, encode_library=_listed, decode_library=np.asarray
        )
    chain = CodecChain(
        layout, (), None, inner_order=tuple(order), objects=objects, objects_max=objects_max
    )
    chain.decode_s = max(chain.decode_s, _CHUNK_S)
    return chain
