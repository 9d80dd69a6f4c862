"""Commit times: nanoseconds since the epoch, printed and parsed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import quote

_TIME: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?Z", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GIGA: Final = 10**9


def parse_time(text: str) -> int:
    """Return nanoseconds since the epoch of ``2024-01-02T03:04:05.678Z``.

    Raises
    ------
    MetadataError
        If the text is not such a time, or the time is before the epoch or too late.

    Examples
    --------
    >>> parse_time("1970-01-01T00:00:02.5Z")
    2500000000
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise _invalid(text)
    *fields, digits = match.groups()
    try:
        moment = datetime(*map(int, fields), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        raise _invalid(text) from None
    elapsed = moment - _EPOCH
    fraction = int((digits or "0")[:9].ljust(9, "0"))
    time = (elapsed.days * 86400 + elapsed.seconds) * _GIGA + fraction
    if not 0 <= time < 2**63:
        shown = moment.isoformat()
        raise MetadataError(f"Cannot represent {shown} as 64-bit nanoseconds since Unix epoch.")
    return time


def _invalid(text: str) -> MetadataError:
    return MetadataError(
        f"Invalid OCDBT commit time {quote(text)}: Failed to parse input; expected "
        'for example "2024-01-02T03:04:05Z"'
    )


def format_version_time(time: int) -> str:
    """Format a time for the version in specs and URLs.

    >>> format_version_time(2500000000)
    '1970-01-01T00:00:02.5Z'
    """
    return _format(time) + "Z"


def format_time(time: int) -> str:
    """Format a time for messages."""
    return _format(time) + "+00:00"


def _format(time: int) -> str:
    seconds, fraction = divmod(time, _GIGA)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{time} ns"
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}" if digits else text
