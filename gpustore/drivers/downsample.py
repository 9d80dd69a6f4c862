"""The ``downsample`` driver: one element for each block of another TensorStore.

JSON example::

    {"driver": "downsample", "base": "file:///data/x.zarr/|zarr3:",
     "downsample_factors": [2, 2], "downsample_method": "mean"}

Nothing is stored: reads read the blocks of the base, in parts of bounded size, and reduce them
(:mod:`gpustore.backends.host.downsample`). Chunks and units are those of the base, smaller and
larger by the factors. Elements that index arrays choose are taken from the box around
them. On a device kernels do it; but the host reduces what index arrays and crops (``read_many``)
choose, floats of one byte, modes of complex numbers, medians and modes of more than 512 elements,
and ``gaussian`` along more than three dimensions.

Source: TensorStore's ``driver/downsample``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore import registry
from gpustore.backends.base import NEW, Backend, Output
from gpustore.backends.host.downsample import downsample
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers._blocks import Blocks
from gpustore.drivers._cells import (
    Box,
    cells_in_memory,
    check_factors,
    check_method,
    crop_transforms,
    layout_of_cells,
    method_of,
    selected_cells,
    units_of_cells,
)
from gpustore.drivers.array import ArrayDriver, selected
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
from gpustore.errors import MetadataError, UnsupportedError, prefixing
from gpustore.hierarchy.attributes import Attributes
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.index_space.downsampling import downsampled
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.then import then
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_int,
    expect_list,
)

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation


@dataclass(frozen=True)
class DownsampleDriver(OverBase):
    """An opened view of the blocks of another driver.

    Attributes
    ----------
    base : Driver
    blocks : Blocks
        Blocks of the elements of the base.
    """

    base: Driver
    blocks: Blocks

    id = "downsample"
    writable = False

    @property
    def dtype(self) -> dtype_:
        return self.base.dtype

    @property
    def domain(self) -> IndexDomain:
        return self.blocks.domain

    def below(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform to the elements of the base of which cells are made."""
        return self.blocks.below(transform)

    @property
    def device(self) -> str:
        return self.base.device

    @property
    def backend(self) -> Backend:
        backend: Backend = self.base.backend
        return backend

    @property
    def _base_schema(self) -> Schema:
        """Schema of the domain that is downsampled, without its elements."""
        base = self.base
        schema = Schema(domain=base.domain, chunk_layout=base.chunk_layout)
        if any(unit is not None for unit in base.dimension_units):
            schema.update(dimension_units=base.dimension_units)
        return schema.transformed(self.blocks.base_transform)

    @property
    def chunk_layout(self) -> ChunkLayout:
        return layout_of_cells(self._base_schema.chunk_layout, self.blocks.factors)

    @property
    def fill_value(self) -> Any:
        return self.base.fill_value

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        return units_of_cells(self._base_schema.dimension_units, self.blocks.factors)

    @property
    def attributes(self) -> Attributes | None:
        return None

    @property
    def readable(self) -> bool:
        return self.base.readable

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return the spec of the base with factors and method."""
        base = self.base.spec(minimal=minimal)
        blocks = self._latest.blocks
        return DownsampleSpec(base, blocks.base_transform, blocks.factors, blocks.method)

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read the blocks of the cells, and reduce each to one element.

        Raises
        ------
        OutOfBoundsError
            If a cell is outside the domain.
        """
        # The bounds of a resizable base count as they are now.
        latest = self._latest
        if latest is not self:
            return latest.read(IndexTransform(latest.domain)[transform], output, batch)
        domain = self.domain.mark_bounds_implicit[False]
        transform = IndexTransform(domain)[transform]
        box = None if 0 in transform.domain.shape else self.blocks.box(transform, domain)
        if self.blocks.method == "stride":
            return self.base.read(self.blocks.strided(transform), output, batch)
        shape, dtype = tuple(transform.domain.shape), self.dtype.array_dtype
        memory = output.memory(self.backend, shape, dtype)
        if box is None:
            return Future(output.filled(memory))
        parts = list(self.blocks.parts(box, self.dtype.itemsize))
        begin = partial(self._read_blocks, batch=batch if len(parts) == 1 else None)

        def finish(elements: Iterator[Any]) -> Any:
            cells: Any = None
            for part, of_base in zip(parts, elements, strict=True):
                job, there = self.blocks.job(part), cells_in_memory(part, transform, memory.strides)
                if there and self.backend.downsample(of_base, job, there, memory):
                    continue
                if cells is None:
                    cells = np.empty([high - low for low, high in box], dtype)
                place: tuple[Any, ...] = tuple(
                    slice(low - first, high - first)
                    for (low, high), (first, _) in zip(part, box, strict=True)
                )
                downsample(self.backend.to_host(of_base), job, cells[(*place, ...)])
            if cells is not None:
                self.backend.place(selected_cells(cells, box, transform), memory)
            return output.filled(memory)

        if len(parts) == 1:
            return then(begin(parts[0]), lambda elements: finish(iter([elements])), self.executor)
        return self.executor.submit(lambda: finish(_ahead(begin, parts)))

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Read the crops one after the other."""
        if self.blocks.method == "stride":
            return self.base.read_many(self.blocks.strided(transform), starts, shape, output)
        crops = crop_transforms(self.domain, transform, starts, shape)
        memory = output.memory(self.backend, (len(crops), *shape), self.dtype.array_dtype)

        def run() -> Any:
            elements = np.empty((len(crops), *shape), self.dtype.array_dtype)
            for number, crop in enumerate(crops):
                elements[number] = self.backend.to_host(self.read(crop, NEW).result())
            self.backend.place(elements, memory)
            return output.filled(memory)

        return self.executor.submit(run)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Preload the chunks of the base that the blocks of the cells lie in."""
        return self.base.preload(self.blocks.elements_of_cells(transform), progress)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Look up which chunks of the base the blocks of the cells lie in are stored."""
        return self.base.stored_chunks(self.blocks.elements_of_cells(transform))

    def explain(self, transform: IndexTransform) -> Explanation:
        """Explain the reads of the blocks of the cells."""
        return self._explained([transform], tuple(transform.domain.shape))

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Explain the reads of the blocks of the cells of crops."""
        if self.blocks.method == "stride":
            return self.base.explain_many(self.blocks.strided(transform), starts, shape)
        crops = crop_transforms(self.domain, transform, starts, shape)
        return self._explained(crops, (len(crops), *shape))

    def _explained(
        self, transforms: Sequence[IndexTransform], shape: tuple[int, ...]
    ) -> Explanation:
        domain, blocks = self.domain.mark_bounds_implicit[False], self.blocks
        found = []
        for transform in transforms:
            if self.blocks.method == "stride" or 0 in transform.domain.shape:
                found.append(self.base.explain(blocks.elements_of_cells(transform)))
                continue
            box = blocks.box(IndexTransform(domain)[transform], domain)
            parts = blocks.parts(box, self.dtype.itemsize)
            found += [self.base.explain(blocks.elements_of(part)) for part in parts]
        if not found:
            raise UnsupportedError("explain is not supported without crops")
        combined: Callable[..., Explanation] = registry.find("explain", "combined")
        nbytes = self.dtype.itemsize * math.prod(shape)
        return combined(found, shape=shape, together=len(transforms), bytes_returned=nbytes)

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Raise MetadataError: there is nothing to write to."""
        raise MetadataError("Destination does not support writing.")

    def _read_blocks(self, part: Box, batch: Batch | None) -> Future[Any]:
        """Begin to read the elements of the blocks of some cells, as far as the base has them."""
        transform = self.blocks.elements_of(part)
        if isinstance(self.base, ArrayDriver):  # They are in memory already.
            STATISTICS.add(reads=1)
            return Future(selected(self.base.array, transform))
        reading = self.base.read(transform, NEW, batch)
        if batch is None:
            reading.force()
        return reading

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Raise MetadataError: there is nothing to write to."""
        raise MetadataError("Destination does not support writing.")

    @property
    def _latest(self) -> DownsampleDriver:
        """View of the base with the shape that it was given last in its context; no I/O."""
        base = latest_of(self.base)
        return self if base is self.base else self._over(base)

    def in_transaction(self, transaction: Transaction | None) -> DownsampleDriver:
        """Return the view over the base in a transaction."""
        return self._over(self.base.in_transaction(transaction))

    def _over(self, base: Driver) -> DownsampleDriver:
        """Return the view over the base with other bounds; explicit ones stay as they are."""
        transform = placed_again(self.blocks.base_transform, base)
        return replace(self, base=base, blocks=replace(self.blocks, base_transform=transform))

    def resolve(self) -> Driver:
        """Return the view over the base with its currently stored bounds."""
        base = self.base.resolve()
        transform = IndexTransform(base.domain)[self.blocks.base_transform]
        return replace(self, base=base, blocks=replace(self.blocks, base_transform=transform))

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise MetadataError: there is nothing to write to."""
        raise MetadataError("Destination does not support writing.")


def _ahead(begin: Callable[[Box], Future[Any]], parts: Sequence[Box]) -> Iterator[Any]:
    """Yield the elements of the parts in order; while one is used the next is read."""
    reading = begin(parts[0])
    try:
        for part in parts[1:]:
            elements = reading.result()
            reading = begin(part)
            yield elements
            del elements
        yield reading.result()
    finally:
        reading.cancel()


def downsample_driver(
    base: Driver, transform: IndexTransform, factors: Sequence[int], method: str
) -> DownsampleDriver:
    """Make a view of the blocks of an opened driver.

    Parameters
    ----------
    base : Driver
    transform : IndexTransform
        From the domain that is downsampled to that of the base.
    factors : sequence of int
        Elements of a block along each dimension.
    method : str

    Raises
    ------
    MetadataError
        If factors or method are wrong, the data type has no such method, or the base cannot be
        read.
    """
    factors = check_factors(factors, transform.input_rank, "TensorStore")
    check_method(method, base.dtype, factors)
    if not base.readable:
        raise MetadataError("Cannot downsample write-only TensorStore")
    return DownsampleDriver(base, Blocks(transform, factors, method))


@dataclass(frozen=True)
class DownsampleSpec:
    """A view of blocks, to be opened.

    Attributes
    ----------
    base : DriverSpec
    base_transform : IndexTransform or None
        From the domain that is downsampled to that of the base; None if it is not known.
    factors : tuple of int
    method : str
    context : Context.Spec or None
        Context of the base's own spec.
    """

    base: DriverSpec
    base_transform: IndexTransform | None
    factors: tuple[int, ...]
    method: str
    context: Context.Spec | None = None

    id = "downsample"

    @property
    def kvstore(self) -> KvStore.Spec | None:
        return self.base.kvstore

    @property
    def schema(self) -> Schema:
        """Schema of the base, downsampled."""
        base = self.base.schema
        if self.base_transform is not None:
            fill = base.fill_value
            base = base.without_fill_value().transformed(self.base_transform)
            if base.domain is None:
                base.update(domain=self.base_transform.domain)
            if fill is not None and fill.ndim == 0:
                base.update(fill_value=fill)
        found = Schema(rank=len(self.factors))
        if base.dtype is not None:
            found.update(dtype=base.dtype)
        if base.domain is not None:
            strided = self.method == "stride"
            found.update(domain=downsampled(base.domain, self.factors, strided=strided))
        if base.chunk_layout.rank == len(self.factors):
            found.update(chunk_layout=layout_of_cells(base.chunk_layout, self.factors))
        if base.dimension_units is not None:
            found.update(dimension_units=units_of_cells(base.dimension_units, self.factors))
        if base.codec is not None:
            found.update(codec=base.codec)
        if base.fill_value is not None and base.fill_value.ndim == 0:
            found.update(fill_value=base.fill_value)
        return found

    def below(self, transform: IndexTransform | None) -> IndexTransform | None:
        """Return the transform to the elements of the base of which cells are made, if known."""
        known = self.known_transform
        if known is None or transform is None:
            return known
        return Blocks(known, self.factors, self.method).below(transform)

    @property
    def known_transform(self) -> IndexTransform | None:
        """Transform from the domain that is downsampled; None if that is not known."""
        domain = self.base.schema.domain
        if self.base_transform is not None or domain is None:
            return self.base_transform
        return IndexTransform(domain)

    @property
    def url(self) -> str:
        """Raise UnsupportedError: a downsampled array has no URL."""
        raise UnsupportedError("URL representation not supported")

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return factors, method, data type and rank; the caller adds the base."""
        said = Schema(rank=len(self.factors))
        dtype = self.base.schema.dtype
        if dtype is not None:
            said.update(dtype=dtype)
        members = {
            "downsample_factors": list(self.factors),
            "downsample_method": self.method,
        }
        return {**members, **schema_members(said, include_defaults=include_defaults)}

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints: data type and rank, and options of the base."""
        spec = self
        if schema is not None:
            if schema.domain is not None:
                raise UnsupportedError(
                    '"domain" is not a constraint of the "downsample" driver; give it to its base'
                )
            if schema.fill_value is not None and any(factor > 1 for factor in self.factors):
                raise MetadataError(
                    "Error transforming fill_value: Cannot transform input array through "
                    "non-unit-stride output index map"
                )
            if schema.rank is not None:
                check_factors(self.factors, schema.rank, "specified")
            if schema.dtype is not None:
                check_method(self.method, schema.dtype, self.factors)
            cells = IndexTransform(
                input_rank=len(self.factors),
                output=[OutputIndexMap(d, stride=f) for d, f in enumerate(self.factors)],
            )
            below = cells if self.base_transform is None else self.base_transform[cells]
            base = self.base.updated(schema=schema.inverse_transformed(below))
            spec = replace(spec, base=base)
        if kvstore is not None or options:
            spec = replace(spec, base=spec.base.updated(kvstore=kvstore, **options))
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Open the base, then wrap it in a driver that reads its blocks."""
        with prefixing('Error opening "downsample" driver'):
            if request.write:
                raise MetadataError("only reading is supported")
            below = request._replace(transform=self.base_transform, read=True, write=None)
            if self.context is not None:
                below = below._replace(context=Context(self.context, request.context))
            opening = self.base.open(below)

        def run() -> tuple[Driver, IndexTransform]:
            with prefixing('Error opening "downsample" driver'):
                base, transform = opening.run()
                driver = downsample_driver(base, transform, self.factors, self.method)
                found = IndexTransform(driver.domain)
                return driver, found if request.transform is None else found[request.transform]

        return opening._replace(run=run)


