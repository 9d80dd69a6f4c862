"""Parsing of the members of ``zarr.json``, as stored metadata and as constraints of a spec.

In stored metadata every member but ``attributes``, ``dimension_names`` and
``storage_transformers`` is required, and integers are integers; in a spec all are optional and
``3.0`` counts as 3, as in TensorStore.

Extensions follow specification 3.1 where TensorStore is narrower: they may be given by name alone,
may have ``"must_understand": true``, and unknown storage transformers and members with ``false``
are kept and ignored. Unknown codecs are handled by :mod:`gpustore.codec_chain.chain_spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.data_type import parse_v3_data_type
from gpustore.metadata.document import check_length, parse_shape, without_zeros
from gpustore.metadata.fill_value import parse_v3_fill_value
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    at_position,
    expect_list,
    expect_object,
    expect_str,
    in_member,
    quote,
    text,
)

STORAGE_TRANSFORMERS: Final = "storage_transformers"
"""Name among the extensions under which ignored storage transformers are kept."""

_UNITS: Final = "dimension_units"


def parse_members(
    value: JsonValue, *, limits: Limits, is_stored: bool, pointer: str = ""
) -> dict[str, Any]:
    """Parse all members of a JSON object.

    Parameters
    ----------
    value : JsonValue
        The object.
    limits : Limits
        Limits of the rank and the number of codecs.
    is_stored : bool
        Whether the object is a ``zarr.json`` and not constraints in a spec.
    pointer : str
        JSON pointer of `value` in the document, for messages.

    Returns
    -------
    dict
        Values by the names of ``Zarr3Constraints``: None for a missing member, empty mappings for
        missing ``attributes`` and ``extensions``.
    """
    members = Members(value, pointer=pointer, integral_floats=not is_stored)
    default = REQUIRED if is_stored else None
    parsed: dict[str, Any] = {
        "zarr_format": members.take_int("zarr_format", 3, 3, default),
        "node_type": members.take_with("node_type", _node_type, default),
        "data_type": members.take_with("data_type", _data_type, default),
        "shape": members.take_with(
            "shape",
            lambda shape: parse_shape(
                shape, 0, max_rank=limits.rank, integral_floats=not is_stored
            ),
            default,
        ),
    }
    parsed["fill_value"] = _take_fill_value(members, parsed["data_type"], default)
    parsed |= _take_dimensions(members, parsed["shape"], limits, default)
    parsed["chunk_key_encoding"] = members.take_with(
        "chunk_key_encoding", _chunk_key_encoding, default
    )
    parsed["codecs"] = members.take_with("codecs", lambda codecs: _codecs(codecs, limits), default)
    transformers = members.take_with("storage_transformers", _storage_transformers, [])
    parsed["extensions"] = _take_extensions(members, value)
    if transformers:
        parsed["extensions"] = {**parsed["extensions"], STORAGE_TRANSFORMERS: transformers}
    return parsed


def _node_type(value: JsonValue) -> str:
    if value == "group":
        raise MetadataError(
            'Expected "array", but received: "group" '
            "(open one of the arrays in this group, or the group with gpustore.open_group)"
        )
    return expect_str(value, choices=("array",))


def _data_type(value: JsonValue) -> Any:
    if isinstance(value, dict) and "must_understand" in value:
        NamedConfiguration.mandatory(value, "data type")
        value = {name: member for name, member in value.items() if name != "must_understand"}
    return parse_v3_data_type(value)


def _take_fill_value(members: Members, data_type: Any, default: Required | None) -> Any:
    def convert(value: JsonValue) -> Any:
        if isinstance(value, Required):
            raise MetadataError("Expected value, but member is missing")
        if data_type is None:
            raise MetadataError('must be specified in conjunction with "data_type"')
        return parse_v3_fill_value(value, data_type)

    return members.take_with("fill_value", convert, default)


# --------------------------------------------------------------------------- dimensions


def _take_dimensions(
    members: Members,
    shape: tuple[int, ...] | None,
    limits: Limits,
    default: Required | None,
) -> dict[str, Any]:
    """Take the members with one entry per dimension, which must have equal lengths."""
    rank = None if shape is None else len(shape)

    def grid(value: JsonValue) -> tuple[tuple[int, ...], tuple[ChunkEdges, ...] | None]:
        return _chunk_grid(value, shape, limits, is_stored=default is not None)

    chunk_shape, edges = members.take_with("chunk_grid", grid, default) or (None, None)
    if rank is None and chunk_shape is not None:
        rank = len(chunk_shape)

    def names(value: JsonValue) -> tuple[str | None, ...]:
        return _strings(value, rank, limits)

    dimension_names = members.take_with("dimension_names", names, None)
    if rank is None and dimension_names is not None:
        rank = len(dimension_names)

    def attributes(value: JsonValue) -> Mapping[str, JsonValue]:
        return parse_attributes(value, rank, limits, is_stored=default is not None)

    return {
        "chunk_shape": chunk_shape,
        "chunk_edges": edges,
        "dimension_names": dimension_names,
        "attributes": members.take_with("attributes", attributes, {}),
    }


def _chunk_grid(
    value: JsonValue, shape: tuple[int, ...] | None, limits: Limits, *, is_stored: bool
) -> tuple[tuple[int, ...], tuple[ChunkEdges, ...] | None]:
    """Parse a chunk grid: the (largest) chunk shape, and the edges of a rectilinear grid."""
    rank = None if shape is None else len(shape)

    def chunk_shape(value: JsonValue) -> tuple[int, ...]:
        if is_stored and shape is not None:
            value = without_zeros(value, shape)
        return parse_shape(value, 1, rank=rank, max_rank=limits.rank, integral_floats=not is_stored)

    def chunk_edges(value: JsonValue) -> tuple[ChunkEdges, ...]:
        entries = expect_list(value)
        if len(entries) > limits.rank:
            raise MetadataError(f"Rank {len(entries)} is outside valid range [0, {limits.rank}]")
        check_length(entries, rank)
        edges = []
        for index, entry in enumerate(entries):
            with at_position(index):
                edges.append(ChunkEdges.from_json(entry, integral_floats=not is_stored))
        return tuple(edges)

    named = NamedConfiguration.mandatory(value, "chunk grid", names=("regular", "rectilinear"))
    with in_member("configuration"):
        # A bare name lacks the chunk shape, which every grid needs.
        has_options = isinstance(value, dict) and "configuration" in value
        configuration = Members(dict(named.configuration) if has_options else REQUIRED)
        if named.name == "regular":
            found, edges = configuration.take_with("chunk_shape", chunk_shape), None
        else:
            configuration.take_str("kind", choices=("inline",))
            edges = configuration.take_with("chunk_shapes", chunk_edges)
            found = tuple(one.largest for one in edges)
        configuration.finish()
    return found, edges


def _strings(value: JsonValue, rank: int | None, limits: Limits) -> tuple[str | None, ...]:
    """Parse an array of one string or null per dimension."""
    strings = expect_list(value)
    if len(strings) > limits.rank:
        raise MetadataError(f"Rank {len(strings)} is outside valid range [0, {limits.rank}]")
    check_length(strings, rank)
    for index, string in enumerate(strings):
        if string is not None:
            with at_position(index):
                expect_str(string)
    return tuple(strings)


def parse_attributes(
    value: JsonValue, rank: int | None, limits: Limits, *, is_stored: bool
) -> Mapping[str, JsonValue]:
    """Parse ``attributes``: an object, with a unit or null for each dimension if it has units."""
    attributes = dict(expect_object(value))
    if _UNITS in attributes:
        with in_member(_UNITS):
            units = _strings(attributes[_UNITS], rank, limits)
        if not is_stored:
            # Stored attributes stay as they were written; those of a spec get the usual form.
            attributes[_UNITS] = [u if u is None else str(Unit(u)) for u in units]
    return attributes


def parse_dimension_units(attributes: Mapping[str, JsonValue]) -> tuple[Unit | None, ...] | None:
    """Return the unit of each dimension in validated `attributes`, None without units."""
    if _UNITS not in attributes:
        return None
    return tuple(u if u is None else Unit(u) for u in attributes[_UNITS])


# --------------------------------------------------------------------------- named extensions


def _chunk_key_encoding(value: JsonValue) -> ChunkKeyEncoding:
    named = NamedConfiguration.mandatory(value, "chunk key encoding", names=("default", "v2"))
    with in_member("configuration"):
        configuration = Members(dict(named.configuration))
        separator = configuration.take_str("separator", "", choices=(".", "/"))
        configuration.finish()
    return ChunkKeyEncoding(named.name, separator)


def _codecs(value: JsonValue, limits: Limits) -> tuple[NamedConfiguration, ...]:
    codecs = expect_list(value)
    limits.check("codecs", len(codecs), "Codec chain")
    return NamedConfiguration.list_from_json(codecs)


def _storage_transformers(value: JsonValue) -> list[JsonValue]:
    """Return the storage transformers that need not be understood; no other is supported."""
    transformers = expect_list(value)
    for index, one in enumerate(transformers):
        if not isinstance(one, dict) or one.get("must_understand") is not False:
            raise MetadataError(
                f"No storage transformers supported, but received at position {index}: {text(one)}"
                f', which is not marked {{"must_understand": false}}'
            )
    NamedConfiguration.list_from_json(transformers)  # Raises MetadataError.
    return transformers


def _take_extensions(members: Members, document: dict[str, JsonValue]) -> Mapping[str, JsonValue]:
    extensions = {}
    for name in filter(members.__contains__, document):
        value = members.take(name)
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            raise members.error(
                f"Unsupported metadata field {quote(name)} is not marked "
                '{"must_understand": false}'
            )
        extensions[name] = value
    return extensions
