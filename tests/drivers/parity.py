"""Compares opened arrays with TensorStore's: results as text, errors by kind and first sentence."""

import json
import re
from pathlib import Path

import numpy as np
import tensorstore as ts

import gpustore

LIBRARIES = (gpustore, ts)

_PAYLOAD = re.compile(
    r" \[(?:tensorstore_spec|transform|domain|schema|source locations|"
    r"tensorstore_kvstore_spec)=.*",
    re.DOTALL,
)

_OURS = ("device", "limits")
"""Context resources TensorStore does not have."""

_THEIRS = re.compile(r"file_io_|ocdbt_coordinator|metadata_cache_pool")
"""Context members that only one of the libraries prints, or in another place."""


def outcome(function, *, root=None):
    """What it returns as text, or the builtin kind of its error and the first sentence.

    Parameters
    ----------
    function : callable
        Without arguments.
    root : path, optional
        A folder that differs between the libraries; it is called ``<root>``.
    """
    try:
        result = function()
    except (ValueError, NotImplementedError, TypeError, IndexError, OverflowError) as error:
        builtins = (NotImplementedError, IndexError, TypeError, OverflowError, ValueError)
        kind = next(kind for kind in builtins if isinstance(error, kind))
        return kind.__name__, _without(root, _PAYLOAD.sub("", str(error)))
    return _without(root, text(result))


def agree(ours, theirs):
    """Whether two outcomes are the same; our messages may say more, and TypeErrors differ."""
    if isinstance(theirs, str) or isinstance(ours, str):
        return ours == theirs
    return ours[0] == theirs[0] and (
        ours[1].startswith(theirs[1]) or "incompatible function arguments" in theirs[1]
    )


def text(result):
    """A result as text that is the same for equal results of both libraries."""
    if isinstance(result, np.ndarray):
        return f"{result.dtype} {result.shape} {result.tolist()}"
    if hasattr(result, "tobytes"):
        return f"{result.dtype} {result!s}"
    if isinstance(result, dict):
        return json.dumps(result, sort_keys=True, indent=1)
    return repr(result).replace("tensorstore.", "")


def description(store):
    """All properties of a store, and its spec without what differs by design."""
    names = (
        *("domain", "shape", "rank", "ndim", "size", "origin", "dtype", "chunk_layout", "codec"),
        *("fill_value", "dimension_units", "schema", "url", "mode", "readable", "writable"),
    )
    values = {name: outcome(lambda name=name: getattr(store, name)) for name in names}
    values["kvstore"] = None if store.kvstore is None else store.kvstore.url
    values["spec"] = without_context(store.spec().to_json())
    return values


def without_context(json):
    """A spec's JSON without the context members that are printed differently by design."""
    if isinstance(json, dict):
        return {
            name: without_context(value)
            for name, value in json.items()
            if not _THEIRS.match(name) and name not in _OURS
        }
    if isinstance(json, list):
        return [without_context(value) for value in json]
    return json


def files(folder):
    """The bytes of every file below `folder`, by relative name."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _without(root, text):
    return text if root is None else text.replace(str(root), "<root>")
