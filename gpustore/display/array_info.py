"""Facts about an opened array: :class:`ArrayInfo`, which ``store.info`` returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from gpustore.backends.native.native_core import NativeCore, native_core
from gpustore.display.elements import Elements, Field
from gpustore.display.extents import chunk_extents, count_chunks, edges_of
from gpustore.display.text import (
    Fact,
    format_codecs,
    format_nbytes,
    format_shape,
    shortened,
    text_of,
)
from gpustore.errors import GpustoreError, MetadataError, UnsupportedError
from gpustore.strict_json.parsing import JsonValue

FORMATS: Final = {
    "zarr": "Zarr v2",
    "zarr2": "Zarr v2",
    "zarr3": "Zarr v3",
    "n5": "N5",
    "neuroglancer_precomputed": "Neuroglancer precomputed",
}
"""Format by the name of a driver."""

METADATA_NAMES: Final = frozenset(
    {
        *("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"),
        *("attributes.json", "info", ".gpustore-copy.json"),
    }
)
"""Last components of keys that have no elements."""

_UNITS: Final = "dimension_units"

_CHEAP: Final = 10_000
"""Most stored values that are counted without being asked to, 0.1 s in a folder."""


@dataclass(frozen=True, slots=True, repr=False)
class ArrayInfo:
    """Facts about an opened array, as text on one screen and as JSON.

    Attributes
    ----------
    url : str or None
        URL that opens the array, None if there is none.
    format : str
        ``"Zarr v2"``, ``"Zarr v3"``, or the name of the driver.
    kvstore : JSON value
        Spec of the kvstore with the path of the array, None without one.
    shape : tuple of int
        Extents in elements, without inner dimensions.
    labels : tuple of str
        Names of the dimensions, empty where there is none.
    units : tuple of str or None
        Physical size of a step along each dimension, None where unknown.
    dtype : str
        Name of the data type, or a description of the records.
    inner_shape : tuple of int
        Extents of the inner dimensions of strings, raw bytes and subarrays, their length.
    fields : tuple of Field
        Fields of records that were opened as bytes: ``name``, ``dtype``, ``shape``.
    chunk : tuple of int
        Shape of the chunks that are decoded one by one, of the largest where they differ.
    chunk_shapes : JSON value
        Chunk sizes along each dimension as they stand in the metadata where chunks differ, else
        None.
    shard : tuple of int or None
        Shape of the shards, each of several chunks in one stored value; None without shards.
    codec : dict
        JSON of the codecs.
    fill_value : JSON value
        Value of elements never written; None if undefined.
    nbytes : int or None
        Decoded size in bytes; None if elements have any length.
    values_possible : int
        Number of stored values, chunks or shards, if all are there.
    values_stored, stored_nbytes : int or None
        Number of stored values, and their size in bytes as the kvstore tells it; None if unknown.
    uncounted : str or None
        Reason for which stored values were not counted, None if they were.
    attributes : dict or None
        User attributes; None if the format has none, or they cannot be read.
    attributes_error : str or None
        Reason for which they cannot be read.
    device : str
        Device of the arrays that reads return.
    native_core : NativeCore
        State of the native core of this process; see :func:`gpustore.native_core`.
    decoding, encoding : dict or None
        Who decodes and encodes chunks here (``codecs``), the ``reason`` if that is the host for a
        device, the ``library`` of the device, and its ``shortcoming``; ``native``, whether the
        native core does what the host has to do. None without chunks.
    gpu : dict or None
        Who would on a GPU with nvcomp (``codecs``, ``encoders``), why the host if so, and what is
        ``missing`` for a GPU here; None if the array is on one, or has no chunks.
    cast_from : str or None
        Data type of what is stored, if elements are converted. Of the rest, only `dtype` and
        `fill_value` are about what is read then.
    """

    url: str | None
    format: str
    kvstore: JsonValue
    shape: tuple[int, ...]
    labels: tuple[str, ...]
    units: tuple[str | None, ...]
    dtype: str
    inner_shape: tuple[int, ...]
    fields: tuple[Field, ...]
    chunk: tuple[int, ...]
    chunk_shapes: JsonValue
    shard: tuple[int, ...] | None
    codec: Mapping[str, JsonValue]
    fill_value: JsonValue
    nbytes: int | None
    values_possible: int
    values_stored: int | None
    stored_nbytes: int | None
    uncounted: str | None
    attributes: Mapping[str, JsonValue] | None
    attributes_error: str | None
    device: str
    native_core: NativeCore
    decoding: Mapping[str, Any] | None
    encoding: Mapping[str, Any] | None
    gpu: Mapping[str, Any] | None
    cast_from: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the attributes as JSON; ``cast_from`` only if elements are converted."""
        json_: dict[str, JsonValue] = {name: _json(value) for name, value in asdict(self).items()}
        if self.cast_from is None:
            del json_["cast_from"]
        return json_

    def facts(self, *, gpu: bool | None = None) -> list[Fact]:
        """Return names and values as short texts; further lines of a value follow newlines.

        Parameters
        ----------
        gpu : bool, optional
            Whether to tell what a GPU would do with an array in host memory; by default if this
            machine has one and all that it needs.
        """
        facts = [
            ("format", self.format),
            ("shape", self._shape_text()),
            ("type", self._type_text()),
            ("decoded size", _size(self.nbytes)),
            ("chunk", self._chunk_text()),
        ]
        if self.shard:
            facts.append(("shard", format_shape(self.shard)))
        fill = "none" if self.fill_value is None else self.fill_value
        facts += [
            ("codecs", format_codecs(self.codec)),
            ("fill value", json.dumps(fill) if isinstance(fill, dict) else str(fill)),
            ("shards stored" if self.shard else "chunks stored", self._stored_text()),
        ]
        if any(self.units):
            facts.insert(2, ("units", self._units_text()))
        if self.attributes is not None or self.attributes_error is not None:
            facts.append(("attributes", self._attributes_text()))
        return [*facts, *self._path_facts(gpu)]

    def _path_facts(self, gpu: bool | None) -> list[Fact]:
        """Return the facts about the path of the bytes."""
        facts = [("read on", self.device), ("native core", _native_core(self.native_core))]
        if self.decoding is None or self.encoding is None:
            return facts
        for name, found in (("decoded by", self.decoding), ("encoded by", self.encoding)):
            host = "native core" if found["native"] else "host"
            facts.append((name, _codecs(found["codecs"], found["reason"], host=host)))
        # What is wrong with the decoders stands in both.
        details = ("library", self.decoding["library"]), ("missing", self.encoding["shortcoming"])
        facts += [(name, text) for name, text in details if text is not None]
        there = self.gpu
        if there is not None and (gpu or (gpu is None and not there["missing"])):
            facts += [("no GPU here", reason) for reason in there["missing"]]
            facts.append(("on a GPU", f"decoded by {_codecs(there['codecs'], there['reason'])}"))
            encoders = _codecs(there["encoders"], there["encoder_reason"])
            facts.append(("", f"encoded by {encoders}"))
        return facts

    def _shape_text(self) -> str:
        return format_shape(self.shape) + (
            f"  ({', '.join(self._names())})" if any(self.labels) else ""
        )

    def _names(self) -> list[str]:
        return [label or str(n) for n, label in enumerate(self.labels)]

    def _units_text(self) -> str:
        named = zip(self._names(), self.units, strict=True)
        return ", ".join(f"{name}: {unit}" for name, unit in named if unit is not None)

    def _type_text(self) -> str:
        whole = Field("", self.dtype, self.inner_shape)
        cast = "" if self.cast_from is None else f", cast from {self.cast_from}"
        return "\n".join(map(str, (whole, *self.fields))) + cast

    def _chunk_text(self) -> str:
        edges = "" if self.chunk_shapes is None else f" at most: {json.dumps(self.chunk_shapes)}"
        return format_shape(self.chunk) + edges

    def _stored_text(self) -> str:
        if self.values_stored is None:
            return f"unknown, of {self.values_possible:,}: {self.uncounted}"
        text = f"{self.values_stored:,}"
        if self.values_stored <= self.values_possible:  # Shards of neuroglancer may be no boxes.
            text += f" of {self.values_possible:,}"
        if self.stored_nbytes is not None:
            text += f", {format_nbytes(self.stored_nbytes)}"
        if self.stored_nbytes and self.nbytes is not None:
            share = min(1.0, self.values_stored / max(1, self.values_possible))
            text += f", ratio {self.nbytes * share / self.stored_nbytes:.2f}"
        return text

    @property
    def further_attributes(self) -> dict[str, JsonValue]:
        """User attributes without those that another fact tells: the units of dimensions."""
        told = {_UNITS} if any(self.units) else set()
        return {name: v for name, v in (self.attributes or {}).items() if name not in told}

    def _attributes_text(self) -> str:
        if self.attributes is None:
            return f"unreadable: {self.attributes_error}"
        further = self.further_attributes
        names = shortened(", ".join(further), 60)
        return f"{len(further):,}: {names}" if names else "none"

    def __repr__(self) -> str:
        return text_of(self.url or self.format, self.facts())


