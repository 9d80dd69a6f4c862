"""Target of :func:`gpustore.copy`: metadata derived from the source and the options.

Within a format the source's metadata are copied unchanged (byte and element order, the bits of a
NaN, unknown members), except for members that an option changes, and the data type and fill value
of a single field of records. Between formats the data type, fill value, chunks, compressor and
attributes are translated; other members have their default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import gpustore
from gpustore.copying.attributes import take_attributes
from gpustore.copying.element_type import converted_type, endian_of_records, field_metadata
from gpustore.copying.filters import codecs_of_filters, parts_of_codecs
from gpustore.copying.new_array import Target
from gpustore.copying.options import Options
from gpustore.display.elements import fields_of
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_shape
from gpustore.schema.codec_words import (
    COMPRESSORS,
    NUMCODECS,
    VLEN,
    codec_spec,
    codecs_of,
    compressor_of,
)

FORMATS: Final = {"zarr": 2, "zarr2": 2, "zarr3": 3}
DRIVERS: Final = {2: "zarr", 3: "zarr3"}
_MAX_TYPESIZE = 255
"""Longest element that Blosc shuffles."""

_CHECKSUM = "crc32c"
_OF_A_PLACE: Final = frozenset(("driver", "kvstore", "create"))


def place_of(target: Any) -> tuple[str, dict[str, Any]]:
    """Return the driver and the kvstore's JSON that a target names.

    Parameters
    ----------
    target : str, dict, Spec or KvStore
        URL, path, JSON, or an opened folder.

    Raises
    ------
    UnsupportedError
        If a kvstore has no JSON.
    CopyError
        If no array of the driver can be made, or the target names other properties.
    MetadataError
        If it is no spec, or one without a kvstore.
    """
    if isinstance(target, gpustore.KvStore):
        try:
            target = {"driver": "auto", "kvstore": target.spec().to_json()}
        except gpustore.UnsupportedError as error:
            raise error.suffixed("; a copy needs a place that can be opened again") from None
    json: Any = gpustore.Spec(target).to_json()
    driver = str(json["driver"])
    if driver not in FORMATS and driver != "auto":
        raise gpustore.CopyError(f"the target's format is {driver}: only Zarr arrays can be made")
    if "kvstore" not in json:
        raise gpustore.MetadataError('the target names no "kvstore"')
    others = ", ".join(sorted(set(json) - _OF_A_PLACE))
    if others:
        raise gpustore.CopyError(
            f"the target names {others}, but only a place is taken from it: give properties of the "
            "copy as arguments (chunks, codec, dims, attributes, overwrite, context ...)"
        )
    return driver, dict(json["kvstore"])


def make_target(
    source: gpustore.TensorStore, place: Any, options: Options, context: gpustore.Context
) -> Target:
    """Derive the target from a source and options.

    Parameters
    ----------
    source : TensorStore
        The array to copy: all of it, or one field of its records.
    place : str, dict or Spec
        URL, path or JSON of the target.
    options : Options
    context : Context
        Context of the target.

    Raises
    ------
    CopyError
        The options contradict each other, or do not fit the array.
    GpustoreError
        The format cannot hold the array, for instance because it lacks the data type.
    """
    read = source.spec().to_json()
    before = FORMATS.get(str(read["driver"]))
    if before is None:
        raise gpustore.CopyError(f"the source is {read['driver']}: only Zarr arrays can be copied")
    driver, kvstore = place_of(place)
    after = chosen_format(options.zarr_format, driver, before)
    metadata: Any = read["metadata"]
    if "field" in read:
        metadata = field_metadata(metadata, str(read["field"]))
    rank = len(metadata["shape"])
    if options.dims is None:
        options = replace(options, dims=_new_names(source, metadata, rank))
    options = options.of_rank(rank, after)
    target = Target(DRIVERS[after], kvstore, {}, context=context)
    filters = [] if before == 3 else _filters_and_compressor(metadata)[0]
    if before == after or not filters:
        return _filled(target, source, read, metadata, options)
    try:
        return _filled(target, source, read, metadata, options)
    except (gpustore.GpustoreError, ValueError):
        names = ", ".join(one["id"] for one in filters)
        target = Target(target.driver, target.kvstore, {}, context=context)
        target.notes = [f"Zarr v3 cannot filter these elements so: {names} is not kept"]
        return _filled(target, source, read, _without(metadata, filters), options)


def _new_names(
    source: gpustore.TensorStore, metadata: dict[str, Any], rank: int
) -> tuple[str, ...] | None:
    """Return the names of dimensions of a source, None if they are those of its metadata."""
    names = source.domain.labels[:rank]
    if "codecs" not in metadata:  # Zarr v2 has names in attributes, which no domain shows.
        return names if any(names) else None
    stored = metadata.get("dimension_names") or (None,) * rank
    return None if names == tuple(name or "" for name in stored) else names


def _filled(
    target: Target,
    source: gpustore.TensorStore,
    read: dict[str, Any],
    metadata: dict[str, Any],
    options: Options,
) -> Target:
    """Derive the target from `read`, the spec of `source`; errors of :func:`make_target`."""
    before, after = FORMATS[str(read["driver"])], FORMATS[target.driver]
    taken = before == after
    rank = len(metadata["shape"])
    grid = _Grid.of(source, rank)
    if taken:
        target.metadata = dict(metadata)
        target.as_void = bool(read.get("open_as_void"))
    elif source.rank > rank:
        target.metadata = {
            "shape": metadata["shape"],
            **_converted(source, metadata, before, after),
        }
        target.as_void = True
    else:
        target.schema = {"dtype": source.dtype, "shape": source.shape}
    if target.schema or "field" in read:
        _set_fill_value(target, source, rank)
    itemsize = source.dtype.array_dtype.itemsize * math.prod(source.shape[rank:])
    if source.dtype.array_dtype.hasobject:
        itemsize = 1  # What is encoded is a stream of bytes.
    if after == 3:
        _fill_v3(target, grid, itemsize, metadata, options, taken=taken)
    else:
        stored = source.dtype.array_dtype
        _fill_v2(target, grid, itemsize, stored, metadata, options, taken=taken)
    if after == 2 and before == 3:
        _note_losses(target, source, metadata)
    take_attributes(target, source, metadata, options)
    target.check()
    return target


def _converted(
    source: gpustore.TensorStore, metadata: dict[str, Any], before: int, after: int
) -> dict[str, Any]:
    """Return the data type and fill value of records or raw bytes in the other format."""
    fill = source.fill_value
    if "field" in source.spec().to_json():
        fill = None  # Set through the schema, as that of a subarray may need care.
    try:
        return converted_type(metadata, None if fill is None else fill.tobytes(), after)
    except gpustore.UnsupportedError as error:
        fields = fields_of(metadata)
        names = ", ".join(field.name for field in fields)
        raise gpustore.CopyError(
            f"{'records' if fields else 'elements'} cannot be copied from Zarr v{before} to "
            f"v{after}: {error}; copy to Zarr v{before}"
            f"{f', or one field with `field` ({names})' if fields else ''}"
        ) from error


def _set_fill_value(target: Target, source: gpustore.TensorStore, rank: int) -> None:
    """Set the source's fill value; a subarray with several values in it has none."""
    fill = source.fill_value
    if fill is None:
        return
    if source.dtype.array_dtype.hasobject:
        target.schema["fill_value"] = fill
        return
    element = source.shape[rank:]
    each = np.broadcast_to(fill, (*fill.shape[: fill.ndim - len(element)], *element))
    each = np.ascontiguousarray(each).reshape(-1, *element)
    if len({one.tobytes() for one in each}) == 1:
        target.schema["fill_value"] = each[0]
    else:
        target.notes.append("the subarray has no single fill value: 0 takes its place")


