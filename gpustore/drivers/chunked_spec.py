"""Spec of an array of chunks, in any of the formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from gpustore.drivers._remembered import merged
from gpustore.drivers._steps import Steps
from gpustore.drivers.base import DriverSpec, Opening, OpenRequest, schema_members
from gpustore.drivers.format import Format
from gpustore.drivers.options import DEFAULTS, take_options, with_defaults
from gpustore.drivers.selection import Selection
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import logical_path
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue, Members


@dataclass(frozen=True)
class ChunkedSpec:
    """An array of chunks to be opened or created.

    Attributes
    ----------
    format : Format
    kvstore : KvStore.Spec or None
        Kvstore with the array's path, which ends in ``/`` or is empty.
    constraints : Schema
        Constraints of the caller on the schema.
    metadata : object
        Constraints of the caller on the format's metadata.
    options : mapping
        Other members that differ from their default, as JSON.
    node_path : str
        Path of the array in a hierarchy whose root is known: the groups on the way are created with
        the array. Not part of JSON or URL.
    """

    format: Format
    kvstore: KvStore.Spec | None
    constraints: Schema
    metadata: Any
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    node_path: str = ""
    _constrained: Schema | None = field(default=None, init=False, repr=False, compare=False)

    base = None
    steps: ClassVar[type[Steps]] = Steps

    @property
    def id(self) -> str:
        return self.format.json_id

    @property
    def defaults(self) -> Mapping[str, JsonValue]:
        """Options other than context resources, with their values if they are not given."""
        return DEFAULTS

    @property
    def schema(self) -> Schema:
        """Constraints of the caller on schema and metadata, with those that the format implies."""
        schema = self.constrained().copy()
        return schema if self.format.words.has_fill_value else schema.without_fill_value()

    def constrained(self) -> Schema:
        """Return :attr:`schema` itself, which is merged once. Not to be changed.

        Raises
        ------
        MetadataError
            If the constraints contradict each other.
        """
        if self._constrained is None:
            schema = merged(self.format, self.metadata, self.constraints)
            object.__setattr__(self, "_constrained", schema)
            return schema
        return self._constrained

    @property
    def url(self) -> str:
        if self.kvstore is None:
            raise MetadataError("Invalid kvstore spec")
        for name in self.format.selection.to_json():
            what = "selected_field" if name == "field" else name
            raise UnsupportedError(
                f"{self.format.id} URL syntax not supported with {what} specified"
            )
        if "metadata_key" in self.options:
            raise UnsupportedError(
                f"{self.format.id} URL syntax not supported with non-default metadata_key",
            )
        return f"{self.kvstore.url}|{self.format.id}:"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of the driver, without a kvstore that has no JSON."""
        members: dict[str, JsonValue] = {**self.options, **self.format.selection.to_json()}
        if include_defaults:
            members.update(with_defaults(self.options, self.defaults))
        if self.kvstore is not None and self.kvstore.has_json:
            members["kvstore"] = self.kvstore.to_json(include_defaults)
        members.update(self.format.members(self.metadata, include_defaults=include_defaults))
        schema = self.constrained()
        members.update(schema_members(self.constraints, rank_known=True))
        if include_defaults:
            whole = self.constraints.merged(rank=schema.rank, dtype=schema.dtype)
            members["schema"] = whole.to_json(include_defaults)
        if schema.rank is not None and (schema.domain is None or not schema.rank):
            members["rank"] = schema.rank
        if schema.dtype is not None:
            members["dtype"] = schema.dtype.to_json()
        return members

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in.

        Raises
        ------
        MetadataError
            If the constraints contradict each other.
        """
        spec = self
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            # Not by `replace`, which takes 3 us of the 60 that opening takes.
            spec = object.__new__(type(self))
            vars(spec).update(vars(self), kvstore=_directory(kvstore))
        if schema is not None and not schema.is_empty:
            if schema.dtype is not None:
                spec.constrained().copy().set_dtype(schema.dtype)
            constraints = spec.constraints.copy()
            constraints.merge(schema)
            spec = replace(spec, constraints=constraints)
            spec.constrained()  # Raises on contradictions.
        if options.pop("minimal", False):
            constraints = spec.constraints.merged(dtype=spec.constrained().dtype)
            spec = replace(spec, constraints=constraints, metadata=self.format.no_constraints)
        if options:
            checked = take_options(Members(options), self.defaults)
            kept = {name: value for name, value in spec.options.items() if name not in options}
            spec = replace(spec, options={**kept, **checked})
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Open or create the array in the steps of :mod:`gpustore.drivers._steps`."""
        steps = self.steps(self, request)
        return Opening(steps.executor, steps.run, steps.defer())


def _directory(spec: KvStore.Spec) -> KvStore.Spec:
    """The spec with a path that ends in "/": an array is a directory."""
    if spec.path and not spec.path.endswith("/"):
        return spec + "/"
    return spec


class ChunkedKind:
    """Base of the objects that modules of chunked formats register as drivers.

    Attributes
    ----------
    spec : type
        Class of the specs.
    """

    spec: ClassVar[type[ChunkedSpec]] = ChunkedSpec
    is_adapter = False
    shares_members = True

    def __init__(self, format_: Format) -> None:
        self.format = format_
        self.id = format_.id
        self.schemes = (format_.id,)

    def from_json(self, members: Members, schema: Schema) -> ChunkedSpec:
        """Take the members of a chunked driver."""
        spec = members.take_with("kvstore", KvStore.Spec.from_json, None)
        path = members.take_str("path", default="")
        if spec is not None:
            spec = _directory(spec / path if path else spec)
        format_ = self.format
        if format_.has_components:
            format_ = format_.selecting(Selection.from_members(members))
        constraints = format_.take_constraints(members)
        options = take_options(members)
        options.update(format_.take_options(members))
        parsed = self.spec(format_, spec, schema, constraints, options)
        if constraints is not format_.no_constraints or not schema.is_empty:
            parsed.constrained()  # Raises on contradictions.
        return parsed

    def from_url(self, base: KvStore.Spec, path: str) -> ChunkedSpec:
        """Return the spec of ``<base>|<id>:path``; of Zarr the path is logical, below the root
        `base`.
        """
        format_ = self.format
        if not format_.zarr_format:
            spec = _directory(_directory(base) + path)
            return self.spec(format_, spec, Schema(), format_.no_constraints)
        node_path = logical_path(path) if path else ""
        spec = _directory(_directory(base) + node_path)
        return ChunkedSpec(format_, spec, Schema(), format_.no_constraints, node_path=node_path)

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        return self.format.merge_codec(a, b)
