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

_DEFECTS = {'"\\"': '"', '\\""': '"', "<discarded>": "nothing"}
"""What TensorStore's messages quote twice or do not say, and how ours say it."""

_OURS = (
    "device",
    "device_allocator",
    "device_cache_pool",
    "gpu_decode_choice",
    "gpu_decode_trust",
    "limits",
)
"""Context resources TensorStore does not have."""

_THEIRS = re.compile(r"file_io_|ocdbt_coordinator|metadata_cache_pool")
"""Context members that only one of the libraries prints, or in another place."""


def outcome(function, *, root=None):
    """Return the result as text, or the builtin kinds of the error and its first sentence.

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
        kinds = [kind.__name__ for kind in builtins if isinstance(error, kind)]
        if isinstance(error, NotImplementedError):
            kinds = kinds[:1]  # UnsupportedError is a ValueError too.
        message = _PAYLOAD.sub("", str(error))
        for defect, better in _DEFECTS.items():
            message = message.replace(defect, better)
        return kinds, _without(root, message)
    return _without(root, text(result))


def agree(ours, theirs):
    """Whether two outcomes are the same.

    Our errors may be of more kinds and say more; only the kind of a TypeError counts.
    """
    if isinstance(theirs, str) or isinstance(ours, str):
        return ours == theirs
    if not set(theirs[0]) <= set(ours[0]):
        return False
    return theirs[0] == ["TypeError"] or ours[1].startswith(theirs[1])


def both(function, tmp_path):
    """Outcomes of ``function(library, folder)`` with gpustore and with TensorStore."""
    outcomes = []
    for library in LIBRARIES:
        root = Path(tmp_path) / library.__name__
        root.mkdir(exist_ok=True)
        outcomes.append(
            outcome(lambda library=library, root=root: function(library, root), root=root)
        )
    return outcomes


def check(function, tmp_path):
    """Check that both libraries do the same; see :func:`agree`."""
    ours, theirs = both(function, tmp_path)
    assert agree(ours, theirs), f"ours: {ours}\ntheirs: {theirs}"


def text(result):
    """A result as text that is the same for equal results of both libraries."""
    if isinstance(result, np.ndarray):
        return f"{result.dtype} {result.shape} {result.tolist()}"
    if hasattr(result, "tobytes"):
        return f"{result.dtype} {result!s}"
    if isinstance(result, dict | list):
        return json.dumps(result, sort_keys=True, indent=1, default=text)
    if isinstance(result, gpustore.TensorStore | ts.TensorStore):
        return text(result.spec(unbind_context=True).to_json())
    shown = str(result) if isinstance(result, gpustore.Spec) else repr(result)
    return shown.replace("tensorstore.", "")


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


RAW = {"zarr2": {"compressor": None}, "zarr3": {"codecs": ["bytes"]}}
"""Metadata of uncompressed chunks."""

_COMPRESSED = ("blosc", "bz2", "bzip2", "gzip", "xz", "zlib", "zstd")
"""Codecs whose bytes depend on the library's version."""


def values(store):
    """Elements 0, 1, 0, 1, ...: they exist in every data type."""
    ones = np.arange(store.size).reshape(store.shape) % 2
    return ones.astype(store.dtype.numpy_dtype)


def created(driver, metadata, keywords, *, elements=values, **members):
    """Creates an array and writes it; gives its files, without compressed chunks."""

    def run(library, root):
        given = {
            name: value(library) if callable(value) else value for name, value in keywords.items()
        }
        spec = {"driver": driver, "kvstore": f"file://{root}/a", "metadata": metadata}
        store = library.open(spec | members, create=True, **given).result()
        if elements is not None:
            store[...] = elements(store)
        is_raw = not any(name in str(store.codec.to_json()) for name in _COMPRESSED)
        return {
            "files": {
                name: data.decode("latin1") if is_raw or name.endswith(("zarray", ".json")) else ""
                for name, data in files(root).items()
            },
            "store": description(store),
            "elements": store.read().result().tobytes().hex(),
        }

    return run


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
