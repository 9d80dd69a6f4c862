"""Specs: descriptions of arrays to be opened, as plain data.

A :class:`Spec` is a driver's own spec, an index transform into it, an open mode and a context. It
is made from JSON or from a URL, prints as TensorStore's, and pickles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from gpustore import registry
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.base import (
    MODE_FLAGS,
    NOT_OPENED,
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
)
from gpustore.errors import GpustoreError, MetadataError, UnsupportedError
from gpustore.front.array_words import ARRAY_WORDS, constraints_of
from gpustore.front.bound_context import bound, defined, defining, released, shown, stripped
from gpustore.front.driver_from_url import detecting, driver_from_url
from gpustore.front.parsed_spec import NO_MODE, parsed
from gpustore.front.spec_template import parse
from gpustore.hierarchy.attributes import json_attributes
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.view import IndexedView
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import path_spec
from gpustore.runtime.context import Context, definitions
from gpustore.runtime.keyword_argument import as_float, set_keywords
from gpustore.runtime.transaction import Transaction
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.strict_json.member_order import ordered
from gpustore.strict_json.parsing import JsonValue, from_python
from gpustore.strict_json.repr import pretty

SpecLike = Any
"""A Spec, a JSON object, a URL or a path."""

_SCHEMA_KEYWORDS = (
    "rank",
    "dtype",
    "domain",
    "shape",
    "chunk_layout",
    "codec",
    "fill_value",
    "dimension_units",
    "schema",
    *ARRAY_WORDS,
)


class Spec(IndexedView):
    """Description of an array that :func:`gpustore.open` opens or creates.

    Parameters
    ----------
    json : dict, str or os.PathLike
        A TensorStore spec, a kvstore spec (for detection of the format), a URL, or a path.

    Raises
    ------
    MetadataError
        If `json` is not a valid spec.
    InvalidKeyError
        If a path leaves its store.

    Examples
    --------
    >>> spec = Spec("memory://a|zarr3:")
    >>> spec
    <gpustore.Spec driver=zarr3 at memory://a/|zarr3:>
    >>> print(spec)
    Spec({'driver': 'zarr3', 'kvstore': {'driver': 'memory', 'path': 'a/'}})
    """

    __slots__ = ("__weakref__", "_bound", "_context", "_driver", "_mode", "_transform")

    _bound: Context | None
    """Context in which the spec is opened, whatever context is given then."""

    def __init__(self, json: Any) -> None:
        if isinstance(json, Spec):
            self._set(json._driver, json._transform, json._mode, json._context, json._bound)
        elif isinstance(json, str):
            self._set(driver_from_url(json), None, OpenMode(), None)
        elif type(json) is not dict and isinstance(json, os.PathLike):
            self._set(detecting(path_spec(json)), None, OpenMode(), None)
        else:
            self._set(*parse(json, parsed))

    def _set(
        self,
        driver: DriverSpec,
        transform: IndexTransform | None,
        mode: OpenMode,
        context: Context.Spec | None,
        scope: Context | None = None,
    ) -> None:
        self._driver = driver
        self._transform = transform
        self._mode = mode
        self._context = context
        self._bound = scope

    @classmethod
    def _make(
        cls,
        driver: DriverSpec,
        transform: IndexTransform | None,
        mode: OpenMode,
        context: Context.Spec | None,
        scope: Context | None = None,
    ) -> Self:
        spec = cls.__new__(cls)
        spec._set(driver, transform, mode, context, scope)
        return spec

    def copy(self) -> Spec:
        """Return a spec that can be updated independently."""
        return Spec(self)

    def update(self, **keywords: Any) -> None:
        """Add constraints and options.

        Parameters
        ----------
        open_mode : OpenMode, optional
            Replaces the open mode.
        open, create, delete_existing, assume_metadata, assume_cached_metadata : bool, optional
            Those that are true replace the open mode as a whole, or are added to `open_mode`.
        kvstore : KvStore.Spec or KvStore, optional
            Kvstore of a spec that has none.
        context : Context, Context.Spec or dict, optional
            A Context is the one in which the spec is opened from now on; others replace the spec's
            own definitions of context resources.
        unbind_context : bool, optional
            Keep the definitions of the resources alone, of which opening the spec makes equal ones.
        strip_context : bool, optional
            Use the default resources of the context in which the spec is opened.
        minimal_spec : bool, optional
            True drops metadata constraints; data type and domain remain.
        recheck_cached_metadata, recheck_cached_data, recheck_cached : bool, "open" or float
            Conditions for checking cached values again; see :func:`gpustore.open`.
        rank, dtype, domain, shape, chunk_layout, codec, fill_value, dimension_units, schema
            Constraints in terms of this spec's dimensions, merged with its own; see
            :class:`Schema`.
        chunks, shards, dims, units
            The same in short words; see :func:`gpustore.open`.
        device : str, optional
            Device of the arrays: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

        Raises
        ------
        MetadataError
            If the constraints contradict those of the spec.
        TypeError
            For an unknown keyword, or a value of the wrong type.
        """
        given = {name: value for name, value in keywords.items() if value is not None}
        if not given:
            return
        unbind, strip = given.pop("unbind_context", False), given.pop("strip_context", False)
        mode = given.pop("open_mode", None)
        flags = {name: True for name in MODE_FLAGS if given.pop(name, False)}
        if flags or mode is not None:
            mode = replace(mode or OpenMode(), **flags)
        schema = {name: given.pop(name) for name in _SCHEMA_KEYWORDS if name in given}
        driver = self._driver
        if mode is not None and _is_stack(driver):
            driver, mode = driver.updated(open_mode=mode), None
        if schema:
            constraints = constraints_of(schema, driver.schema, _innermost(driver).id)
            transform = self._transform
            if transform is None and constraints.rank is not None:
                transform = self.transform  # That of the domain, if it is known.
            if transform is not None:
                constraints = constraints.inverse_transformed(transform)
            driver = driver.updated(schema=constraints)
        if "kvstore" in given:
            kvstore = given.pop("kvstore")
            if isinstance(kvstore, KvStore):
                kvstore = kvstore.spec(retain_context=True)
            if not isinstance(kvstore, KvStore.Spec):
                raise TypeError(f"kvstore: expected KvStore or KvStore.Spec, got {kvstore!r:.200}")
            driver = driver.updated(kvstore=kvstore)
        context = given.pop("context", None)
        options = _options(given)
        if options:
            if options.get("minimal"):
                self._transform = self.transform
            driver = driver.updated(**options)
        self._driver = driver
        if isinstance(context, Context):
            self._bind(context)
        elif context is not None:
            self._context = context if isinstance(context, Context.Spec) else Context.Spec(context)
        if unbind:
            self._driver, self._context = self._defined()
            self._driver, self._bound = released(self._driver), None
        if strip:
            self._driver, self._context, self._bound = stripped(self._driver), None, None
        if _innermost(driver).id not in NOT_OPENED:
            self._mode = self._mode if mode is None else mode

    def _bind(self, context: Context) -> None:
        """Open the spec in a context, unless that has been said before."""
        if self._bound is None:
            scope = context if self._context is None else Context(self._context, context)
            driver = bound(self._driver, scope)
            defining(driver, scope)  # Raises for a resource that is not defined.
            self._driver, self._context, self._bound = driver, None, scope

    def _defined(self) -> tuple[DriverSpec, Context.Spec | None]:
        """Return driver and definitions of context resources of an equal spec bound to none."""
        if self._bound is None:
            return self._driver, self._context
        return defining(self._driver, self._bound)

    def _with_attributes(self, attributes: Mapping[str, Any]) -> Self:
        """Return the spec of a new array that has these attributes, if its document holds them."""
        driver = self._driver
        if driver.id != "zarr3":
            return self
        kind: Any = registry.find("drivers", "zarr3")
        more = kind.format.constraints({"attributes": json_attributes(attributes)})
        with_more = replace(driver, metadata=driver.metadata.merge(more))  # type: ignore
        return self._make(with_more, self._transform, self._mode, self._context, self._bound)

    # ---- parts

    @property
    def open_mode(self) -> OpenMode:
        """Open mode, with the default filled in."""
        if _is_stack(self._driver):
            modes = [one.open_mode for one in _layers(_innermost(self._driver))]
            return modes[0] if modes and modes.count(modes[0]) == len(modes) else OpenMode()
        mode = self._mode
        # Arrays in memory are neither opened nor created.
        if mode.open or mode.create or _innermost(self._driver).id == "array":
            return replace(mode)
        return replace(mode, open=True)

    @property
    def kvstore(self) -> KvStore.Spec | None:
        """Spec of the kvstore with the array's path; None if unknown."""
        return self._driver.kvstore

    @property
    def url(self) -> str:
        """URL of the spec, without the parts that no URL has."""
        return self._driver.url

    @property
    def transform(self) -> IndexTransform | None:
        """Transform from the domain to the driver's; None if the rank is unknown."""
        if self._transform is not None:
            return self._transform
        domain = self._driver.schema.domain
        return None if domain is None else IndexTransform(domain)

    @property
    def schema(self) -> Schema:
        """All constraints, in terms of the spec's own domain."""
        schema = self._driver.schema
        if self._transform is None:
            return schema
        schema = schema[self._transform]
        if schema.domain is None:
            schema.update(domain=self._transform.domain)
        return schema

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if unknown."""
        return self._driver.schema.rank if self._transform is None else self._transform.input_rank

    ndim = rank

    @property
    def domain(self) -> IndexDomain | None:
        """Domain; None if unknown."""
        transform = self.transform
        return None if transform is None else transform.domain

    @property
    def dtype(self) -> dtype_ | None:
        """Data type; None if unconstrained."""
        return self._driver.schema.dtype

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Constraints on the chunks."""
        return self.schema.chunk_layout

    @property
    def codec(self) -> CodecSpec | None:
        """Constraints on the codec."""
        return self._driver.schema.codec

    @property
    def fill_value(self) -> Any:
        """Fill value, an ndarray; None if unconstrained."""
        return self.schema.fill_value

    @property
    def dimension_units(self) -> tuple[Unit | None, ...] | None:
        """Unit of a step along each dimension; None if unconstrained."""
        return self.schema.dimension_units

    def __getitem__(self, index: Any) -> Spec:
        """The spec of a part; the rank must be known.

        Raises
        ------
        MetadataError
            If it is not.
        OutOfBoundsError
            If an index is outside explicit bounds.
        """
        return self._through(self._indexed()[index])

    # Python would count up from 0 for ever to iterate over a spec.
    __iter__ = None

    def _indexed(self) -> IndexTransform:
        transform = self.transform
        if transform is None:
            rank = self.rank
            if rank is None:
                raise MetadataError(
                    "Cannot perform indexing operations on Spec with unspecified rank"
                )
            transform = IndexTransform(input_rank=rank)
        return transform

    def _through(self, transform: IndexTransform) -> Self:
        return self._make(self._driver, transform, self._mode, self._context, self._bound)

    @property
    def base(self) -> Spec | None:
        """Spec of the store that an adapter such as ``cast`` adapts; None for others.

        Its domain is the same, or for ``downsample`` that of the elements of the cells.
        """
        driver = self._driver
        if driver.base is None:
            return None
        below = getattr(driver, "below", None)
        transform = self._transform if below is None else below(self.transform)
        context = getattr(driver, "context", None)
        return Spec._make(driver.base, transform, self._mode, context, self._bound)

    def _opening(
        self,
        context: Context | None,
        read: bool | None,
        write: bool | None,
        transaction: Transaction | None = None,
    ) -> Opening:
        """Prepare the opening; `context` holds resources that the spec's own does not define."""
        scope = self._bound or context or Context()
        if self._context is not None:
            scope = Context(self._context, context)
        request = OpenRequest(
            self._mode, scope, read, write, self._transform, transaction=transaction
        )
        return self._driver.open(request)

    def _reopening(
        self, resources: Mapping[str, Context.Resource], read: bool, write: bool
    ) -> Opening:
        """Prepare the opening with these resources in place of those that the spec defines."""
        context = Context._of(self._context, resources)
        request = OpenRequest(self._mode, context, read, write, self._transform)
        return self._driver.open(request)

    # ---- as data

    def to_json(self, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the spec as JSON.

        Parameters
        ----------
        include_defaults : bool
            Include members with their default value.
        """
        driver, definitions = self._defined()
        json = _driver_json(driver, self._mode, include_defaults=include_defaults)
        transform = self.transform
        if transform is not None:
            json["transform"] = transform.to_json()
            json.pop("rank", None)
        if definitions is not None:
            context = definitions.to_json(include_defaults)
            if context:
                json["context"] = context
        if include_defaults:
            json.setdefault("context", {})
        # A copy: attributes in it are those of the opened array.
        return {name: ordered(from_python(json[name])) for name in sorted(json)}

    def __str__(self) -> str:
        """Return the JSON, laid out as TensorStore does; ``Spec(...)`` without JSON. Of a spec that
        is bound to a context it has lists with the names of its resources.
        """
        try:
            json = self.to_json()
            if self._bound is not None:
                json = ordered(shown(json, self._driver, self._bound))
            return pretty("Spec", json)
        except UnsupportedError:
            return "Spec(...)"

    def __repr__(self) -> str:
        domain = self.domain
        words = [f"driver={self._driver.id}"]
        if domain is not None:
            words.append(f"domain={domain}")
        elif self.rank is not None:
            words.append(f"rank={self.rank}")
        if self.dtype is not None:
            words.append(f"dtype={self.dtype.name}")
        with suppress(GpustoreError):  # No URL says what the spec does, or it names no place.
            words.append(f"at {self.url}")
        return f"<gpustore.Spec {' '.join(words)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        if not self._shares_resources(other) or self.kvstore != other.kvstore:
            return False
        try:
            return self.to_json() == other.to_json()
        except UnsupportedError:
            return (self._driver, self.transform) == (other._driver, other.transform)

    __hash__ = None  # type: ignore[assignment]

    def _shares_resources(self, other: Spec) -> bool:
        """Whether both are bound to no context, or have the same context resources."""
        if self._bound is None or other._bound is None or self._bound is other._bound:
            return self._bound is other._bound
        one, two = (
            defined(spec._driver, scope)[1]
            for spec, scope in ((self, self._bound), (other, other._bound))
        )
        return one.keys() == two.keys() and all(one[name] is two[name] for name in one)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._bound is None:
            return Spec._make, (self._driver, self._transform, self._mode, self._context)
        driver, resources = defined(self._driver, self._bound)
        return _bound_again, (driver, self._transform, self._mode, resources)


def _bound_again(
    driver: DriverSpec,
    transform: IndexTransform | None,
    mode: OpenMode,
    resources: Mapping[str, Context.Resource],
) -> Spec:
    """Return a pickled spec bound to its resources, which others pickled with it may share."""
    spec = Spec._make(driver, transform, mode, None)
    spec._bind(Context._of(Context.Spec(definitions(resources)), resources))
    return spec


def _innermost(driver: DriverSpec) -> DriverSpec:
    """Return the driver at the end of a chain of adapters, to which open mode and kvstore
    belong.
    """
    return driver if driver.base is None else _innermost(driver.base)


def _is_stack(driver: DriverSpec) -> bool:
    """Whether open modes are those of the layers of a driver, or of its base."""
    return hasattr(_innermost(driver), "layers")


def _layers(driver: DriverSpec) -> list[Spec]:
    """Return the specs of the layers of a stack."""
    return [Spec._make(*layer) for layer in getattr(driver, "layers", ())]


def _drop_dtype(json: dict[str, Any]) -> None:
    """Remove the data type from the JSON of a spec, and of a stack from that of its layers."""
    json.pop("dtype", None)
    for layer in json.get("layers", ()):
        _drop_dtype(layer)


def _driver_json(
    driver: DriverSpec, mode: OpenMode, *, include_defaults: bool
) -> dict[str, JsonValue]:
    """JSON of a driver and its bases, without transform and context."""
    json: dict[str, JsonValue] = {"driver": driver.id}
    json.update(driver.to_json(include_defaults=include_defaults))
    if driver.base is not None:
        base = _driver_json(driver.base, mode, include_defaults=include_defaults)
        if not include_defaults:
            base.pop("rank", None)  # That of the adapter is the same.
        below = getattr(driver, "known_transform", None)
        if below is not None:
            base["transform"] = below.to_json()
        if hasattr(driver, "known_transform") and not include_defaults:
            _drop_dtype(base)  # So is this.
        context = getattr(driver, "context", None)
        if context is not None:
            base["context"] = context.to_json(include_defaults)
        if include_defaults:
            base.setdefault("context", {})
        json["base"] = base
        return json
    if _is_stack(driver):
        json["layers"] = [one.to_json(include_defaults) for one in _layers(driver)]
        return json
    if include_defaults and driver.id not in NO_MODE:
        json.update({name: False for name in MODE_FLAGS if name not in ("open", "create")})
    json.update(mode.to_json())
    return json


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords that are options of the driver, in its words."""
    options: dict[str, Any] = {}
    both = given.pop("recheck_cached", None)
    if both is not None:
        options.update(recheck_cached_data=both, recheck_cached_metadata=both)
    if given.pop("minimal_spec", False):
        options["minimal"] = True
    set_keywords(options, _OPTION_SETTERS, given)
    return options


def _option_setter(name: str) -> Callable[[dict[str, Any], Any], None]:
    def set_option(options: dict[str, Any], value: Any) -> None:
        if name != "device" and value != "open":
            as_float(value)  # Raises TypeError.
        options[name] = from_python(value)

    return set_option


_OPTION_SETTERS = {
    name: _option_setter(name)
    for name in ("recheck_cached_metadata", "recheck_cached_data", "device")
}
