"""Parts of specs, parsed from JSON: :func:`parsed`."""

from __future__ import annotations

from gpustore import registry
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.dtype import from_json as dtype_from_json
from gpustore.drivers.base import IMAGES, NOT_OPENED, OpenMode
from gpustore.errors import MetadataError
from gpustore.front.driver_from_url import detecting, driver_from_url
from gpustore.front.spec_template import Parts
from gpustore.index_space import IndexTransform
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import check_present
from gpustore.runtime.context import Context
from gpustore.schema import Schema
from gpustore.strict_json.near_names import near_or_known
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_list,
    expect_object,
    in_member,
)

NO_MODE = (*NOT_OPENED, *IMAGES, "auto")
"""Drivers whose JSON has no open mode: what is detected is not created."""


def parsed(json: JsonValue, dtype: dtype_ | None = None) -> Parts:
    """Return the parts of a spec.

    Parameters
    ----------
    json : JSON
    dtype : dtype, optional
        Data type that the spec around this one states.
    """
    if isinstance(json, str):
        return driver_from_url(json), None, OpenMode(), None
    members = Members(expect_object(json), integral_floats=True)
    name = members.take_str("driver")
    kind = registry.find("drivers", name)
    context = members.take_with("context", Context.Spec, None)
    if kind is None:
        if registry.find("kvstores", name) is None:
            check_present(name)
            raise MetadataError(
                f'Error parsing object member "driver": "{name}" is not a registered TensorStore '
                f"driver{near_or_known(name, registry.ids('drivers'))}"
            )
        with in_member("kvstore"):
            kvstore = KvStore.Spec(json)
        return detecting(kvstore), None, OpenMode(), None
    schema = Schema()
    if "schema" in members:
        schema = members.take_with("schema", Schema)
    if "dtype" in members:
        stated = members.take("dtype")
        with in_member("dtype"):
            schema.set_dtype(dtype_from_json(stated))
    if dtype is not None:
        schema.set_dtype(dtype)
    rank = members.take_int("rank", 0, 32, None)
    transform = members.take_with("transform", _transform, None)
    if rank is not None and transform is not None and transform.input_rank != rank:
        raise MetadataError(
            f'Error parsing object member "rank": Specified rank ({rank}) does not match input '
            f"rank of transform ({transform.input_rank})"
        )
    if transform is not None:
        schema.set_rank(transform.output_rank, "rank")
    elif rank is not None:
        with in_member("rank"):
            schema.set_rank(rank, "rank")
    if kind.is_adapter:
        base, below, mode, base_context = members.take_with(
            "base",
            lambda base: parsed(base, schema.dtype if kind.keeps_dtype else None),
        )
        driver, below = kind.from_base(base, below, base_context, members, schema)
        members.finish()
        if below is not None:
            transform = below if transform is None else below[transform]
        return driver, transform, mode, context
    if hasattr(kind, "from_layers"):
        layers = members.take_with("layers", _parsed_layers)
        driver = kind.from_layers(layers, members, schema)
        members.finish()
        return driver, transform, OpenMode(), context
    mode = OpenMode() if kind.id in NO_MODE else OpenMode.from_members(members)
    driver = kind.from_json(members, schema)
    members.finish()
    return driver, transform, mode, context


def _parsed_layers(value: JsonValue) -> list[Parts]:
    layers = []
    for position, layer in enumerate(expect_list(value)):
        with at_position(position):
            layers.append(parsed(layer))
    return layers


def _transform(value: JsonValue) -> IndexTransform:
    return IndexTransform(json=value)
