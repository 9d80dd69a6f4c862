"""The ``stack`` driver: layers of other TensorStores in one domain, later ones on top.

JSON example::

    {"driver": "stack", "layers": ["file:///data/a.zarr/|zarr3:", {"driver": "array", ...}]}

Each layer lies where its transform places it. A request is divided among the layers that have its
elements (:mod:`gpustore.planning.layer_plan`), which are read into their regions of one array.
Layers given by a spec are opened by each operation that meets them. Bounds are those of the layers
when the stack is made. Elements that index arrays choose from several layers, and layers in host
memory under a stack on a device, pass host memory.

Source: TensorStore's ``driver/stack``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gpustore import registry
from gpustore.backends.base import Backend, Output
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import object_array
from gpustore.data_types.unit import Unit
from gpustore.drivers._affine_layers import AffineLayers
from gpustore.drivers._cells import crop_transforms
from gpustore.drivers._layer_parts import (
    Request,
    explained_parts,
    nothing,
    read_parts,
    shares_memory,
    stored_parts,
    write_parts,
)
from gpustore.drivers._layers import (
    Layer,
    Layers,
    LayerSpec,
    check_schema,
    combined_domain,
    combined_units,
    layer_errors,
    open_layers,
)
from gpustore.drivers._setting import backend_of
from gpustore.drivers.base import (
    NOT_OPENED,
    Driver,
    Opening,
    OpenMode,
    OpenRequest,
    Unresizable,
    schema_members,
)
from gpustore.drivers.options import with_defaults
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.planning.layer_plan import (
    LayerBounds,
    LayerBoxes,
    part_transform,
    plan_boxes,
    plan_layers,
)
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context, resource_json
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, failed
from gpustore.runtime.gather import gather
from gpustore.runtime.progress import Progress
from gpustore.runtime.transaction import Transaction, TransactionExecutor
from gpustore.runtime.write_futures import WriteFutures, write_after
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, Members

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

_CONCURRENCY = "data_copy_concurrency"


@dataclass(frozen=True, eq=False)
class StackDriver(Unresizable):
    """An opened stack of layers.

    Attributes
    ----------
    layers : Layers
    dtype : dtype
    domain : IndexDomain
        Domain with explicit bounds.
    dimension_units : tuple of Unit or None
    readable, writable : bool
    concurrency : Context.Resource
        Executor of the stack itself.
    transaction : Transaction or None
        Transaction of all layers.
    """

    layers: Layers
    dtype: dtype_
    domain: IndexDomain
    dimension_units: tuple[Unit | None, ...]
    readable: bool
    writable: bool
    concurrency: Context.Resource
    transaction: Transaction | None = None

    id = "stack"
    base = None
    kvstore = None
    codec = None
    fill_value = None
    attributes = None
    open_mode = OpenMode()

    @cached_property
    def bounds(self) -> LayerBounds:
        """Bounds of the layers, in columns."""
        low, high = self.layers.bounds
        shape = len(self.layers), self.domain.rank
        return LayerBounds(self.domain, low.reshape(shape), high.reshape(shape))

    @cached_property
    def backend(self) -> Backend:
        """Backend of the first layer on a device; the host's if there is none."""
        host: Backend = registry.find("backends", "host")
        if self.dtype.array_dtype.hasobject:
            return host
        opened = [driver.backend for driver in self.layers.different if driver is not None]
        for found in (*opened, *map(_backend_of, self.layers.unopened.values())):
            if found is not None and found.device != host.device:
                backend: Backend = found
                return backend
        return host

    @property
    def device(self) -> str:
        return self.backend.device

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Layout without constraints: the layers may have any chunks."""
        return ChunkLayout()

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the stack, and of all layers that are opened by operations."""
        found: dict[str, Context.Resource] = {}
        for layer in self.layers.unopened.values():
            found.update(layer.resources())
        return {**found, _CONCURRENCY: self.concurrency}

    @property
    def executor(self) -> Executor:
        executor: Executor = self.concurrency.value
        transaction = self.transaction
        return executor if transaction is None else TransactionExecutor(executor, transaction)

    def in_transaction(self, transaction: Transaction | None) -> StackDriver:
        """Return the stack with all layers in a transaction, or in none."""
        layers = [layer.in_transaction(transaction) for layer in self.layers]
        return replace(self, layers=Layers.of(layers), transaction=transaction)

    def spec(self, *, minimal: bool) -> StackSpec:
        """Return the specs of the layers, with the domain and the units of the stack."""
        said = Schema(dtype=self.dtype, domain=self.domain)
        if any(unit is not None for unit in self.dimension_units):
            said.update(dimension_units=self.dimension_units)
        layers = tuple([layer.as_spec(minimal=minimal) for layer in self.layers])
        return StackSpec(layers, said)

    # ---- reads

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read the elements of all layers into one array."""
        boxes = plan_boxes(self.bounds, transform)
        if boxes is not None and len(boxes.layer) == 1:
            (part,) = boxes.parts()
            layer = self.layers[part.layer]
            driver = layer.driver
            if driver is not None and shares_memory(driver.backend, self.backend):
                if not driver.readable:
                    return failed(MetadataError(f"Layer {part.layer}: Read mode not supported"))
                return driver.read(layer.transform[part_transform(transform, part)], output, batch)
        memory = output.memory(self.backend, transform.domain.shape, self.dtype.array_dtype)
        if boxes is not None and len(boxes.layer) >= 2 and self._affine is not None:
            together = self._read_together(self._affine, transform, boxes, memory, output, batch)
            if together is not None:
                return together
        try:
            parts = plan_layers(self.bounds, transform) if boxes is None else boxes.parts()
        except MetadataError as error:
            return failed(error)
        request = Request(transform, parts, 0, memory.strides)
        return self._read([request], memory, output, batch, boxes)

    @cached_property
    def _affine(self) -> AffineLayers | None:
        """The layers, if all are open and may be read together."""
        if self.bounds.axis is None or self.layers.unopened:
            return None
        return AffineLayers.of_opened(self.layers)

    def _read_together(
        self,
        affine: AffineLayers,
        transform: IndexTransform,
        boxes: LayerBoxes,
        memory: Any,
        output: Output,
        batch: Batch | None,
    ) -> Future[Any] | None:
        """Read layers together; None if the request needs more."""
        axis = self.bounds.axis
        assert axis is not None
        threads = self.backend, self.executor
        return affine.read(transform, boxes, axis, memory, output, *threads, batch)

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Read the elements of all layers and crops into one array."""
        crops = crop_transforms(self.domain, transform, starts, shape)
        memory = output.memory(self.backend, (len(crops), *shape), self.dtype.array_dtype)
        step, *strides = memory.strides
        requests = []
        try:
            for number, crop in enumerate(crops):
                parts = plan_layers(self.bounds, crop)
                requests.append(Request(crop, parts, number * step, tuple(strides)))
        except MetadataError as error:
            return failed(error)
        return self._read(requests, memory, output, None)

    def _read(
        self,
        requests: Sequence[Request],
        memory: Any,
        output: Output,
        batch: Batch | None,
        boxes: LayerBoxes | None = None,
    ) -> Future[Any]:
        """Read the parts of requests, of one with these boxes, once their layers are open."""
        numbers = [part.layer for request in requests for part in request.parts]
        once = sorted(set(numbers))
        if self.layers.unopened.keys().isdisjoint(once):
            layers = open_layers(self.layers, once, write=False)
            return read_parts(requests, layers, memory, output, self.backend, self.executor, batch)
        # The thread that opens the layers may have another current stream.
        output = output._replace(stream=self.backend.caller_stream(output.stream))

        def run() -> Future[Any]:
            layers = open_layers(self.layers, once, write=False)
            affine = None if boxes is None else AffineLayers.of(layers)
            if affine is not None and boxes is not None:
                transform = requests[0].transform
                together = self._read_together(affine, transform, boxes, memory, output, None)
                if together is not None:
                    return together
            return read_parts(requests, layers, memory, output, self.backend, self.executor, None)

        begin = partial(self.executor.submit, run)
        return begin() if batch is None else batch._later(begin)

    # ---- writes

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Write each element to the topmost layer that has it."""
        domain, dtype = transform.domain, self.dtype.array_dtype
        if dtype.hasobject:
            source = object_array(source, self.dtype, max_rank=domain.rank)
        elements = self.backend.elements(self.backend.source(source, domain, dtype))
        try:
            parts = plan_layers(self.bounds, transform)
        except MetadataError as error:
            return WriteFutures(failed(error), failed(error))
        numbers = sorted({part.layer for part in parts})
        write = partial(write_parts, transform, parts, elements, executor=self.executor)
        if self.layers.unopened.keys().isdisjoint(numbers):
            return write(open_layers(self.layers, numbers, write=True))
        opening = self.executor.submit(
            partial(open_layers, self.layers, numbers, write=True), drain=True
        )
        return write_after(opening, write)

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise an error: the bounds are fixed."""
        if not self.writable:
            raise MetadataError("Destination does not support writing.")
        return super().resize(transform, request)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Preload the parts of all layers, each of which must have chunks and such a cache."""
        parts = self._parts(transform)
        futures = [driver.preload(of_layer, progress) for driver, of_layer in parts]
        return gather(futures, nothing, self.executor)

    def _parts(
        self, transform: IndexTransform, *, write: bool = False
    ) -> list[tuple[Driver, IndexTransform]]:
        """Return the drivers of the layers that a request meets, with its transforms to them."""
        parts = plan_layers(self.bounds, transform)
        numbers = sorted({part.layer for part in parts})
        layers = open_layers(self.layers, numbers, write=write)
        found = []
        for part in parts:
            driver, to_driver = layers[part.layer]
            found.append((driver, to_driver[part_transform(transform, part)]))
        return found

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Look up which chunks of the layers are stored, of each where it is the topmost."""
        return stored_parts(self._parts(transform), self.executor)

    def explain(self, transform: IndexTransform) -> Explanation:
        """Explain the reads of all layers; those in memory have no chunks."""
        return self._explained([transform], tuple(transform.domain.shape))

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Explain the reads of all layers for crops."""
        crops = crop_transforms(self.domain, transform, starts, shape)
        return self._explained(crops, (len(crops), *shape))

    def _explained(
        self, transforms: Sequence[IndexTransform], shape: tuple[int, ...]
    ) -> Explanation:
        parts = [part for transform in transforms for part in self._parts(transform)]
        nbytes = self.dtype.itemsize * math.prod(shape)
        whole: Any = {"device": self.device, "shape": shape, "bytes_returned": nbytes}
        found: Explanation = explained_parts(parts, together=len(transforms), **whole)
        return found

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Explain the writes of all layers."""
        parts, shape = self._parts(transform, write=True), tuple(transform.domain.shape)
        whole: Any = {"shape": shape, "bytes_written": self.dtype.itemsize * math.prod(shape)}
        found: WriteExplanation = explained_parts(parts, write=True, device=self.device, **whole)
        return found


