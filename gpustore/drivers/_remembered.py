"""Memory of the meanings of recent metadata documents and constraints.

Programs open the same arrays again, and create arrays that are alike; checking takes longer than
reading. All results are immutable, and depend on the arguments alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpustore.drivers.format import ArrayDescription, Format
from gpustore.errors import GpustoreError
from gpustore.metadata.document import ArrayMetadata, ZarrMetadata, parse_shape
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue, parse
from gpustore.strict_json.spelled import REMEMBERED_NBYTES, Spelled
from gpustore.strict_json.template import Template

_NO_SCHEMA = Schema()

_RECENT: Final = 16
"""Most documents of one kind that others are compared with."""

_MOST_LIMITS: Final = 8


class _Same:
    """One object, which is not kept alive: it may be large, and slow to compare."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, metadata: Any) -> None:
        self._ref = weakref.ref(metadata)
        self._hash = id(metadata)

    def __call__(self) -> Any:
        return self._ref()

    def __eq__(self, other: object) -> bool:
        metadata = self._ref()
        return isinstance(other, _Same) and metadata is not None and metadata is other()

    def __hash__(self) -> int:
        return self._hash


# --------------------------------------------------------------------------- stored metadata


class _Decoded:
    """Metadata in a document that others may be like."""

    __slots__ = ("free", "metadata", "template")

    def __init__(self, template: Template, metadata: Any, free: dict[str, JsonValue]) -> None:
        self.template = template
        self.metadata = metadata
        self.free = free

    def alike(self, values: Mapping[str, JsonValue], limits: Limits) -> Any:
        """Return the metadata in a document with other values of these members."""
        metadata = self.metadata
        fields: dict[str, Any] = {}
        free = {}
        for name, value in values.items():
            if name == "shape":
                rank, most = metadata.rank, limits.rank
                fields["shape"] = parse_shape(value, 0, rank=rank, max_rank=most)
            elif name == "fill_value":
                fields["fill_value"] = metadata.parse_fill_value(value)
            else:
                free[name] = value
        if free:
            fields[metadata.free_member] = metadata.parse_free({**self.free, **free}, limits)
        return metadata.with_members(**fields) if fields else metadata


class _Recent(NamedTuple):
    """Decoded documents that others may be like, the one used last first."""

    limits: Limits
    documents: list[_Decoded]


_recent: dict[tuple[type[ArrayMetadata], int], _Recent] = {}
"""By kind and the identity of the limits, which are slower to compare."""


def _documents(kind: type[ArrayMetadata], limits: Limits) -> list[_Decoded]:
    found = _recent.get((kind, id(limits)))
    if found is None:
        if len(_recent) >= _MOST_LIMITS:
            _recent.clear()
        found = _recent[kind, id(limits)] = _Recent(limits, [])
    return found.documents


def decoded(kind: type[ArrayMetadata], data: bytes, limits: Limits) -> Any:
    """Return the metadata in a document of at most :data:`REMEMBERED_NBYTES`.

    Of documents that differ only in shape, fill value and what the user adds, as those of one data
    set often do, the rest is decoded once.

    Raises
    ------
    GpustoreError
        If the document is wrong; decoding it as `kind` tells why.
    """
    recent = _documents(kind, limits)
    if len(data) <= limits.metadata_nbytes:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""  # like no document
        if recent and recent[0].template.text == text:
            return recent[0].metadata
        for one in recent:
            values = one.template.differing(text, limits.metadata_depth)
            if values is None or not _is_plain(values.get("shape", [])):
                continue
            if one is not recent[0]:
                recent[:] = [one, *(other for other in recent if other is not one)]
            return one.alike(values, limits)
    metadata = kind.decode(data, where="", limits=limits)
    if not issubclass(kind, ZarrMetadata):
        return metadata
    document = parse(data, where="", max_depth=limits.metadata_depth, non_finite=True)
    if _is_plain(document.pop("shape", None)) and "fill_value" in document:
        free = kind.take_free(document)
        names = {"shape", "fill_value", *free}
        template = Template.of(data.decode(), names.__contains__)
        recent[:] = [_Decoded(template, metadata, free), *recent[: _RECENT - 1]]
    return metadata


