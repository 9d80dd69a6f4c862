"""Batches of streams decompressed and compressed on a GPU by nvcomp.

There are two engines for the same operations: the C library
(:mod:`gpustore.backends.nvcomp.library`), and the Python package
(:mod:`gpustore.backends.nvcomp.bindings`) where that cannot be loaded. They are loaded
independently, and prove themselves by the self-test of the device
(:mod:`gpustore.device.decoders`).

Streams and memory are given by address. Only ``backends/cuda`` uses this package.
"""

from __future__ import annotations

from functools import cache

from gpustore.backends.nvcomp.bindings import Bindings
from gpustore.backends.nvcomp.library import Library
from gpustore.errors import DeviceError


@cache
def engine() -> tuple[Library | Bindings | None, str | None]:
    """Load the C library if its version is known, else the Python package.

    Returns
    -------
    Library, Bindings or None
        The engine; None without a usable one.
    str or None
        Reason why it is not the C library, and what to install.
    """
    try:
        return Library(), None
    except DeviceError as error:
        reason = error.text
    try:
        return Bindings(), f"{reason}; nvcomp's Python package decodes, and waits for each call"
    except DeviceError as error:
        return None, f"{reason}; {error.text}"
