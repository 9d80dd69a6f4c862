"""``gpustore info``: description of an array, as text or, with ``--json``, for programs.

:mod:`gpustore.cli.group_info` describes a group. The description of an array has four steps:

1. Open the array, which reads its metadata only.
2. List the stored values, with sizes where the kvstore is a folder of files.
3. Estimate a read and a write of the array: the decoders and encoders here and on a GPU.
   ``--explain`` prints the whole estimates.
4. Print the facts.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli import group_info
from gpustore.cli.failure import CommandError
from gpustore.cli.retries import few_retries
from gpustore.cli.screen import Screen
from gpustore.copying.elements import Elements, open_whole
from gpustore.copying.sizes import chunk_extents, edges_of, format_nbytes, format_shape

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


FORMATS = {"zarr": "Zarr v2", "zarr2": "Zarr v2", "zarr3": "Zarr v3"}
_METADATA = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    context = few_retries()
    try:
        store = open_whole(arguments.array, context=context)
    except gpustore.GpustoreError as error:
        group = group_info.find_group(arguments.array, error, context=context)
        return group_info.run(arguments, group)
    if store.spec().to_json()["driver"] == "json":
        raise CommandError(f"{arguments.array} is a JSON value: `gpustore cat` prints it")
    facts = describe(store)
    if arguments.json:
        if arguments.explain:
            facts["explanation"] = store.explain().to_json()
            facts["write_explanation"] = store.explain_write().to_json()
        print(json.dumps(facts, indent=2))
    else:
        screen = Screen()
        screen.facts(arguments.array, _for_people(store, facts))
        if arguments.explain:
            screen.line(f"\n{store.explain()}\n\n{store.explain_write()}")
    return 0


def describe(store: gpustore.TensorStore) -> dict[str, Any]:
    """Everything the command knows about an array, as JSON.

    Parameters
    ----------
    store : TensorStore
        An opened array.

    Returns
    -------
    dict
        Sizes in bytes; ``nbytes`` is None if elements have any length. ``chunk_shapes`` are the
        chunk sizes along each dimension as they stand in the metadata, where chunks differ;
        ``chunk`` is the largest then. ``shard`` is None unless several chunks share a stored
        value; ``stored_nbytes`` is None where the kvstore does not tell sizes,
        and ``values_stored`` where it cannot list keys. Of
        records, ``fields`` tells what is in one; strings and raw bytes have an ``inner_shape``,
        their length.
        ``cast_from`` is there if elements are cast: all but ``dtype`` and ``fill_value`` is about
        what is stored then.
        ``decoding`` and ``encoding`` say who decodes and encodes chunks here, with which library of
        a device, and what is missing or fails there; ``gpu`` who would on a GPU with nvcomp, why
        the host if so, and what is missing for one here (None if the array is on a GPU).
        ``native_core`` is that of :func:`gpustore.native_core`.
    """
    base = store.base
    if base is not None and store.spec().to_json()["driver"] == "cast":
        return {**describe(base), **_cast(store, base)}
    elements = Elements.of(store)
    rank = elements.rank
    shape = [int(n) for n in store.shape]
    nbytes_decoded = math.prod(shape) * store.dtype.array_dtype.itemsize
    chunk = chunk_extents(store, "read_chunk")[:rank]
    written = chunk_extents(store, "write_chunk")[:rank]
    edges = edges_of(store)
    shape = shape[:rank]
    spec = store.spec().to_json()
    codec = store.codec.to_json() if store.codec is not None else {}
    nstored, nbytes = _stored(store)
    return {
        "format": FORMATS.get(spec["driver"], spec["driver"]),
        "kvstore": spec.get("kvstore"),
        "shape": shape,
        "labels": list(store.domain.labels[:rank]),
        "dtype": elements.dtype,
        "inner_shape": list(elements.inner),
        "fields": [
            {"name": field.name, "dtype": field.dtype, "shape": list(field.shape)}
            for field in elements.fields
        ],
        "chunk": chunk,
        "chunk_shapes": edges,
        "shard": written if written != chunk else None,
        "codec": {name: value for name, value in codec.items() if name != "driver"},
        "fill_value": spec["metadata"]["fill_value"]
        if rank < store.rank
        else _plain(store.fill_value),
        "nbytes": None if store.dtype.array_dtype.hasobject else nbytes_decoded,
        "values_possible": math.prod(map(_count, written if edges is None else edges, shape)),
        "values_stored": nstored,
        "stored_nbytes": nbytes,
        "device": store.device,
        "native_core": asdict(gpustore.native_core()),
        **_decoding(store),
    }


def _cast(store: gpustore.TensorStore, base: gpustore.TensorStore) -> dict[str, Any]:
    """Return the facts that differ in a view with another data type."""
    return {
        "dtype": store.dtype.name,
        "fill_value": _plain(store.fill_value),
        "cast_from": base.dtype.name,
    }


def _decoding(store: gpustore.TensorStore) -> dict[str, Any]:
    """Return who decodes and encodes chunks here and on a GPU, from estimates of empty parts."""
    nothing = store[tuple(slice(n, n) for n in store.domain.origin)]
    read, write = nothing.explain().to_json(), nothing.explain_write().to_json()
    gpu = {
        "codecs": read["gpu"],
        "reason": read["gpu_reason"],
        "encoders": write["gpu"],
        "encoder_reason": write["gpu_reason"],
        "missing": read["gpu_missing"],
    }
    here = {
        name: {
            "codecs": found["codecs"],
            "reason": found["host_reason"],
            "library": found["library"],
            "shortcoming": found["shortcoming"],
        }
        for name, found in (("decoding", read), ("encoding", write))
    }
    return {**here, "gpu": gpu if store.device == "cpu" else None}


def _count(edges: Any, extent: int) -> int:
    """Return the number of chunks of an entry of ``chunk_shapes`` that hold `extent` elements.

    >>> _count(3, 10), _count([[3, 2], 4, 9], 10), _count([[3, 9]], 7)
    (4, 3, 3)
    """
    count, left = 0, extent
    for edge in [[edges, extent]] if isinstance(edges, int) else edges:
        size, times = edge if isinstance(edge, list) else (edge, 1)
        needed = min(times, max(0, -(-left // size)))
        count, left = count + needed, left - size * needed
    return count


def _stored(store: gpustore.TensorStore) -> tuple[int | None, int | None]:
    """Number of stored values below the array, and their size in bytes if the kvstore tells."""
    kvstore = store.kvstore
    if kvstore is None:
        return 0, None
    if not kvstore.driver.can_list:
        return None, None
    keys = [key.decode() for key in kvstore.list().result()]
    values = [key for key in keys if _is_value(key.rpartition("/")[2])]
    try:
        located = kvstore.locate_many(values)
    except gpustore.UnsupportedError:
        return len(values), None
    located.raise_first()
    # -1 stands for a value that was deleted since it was listed.
    return len(values), sum(max(0, size) for size in located.nbytes)


def _is_value(name: str) -> bool:
    """Whether a key that ends so holds data, not metadata."""
    return name not in _METADATA


def _plain(value: Any) -> Any:
    """A fill value as JSON: what JSON has no number for becomes text."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind in "Mm" and np.datetime_data(array.dtype)[0] == "generic":
        array = array.view(np.int64)  # Times without a unit have no text.
    item = array.tolist()
    if isinstance(item, bool | int | str) or (isinstance(item, float) and math.isfinite(item)):
        return item
    return str(array)


