"""Durations as TensorStore writes them in JSON: ``"60s"``, ``"1m30s"``, ``"100ms"``, ``"inf"``.

A duration is a whole number of quarters of a nanosecond, the resolution of the library that
TensorStore uses (Abseil), or an infinity.

Source: ``absl::ParseDuration`` and ``absl::FormatDuration``.
"""

from __future__ import annotations

import math
import re

from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import JsonValue, text

# Quarters of a nanosecond, or plus or minus infinity.
Duration = int | float

_PER_NS = 4
_UNITS = {
    "ns": _PER_NS,
    "us": _PER_NS * 10**3,
    "ms": _PER_NS * 10**6,
    "s": _PER_NS * 10**9,
    "m": _PER_NS * 60 * 10**9,
    "h": _PER_NS * 3600 * 10**9,
}
_PART = re.compile(r"(?=\.?\d)(\d*)(?:\.(\d*))?(ns|us|ms|s|m|h)", re.ASCII)
# Abseil counts seconds in 64 bits.
_MAX_SECONDS = 2**63 - 1


def parse_duration(json: JsonValue) -> Duration:
    """Parse the JSON of a duration; MetadataError if it is none.

    >>> seconds(parse_duration("1m30s"))
    90.0
    """
    ticks = _parse(json) if isinstance(json, str) and len(json) <= 100 else None
    if ticks is None:
        raise MetadataError(
            'Expected Duration formatted as a string using time units "ns", "us" "ms", "s", "m", '
            f'or "h"., but received: {text(json)}'
        )
    return ticks


def _parse(string: str) -> Duration | None:
    sign = -1 if string.startswith("-") else 1
    rest = string[1:] if string[:1] in ("-", "+") else string
    if rest == "inf":
        return sign * math.inf
    if rest == "0":
        return 0
    total = 0
    at = 0
    while at < len(rest) or not rest:
        part = _PART.match(rest, at)
        if part is None:
            return None
        whole, fraction, unit = part.groups()
        digits = fraction or ""
        total += int((whole or "0") + digits) * _UNITS[unit] // 10 ** len(digits)
        at = part.end()
    if total > _MAX_SECONDS * _UNITS["s"]:
        return None
    return sign * total


def format_duration(duration: Duration) -> str:
    """Format a duration with the largest units that fit, as Abseil does.

    >>> format_duration(parse_duration("5400s")), format_duration(parse_duration("0.25s"))
    ('1h30m', '250ms')
    """
    if isinstance(duration, float):
        return "inf" if duration > 0 else "-inf"
    if duration == 0:
        return "0"
    sign = "-" if duration < 0 else ""
    ticks = abs(duration)
    for unit in ("ns", "us", "ms"):
        if ticks < _UNITS[_LARGER[unit]]:
            return sign + _number(ticks, unit)
    hours, ticks = divmod(ticks, _UNITS["h"])
    minutes, ticks = divmod(ticks, _UNITS["m"])
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    return sign + "".join(parts) + (_number(ticks, "s") if ticks else "")


_LARGER = {"ns": "us", "us": "ms", "ms": "s"}


def _number(ticks: int, unit: str) -> str:
    """Format `ticks` in `unit`, with as many decimals as needed."""
    per_unit = _UNITS[unit]
    whole, rest = divmod(ticks, per_unit)
    decimals = len(str(per_unit // _PER_NS)) - 1 + 2
    digits = f"{rest * 10**decimals // per_unit:0{decimals}d}".rstrip("0")
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"


def seconds(duration: Duration) -> float:
    """Return the length of a duration in seconds; an infinite one stays infinite."""
    return duration / _UNITS["s"]
