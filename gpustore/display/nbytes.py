"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "": 1, "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def nbytes_of(size: int | str, name: str) -> int:
    """Return a number of bytes of at least 1.

    Parameters
    ----------
    size : int or str
        Number of bytes, or a number and a unit.
    name : str
        Name of the parameter, for errors.

    >>> nbytes_of("1.5 MiB", "window")
    1572864
    """
    if isinstance(size, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", size)
        if parts is None or parts[2] not in _UNITS:
            raise ValueError(f"{name}: expected bytes, such as 1000000 or '256 MiB', got {size!r}")
        size = int(float(parts[1]) * _UNITS[parts[2]])
    try:
        is_small = size < 1
    except TypeError:
        raise TypeError(
            f"{name}: expected bytes, such as 1000000 or '256 MiB', got {size!r}"
        ) from None
    if is_small:
        raise ValueError(f"{name}: expected at least 1 byte, got {size}")
    return int(size)
