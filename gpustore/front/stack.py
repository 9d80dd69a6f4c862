"""Views of several stores in one domain: :func:`stack`, :func:`concat` and :func:`overlay`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

from gpustore.drivers._layers import Layer, Layers, LayerSpec, common_dtype, layer_errors
from gpustore.drivers.stack import stack_driver
from gpustore.errors import MetadataError
from gpustore.front.spec import Spec
from gpustore.front.store import TensorStore
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.interval import MAX_RANK
from gpustore.runtime.context import Context
from gpustore.runtime.transaction import Transaction, check_transaction
from gpustore.schema import Schema


class ViewOptions(TypedDict, total=False):
    """Keywords of :func:`overlay`, :func:`stack` and :func:`concat`; see :func:`overlay`."""

    read: bool | None
    write: bool | None
    context: Context | None
    transaction: Transaction | None
    rank: int | None
    dtype: Any
    domain: IndexDomain | None
    shape: Iterable[int] | None
    dimension_units: Iterable[Any] | None
    schema: Schema | None


def overlay(layers: Iterable[TensorStore | Spec], **options: Unpack[ViewOptions]) -> TensorStore:
    """View stores and specs in one domain, later ones on top; nothing is read.

    Parameters
    ----------
    layers : iterable of TensorStore or Spec
        Arrays of one rank and data type, each with its own domain. A Spec must have a known domain;
        it is opened by each operation that meets it.
    read, write : bool, optional
        Required access; see :func:`gpustore.open`. By default what any layer allows.
    context : Context, optional
        Shared resources, also of specs.
    transaction : Transaction, optional
        Transaction to which all reads and writes belong.
    rank, dtype, domain, shape, dimension_units, schema
        Constraints on the view. The bounds of `domain` replace those of the hull of the layers.

    Returns
    -------
    TensorStore
        View whose domain has explicit bounds. A read reads what it needs of the layers together;
        a write goes to the topmost layer of each element.

    Raises
    ------
    MetadataError
        If layers or constraints contradict each other; through the Future of a read or a write, if
        no layer has some of its elements.
    TypeError
        If a layer is neither a TensorStore nor a Spec.

    Examples
    --------
    >>> import gpustore
    >>> first = gpustore.array([1, 2, 3, 4])
    >>> overlay([first, gpustore.array([5, 6]).translate_to[3]]).read().result()
    array([1, 2, 3, 5, 6])
    """
    return _View(layers, "overlay", options).made()


def stack(
    layers: Iterable[TensorStore | Spec],
    axis: int = 0,
    **options: Unpack[ViewOptions],
) -> TensorStore:
    """View stores and specs one after the other along a new dimension; nothing is read.

    Parameters
    ----------
    layers : iterable of TensorStore or Spec
        At least one; see :func:`overlay`.
    axis : int
        Position of the new dimension; negative ones count from the end.
    read, write, context, transaction, rank, dtype, domain, shape, dimension_units, schema
        As in :func:`overlay`.

    Returns
    -------
    TensorStore
        View with one dimension more than the layers.

    Raises
    ------
    MetadataError, TypeError
        Those of :func:`overlay`.

    Examples
    --------
    >>> import gpustore
    >>> stack([gpustore.array([1, 2]), gpustore.array([3, 4])], axis=-1).read().result()
    array([[1, 3],
           [2, 4]])
    """
    axis = operator.index(axis)
    view = _View(layers, "stack", options)
    if view.rank == MAX_RANK:
        raise MetadataError(f"stack would exceed maximum rank of {MAX_RANK}")
    at = _dimension(axis, view.rank + 1)
    return view.made(at)


def concat(
    layers: Iterable[TensorStore | Spec],
    axis: int | str,
    **options: Unpack[ViewOptions],
) -> TensorStore:
    """View stores and specs one after the other along one of their dimensions; nothing is read.

    Parameters
    ----------
    layers : iterable of TensorStore or Spec
        At least one; see :func:`overlay`.
    axis : int or str
        Position or label of the dimension; negative positions count from the end.
    read, write, context, transaction, rank, dtype, domain, shape, dimension_units, schema
        As in :func:`overlay`.

    Returns
    -------
    TensorStore
        View that begins where the first layer does; each other one begins where the one before it
        ends.

    Raises
    ------
    MetadataError, TypeError
        Those of :func:`overlay`.

    Examples
    --------
    >>> import gpustore
    >>> concat([gpustore.array([[1], [2]]), gpustore.array([[3], [4]])], axis=1).read().result()
    array([[1, 3],
           [2, 4]])
    """
    if not isinstance(axis, str):
        axis = operator.index(axis)
    view = _View(layers, "concat", options)
    at = view.dimension_of(axis) if isinstance(axis, str) else _dimension(axis, view.rank)
    given = view.layers
    moved = [*given.transforms[:1]]
    for transform in given.transforms[1:]:
        begin = moved[-1].domain.exclusive_max[at]
        origin = [begin if d == at else None for d in range(view.rank)]
        moved.append(transform.translate_to[tuple(origin)])
    view.layers = Layers(moved, given.drivers, given.unopened)
    return view.made()


class _View:
    """Layers of a view, before they are placed.

    Attributes
    ----------
    layers : Layers
    rank : int
        Number of dimensions of the layers.
    """

    def __init__(
        self,
        layers: Iterable[TensorStore | Spec],
        name: str,
        options: ViewOptions,
    ) -> None:
        for wrong in options.keys() - ViewOptions.__annotations__.keys():
            raise TypeError(f"{name}() got an unexpected keyword argument {wrong!r}")
        context = options.get("context")
        if context is not None and not isinstance(context, Context):
            raise TypeError(f"Invalid context: expected a Context, but received: {context!r:.200}")
        check_transaction(options.get("transaction"))
        self.context = context or Context()
        self.transaction = options.get("transaction")
        self.read, self.write = options.get("read"), options.get("write")
        given = _listed(layers)
        if not given and name != "overlay":
            raise MetadataError(f"At least one layer must be specified for {name}")
        self.layers = self._placed(given)
        self.constraints = _constraints(options)
        self.constraints.set_dtype(common_dtype(self.layers, self.constraints.dtype))
        domains = self.layers.domains
        self.rank = len(domains[0].labels) if domains else 0
        different = {len(domain.labels) for domain in domains}
        for number, found in enumerate(domains if len(different) > 1 else ()):
            if found.rank != self.rank:
                raise MetadataError(
                    f"Layer {number}: Layer domain {found} of rank {found.rank} does not match "
                    f"layer 0 rank of {self.rank}"
                )

    def _placed(self, given: Sequence[TensorStore | Spec]) -> Layers:
        """Return the layers, each with its own domain."""
        stores = [one for one in given if isinstance(one, TensorStore)]
        if len(stores) == len(given):
            return Layers([one._transform for one in stores], [one._driver for one in stores], {})
        layers = []
        for number, one in enumerate(given):
            if isinstance(one, TensorStore):
                layers.append(Layer(one._transform, one._driver))
            else:
                with layer_errors(number):
                    layers.append(_unopened(one, self.context))
        return Layers.of(layers)

    def dimension_of(self, label: str) -> int:
        """Return the position of a labelled dimension."""
        domain = self.constraints.domain
        labels = [""] * self.rank if domain is None else list(domain.labels)
        for number, layer in enumerate(self.layers.domains):
            for d, found in enumerate(layer.labels):
                if found and labels[d] and found != labels[d]:
                    raise MetadataError(
                        f"Layer {number}: Mismatch in dimension {d}: Dimension labels do not match"
                    )
                labels[d] = labels[d] or found
        if not label or label not in labels:
            names = ", ".join([f'"{name}"' for name in labels])
            raise MetadataError(f'Label "{label}" does not match one of {{{names}}}')
        return labels.index(label)

    def made(self, axis: int | None = None) -> TensorStore:
        """Return the view, of layers that follow one another along a new dimension `axis`."""
        layers = self.layers
        layers.axis = axis
        if layers:
            self.constraints.set_rank(self.rank + (axis is not None), "rank")
        # Layers that operations open allow whatever these ask for.
        drivers = layers.different
        can_read = any(driver is None or driver.readable for driver in drivers)
        can_write = any(driver is None or driver.writable for driver in drivers)
        if not (can_read or can_write):
            can_read = can_write = True
        for wanted, can, name in ((self.read, can_read, "Read"), (self.write, can_write, "Write")):
            if wanted and not can:
                raise MetadataError(f"{name} mode not supported")
        driver = stack_driver(
            layers,
            self.context,
            self.constraints,
            readable=can_read and (not self.write if self.read is None else self.read),
            writable=can_write and (not self.read if self.write is None else self.write),
        )
        made = TensorStore._of(driver, IndexTransform(driver.domain))
        return made if self.transaction is None else made.with_transaction(self.transaction)


def _listed(layers: Iterable[TensorStore | Spec]) -> Sequence[TensorStore | Spec]:
    if isinstance(layers, TensorStore | Spec):
        raise TypeError(f"layers: expected a sequence of stores, but received: {layers!r:.200}")
    listed = list(layers)
    is_store = {kind: issubclass(kind, TensorStore | Spec) for kind in set(map(type, listed))}
    for number, one in enumerate(listed if not all(is_store.values()) else ()):
        if not isinstance(one, TensorStore | Spec):
            raise TypeError(
                f"Layer {number}: expected a TensorStore or a Spec, but received: {one!r:.200}"
            )
    return listed


def _unopened(given: Spec, context: Context) -> Layer:
    """Return the layer of a spec."""
    spec = LayerSpec(given._driver, given._transform, given._mode, given._context)
    transform = spec.effective_transform()
    context = given._bound or context
    if spec.context is not None:
        context = Context(spec.context, context)
    return Layer(transform, None, spec, context)


def _constraints(options: ViewOptions) -> Schema:
    """Return the constraints on a view as a schema."""
    others = ("read", "write", "context", "transaction")
    given: dict[str, Any] = {
        name: value for name, value in options.items() if name not in others and value is not None
    }
    said = Schema()
    said.update(**given)
    return said


def _dimension(index: int, rank: int) -> int:
    if not -rank <= index < rank:
        raise MetadataError(f"Dimension index {index} is outside valid range [-{rank}, {rank})")
    return index % rank