def _backend_of(layer: Layer) -> Backend | None:
    """Return the backend that a layer will have once it is opened."""
    assert layer.spec is not None
    assert layer.context is not None
    backend: Backend | None = backend_of(layer.spec.driver, layer.context)
    return backend


def stack_driver(
    layers: Layers,
    context: Context,
    constraints: Schema,
    *,
    readable: bool,
    writable: bool,
    concurrency: JsonValue = None,
) -> StackDriver:
    """Make a stack of layers of one rank and the data type of `constraints`.

    Raises
    ------
    MetadataError
        If the layers contradict each other or the constraints.
    """
    check_schema(constraints)
    dtype = constraints.dtype
    assert dtype is not None
    domain = combined_domain(layers.hull, constraints.domain)
    units = combined_units(constraints.dimension_units, layers.units, domain.rank)
    resource = context.resource(_CONCURRENCY, concurrency)
    common = layers.transaction
    stack = StackDriver(layers, dtype, domain, units, readable, writable, resource)
    return stack if common is None else stack.in_transaction(common)


@dataclass(frozen=True)
class StackSpec:
    """A stack to be opened.

    Attributes
    ----------
    layers : tuple of LayerSpec
    constraints : Schema
        Constraints of the caller, with the data type of the layers.
    concurrency : JSON
        Reference to the resource ``data_copy_concurrency``; None for the default one.
    """

    layers: tuple[LayerSpec, ...]
    constraints: Schema
    concurrency: JsonValue = None

    id = "stack"
    base = None
    kvstore = None

    @cached_property
    def _domain(self) -> IndexDomain | None:
        placed = [
            Layer(one.transform, None, one) for one in self.layers if one.transform is not None
        ]
        if not placed and self.constraints.domain is None:
            return None
        return combined_domain(Layers.of(placed).hull, self.constraints.domain)

    @property
    def schema(self) -> Schema:
        """Data type, domain and units: those of the caller and of the layers."""
        found = Schema()
        if self.constraints.rank is not None:
            found.update(rank=self.constraints.rank)
        if self.constraints.dtype is not None:
            found.update(dtype=self.constraints.dtype)
        domain = self._domain
        if domain is not None:
            found.update(domain=domain)
            units = combined_units(
                self.constraints.dimension_units,
                [
                    Layer(layer.transform, None, layer).units
                    for layer in self.layers
                    if layer.transform is not None
                ],
                domain.rank,
            )
            if any(unit is not None for unit in units):
                found.update(dimension_units=units)
        return found

    @property
    def url(self) -> str:
        """Raise UnsupportedError: a stack has no URL."""
        raise UnsupportedError("URL representation not supported")

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the constraints; the caller adds the layers."""
        options = {} if self.concurrency is None else {_CONCURRENCY: self.concurrency}
        shown = with_defaults(options, {}, (_CONCURRENCY,)) if include_defaults else options
        return {**shown, **schema_members(self.constraints, include_defaults=include_defaults)}

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> StackSpec:
        """Return the spec with more constraints; options go to all layers.

        The option ``open_mode`` is the open mode of the layers.
        """
        if kvstore is not None:
            raise MetadataError('kvstore option not supported by "stack" driver')
        spec = self
        if schema is not None:
            check_schema(schema)
            merged = self.constraints.copy()
            merged.merge(_without_layout(schema))
            layers = self.layers
            if merged.dtype != self.constraints.dtype:
                layers = tuple([_of_dtype(layer, merged.dtype) for layer in layers])
            spec = replace(spec, layers=layers, constraints=merged)
        mode = options.pop("open_mode", None)
        if mode is not None:
            spec = replace(spec, layers=tuple([_of_mode(layer, mode) for layer in spec.layers]))
        if options:
            layers = tuple(
                [layer._replace(driver=layer.driver.updated(**options)) for layer in spec.layers]
            )
            spec = replace(spec, layers=layers)
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Make the stack; its layers are opened by the operations that meet them."""
        if self.constraints.dtype is None:
            raise MetadataError("dtype must be specified")
        layers = []
        for number, spec in enumerate(self.layers):
            with layer_errors(number):
                transform = spec.effective_transform()
            context = request.context
            if spec.context is not None:
                context = Context(spec.context, context)
            layers.append(Layer(transform, None, spec, context))
        driver = stack_driver(
            Layers.of(layers),
            request.context,
            self.constraints,
            readable=request.readable,
            writable=request.writable,
            concurrency=self.concurrency,
        )
        if request.transaction is not None:
            driver = driver.in_transaction(request.transaction)
        transform = IndexTransform(driver.domain)
        if request.transform is not None:
            transform = transform[request.transform]
        return Opening(driver.executor, lambda: (driver, transform), may_defer=True)


