"""Describes the native core to users."""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.backends.native import decoders, library


@dataclass(frozen=True, slots=True)
class NativeCore:
    """State of the native core in this process; see :func:`native_core`.

    Attributes
    ----------
    in_use : bool
        Whether the core is loaded.
    reason : str or None
        Why it is not; None if it is.
    decoders : tuple of str
        Codecs that it decodes, ``"raw"`` among them for chunks without a codec; empty if it is not
        in use. A codec is missing where no installed library has its functions.
    """

    in_use: bool
    reason: str | None
    decoders: tuple[str, ...]


def native_core() -> NativeCore:
    """Tell whether reads and writes of local files use the native core, and if not, why.

    The core is C++ that the installation compiles where it finds a compiler. Without it, and for
    what it does not support, everything takes its path in Python, with the same results. The
    environment variable ``GPUSTORE_NATIVE=0`` turns it off when the process starts.

    Examples
    --------
    >>> import gpustore
    >>> core = gpustore.native_core()
    >>> core.in_use == (core.reason is None)
    True
    """
    reason = library.why_not()
    return NativeCore(reason is None, reason, () if reason else decoders.decodable())