def _is_plain(shape: JsonValue) -> bool:
    """Whether a shape says nothing about other members.

    A zarr-python chunk may have size 0 along a dimension of extent 0, and only there.
    """
    return isinstance(shape, list) and 0 not in shape


_DESCRIBED: Final = "described"
"""Key of the last description of metadata, with its format and limits."""


def described(format_: Any, metadata: Any, limits: Limits) -> ArrayDescription:
    """Return the array that `metadata` describe."""
    original = metadata.original
    first: ArrayDescription | None = None
    known = metadata.derived.get(_DESCRIBED)
    if known is not None and known[1] is limits and (known[0] is format_ or known[0] == format_):
        first = known[2]
    if first is None and original is not None:
        # Codecs may refuse its fill value, and not that of `metadata`.
        with suppress(GpustoreError):
            first = format_.describe(original, limits=limits)
            metadata.derived[_DESCRIBED] = format_, limits, first
    if first is None:
        first = format_.describe(metadata, limits=limits)
        if original is None:
            metadata.derived[_DESCRIBED] = format_, limits, first
        return first
    if original is None:
        return first
    if metadata.differs_in_shape:
        return first.with_shape(metadata.shape)
    description: ArrayDescription = format_.redescribe(metadata, first, limits=limits)
    return description


_CONSTRAINTS: Final = "constraints"
_FULFILLED: Final = "fulfilled"
"""Keys of the last constraints that a format made of metadata, and of the last that they fulfil."""


def constraints_of(format_: Format, metadata: Any) -> Any:
    """Return constraints that only `metadata` fulfil: one object for all arrays that have them."""
    known = metadata.derived.get(_CONSTRAINTS)
    # Copies with another shape share what is derived.
    if known is None or known[0]() is not metadata or known[1] != format_:
        found = format_.constraints_of(metadata)
        known = metadata.derived[_CONSTRAINTS] = weakref.ref(metadata), format_, found
    return known[2]


def validate(format_: Format, constraints: Any, metadata: Any) -> None:
    """Compare stored metadata with constraints; once for the same objects.

    Raises
    ------
    GpustoreError
        If the metadata do not fulfil them.
    """
    known = metadata.derived.get(_FULFILLED)
    if known is not None and known[0]() is metadata:
        _, same_constraints, same_format = known
        if same_constraints is constraints and same_format == format_:
            return
    format_.validate(constraints, metadata)
    metadata.derived[_FULFILLED] = weakref.ref(metadata), constraints, format_


# --------------------------------------------------------------------------- constraints


def constraints(format_: Format, value: JsonValue) -> Any:
    """Return the constraints in the member ``metadata`` of a spec, the same for the same text."""
    text = repr(value)
    if len(text) > REMEMBERED_NBYTES:
        return format_.constraints(value)
    return _constraints(format_, Spelled(text, value))


@lru_cache(maxsize=64)
def _constraints(format_: Format, json: Spelled) -> Any:
    return format_.constraints(json.value)


def merged(format_: Format, constraints: Any, schema: Schema) -> Schema:
    """Return what `constraints` on metadata and those of `schema` come to; not to be changed."""
    if schema.is_empty:
        return _merged(format_, _Same(constraints))
    return format_.constrained(constraints, schema)


@lru_cache(maxsize=64)
def _merged(format_: Format, constraints: _Same) -> Schema:
    return format_.constrained(constraints(), _NO_SCHEMA)


def created(format_: Format, constraints: Any, merged: Schema, limits: Limits) -> Any:
    """Return new metadata that fulfil `constraints`; `merged` is the result of :func:`merged`."""
    return _created(format_, _Same(constraints), _Same(merged), limits)


@lru_cache(maxsize=64)
def _created(format_: Format, constraints: _Same, merged: _Same, limits: Limits) -> Any:
    return format_.create(constraints(), merged(), limits=limits)


def encoded(metadata: Any) -> bytes:
    """Return the document that stores `metadata`."""
    found = _encoded(_Same(metadata))
    return metadata.encode() if found is None else found


@lru_cache(maxsize=64)
def _encoded(metadata: _Same) -> bytes | None:
    """Return the document if it is short."""
    document: bytes = metadata().encode()
    return document if len(document) <= REMEMBERED_NBYTES else None
