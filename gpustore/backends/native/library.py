"""Loads the native core, a shared library beside this file that the installation compiled."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

# With a dot in its name nothing takes it for an extension module of Python (`pkgutil`).
PATH = Path(__file__).with_name("core.native.so")

ABI = 18_013_631_049_251_674
"""Number that ``gpustore_core_abi()`` returns if the library and this package fit together: a hash
of the declarations that both share."""


def library() -> ctypes.CDLL | None:
    """Return the native core, or None if it is not in use (see :func:`why_not`).

    It is loaded at the first call, which several threads may make at once.
    """
    return _load()[0]


def why_not() -> str | None:
    """Return the reason why the native core is not in use; None if it is."""
    return _load()[1]


@cache  # Two threads may both load it; that gives them the same library.
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    if os.environ.get("GPUSTORE_NATIVE") == "0":
        return None, "GPUSTORE_NATIVE is 0"
    if sys.implementation.name != "cpython":
        return None, "it needs CPython"
    if sys.byteorder != "little":
        return None, "it needs a little-endian processor"
    if not PATH.exists():
        return None, "it was not compiled at installation: no C++ compiler, or GPUSTORE_NATIVE=0"
    try:
        core = ctypes.CDLL(str(PATH))
        abi = core.gpustore_core_abi
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"
    abi.restype, abi.argtypes = ctypes.c_int64, ()
    if abi() != ABI:
        return None, f"{PATH} was built from another version of gpustore: install it again"
    return core, None