class _DownsampleKind:
    id = "downsample"
    is_adapter = True
    schemes = ()
    shares_members = False
    keeps_dtype = True

    of_driver = staticmethod(downsample_driver)

    def from_base(
        self,
        base: DriverSpec,
        transform: IndexTransform | None,
        context: Context.Spec | None,
        members: Members,
        schema: Schema,
    ) -> tuple[DriverSpec, IndexTransform | None]:
        """Take factors and method; the transform of the base stays below."""
        factors = members.take_with("downsample_factors", _factors)
        method = members.take_with("downsample_method", method_of)
        if schema.rank is not None and schema.rank != len(factors):
            raise MetadataError(
                f'Error parsing object member "downsample_factors": Rank specified by rank '
                f"({len(factors)}) does not match existing rank specified by schema "
                f"({schema.rank})"
            )
        rank = base.schema.rank if transform is None else transform.input_rank
        check_factors(factors, rank, "TensorStore")
        check_method(method, None, factors)
        spec = DownsampleSpec(base, transform, factors, method, context)
        return spec.updated(schema=schema), None


def _factors(value: JsonValue) -> tuple[int, ...]:
    found = []
    for position, factor in enumerate(expect_list(value)):
        with at_position(position):
            found.append(expect_int(factor, 1, integral_floats=True))
    return tuple(found)


DRIVER = _DownsampleKind()
