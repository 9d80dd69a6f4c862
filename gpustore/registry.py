"""Finds kvstores, codecs, drivers, backends, resources, estimates and sources by name.

A lower layer reaches a higher one through this module: driver JSON -> kvstore, Spec -> driver,
metadata -> codec. It is the only module that uses :mod:`importlib`. A name that comes from a
file is compared with the listing of a folder; no module is imported because a file names it.

Each module or package in one of the folders registers itself by defining one object; a module that
defines none is machinery of its folder:

=============  ============  =================================================
folder         object        what it is
=============  ============  =================================================
``resources``  ``RESOURCE``  a context resource, file name = its identifier
``kvstores``   ``DRIVER``    a kvstore driver, file name = its identifier
``codecs``     ``CODEC``     a codec, file name = its name
``backends``   ``BACKEND``   a backend: moves, decodes and places bytes
``explain``    ``EXPLAIN``   estimate of what reads will do
``drivers``    ``DRIVER``    a TensorStore driver, file name = its identifier
``display``    ``DISPLAY``   text or picture of an array or a group
``sources``    ``FORMAT``    a format of files that are copied, file name = its name
``cli``        ``COMMANDS``  options of the commands of a module, by name
=============  ============  =================================================
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import threading
from functools import cache
from pathlib import Path
from typing import Any

# Held while a module below the root is imported by name. Python imports a module and its package
# under one lock each: two threads that take them in either order would get an error of a deadlock.
_importing = threading.RLock()
os.register_at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)

# Above the root, whose names their modules use: without the lock, which they would wait for.
_ABOVE = {"cli", "interop", "loader"}

_OBJECT = {
    "resources": "RESOURCE",
    "kvstores": "DRIVER",
    "codecs": "CODEC",
    "backends": "BACKEND",
    "explain": "EXPLAIN",
    "drivers": "DRIVER",
    "display": "DISPLAY",
    "sources": "FORMAT",
    "cli": "COMMANDS",
}

# Other names under which a registered module is known: (folder, name) -> file name.
_ALIASES = {
    ("drivers", "zarr"): "zarr2",
    ("drivers", "neuroglancer-precomputed"): "neuroglancer_precomputed",
}

# Where to look for a URL scheme that is not a file name, without importing all of a folder.
_SCHEMES = {
    ("kvstores", "gs"): "gcs",
    ("kvstores", "https"): "http",
}

# Registered names with a dash; a Python file cannot have one and is named with an underscore.
_DASHED = {"vlen-bytes", "vlen-utf8"}
_FILE_NAMES = {name.replace("-", "_"): name for name in _DASHED}


@cache
def _modules(folder: str) -> frozenset[str]:
    """Return the names of the public modules and packages in a folder of this package."""
    path = Path(__file__).parent / folder
    names = {module.name for module in pkgutil.iter_modules([str(path)])}
    return frozenset(name for name in names if not name.startswith("_"))


@cache
def ids(folder: str) -> tuple[str, ...]:
    """Return the sorted names registered in `folder`, without aliases; imports all its modules.

    >>> "file" in ids("kvstores")
    True
    """
    names = {_FILE_NAMES.get(name, name) for name in _modules(folder)}
    return tuple(sorted(name for name in names if find(folder, name) is not None))


@cache
def find(folder: str, name: str) -> Any:
    """Return the object that ``gpustore/<folder>/<name>`` registers, None if there is none.

    Parameters
    ----------
    folder : str
        One of the folders listed above.
    name : str
        A registered name or an alias, possibly from a file: it is only compared with the listing.
    """
    name = _ALIASES.get((folder, name), name)
    if name in _FILE_NAMES:
        return None
    module = name.replace("-", "_") if name in _DASHED else name
    if module not in _modules(folder):
        return None
    return getattr(_import(f"{folder}.{module}"), _OBJECT[folder], None)


def is_kvstore(name: str) -> bool:
    """Whether a kvstore driver has this identifier.

    >>> is_kvstore("zip"), is_kvstore("zarr3"), is_kvstore("base")
    (True, False, False)
    """
    return find("kvstores", name) is not None


def find_scheme(folder: str, scheme: str) -> Any:
    """Return the object whose ``schemes`` have the scheme of a URL component, or None.

    >>> find_scheme("kvstores", "memory").id, find_scheme("kvstores", "gs").id
    ('memory', 'gcs')
    >>> find_scheme("kvstores", "gcs"), find_scheme("drivers", "array")
    (None, None)
    """
    kind = find(folder, _SCHEMES.get((folder, scheme), scheme))
    return kind if kind is not None and scheme in kind.schemes else None


def schemes() -> tuple[str, ...]:
    """Return the sorted schemes of URL components that :func:`find_scheme` knows.

    >>> {"gs", "https", "zarr3"} <= set(schemes()), "array" in schemes()
    (True, False)
    """
    kinds = [find(folder, name) for folder in ("kvstores", "drivers") for name in ids(folder)]
    return tuple(sorted(scheme for kind in kinds for scheme in kind.schemes))


@cache
def guest(library: str) -> Any:
    """Import ``gpustore/interop/<library>``, the module about a library that is used together.

    Parameters
    ----------
    library : str
        Name of the module, which is that of the library and of the extra that installs it.

    Raises
    ------
    ModuleNotFoundError
        If the library is not installed; the message has the command that installs it.
    """
    return _import(f"interop.{library}")


def room(name: str) -> Any:
    """Return the module ``gpustore.<name>`` if the package has such a folder or file, else None.

    >>> room("errors").__name__, room("no_such_room")
    ('gpustore.errors', None)
    """
    return _import(name) if name in _modules("") else None


@cache
def public(module: str, name: str) -> Any:
    """Return what ``gpustore.<module>`` defines under `name`, for the lazy names of the root."""
    return getattr(_import(module), name)


def _import(module: str) -> Any:
    if module.partition(".")[0] in _ABOVE:
        return importlib.import_module(f"gpustore.{module}")
    with _importing:
        return importlib.import_module(f"gpustore.{module}")


def file_of(module: str) -> str:
    """Return the path of a module in another package; imports neither, if it lies in a folder.

    Parameters
    ----------
    module : str
        Name with one dot: ``<package>.<module>``.

    Raises
    ------
    ImportError
        If there is no such module.
    """
    package = importlib.util.find_spec(module.partition(".")[0])
    folders = package.submodule_search_locations if package else None
    found = importlib.machinery.PathFinder.find_spec(module, folders)
    path = found.origin if found else importlib.import_module(module).__file__
    if path is None:
        raise ImportError(f"{module} has no file", name=module)
    return path


def is_installed(module: str) -> bool:
    """Whether a module of another package can be imported; imports at most its parent packages.

    >>> is_installed("numpy"), is_installed("no_such_package.part")
    (True, False)
    """
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
