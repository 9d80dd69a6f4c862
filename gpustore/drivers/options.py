"""Options that members of a spec set for a chunked driver: context resources, and conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from gpustore.drivers.base import METADATA_POOL
from gpustore.errors import MetadataError
from gpustore.runtime.context import Context, resource_json
from gpustore.strict_json.parsing import JsonValue, Members, text

RESOURCES = (
    "cache_pool",
    "data_copy_concurrency",
    "device",
    "gpu_decode_choice",
    "device_allocator",
    "device_cache_pool",
    "gpu_decode_trust",
    "limits",
)
"""Context resources of a chunked driver, besides those of its kvstore."""

_RESOURCE_MEMBERS = (*zip(RESOURCES, RESOURCES), (METADATA_POOL, "cache_pool"))
"""Members of a spec that refer to a context resource, and the identifier of its type."""

_END_OF_TIME = 2**63
"""TensorStore counts seconds in 64 bits; times beyond are always, or never."""

DEFAULTS: dict[str, JsonValue] = {
    "fill_missing_data_reads": True,
    "recheck_cached_data": True,
    "recheck_cached_metadata": "open",
    "store_data_equal_to_fill_value": False,
}
"""Options of chunked arrays other than context resources, with their values if they are not
given.
"""

DEFAULTS_OF_A_FILE: dict[str, JsonValue] = {"recheck_cached_data": "open"}
"""The same of drivers that read one file as a whole and cache no metadata."""


def take_options(
    members: Members, defaults: Mapping[str, JsonValue] = DEFAULTS
) -> dict[str, JsonValue]:
    """Take the options that `defaults` names, and context resources; default ones are dropped."""
    options: dict[str, JsonValue] = {}
    for name in ("fill_missing_data_reads", "store_data_equal_to_fill_value"):
        if name in members and name in defaults:
            options[name] = members.take_bool(name)
    for name in ("recheck_cached_data", "recheck_cached_metadata"):
        if name in members and name in defaults:
            options[name] = members.take_with(name, _recheck)
    # Compared as text: for Python the time 1 equals true.
    options = {n: value for n, value in options.items() if repr(value) != repr(defaults[n])}
    for name, id in _RESOURCE_MEMBERS:
        if name in members and (name != METADATA_POOL or "recheck_cached_metadata" in defaults):
            options[name] = members.take_with(name, partial(resource_json, id))
            if options[name] == id:
                del options[name]  # The default one.
    return options


def with_defaults(
    options: Mapping[str, JsonValue],
    defaults: Mapping[str, JsonValue],
    shared: tuple[str, ...] = ("cache_pool", "data_copy_concurrency"),
) -> dict[str, JsonValue]:
    """Return options with those that were not given, and the defaults within context resources."""
    given = {
        name: resource_json(id, options[name], include_defaults=True)
        for name, id in _RESOURCE_MEMBERS
        if name in options
    }
    return {**defaults, **{id: id for id in shared}, **options, **given}


def _recheck(value: JsonValue) -> JsonValue:
    if isinstance(value, bool) or value == "open":
        return value
    if not isinstance(value, int | float) or value != value:
        raise MetadataError(f'Expected boolean, number, or "open", but received: {text(value)}')
    if abs(value) >= _END_OF_TIME:
        return value > 0
    return float(value)


def recheck_bound(recheck: JsonValue, opened: float) -> float:
    """Return the time before which what was read counts as old; `opened` stands for "open"."""
    if isinstance(recheck, bool):
        return math.inf if recheck else -math.inf
    return recheck if isinstance(recheck, float) else opened


def refers_to_resources(options: Mapping[str, JsonValue]) -> bool:
    """Whether any of the options refers to a context resource."""
    return any(name in options for name, _ in _RESOURCE_MEMBERS) if options else False


def without_resources(options: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the options without references to resources, which mean nothing in other contexts."""
    names = [name for name, _ in _RESOURCE_MEMBERS]
    return {name: value for name, value in options.items() if name not in names}


def bound_resources(
    context: Context, options: Mapping[str, JsonValue]
) -> Mapping[str, Context.Resource]:
    """Return the resources of a driver, of which `options` may refer to others than the default."""
    given = {name: id for name, id in _RESOURCE_MEMBERS if name in options}
    ids = {**dict(zip(RESOURCES, RESOURCES)), **given}
    return {name: context.resource(id, options.get(name)) for name, id in ids.items()}
