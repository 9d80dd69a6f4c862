"""The ``auto`` driver: opens an array in any detected format.

Formats are detected step by step (:mod:`gpustore.drivers._detection`), through adapters: an array
in a zip file in a database is three steps. At each exactly one format must be found. The opened
store's spec names them, so that it re-opens without detection.

JSON example::

    {"driver": "auto", "kvstore": "file:///data/x.zarr/"}

Other members are context resources for the drivers that are detected, but not for the kvstore.

Source: TensorStore's auto driver page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpustore import registry
from gpustore.drivers._detection import one_of, through_adapters
from gpustore.drivers.base import (
    Driver,
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    UrlKind,
    open_kvstore,
    schema_members,
)
from gpustore.errors import MetadataError, prefixing
from gpustore.index_space import IndexTransform
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context, resource_json
from gpustore.runtime.executor import Executor
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue, Members, quote

_NAME_THE_FORMAT = 'name the format after the path, e.g. "x.zarr|zarr3:" or "x.zarr|zarr2:"'
_MODES = frozenset(field.name for field in fields(OpenMode))


@dataclass(frozen=True)
class AutoSpec:
    """An array to be opened, with its format unknown."""

    kvstore: KvStore.Spec | None
    constraints: Schema
    options: tuple[tuple[str, Any], ...] = ()
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "auto"
    base = None

    @property
    def schema(self) -> Schema:
        """Constraints of the caller."""
        return self.constraints

    @property
    def url(self) -> str:
        """URL ``<kvstore>|auto:``."""
        if self.kvstore is None:
            raise MetadataError("Invalid kvstore spec")
        return f"{self.kvstore.url}|auto:"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of the driver."""
        members: dict[str, JsonValue] = {}
        if self.kvstore is not None:
            members["kvstore"] = self.kvstore.to_json(include_defaults)
        return {
            **members,
            **schema_members(self.constraints, include_defaults=include_defaults),
            **self.references,
        }

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints, for the driver to be detected."""
        spec = self
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            spec = replace(spec, kvstore=kvstore)
        if schema is not None:
            merged = self.constraints.copy()
            merged.update(schema=schema)
            spec = replace(spec, constraints=merged)
        return replace(spec, options=(*spec.options, *options.items()))

    def open(self, request: OpenRequest) -> Opening:
        """Detect the format, then open it."""
        mode = request.mode
        if mode.delete_existing or mode.assumes or (mode.create and not mode.open):
            raise MetadataError(
                f"create mode not compatible with format auto-detection; {_NAME_THE_FORMAT}"
            )
        if self.kvstore is None:
            raise MetadataError('Error opening "auto" driver: "kvstore" must be specified')
        base = open_kvstore(self.kvstore, request.context, request.transaction)
        context = request.context
        if self.references:
            context = Context(dict(self.references), parent=context)
        executor: Executor = context.resource("data_copy_concurrency").value
        max_nbytes: int = context.resource("limits").value.metadata_nbytes
        spec = self.kvstore

        def run() -> tuple[Driver, IndexTransform]:
            with prefixing('Error opening "auto" driver'):
                store, kvstore, steps = through_adapters(base, spec, context, max_nbytes)
                kind: UrlKind = registry.find_scheme("drivers", one_of(steps, store).name)
                driver = kind.from_url(kvstore, "")
                driver = driver.updated(schema=self.constraints, **dict(self.options))
                opening = driver.open(request._replace(context=context, found=steps.metadata))
                return opening.run()

        return Opening(executor, run, may_defer=base.driver.is_local)


class _AutoKind:
    id = "auto"
    is_adapter = False
    schemes = ("auto",)
    shares_members = False

    def from_json(self, members: Members, schema: Schema) -> AutoSpec:
        """Take ``kvstore``, ``path``, and what else there is as context resources."""
        kvstore = members.take_with("kvstore", KvStore.Spec, None)
        path = members.take_str("path", "")
        if kvstore is not None and path:
            kvstore = kvstore / path
        references = {}
        for id in members.names():
            if id in _MODES:
                raise MetadataError(
                    f"Invalid context resource identifier: {quote(id)} ({_NAME_THE_FORMAT})"
                )
            json = resource_json(id, members.take(id))
            if json != id:
                references[id] = json
        return AutoSpec(kvstore, schema, references=references)

    def from_url(self, base: KvStore.Spec, path: str) -> AutoSpec:
        """``<kvstore>|auto:``."""
        if path:
            raise MetadataError(
                f'Invalid TensorStore URL component "auto:{path}": Path not supported'
            )
        return AutoSpec(base, Schema())


DRIVER = _AutoKind()
