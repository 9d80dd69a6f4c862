"""Layers of a stack: their specs, domains, data types and units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import Driver, DriverSpec, Opening, OpenMode, OpenRequest, open_kvstore
from gpustore.drivers.options import bound_resources
from gpustore.errors import MetadataError, TransactionError, prefixing
from gpustore.index_space import Dim, IndexDomain, IndexTransform
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

    def opening(self, *, write: bool) -> Opening:
        """Begin to open the layer, for writes or for reads."""
        assert self.spec is not None
        assert self.context is not None
        mode, context = self.spec.mode, self.context
        read, also_write = (None, True) if write else (True, None)
        request = OpenRequest(
            *(mode, context, read, also_write, self.transform), transaction=self.transaction
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
        if self.driver is not None:
            spec = self.driver.spec(minimal=minimal)
            return LayerSpec(spec, self.transform, self.driver.open_mode, None)
        assert self.spec is not None
        driver = self.spec.driver.updated(minimal=True) if minimal else self.spec.driver
        return self.spec._replace(driver=driver, transform=self.transform)


def each_layer(count: int) -> Iterator[tuple[int, prefixing]]:
    """Yield the number of each layer, and the context of its errors."""
    return ((number, layer_errors(number)) for number in range(count))


def layer_errors(number: int) -> prefixing:
    """Return a context manager that names a layer in errors."""
    return prefixing(f"Layer {number}")


def common_transaction(layers: Sequence[Layer]) -> Transaction | None:
    """Return the transaction of the opened layers, None if there is none.

    Raises
    ------
    TransactionError
        If they belong to different ones.
    """
    opened = [(number, one.driver) for number, one in enumerate(layers) if one.driver is not None]
    if not opened:
        return None
    common = opened[0][1].transaction
    for number, driver in opened:
        if driver.transaction is not common:
            with layer_errors(number):
                raise TransactionError("Transaction mismatch")
    return common


def combined_domain(domains: Sequence[IndexDomain], constraint: IndexDomain | None) -> IndexDomain:
    """Return the hull of the domains of layers within a constraint, with explicit bounds.

    Raises
    ------
    MetadataError
        If labels differ, or the rank of the constraint does.
    """
    whole = None if not domains else _hull(domains)
    if constraint is not None:
        whole = constraint if whole is None else _constrained(whole, constraint)
    if whole is None:
        raise MetadataError("domain must be specified")
    return whole.mark_bounds_implicit[False]


def _hull(domains: Sequence[IndexDomain]) -> IndexDomain:
    """Return the hull of domains of one rank; by columns, as there may be thousands."""
    labels = [set(some) - {""} for some in zip(*[domain.labels for domain in domains])]
    if any(len(some) > 1 for some in labels):
        whole = domains[0]
        for number, errors in each_layer(len(domains)):
            with errors:
                whole = whole.hull(domains[number])
    low = np.array([domain.inclusive_min for domain in domains], np.int64).min(axis=0).tolist()
    high = np.array([domain.exclusive_max for domain in domains], np.int64).max(axis=0).tolist()
    return IndexDomain(
        inclusive_min=low, exclusive_max=high, labels=[next(iter(some), "") for some in labels]
    )


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
    layers: Sequence[Layer], numbers: Sequence[int], *, write: bool
) -> dict[int, tuple[Driver, IndexTransform]]:
    """Return drivers and transforms of some layers, and open those that are not. Blocks.

    Raises
    ------
    GpustoreError
        If a layer cannot be opened; names it.
    """
    found: dict[int, tuple[Driver, IndexTransform]] = {}
    later: list[tuple[int, Callable[[], tuple[Driver, IndexTransform]]]] = []
    for number in numbers:
        layer = layers[number]
        if layer.driver is not None:
            found[number] = layer.driver, layer.transform
            continue
        with _opening(number):
            opening = layer.opening(write=write)
        # Others wait for their kvstores at the same time.
        run = opening.run if opening.may_defer else opening.executor.submit(opening.run).result
        later.append((number, run))
    for number, run in later:
        with _opening(number):
            found[number] = run()
    return found


def _opening(number: int) -> prefixing:
    return prefixing(f"While opening layer {number}")


def common_dtype(layers: Sequence[Layer], given: dtype_ | None) -> dtype_:
    """Return the data type of all layers.

    Raises
    ------
    MetadataError
        If they differ, or none is known.
    """
    found = given
    for number, layer in enumerate(layers):
        dtype = layer.dtype
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