def array_info(store: Any, *, complete: bool) -> ArrayInfo:
    """Describe an opened array.

    Parameters
    ----------
    store : TensorStore
    complete : bool
        Whether to count the stored values, which lists their keys, in any case; if not, only near
        and few ones are counted, below 10 000 in a local kvstore.

    Raises
    ------
    StoreIOError
        If the kvstore cannot be read.
    """
    base = store.base
    if base is not None and store.spec().to_json()["driver"] == "cast":
        stored = array_info(base, complete=complete)
        fill = _plain(store.fill_value)
        return replace(stored, dtype=store.dtype.name, fill_value=fill, cast_from=base.dtype.name)
    spec = store.spec().to_json()
    codec = store.codec.to_json() if store.codec is not None else {}
    elements = Elements.of(store)
    rank = elements.rank
    fill_value = _plain(store.fill_value)
    is_view = spec["driver"] == "downsample"
    if store._is_identity and not is_view:
        chunk = chunk_extents(store, "read_chunk")[:rank]
        written = chunk_extents(store, "write_chunk")[:rank]
        edges = edges_of(store)
        shape = store.shape[:rank]
        possible = math.prod(map(count_chunks, written if edges is None else edges, shape))
        nstored, nbytes, uncounted = _stored(store, possible, complete)
        if rank < store.rank:
            fill_value = spec["metadata"]["fill_value"]
    else:
        rank, shape, edges = store.rank, store.shape, None
        elements = Elements(store.dtype.array_dtype.itemsize, rank, (), store.dtype.name, ())
        chunk = list(store.chunks or (max(1, n) for n in shape))
        written = list(store.shards or chunk)
        possible = _values_of_part(store)
        nstored, nbytes = None, None
        uncounted = "a view stores none" if is_view else "this is a part of the array"
    attributes, attributes_error = _attributes(store)
    decoding, encoding, gpu = _decoding(store)
    return ArrayInfo(
        url=_url(store),
        format=FORMATS.get(spec["driver"], spec["driver"]),
        kvstore=spec.get("kvstore"),
        shape=tuple(map(int, shape)),
        labels=tuple(store.domain.labels[:rank]),
        units=tuple(None if unit is None else str(unit) for unit in store.dimension_units[:rank]),
        dtype=elements.dtype,
        inner_shape=elements.inner,
        fields=elements.fields,
        chunk=tuple(chunk),
        chunk_shapes=edges,
        shard=None if written == chunk else tuple(written),
        codec={name: value for name, value in codec.items() if name != "driver"},
        fill_value=fill_value,
        nbytes=None
        if store.dtype.array_dtype.hasobject
        else math.prod(store.shape) * store.dtype.array_dtype.itemsize,
        values_possible=possible,
        values_stored=nstored,
        stored_nbytes=nbytes,
        uncounted=uncounted,
        attributes=attributes,
        attributes_error=attributes_error,
        device=store.device,
        native_core=native_core(),
        decoding=decoding,
        encoding=encoding,
        gpu=gpu,
    )