def _for_people(store: gpustore.TensorStore, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts as pairs of short texts."""
    labels = [label or str(n) for n, label in enumerate(facts["labels"])]
    named = f"  ({', '.join(labels)})" if any(facts["labels"]) else ""
    ratio = ""
    if facts["stored_nbytes"] and facts["nbytes"] is not None:
        share = min(1.0, facts["values_stored"] / max(1, facts["values_possible"]))
        ratio = f", ratio {facts['nbytes'] * share / facts['stored_nbytes']:.2f}"
    stored = f"of {facts['values_possible']:,}"
    if facts["values_stored"] is None:
        stored = f"unknown, {stored}: the kvstore cannot list"
    else:
        stored = f"{facts['values_stored']:,} {stored}"
    if facts["stored_nbytes"] is not None:
        stored += f", {format_nbytes(facts['stored_nbytes'])}{ratio}"
    edges = (
        "" if facts["chunk_shapes"] is None else f" at most: {json.dumps(facts['chunk_shapes'])}"
    )
    cast = f", cast from {facts['cast_from']}" if "cast_from" in facts else ""
    fill = "none" if facts["fill_value"] is None else facts["fill_value"]
    pairs = [
        ("format", facts["format"]),
        ("shape", format_shape(facts["shape"]) + named),
        ("type", str(Elements.of(store)) + cast),
        ("decoded size", _size(facts["nbytes"])),
        ("chunk", format_shape(facts["chunk"]) + edges),
        ("codecs", format_codecs(facts["codec"])),
        ("fill value", json.dumps(fill) if isinstance(fill, dict) else str(fill)),
        ("shards stored" if facts["shard"] else "chunks stored", stored),
        ("read on", facts["device"]),
        ("native core", _native_core(facts["native_core"])),
    ]
    if facts["gpu"] is None:
        decoding, encoding = facts["decoding"], facts["encoding"]
        pairs.append(("decoded by", _codecs(decoding["codecs"], decoding["reason"])))
        pairs.append(("encoded by", _codecs(encoding["codecs"], encoding["reason"])))
        # What is wrong with the decoders stands in both.
        details = ("library", decoding["library"]), ("missing", encoding["shortcoming"])
        pairs += [(name, text) for name, text in details if text is not None]
    else:
        gpu = facts["gpu"]
        pairs += [("no GPU here", reason) for reason in gpu["missing"]]
        pairs.append(("on a GPU", f"decoded by {_codecs(gpu['codecs'], gpu['reason'])}"))
        pairs.append(("", f"encoded by {_codecs(gpu['encoders'], gpu['encoder_reason'])}"))
    if facts["shard"]:
        pairs.insert(5, ("shard", format_shape(facts["shard"])))
    return pairs


def _codecs(codecs: Sequence[Mapping[str, Any]], reason: str | None) -> str:
    """Return the decoders or encoders as one line, or the reason why the host does all."""
    if reason is not None:
        return f"the host: {reason}"
    pairs = [tuple(one.values()) for one in codecs]
    return ", ".join(f"{who} ({codec})" for codec, who in pairs) or "nobody: raw"


def _native_core(state: Mapping[str, Any]) -> str:
    """Return the state of the native core as one line."""
    if state["in_use"]:
        return f"in use, decodes {', '.join(state['decoders'])}"
    return f"not in use: {state['reason']}"


def _size(nbytes: int | None) -> str:
    return "not known: elements have any length" if nbytes is None else format_nbytes(nbytes)


def format_codecs(codec: Mapping[str, Any]) -> str:
    """Format a codec spec with one codec a line, those inside a shard indented.

    Parameters
    ----------
    codec : dict
        JSON of a codec spec, without its driver.

    >>> format_codecs({"compressor": {"id": "zlib", "level": 2}, "filters": None})
    'zlib (level 2)'
    >>> format_codecs({"compressor": None, "filters": [{"id": "shuffle", "elementsize": 2}]})
    'shuffle (elementsize 2)'
    """
    if "codecs" in codec:
        return "\n".join(line for one in codec["codecs"] for line in _codec_lines(one))
    chain = [*(codec.get("filters") or []), codec.get("compressor")]
    lines = [_with_options(c["id"], {k: v for k, v in c.items() if k != "id"}) for c in chain if c]
    return "\n".join(lines) or "none"


def _codec_lines(codec: Mapping[str, Any]) -> list[str]:
    options = dict(codec.get("configuration", {}))
    inner = options.pop("codecs", [])
    options.pop("index_codecs", None)
    lines = [_with_options(codec["name"], options)]
    return lines + [f"  {line}" for one in inner for line in _codec_lines(one)]


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    if not options:
        return name
    return f"{name} ({', '.join(f'{k} {json.dumps(v)}' for k, v in options.items())})"