def _without_layout(schema: Schema) -> Schema:
    parts: dict[str, Any] = {
        "rank": schema.rank,
        "dtype": schema.dtype,
        "domain": schema.domain,
        "dimension_units": schema.dimension_units,
    }
    return Schema(**{name: part for name, part in parts.items() if part is not None})


def _of_dtype(layer: LayerSpec, dtype: dtype_ | None) -> LayerSpec:
    """Return the spec of a layer with the data type of the stack."""
    if dtype is None or layer.driver.schema.dtype == dtype:
        return layer
    return layer._replace(driver=layer.driver.updated(schema=Schema(dtype=dtype)))


def _of_mode(layer: LayerSpec, mode: OpenMode) -> LayerSpec:
    """Return the spec of a layer with an open mode, if it is opened or created at all."""
    innermost = layer.driver
    while innermost.base is not None:
        innermost = innermost.base
    if isinstance(innermost, StackSpec):
        return layer._replace(driver=layer.driver.updated(open_mode=mode))
    return layer if innermost.id in NOT_OPENED else layer._replace(mode=mode)


def stack_spec(
    layers: Sequence[LayerSpec], constraints: Schema, concurrency: JsonValue = None
) -> StackSpec:
    """Make the spec of a stack.

    Raises
    ------
    MetadataError
        If ranks or data types differ, or a domain is not known.
    """
    check_schema(constraints)
    said = _without_layout(constraints)
    for number, layer in enumerate(layers):
        with layer_errors(number):
            if said.rank is not None and layer.rank != said.rank:
                rank = -1 if layer.rank is None else layer.rank
                raise MetadataError(f"Rank of {rank} does not match existing rank of {said.rank}")
            if layer.rank is not None:
                said.update(rank=layer.rank)
            dtype = layer.driver.schema.dtype
            if dtype is not None:
                said.set_dtype(dtype)
    placed = []
    for number, layer in enumerate(layers):
        with layer_errors(number):
            typed = _of_dtype(layer, said.dtype)
            placed.append(typed._replace(transform=layer.effective_transform()))
    spec = StackSpec(tuple(placed), said, concurrency)
    spec._domain  # noqa: B018  Raises if labels differ.
    return spec


class _StackKind:
    id = "stack"
    is_adapter = False
    schemes = ()
    shares_members = False

    def from_layers(
        self, layers: Sequence[tuple[Any, ...]], members: Members, schema: Schema
    ) -> StackSpec:
        """Make the spec of layers, given by the parts of their specs: see :class:`LayerSpec`."""
        concurrency = None
        if _CONCURRENCY in members:
            concurrency = members.take_with(_CONCURRENCY, partial(resource_json, _CONCURRENCY))
        if concurrency == _CONCURRENCY:
            concurrency = None
        return stack_spec([LayerSpec(*layer) for layer in layers], schema, concurrency)


DRIVER = _StackKind()
