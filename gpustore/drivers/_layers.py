"""Layers of a stack: their specs, domains, data types and units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, overload

import numpy as np

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.array import ArrayDriver
from gpustore.drivers.base import (
    Driver,
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    latest_of,
    open_kvstore,
    placed_again,
)
from gpustore.drivers.options import bound_resources
from gpustore.errors import MetadataError, TransactionError, prefixing
from gpustore.index_space import Dim, IndexDomain, IndexTransform, OutputIndexMap
from gpustore.index_space.bounds import Box
from gpustore.index_space.domain import make_domain
from gpustore.index_space.output_map import OutputIndexMaps, array_map, input_map
from gpustore.index_space.transform import make_transform
from gpustore.planning.chunk_grid import Integers
from gpustore.runtime.context import Context
from gpustore.runtime.transaction import Transaction
from gpustore.schema import Schema

Units = tuple[Unit | None, ...]


class LayerSpec(NamedTuple):
    """A layer to be opened: the parts of a spec.

    Attributes
    ----------
    driver : DriverSpec
    transform : IndexTransform or None
        From the domain of the stack to that of the driver; None for that of the driver's schema.
    mode : OpenMode
    context : Context.Spec or None
        Resources of the layer's own.
    """

    driver: DriverSpec
    transform: IndexTransform | None
    mode: OpenMode
    context: Context.Spec | None

    def effective_transform(self) -> IndexTransform:
        """Return the transform with the bounds of the driver, as far as they are known.

        Raises
        ------
        MetadataError
            If no domain is known.
        """
        domain = self.driver.schema.domain
        if self.transform is None:
            if domain is None:
                raise MetadataError("Domain must be specified")
            return IndexTransform(domain)
        return self.transform if domain is None else IndexTransform(domain)[self.transform]

    @property
    def rank(self) -> int | None:
        """Number of dimensions of the stack, as far as the layer tells it."""
        return self.driver.schema.rank if self.transform is None else self.transform.input_rank


class Layer(NamedTuple):
    """A layer of an opened stack.

    Attributes
    ----------
    transform : IndexTransform
        From the domain of the stack to that of the driver.
    driver : Driver or None
        Opened driver.
    spec : LayerSpec or None
        Spec of a layer that each operation opens; exactly one of both is None.
    context : Context or None
        Resources with which `spec` is opened.
    transaction : Transaction or None
        Transaction in which `spec` is opened.
    """

    transform: IndexTransform
    driver: Driver | None
    spec: LayerSpec | None = None
    context: Context | None = None
    transaction: Transaction | None = None

    def in_transaction(self, transaction: Transaction | None) -> Layer:
        """Return the layer with all operations in a transaction, or in none."""
        if self.driver is None:
            return self._replace(transaction=transaction)
        return self._replace(driver=self.driver.in_transaction(transaction))

    def opening(self, transform: IndexTransform, *, write: bool) -> Opening:
        """Begin to open the layer in the place of `transform`, for writes or for reads."""
        assert self.spec is not None
        assert self.context is not None
        mode, context = self.spec.mode, self.context
        read, also_write = (None, True) if write else (True, None)
        request = OpenRequest(
            *(mode, context, read, also_write, transform), transaction=self.transaction
        )
        return self.spec.driver.open(request)

    @property
    def dtype(self) -> dtype_ | None:
        """Data type, None if it is not known."""
        if self.driver is not None:
            return self.driver.dtype
        assert self.spec is not None
        return self.spec.driver.schema.dtype

    def resources(self) -> Mapping[str, Context.Resource]:
        """Return the resources with which operations open the layer, by identifier."""
        if self.spec is None or self.context is None or self.spec.context is not None:
            return {}
        innermost = self.spec.driver
        while innermost.base is not None:
            innermost = innermost.base
        found: dict[str, Context.Resource] = {}
        if innermost.kvstore is not None:
            opened = open_kvstore(innermost.kvstore, self.context)
            found.update(opened.driver.all_resources)
        options = getattr(innermost, "options", None)
        if isinstance(options, Mapping):
            found.update(bound_resources(self.context, options))
        return found

    @property
    def units(self) -> Units:
        """Unit of a step along each dimension of the stack, None where unknown."""
        known: Sequence[Unit | None] | None
        if self.driver is not None:
            known = self.driver.dimension_units
        else:
            assert self.spec is not None
            known = self.spec.driver.schema.dimension_units
        rank = len(self.transform.domain.labels)
        if known is None or known.count(None) == len(known):
            return (None,) * rank
        schema = Schema(dimension_units=known).transformed(self.transform)
        return tuple(schema.dimension_units or (None,) * rank)

    def as_spec(self, *, minimal: bool) -> LayerSpec:
        """Return a spec that opens the layer again."""
        driver, transform = self.driver, self.transform
        if driver is not None:
            if isinstance(driver, ArrayDriver):
                driver, transform = driver.narrowed(transform)
            latest = latest_of(driver)
            if latest is not driver:
                transform = placed_again(transform, latest)
            return LayerSpec(driver.spec(minimal=minimal), transform, driver.open_mode, None)
        spec = self.spec
        assert spec is not None
        base = spec.driver.updated(minimal=True) if minimal else spec.driver
        return spec._replace(driver=base, transform=transform)


class Layers(Sequence[Layer]):
    """Layers of a stack, by columns: there may be thousands, of which a read meets a few.

    Parameters
    ----------
    transforms : sequence of IndexTransform
        From the domain of the stack to those of the drivers, but for the dimension `axis`.
    drivers : sequence of Driver or None
        Opened drivers.
    unopened : mapping of int to Layer
        Layers without one, by number; their transforms are ignored.
    axis : int, optional
        Dimension of the stack in which each layer has its number as the only index, and which
        `transforms` do not have.
    """

    def __init__(
        self,
        transforms: Sequence[IndexTransform],
        drivers: Sequence[Driver | None],
        unopened: Mapping[int, Layer],
        axis: int | None = None,
    ) -> None:
        self.transforms = transforms
        self.drivers = drivers
        self.unopened = unopened
        self.axis = axis

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Layers:
        """Return layers given one by one."""
        unopened = {number: one for number, one in enumerate(layers) if one.driver is None}
        return cls([one.transform for one in layers], [one.driver for one in layers], unopened)

    def __len__(self) -> int:
        return len(self.transforms)

    @overload
    def __getitem__(self, number: int) -> Layer: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Layer]: ...
    def __getitem__(self, number: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        transform, driver = self.transforms[number], self.drivers[number]
        if self.axis is not None:
            transform = _with_dimension(transform, self.axis, number)
        if driver is None:
            return self.unopened[number]._replace(transform=transform)
        return Layer(transform, driver)

    def opened(self, number: int) -> tuple[Driver, IndexTransform]:
        """Return driver and transform of an opened layer."""
        layer = self[number]
        assert layer.driver is not None
        return layer.driver, layer.transform

    @cached_property
    def domains(self) -> list[IndexDomain]:
        """Domains of the transforms."""
        return [transform.domain for transform in self.transforms]

    @cached_property
    def different(self) -> list[Driver | None]:
        """Drivers of the layers, each once, in order; None for those that are not open."""
        return list({id(driver): driver for driver in self.drivers}.values())

    @cached_property
    def bounds(self) -> tuple[Integers, Integers]:
        """First index of each layer along each dimension, and the one behind the last."""
        boxes = [domain.box for domain in self.domains]
        count = len(boxes)
        inside = [index for box in boxes for index in box[0]], [i for box in boxes for i in box[1]]
        columns = []
        for number, indices in enumerate(inside):
            given = np.fromiter(indices, np.int64).reshape(count, -1 if count else 0)
            column = np.empty((count, given.shape[1] + (self.axis is not None)), np.int64, "F")
            if self.axis is not None:
                column[:, self.axis] = np.arange(number, number + count)
            others = [d for d in range(column.shape[1]) if d != self.axis]
            column[:, others] = given
            columns.append(column)
        return columns[0], columns[1]

    @property
    def hull(self) -> IndexDomain | None:
        """Hull of the domains of the layers; None without any.

        Raises
        ------
        MetadataError
            If their labels differ.
        """
        if not self:
            return None
        different = {domain.labels for domain in self.domains}
        names = [set(some) - {""} for some in zip(*different)]
        if any(len(some) > 1 for some in names):
            whole = self[0].transform.domain
            for number, errors in each_layer(len(self)):
                with errors:
                    whole = whole.hull(self[number].transform.domain)
        labels = [next(iter(some), "") for some in names]
        if self.axis is not None:
            labels.insert(self.axis, "")
        low, high = self.bounds
        bounds = [_hull(*column) for column in zip(low.T, high.T, strict=True)]
        return IndexDomain(
            inclusive_min=[first for first, _ in bounds],
            exclusive_max=[stop for _, stop in bounds],
            labels=labels,
        )

    @property
    def units(self) -> list[Units]:
        """Units of the layers; none if no layer has any."""
        known = [driver is None or any(driver.dimension_units) for driver in self.different]
        return [layer.units for layer in self] if any(known) else []

    @property
    def transaction(self) -> Transaction | None:
        """Transaction of the opened layers; None if there is none.

        Raises
        ------
        TransactionError
            If they belong to different ones.
        """
        found = {id(one.transaction): one.transaction for one in self.different if one is not None}
        common = next(iter(found.values()), None)
        for number, driver in enumerate(self.drivers if len(found) > 1 else ()):
            if driver is not None and driver.transaction is not common:
                with layer_errors(number):
                    raise TransactionError("Transaction mismatch")
        return common


def _with_dimension(transform: IndexTransform, at: int, index: int) -> IndexTransform:
    """Return the transform with a new input dimension, of which only `index` is in the domain."""
    domain = transform.domain
    low, high, implicit_lower, implicit_upper = domain.box
    grown = Box(
        (*low[:at], index, *low[at:]),
        (*high[:at], index + 1, *high[at:]),
        _inserted(implicit_lower, at, False),
        _inserted(implicit_upper, at, False),
    )
    labels = _inserted(domain.labels, at, "")
    maps: list[OutputIndexMap] = []
    for map_ in transform.output:
        d, array, stride = map_.input_dimension, map_.index_array, map_.stride
        if d is not None and stride is not None:
            maps.append(input_map(map_.offset, stride, d + (d >= at)))
        elif array is not None and stride is not None:
            shape = (*array.shape[:at], 1, *array.shape[at:])
            maps.append(array_map(map_.offset, stride, array.reshape(shape), map_.bounds))
        else:
            maps.append(map_)
    return make_transform(make_domain(grown, labels), OutputIndexMaps(maps))


@lru_cache(maxsize=64)
def _inserted(column: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """Return what most layers of a stack have in common, with one value more."""
    return (*column[:at], value, *column[at:])


def _hull(low: Integers, high: Integers) -> tuple[int, int]:
    """Return the bounds of the hull of intervals: of those with elements, else the last one."""
    some = low < high
    if not some.any():
        return int(low[-1]), int(high[-1])
    return int(low[some].min()), int(high[some].max())


def each_layer(count: int) -> Iterator[tuple[int, prefixing]]:
    """Yield the number of each layer, and the context of its errors."""
    return ((number, layer_errors(number)) for number in range(count))


def layer_errors(number: int) -> prefixing:
    """Return a context manager that names a layer in errors."""
    return prefixing(f"Layer {number}")


def combined_domain(whole: IndexDomain | None, constraint: IndexDomain | None) -> IndexDomain:
    """Return the hull of the layers within a constraint, with explicit bounds.

    Raises
    ------
    MetadataError
        If labels differ, or the rank of the constraint does.
    """
    if constraint is not None:
        whole = constraint if whole is None else _constrained(whole, constraint)
    if whole is None:
        raise MetadataError("domain must be specified")
    return whole.mark_bounds_implicit[False]


def _constrained(whole: IndexDomain, constraint: IndexDomain) -> IndexDomain:
    """Return a domain with the bounds of a constraint in place of its own, where there are any."""
    text = f"Cannot merge index domain {constraint} with index domain {whole}"
    if constraint.rank != whole.rank:
        raise MetadataError(f"{text}: Ranks do not match")
    infinite = Dim()
    dims = []
    for d, (wanted, found) in enumerate(zip(constraint, whole, strict=True)):
        if wanted.label and found.label and wanted.label != found.label:
            raise MetadataError(f"{text}: Mismatch in dimension {d}: Dimension labels do not match")
        low, high = found.inclusive_min, found.inclusive_max
        if not (wanted.implicit_lower and wanted.inclusive_min == infinite.inclusive_min):
            low = wanted.inclusive_min
        if not (wanted.implicit_upper and wanted.inclusive_max == infinite.inclusive_max):
            high = wanted.inclusive_max
        dims.append(Dim(inclusive_min=low, inclusive_max=high, label=wanted.label or found.label))
    return IndexDomain(dims)


def combined_units(given: Units | None, layers: Sequence[Units], rank: int) -> Units:
    """Return the units on which layers agree, or those that are given; None for others."""
    found: list[Unit | None] = list(given or (None,) * rank)
    for d in range(rank):
        if found[d] is None:
            said = {units[d] for units in layers} - {None}
            found[d] = said.pop() if len(said) == 1 else None
    return tuple(found)


def open_layers(
    layers: Layers, numbers: Sequence[int], *, write: bool
) -> dict[int, tuple[Driver, IndexTransform]]:
    """Return drivers and transforms of some layers, and open those that are not. Blocks.

    Raises
    ------
    GpustoreError
        If a layer cannot be opened; names it.
    """
    found: dict[int, tuple[Driver, IndexTransform]] = {}
    later: list[tuple[int, Callable[[], tuple[Driver, IndexTransform]]]] = []
    transform: IndexTransform | None = None
    for number in numbers:
        if layers.drivers[number] is not None:
            found[number] = layers.opened(number)
            continue
        other = layers.transforms[number]
        transform = other if transform is None or transform != other else transform
        with _opening(number):
            opening = layers.unopened[number].opening(transform, write=write)
        # Others wait for their kvstores at the same time.
        run = opening.run if opening.may_defer else opening.executor.submit(opening.run).result
        later.append((number, run))
    for number, run in later:
        with _opening(number):
            driver, to_driver = run()
        if layers.axis is not None:
            to_driver = _with_dimension(to_driver, layers.axis, number)
        found[number] = driver, to_driver
    return {number: found[number] for number in numbers}


def _opening(number: int) -> prefixing:
    return prefixing(f"While opening layer {number}")


def common_dtype(layers: Layers, given: dtype_ | None) -> dtype_:
    """Return the data type of all layers.

    Raises
    ------
    MetadataError
        If they differ, or none is known.
    """
    found = given
    last = None
    for number, driver in enumerate(layers.drivers):
        if driver is last is not None:
            continue
        last = driver
        dtype = layers.unopened[number].dtype if driver is None else driver.dtype
        if dtype is None or dtype == found:
            continue
        if found is not None:
            raise MetadataError(
                f"Layer {number}: Layer dtype of {dtype.name} does not match existing dtype of "
                f"{found.name}"
            )
        found = dtype
    if found is None:
        raise MetadataError("dtype must be specified")
    return found


def check_schema(constraints: Schema) -> None:
    """Raise MetadataError for constraints that a stack cannot pass to its layers."""
    if constraints.codec is not None:
        raise MetadataError('codec option not supported by "stack" driver')
    if constraints.fill_value is not None:
        raise MetadataError('fill value option not supported by "stack" driver')
    if _has_hard_constraints(constraints):
        raise MetadataError('chunk layout option not supported by "stack" driver')


def _has_hard_constraints(constraints: Schema) -> bool:
    """Whether the chunk layout of a schema demands something."""
    json = constraints.chunk_layout.to_json()
    assert isinstance(json, dict)
    for name, value in json.items():
        if isinstance(value, dict):
            if any(key in ("shape", "aspect_ratio") for key in value):
                return True
        elif name != "rank" and not name.endswith("_soft_constraint"):
            return True
    return False
