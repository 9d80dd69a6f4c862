"""Target of a copy whose source is no Zarr array: properties are chosen, as by `gpustore.save`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import gpustore
from gpustore.copying.attributes import set_attributes, set_masked
from gpustore.copying.new_array import Target
from gpustore.copying.options import Options
from gpustore.copying.target import DRIVERS, chosen_format, place_of
from gpustore.schema.codec_words import codec_spec
from gpustore.sources.base import Source

_CHUNK_NBYTES = 1 << 20
"""Decoded bytes of a chunk unless chunks are given, as in `gpustore.save`."""

_CODEC = "zstd"


def make_new_target(
    source: Source, place: Any, options: Options, context: gpustore.Context
) -> Target:
    """Derive the target from a source and options.

    Parameters
    ----------
    source : Source
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
    driver, kvstore = place_of(place)
    after = chosen_format(options.zarr_format, driver, 3)
    given = options.of_rank(len(source.shape), after)
    if isinstance(source.dtype, np.dtype) and source.dtype.kind == "O":
        raise gpustore.CopyError(
            "elements are Python objects: convert them first, for instance by astype(str)"
        )
    dtype = gpustore.dtype(source.dtype)
    target = Target(DRIVERS[after], kvstore, {}, context=context)
    chunks = source.chunks if given.chunks is None and source.keeps_chunks else given.chunks
    target.schema = {
        "dtype": dtype,
        "shape": source.shape,
        "chunks": chunks,
        "shards": given.shards,
        "codec": _codec(given, target.driver, dtype.itemsize),
        "fill_value": source.fill_value,
    }
    if chunks is None and dtype.itemsize:
        elements = max(1, _CHUNK_NBYTES // dtype.itemsize)
        layout = gpustore.ChunkLayout(chunk_elements_soft_constraint=elements)
        target.schema["chunk_layout"] = layout
    target.schema = {name: value for name, value in target.schema.items() if value is not None}
    units = given.units
    if units is None and after == 3:
        units = source.units
    elif units is None and source.units is not None:
        target.notes.append("Zarr v2 has no units of dimensions: they are not kept")
    dims = source.dims if given.dims is None else given.dims
    attributes = dict(source.attributes)
    set_masked(target, attributes, source.masked, dims)
    set_attributes(target, attributes, replace(given, dims=dims, units=units))
    target.check()
    return target


def _codec(options: Options, driver: str, itemsize: int) -> gpustore.CodecSpec:
    """Return the codecs: those given or zstd, with a checksum behind them if wanted."""
    found = codec_spec(_CODEC if options.codec is None else options.codec, driver, itemsize)
    if not options.checksum:
        return found
    json = found.to_json()
    return gpustore.CodecSpec({**json, "codecs": [*json["codecs"], {"name": "crc32c"}]})
