"""Finds kvstores, codecs, drivers, backends and context resources by name, at run time.

This is how a lower layer reaches a higher one: driver JSON -> kvstore, Spec -> driver,
metadata -> codec. It is the only module that uses :mod:`importlib`. A name that comes from a
file is compared with the folder listing below; nothing is ever imported because a file said so.

Each module in one of the folders registers itself by defining one object:

=============  ============  =================================================
folder         object        what it is
=============  ============  =================================================
``resources``  ``RESOURCE``  a context resource, file name = its identifier
``kvstores``   ``DRIVER``    a kvstore driver, file name = its identifier
``codecs``     ``CODEC``     a codec, file name = its name
``backends``   ``BACKEND``   how bytes move and decode
``pipelines``  ``PIPELINE``  a pipeline that few programs need, and that loads much
``drivers``    ``DRIVER``    a TensorStore driver, file name = its identifier
=============  ============  =================================================
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["find", "find_scheme", "ids", "is_installed", "schemes"]

_OBJECT = {
    "resources": "RESOURCE",
    "kvstores": "DRIVER",
    "codecs": "CODEC",
    "backends": "BACKEND",
    "pipelines": "PIPELINE",
    "drivers": "DRIVER",
}

# Modules of those folders that are machinery, not registered things.
_NOT_REGISTERED = {
    "kvstores": {"base"},
    "codecs": {"base", "chain", "chain_spec", "compressor", "filter", "merge", "resolve", "value"},
    "backends": {"base", "decoders", "rehearsal", "selection"},
    "pipelines": {
        "cached",
        "chunked_array",
        "explanation",
        "fetch",
        "read",
        "read_batch",
        "read_many",
        "rehearse",
        "stored",
        "write",
    },
    "drivers": {"base", "chunked", "chunked_spec", "format"},
}

# Other names under which a registered module is known: (folder, name) -> file name.
_ALIASES = {
    ("drivers", "zarr"): "zarr2",
}

# URL schemes of modules whose names are no schemes; "" for those that have none.
_SCHEMES = {
    ("kvstores", "gs"): "gcs",
    ("kvstores", "gcs"): "",
    ("kvstores", "https"): "http",
    ("drivers", "array"): "",
    ("drivers", "zarr"): "",
}

# Names with a dash, which files have as an underscore.
_DASHED = {"vlen-bytes", "vlen-utf8"}


@cache
def ids(folder: str) -> tuple[str, ...]:
    """Names of all modules registered in `folder`, sorted, without aliases.

    >>> "file" in ids("kvstores")
    True
    """
    path = Path(__file__).parent / folder
    skip = _NOT_REGISTERED.get(folder, set())
    names = {module.name for module in pkgutil.iter_modules([str(path)])}
    found = {n for n in names if not n.startswith("_") and n not in skip}
    dashed = {n for n in _DASHED if n.replace("-", "_") in found}
    return tuple(sorted(found - {n.replace("-", "_") for n in dashed} | dashed))


@cache
def find(folder: str, name: str) -> Any:
    """The object that ``gpustore/<folder>/<name>.py`` registers, or None if there is none.

    Parameters
    ----------
    folder : str
        One of the folders listed above.
    name : str
        A name, possibly from a file: it is only compared with :func:`ids` and the aliases.
    """
    name = _ALIASES.get((folder, name), name)
    if name not in ids(folder):
        return None
    module = importlib.import_module(f"gpustore.{folder}.{name.replace('-', '_')}")
    return getattr(module, _OBJECT[folder])


def find_scheme(folder: str, scheme: str) -> Any:
    """As :func:`find`, by the scheme of a URL component.

    >>> find_scheme("kvstores", "memory").id, find_scheme("drivers", "array")
    ('memory', None)
    """
    return find(folder, _SCHEMES.get((folder, scheme), scheme))


def schemes() -> tuple[str, ...]:
    """The schemes of URL components that :func:`find_scheme` knows, sorted.

    >>> {"gs", "https", "zarr3"} <= set(schemes()), "array" in schemes()
    (True, False)
    """
    folders = ("kvstores", "drivers")
    names = {(folder, name) for folder in folders for name in ids(folder)} | _SCHEMES.keys()
    return tuple(sorted(name for folder, name in names if _SCHEMES.get((folder, name)) != ""))


def is_installed(module: str) -> bool:
    """Whether a module of another package could be imported; imports at most its parents.

    >>> is_installed("numpy"), is_installed("no_such_package.part")
    (True, False)
    """
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
