"""User attributes and names of dimensions of a copy.

Zarr v3 has names of dimensions in its metadata, Zarr v2 in the attribute ``_ARRAY_DIMENSIONS`` of
xarray. xarray masks the fill value of an array of Zarr v2, of Zarr v3 the attribute ``_FillValue``
(``FillValueCoder`` of ``xarray/backends/zarr.py``). Copies to the other format are
opened by xarray as the same variable.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpustore.copying.new_array import Target
    from gpustore.copying.options import Options


_DIMENSIONS = "_ARRAY_DIMENSIONS"
_UNITS = "dimension_units"
_FILL_VALUE = "_FillValue"
_NAMES_LOST = "Zarr v2 has names of all dimensions or none: they are not kept"


def take_attributes(
    target: Target, source: gpustore.TensorStore, metadata: Mapping[str, Any], options: Options
) -> None:
    """Set the attributes of a target: those of the source, translated, and those of `options`.

    Parameters
    ----------
    target : Target
        Its data type, shape and fill value are set already.
    source : TensorStore
    metadata : dict
        Metadata of the source.
    options : Options

    Raises
    ------
    CopyError
        If attributes of the source are no JSON object, or the options do not fit.
    """
    before, after = (3 if "codecs" in metadata else 2), (2 if target.driver == "zarr" else 3)
    text, attributes = _stored(source, metadata, target)
    asked = (options.dims, options.units, options.attributes) != (None, None, None)
    if before == after and not asked:
        if after == 2:
            target.attributes = text  # Byte by byte.
        return
    attributes = dict(attributes)
    if before != after:
        rank = len(metadata["shape"])
        translate = _to_v2 if after == 2 else _to_v3
        translate(target, source, attributes, metadata.get("dimension_names"), rank)
    set_attributes(target, attributes, options)


def set_attributes(target: Target, attributes: dict[str, Any], options: Options) -> None:
    """Set the attributes of a target, changed by those that `options` name.

    Raises
    ------
    CopyError
        If the format has no units of dimensions.
    """
    attributes = {**attributes, **(options.attributes or {})}
    is_v2 = target.driver == "zarr"
    if options.dims is not None:
        if is_v2:
            attributes.pop(_DIMENSIONS, None)
            if all(options.dims):
                attributes[_DIMENSIONS] = list(options.dims)
            else:
                target.notes.append(_NAMES_LOST)
        else:
            target.metadata["dimension_names"] = [name or None for name in options.dims]
    if options.units is not None:
        if is_v2:
            raise gpustore.CopyError(
                "Zarr v2 has no units of dimensions: leave out `units`, or add `zarr_format=3`"
            )
        units = [None if unit is None else str(gpustore.Unit(unit)) for unit in options.units]
        attributes[_UNITS] = units
    if is_v2:
        text = json.dumps(attributes, indent=2, default=_plain)
        target.attributes = text.encode() if attributes else None
    elif attributes or "attributes" in target.metadata:
        target.metadata["attributes"] = attributes


def _plain(value: Any) -> Any:
    """Return a value of NumPy as one of Python, as the metadata of Zarr v3 take it."""
    if isinstance(value, np.ndarray | np.number | np.bool_):
        return value.tolist()
    raise TypeError(f"Object '{type(value).__name__}' does not support conversion to JSON")


def set_masked(
    target: Target, attributes: dict[str, Any], value: Any, dims: Sequence[str | None] | None
) -> None:
    """Make an element the one that xarray masks in a target; None masks no element."""
    if value is None:
        # Of Zarr v2, xarray would mask the elements that equal the fill value.
        if target.driver == "zarr" and dims is not None and _are_names(list(dims), len(dims)):
            target.schema.pop("fill_value", None)
    elif target.driver == "zarr":
        target.schema["fill_value"] = value
    else:
        attributes[_FILL_VALUE] = _encoded(value)


def _stored(
    source: gpustore.TensorStore, metadata: Mapping[str, Any], target: Target
) -> tuple[bytes | None, dict[str, Any]]:
    """Return the attributes of the source, and the document of Zarr v2 that has them."""
    if "codecs" in metadata:
        return None, metadata.get("attributes", {})
    stored = source.kvstore.read(".zattrs").result() if source.kvstore is not None else None
    if stored is None or stored.state != "value":
        return None, {}
    try:
        attributes = json.loads(stored.value)
    except ValueError:
        attributes = None
    if not isinstance(attributes, dict):
        if target.driver == "zarr":
            return stored.value, {}
        raise gpustore.CopyError(f"{source.url}: .zattrs is not a JSON object: repair or remove it")
    return stored.value, attributes


def _to_v3(
    target: Target,
    source: gpustore.TensorStore,
    attributes: dict[str, Any],
    _: Any,
    rank: int,
) -> None:
    names = attributes.get(_DIMENSIONS)
    if not _are_names(names, rank):
        return
    target.metadata["dimension_names"] = attributes.pop(_DIMENSIONS)
    fill = _encoded(source.fill_value)
    if fill is not None and _FILL_VALUE not in attributes:
        attributes[_FILL_VALUE] = fill


def _to_v2(
    target: Target,
    source: gpustore.TensorStore,
    attributes: dict[str, Any],
    names: Sequence[str | None] | None,
    rank: int,
) -> None:
    if rank == 0:
        names = []  # xarray opens a group of Zarr v2 only if all arrays in it have names.
    if not _are_names(names, rank):
        if any(names or ()):
            target.notes.append(_NAMES_LOST)
        return
    attributes[_DIMENSIONS] = list(names or ())
    masked = _decoded(attributes.get(_FILL_VALUE), source.dtype.array_dtype)
    if masked is not None:
        del attributes[_FILL_VALUE]
        target.schema["fill_value"] = masked
    elif "fill_value" in target.schema and _encoded(source.fill_value) is not None:
        # Of Zarr v2, xarray would mask the elements that equal it. Without one it is null.
        del target.schema["fill_value"]


def _are_names(names: Any, rank: int) -> bool:
    """Whether these are different names of all dimensions."""
    return (
        isinstance(names, list)
        and len(names) == rank
        and all(isinstance(name, str) and name for name in names)
        and len(set(names)) == rank
    )


def _encoded(fill: Any) -> Any:
    """Return a fill value as xarray writes ``_FillValue`` in Zarr v3, None for other types."""
    if fill is None or fill.dtype.kind not in "fiub":
        return None
    if fill.dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(fill))).decode()
    return fill.item()


def _decoded(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a ``_FillValue`` of Zarr v3 as an element, None if the type has no such element."""
    try:
        if dtype.kind == "f":
            value = struct.unpack("<d", base64.standard_b64decode(value))[0]
            return np.asarray(value).astype(dtype)[()]
        if dtype.kind not in "iub" or not isinstance(value, int | float):
            return None
        with np.errstate(invalid="ignore"):
            found = np.asarray(value).astype(dtype)[()]
        return found if found.item() == value else None
    except (TypeError, ValueError, OverflowError, struct.error):
        return None