@dataclass(frozen=True, slots=True)
class _Grid:
    """Extents of the source, of its chunks and of its shards (those of a chunk without shards)."""

    shape: list[int]
    chunk: list[int]
    shard: list[int]

    @classmethod
    def of(cls, source: gpustore.TensorStore, rank: int) -> _Grid:
        """Return the extents of the first `rank` dimensions."""
        return cls(
            [int(n) for n in source.shape[:rank]],
            chunk_extents(source, "read_chunk")[:rank],
            chunk_extents(source, "write_chunk")[:rank],
        )


def chosen_format(asked: int | None, driver: str, before: int) -> int:
    """Return the target's format: the requested one, or that of its URL, or that of the source."""
    if asked not in (None, 2, 3):
        raise gpustore.CopyError(f"zarr_format: expected 2 or 3, but received: {asked!r:.50}")
    named = FORMATS.get(driver)
    if named and asked and asked != named:
        raise gpustore.CopyError(
            f"`zarr_format={asked}` contradicts the target's URL, which says {named}"
        )
    return asked or named or before


def _fill_v3(
    target: Target,
    grid: _Grid,
    itemsize: int,
    metadata: dict[str, Any],
    options: Options,
    *,
    taken: bool,
) -> None:
    """Set chunk grid and codecs of Zarr v3 metadata, unless they stay as they are."""
    before = metadata.get("codecs")
    asked = (options.chunks, options.shards, options.codec, options.checksum)
    if taken and asked == (None,) * 4:
        return
    chunk, shard = _chunk_and_shard(grid, options)
    if itemsize > _MAX_TYPESIZE:
        itemsize = 1
    sharding: dict[str, Any] = {}
    if before is None:
        filters, compressor = _filters_and_compressor(metadata)
        codecs, notes = codecs_of(compressor, itemsize)
        target.notes += notes
        of_elements, of_bytes = codecs_of_filters(filters)
        codecs = of_bytes + codecs
        if target.as_void:
            endian = {"endian": endian_of_records(metadata)}
            codecs.insert(0, {"name": "bytes", "configuration": endian})
        codecs = of_elements + codecs
    else:
        codecs, sharding, lost = _innermost(before)
        if lost:
            target.notes.append("shards in shards and codecs around shards are not kept")
    checksum = options.checksum
    if checksum is None:
        checksum = any(codec["name"] == _CHECKSUM for codec in codecs)
    if options.codec is not None:
        kept = [
            codec for codec in codecs if codec["name"].removeprefix(NUMCODECS) not in COMPRESSORS
        ]
        asked_for = codec_spec(options.codec, "zarr3", itemsize).to_json()
        given = list(asked_for.get("codecs", ()))
        checksum = checksum or any(codec["name"] == _CHECKSUM for codec in given)
        codecs = kept + given
        target.notes = [note for note in target.notes if "takes its place" not in note]
    codecs = [codec for codec in codecs if codec["name"] != _CHECKSUM]
    codecs += [{"name": _CHECKSUM}] * checksum
    if shard is not None:
        configuration = {**sharding, "chunk_shape": chunk, "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    target.metadata["codecs"] = codecs
    if not taken or asked[:2] != (None, None):
        regular = {"name": "regular", "configuration": {"chunk_shape": shard or chunk}}
        target.metadata["chunk_grid"] = regular


def _innermost(
    codecs: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
    """Return the codecs of the chunks inside shards, the sharding, and whether there are others."""
    for codec in codecs:
        if codec["name"] == "sharding_indexed":
            sharding = codec["configuration"]
            inner, deeper, _ = _innermost(sharding["codecs"])
            return inner, deeper or sharding, bool(deeper) or len(codecs) > 1
    return codecs, {}, False


def _chunk_and_shard(grid: _Grid, options: Options) -> tuple[list[int], list[int] | None]:
    """Return chunk and shard extents; without options those of the source."""
    chunk, shard = options.chunks, options.shards
    if chunk is None:
        chunk = grid.chunk
        if shard is None:
            shard = grid.shard if grid.shard != chunk else None
    if shard is not None and any(s % c for s, c in zip(shard, chunk, strict=True)):
        raise gpustore.CopyError(
            f"shards of {format_shape(shard)} are not whole multiples of chunks of "
            f"{format_shape(chunk)}: change `shards` or `chunks`"
        )
    return list(chunk), None if shard is None else list(shard)


def _fill_v2(
    target: Target,
    grid: _Grid,
    itemsize: int,
    dtype: np.dtype[Any],
    metadata: dict[str, Any],
    options: Options,
    *,
    taken: bool,
) -> None:
    """Set chunks, filters and compressor of Zarr v2 metadata, unless they stay as they are."""
    if not taken or options.chunks is not None:
        target.metadata["chunks"] = list(options.chunks or grid.chunk)
    if taken and options.codec is None:
        return
    if "codecs" in metadata:
        codecs = _innermost(metadata["codecs"])[0]
        parts = parts_of_codecs(codecs, dtype)
        vlen = [{"id": codec["name"]} for codec in codecs if codec["name"] in VLEN]
        checksums = [codec for codec in codecs if codec["name"] == _CHECKSUM]
        filters = [*vlen, *parts.filters]
        compressor, notes = compressor_of([*parts.compressors, *checksums])
        if parts.lost:
            names = ", ".join(parts.lost)
            target.notes.append(f"Zarr v2 has no codec {names}: elements are stored without")
    else:
        filters, compressor = _filters_and_compressor(metadata, vlen=True)
        notes = []
    if options.codec is not None:
        asked_for = codec_spec(options.codec, "zarr", itemsize).to_json()
        compressor, notes = asked_for.get("compressor"), []
        filters = asked_for.get("filters") or filters
    target.notes += notes
    target.metadata |= {"compressor": compressor, "filters": filters or None}


def _without(metadata: dict[str, Any], filters: list[dict[str, Any]]) -> dict[str, Any]:
    """Return Zarr v2 metadata without some of the filters."""
    left = [one for one in metadata.get("filters") or () if one not in filters]
    compressor = metadata.get("compressor")
    if compressor in filters:
        compressor = None
    return {**metadata, "filters": left or None, "compressor": compressor}


def _filters_and_compressor(
    metadata: dict[str, Any], *, vlen: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return filters and compressor of Zarr v2; a filter may stand in the place of the compressor.

    `vlen` includes the filters of strings and bytes of any length, which Zarr v3 does not list.
    """
    filters = [one for one in metadata.get("filters") or () if vlen or one["id"] not in VLEN]
    compressor = metadata.get("compressor")
    if compressor is not None and compressor["id"] not in COMPRESSORS:
        return [*filters, compressor], None
    return filters, compressor


def _note_losses(target: Target, source: gpustore.TensorStore, metadata: dict[str, Any]) -> None:
    """Note the properties of a Zarr v3 array that Zarr v2 does not keep."""
    if source.dtype.numpy_dtype.isbuiltin == 2:  # registered by ml_dtypes
        target.notes.append(
            f"{source.dtype.name} is no data type of the Zarr v2 specification: TensorStore and "
            "gpustore read it, others may not"
        )
    if metadata["chunk_grid"]["name"] != "regular":
        target.notes.append("Zarr v2 has chunks of one size only: the largest is that of all")
    elif source.chunk_layout.read_chunk.shape != source.chunk_layout.write_chunk.shape:
        target.notes.append("Zarr v2 has no shards: each chunk is a file of its own")
    if any(source.dimension_units):
        target.notes.append(
            'Zarr v2 has no units of dimensions: only the attribute "dimension_units" tells them'
        )
