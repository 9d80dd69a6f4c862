"""What recent metadata documents and constraints mean, remembered.

Programs open the same arrays again, and create arrays that are alike; checking takes longer than
reading. All results are immutable, and depend on the arguments alone.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from gpustore.drivers.format import ArrayDescription, Format
from gpustore.errors import GpustoreError
from gpustore.metadata.document import ArrayMetadata, parse_shape, with_json_numbers
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue, parse
from gpustore.strict_json.spelled import REMEMBERED_NBYTES, Spelled

_NO_SCHEMA = Schema()


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


@lru_cache(maxsize=64)
def decoded(kind: type[ArrayMetadata], data: bytes, limits: Limits) -> Any:
    """Return the metadata in a document of at most :data:`REMEMBERED_NBYTES`.

    Of documents that differ only in shape, fill value and what the user adds, as those of one data
    set often do, the rest is decoded once.

    Raises
    ------
    GpustoreError
        If the document is wrong; decoding it as `kind` tells why.
    """
    value = parse(
        data,
        where="",
        max_nbytes=limits.metadata_nbytes,
        max_depth=limits.metadata_depth,
        non_finite=True,
    )
    if b"NaN" in data or b"Infinity" in data:
        value = with_json_numbers(value, "", "")
    shape = value.pop("shape", None) if isinstance(value, dict) else None
    # A zarr-python chunk may have size 0 along a dimension of extent 0, and only there.
    if not isinstance(shape, list) or 0 in shape or "fill_value" not in value:
        return kind.decode(data, where="", limits=limits)
    fill_value, free = value.pop("fill_value"), kind.take_free(value)
    first = _first(kind, Spelled(repr(value), (data, repr(fill_value), repr(free))), limits)
    metadata = first.metadata
    shape = parse_shape(shape, 0, rank=metadata.rank, max_rank=limits.rank)
    fields: dict[str, Any] = {}
    if repr(fill_value) != first.fill_value:
        fields["fill_value"] = metadata.parse_fill_value(fill_value)
    if repr(free) != first.free:
        fields[kind.free_member] = metadata.parse_free(free, limits)
    if not fields and shape == metadata.shape:
        return metadata
    return metadata.with_members(shape=shape, **fields)


class _First(NamedTuple):
    """Metadata in the first of some documents, and the text of what differs in the others."""

    metadata: Any
    fill_value: str
    free: str


@lru_cache(maxsize=64)
def _first(kind: type[ArrayMetadata], rest: Spelled, limits: Limits) -> _First:
    data, fill_value, free = rest.value
    return _First(kind.decode(data, where="", limits=limits), fill_value, free)


def described(format_: Any, metadata: Any, limits: Limits) -> ArrayDescription:
    """Return the array that `metadata` describe."""
    first = None
    if metadata.original is not None:
        # Codecs may refuse its fill value, and not that of `metadata`.
        with suppress(GpustoreError):
            first = _described(format_, _Same(metadata.original), limits)
    if first is None:
        return _described(format_, _Same(metadata), limits)
    if metadata.differs_in_shape:
        return first.with_shape(metadata.shape)
    description: ArrayDescription = format_.redescribe(metadata, first, limits=limits)
    return description


@lru_cache(maxsize=64)
def _described(format_: Any, metadata: _Same, limits: Limits) -> ArrayDescription:
    description: ArrayDescription = format_.describe(metadata(), limits=limits)
    return description


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