def _url(store: Any) -> str | None:
    try:
        url: str = store.url
    except GpustoreError:
        return None
    return url


def _attributes(store: Any) -> tuple[dict[str, JsonValue] | None, str | None]:
    """Return the attributes, or why they cannot be read."""
    try:
        return dict(store.attrs), None
    except UnsupportedError:
        return None, None
    except GpustoreError as error:
        return None, str(error)


def _values_of_part(store: Any) -> int:
    try:
        values: int = store.explain().values
    except UnsupportedError:
        return 1
    return values


_Decoding = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, Mapping[str, Any] | None]


def _decoding(store: Any) -> _Decoding:
    """Return who decodes and who encodes here, and who would on a GPU, from estimates of empty
    parts.
    """
    nothing = store[tuple(slice(n, n) for n in store.domain.origin)]
    try:
        read, write = nothing.explain().to_json(), nothing.explain_write().to_json()
    except (UnsupportedError, MetadataError):  # There are no chunks, or no right to read them.
        return None, None, None
    array = store._driver.array
    gpu = {
        "codecs": read["gpu"],
        "reason": read["gpu_reason"],
        "encoders": write["gpu"],
        "encoder_reason": write["gpu_reason"],
        "missing": read["gpu_missing"],
    }
    decoding, encoding = (
        {
            "codecs": found["codecs"],
            "reason": found["host_reason"],
            "library": found["library"],
            "shortcoming": found["shortcoming"],
            "native": native is not None,
        }
        for found, native in ((read, array.native_values), (write, array.native_encoding))
    )
    return decoding, encoding, gpu if store.device == "cpu" else None


