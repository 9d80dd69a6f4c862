"""Opened arrays as HTML for notebooks: a table of facts beside a picture of the chunk grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from gpustore.display.chunk_grid import axes_of, picture
from gpustore.display.text import Fact, format_codecs, format_nbytes
from gpustore.errors import GpustoreError


def array_html(store: Any) -> str:
    """Describe a TensorStore without I/O."""
    axes = axes_of(store)
    nchunks = math.prod(len(axis.chunks) + 1 for axis in axes)
    nshards = math.prod(len(axis.shards) + 1 for axis in axes)
    labels, units = store.domain.labels, store.dimension_units
    facts = [("shape", _extents(store.shape))]
    if any(labels):
        facts.append(("dimensions", ", ".join(label or str(n) for n, label in enumerate(labels))))
    if any(store.domain.origin):
        facts.append(("domain", str(store.domain)))
    if any(units):
        texts = (str(unit) if unit is not None else "-" for unit in units)
        facts.append(("units", ", ".join(texts)))
    facts.append(("type", store.dtype.name))
    if store.chunks:
        facts.append(("chunks", _counted(store.chunks, nchunks)))
    if store.shards:
        facts.append(("shards", _counted(store.shards, nshards)))
    if store.codec is not None:
        facts.append(("codecs", format_codecs(store.codec.to_json())))
    size = (
        "not known: elements have any length"
        if store.dtype.array_dtype.hasobject
        else format_nbytes(store.nbytes)
    )
    facts += [("decoded size", size), ("read on", store.device)]
    return page("gpustore.TensorStore", _place(store), facts, picture(axes))


def page(title: str, place: str, facts: Sequence[Fact], aside: str) -> str:
    """Return a title, a table of facts, and more HTML at its side.

    Parameters
    ----------
    title, place : str
        Kind of the object, and where it is.
    facts : sequence of Fact
    aside : str
        HTML.
    """
    rows = "".join(
        f'<tr style="background:none"><th style="text-align:left;vertical-align:top;'
        f'font-weight:normal;opacity:.7;padding:1px 1em 1px 0">{escape(name)}</th>'
        '<td style="text-align:left;white-space:pre-wrap;max-width:32em;padding:1px 0">'
        f"{escape(value)}</td></tr>"
        for name, value in facts
    )
    return (
        f'<div style="margin:.3em 0"><b>{escape(title)}</b> '
        f'<code style="background:none;color:inherit;overflow-wrap:anywhere">{escape(place)}</code>'
        '<div style="display:flex;flex-wrap:wrap;gap:1em 2.5em;align-items:center;margin-top:.4em">'
        f'<table style="border:none;border-collapse:collapse;margin:0"><tbody>{rows}</tbody>'
        f"</table>{aside}</div></div>"
    )


def _extents(shape: Sequence[int]) -> str:
    return " x ".join(f"{extent:,}" for extent in shape) if shape else "a single value"


def _counted(shape: Sequence[int], count: int) -> str:
    return f"{_extents(shape)}  ({count:,})"


def _place(store: Any) -> str:
    try:
        url: str = store.url
    except GpustoreError:
        return ""
    return url


DISPLAY = array_html
