"""Parsing of the members of ``.zarray``, as stored metadata and as constraints of a spec.

In stored metadata every member but ``dimension_separator`` is required, and integers are
integers; in a spec all are optional and ``3.0`` counts as 3, as in TensorStore. Two forms are read
that TensorStore refuses, because zarr-python wrote or reads them: missing ``compressor`` and
``filters`` are null, and an extent of 0 may have chunks of 0, read as 1 (none is ever stored).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from gpustore.data_types.dtype import DTYPES
from gpustore.errors import MetadataError
from gpustore.metadata.data_type import parse_v2_dtype
from gpustore.metadata.document import parse_shape, without_zeros
from gpustore.metadata.fill_value import FillValue, parse_v2_fill_value
from gpustore.metadata.object_type import OBJECT_CODECS, object_dtype
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    at_position,
    expect_object,
    expect_str,
    in_member,
    quote,
    text,
)

Codec: TypeAlias = Mapping[str, JsonValue]


class Unset(Enum):
    """Type of :data:`UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""Stands for a member without a constraint, since None stands for JSON's ``null``."""


MEMBERS: Final = frozenset(
    {
        *("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order"),
        *("filters", "dimension_separator"),
    }
)
"""Names of the members that :func:`parse_members` takes."""


def parse_members(members: Members, *, limits: Limits, is_stored: bool) -> dict[str, Any]:
    """Take all known members; unknown ones are left in `members`.

    Parameters
    ----------
    members : Members
        Cursor over the JSON object.
    limits : Limits
        Limits of the rank and the number of filters.
    is_stored : bool
        Whether the object is a ``.zarray`` and not constraints in a spec.

    Returns
    -------
    dict
        Values by the names of ``Zarr2Constraints``. In a spec UNSET for a missing member; None for
        a missing stored separator.
    """
    default: Required | Unset = REQUIRED if is_stored else UNSET

    def extents(minimum: int, rank: int | None) -> Callable[[JsonValue], tuple[int, ...]]:
        return lambda value: parse_shape(
            value, minimum, rank=rank, max_rank=limits.rank, integral_floats=not is_stored
        )

    zarr_format = members.take_int("zarr_format", 2, 2, default)
    shape = members.take_with("shape", extents(0, None), default)
    rank = None if isinstance(shape, Unset) else len(shape)

    def chunk_shape(value: JsonValue) -> tuple[int, ...]:
        if is_stored and not isinstance(shape, Unset):
            value = without_zeros(value, shape)
        return extents(1, rank)(value)

    chunks = members.take_with("chunks", chunk_shape, default)
    none = None if is_stored else UNSET
    # Before the data type: |O is only legal behind a filter that makes its objects.
    filters = members.take_with("filters", lambda value: _filters(value, limits), none)
    dtype = members.take_with("dtype", lambda value: _dtype(value, filters), default)

    def fill_value(value: JsonValue) -> FillValue | None:
        if isinstance(dtype, Unset):
            raise MetadataError('must be specified in conjunction with "dtype"')
        if isinstance(value, Required):
            raise MetadataError("Expected value, but member is missing")
        return parse_v2_fill_value(value, dtype)

    return {
        "zarr_format": zarr_format,
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype,
        "compressor": members.take_with("compressor", _compressor, none),
        "fill_value": members.take_with("fill_value", fill_value, default),
        "order": members.take_str("order", default, choices=("C", "F")),
        "filters": filters,
        "dimension_separator": members.take_str(
            "dimension_separator", None if is_stored else UNSET, choices=(".", "/")
        ),
    }


def _dtype(value: JsonValue, filters: tuple[Codec, ...] | Unset | None) -> np.dtype[Any]:
    if value != "|O":
        return parse_v2_dtype(value)
    ids = [] if filters is None or isinstance(filters, Unset) else [f["id"] for f in filters]
    for name, filter_id in OBJECT_CODECS.items():
        if ids[:1] == [filter_id]:
            return object_dtype(DTYPES[name])
    known = " or ".join(map(quote, OBJECT_CODECS.values()))
    raise MetadataError(
        f"Unsupported zarr dtype: {quote(value)}: objects are only read if the first filter is "
        f"{known}, but the filters are {text(ids)}"
    )


def _compressor(value: JsonValue) -> Codec | None:
    return None if value is None else _codec(value)


def _codec(value: JsonValue) -> Codec:
    codec = dict(expect_object(value))
    with in_member("id"):
        expect_str(codec.get("id", REQUIRED))
    return codec


def _filters(value: JsonValue, limits: Limits) -> tuple[Codec, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise MetadataError(f"Expected null or array, but received: {text(value)}")
    filters = []
    limits.check("codecs", len(value), "Filters")
    for index, element in enumerate(value):
        with at_position(index):
            filters.append(_codec(element))
    return tuple(filters) or None