def _stored(store: Any, possible: int, complete: bool) -> tuple[int | None, int | None, str | None]:
    """Return the number of stored values below the array, their size in bytes if the kvstore tells
    it, and the reason why they were not counted.
    """
    kvstore = store.kvstore
    if kvstore is None:
        return 0, None, None
    if not kvstore.driver.can_list:
        return None, None, "the kvstore cannot list"
    if not (complete or (kvstore.driver.is_local and possible <= _CHEAP)):
        return None, None, "info_complete() lists their keys"
    listed, errors = kvstore.list_nbytes().result()
    for error in errors.values():
        raise error
    sizes = [size for key, size in listed.items() if key.rpartition("/")[2] not in METADATA_NAMES]
    return len(sizes), sum(sizes), None


def _plain(value: Any) -> Any:
    """Return a fill value as JSON: what JSON has no number for becomes text."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind in "Mm" and np.datetime_data(array.dtype)[0] == "generic":
        array = array.view(np.int64)  # Times without a unit have no text.
    item = array.tolist()
    if isinstance(item, bool | int | str) or (isinstance(item, float) and math.isfinite(item)):
        return item
    return str(array)


def _json(value: Any) -> JsonValue:
    """Return a value of ``asdict`` with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {name: _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    plain: JsonValue = value
    return plain


def _codecs(codecs: Sequence[Mapping[str, Any]], reason: str | None, *, host: str = "host") -> str:
    """Return the decoders or encoders as one line, or the reason why the host does all."""
    if reason is not None:
        return f"the host: {reason}"
    pairs = [tuple(one.values()) for one in codecs]
    named = (f"{host if who == 'host' else who} ({codec})" for codec, who in pairs)
    return ", ".join(named) or "nobody: raw"


def _native_core(state: NativeCore) -> str:
    """Return the state of the native core as one line."""
    if state.in_use:
        return f"in use, decodes {', '.join(state.decoders)}"
    return f"not in use: {state.reason}"


def _size(nbytes: int | None) -> str:
    return "not known: elements have any length" if nbytes is None else format_nbytes(nbytes)


DISPLAY = array_info
