"""Sizes, shapes and codecs as short texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Fact = tuple[str, str]
"""Name and value; lines of the value are divided by newlines."""

_PREFIXES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def format_nbytes(nbytes: int) -> str:
    """Format a decimal size with three digits.

    >>> format_nbytes(999), format_nbytes(1_234_567), format_nbytes(200_000_000)
    ('999 B', '1.23 MB', '200 MB')
    """
    value = float(nbytes)
    for unit in _PREFIXES:
        # What rounds up to four digits belongs to the next unit.
        if value < 999.5 or unit == _PREFIXES[-1]:
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


def format_shape(extents: Sequence[int]) -> str:
    """Format extents for people.

    >>> format_shape([4, 7]), format_shape([])
    ('4 x 7', 'a single value')
    """
    return " x ".join(map(str, extents)) if extents else "a single value"


def format_codecs(codec: Mapping[str, Any]) -> str:
    """Format a codec spec with one codec a line, those inside a shard indented.

    Parameters
    ----------
    codec : dict
        JSON of a codec spec, without its driver.

    >>> format_codecs({"compressor": {"id": "zlib", "level": 2}, "filters": None})
    'zlib (level 2)'
    >>> format_codecs({"compressor": None, "filters": [{"id": "shuffle", "elementsize": 2}]})
    'shuffle (elementsize 2)'
    >>> format_codecs({"compression": {"type": "gzip", "level": 6}})
    'gzip (level 6)'
    >>> format_codecs({"encoding": "jpeg", "jpeg_quality": 75})
    'jpeg (jpeg_quality 75)'
    """
    if "codecs" in codec:
        return "\n".join(line for one in codec["codecs"] for line in _codec_lines(one))
    if "compression" in codec:  # of N5
        compression = dict(codec["compression"])
        return _with_options(compression.pop("type"), compression)
    if "encoding" in codec:  # of neuroglancer
        options = dict(codec)
        return _with_options(options.pop("encoding"), options)
    chain = [*(codec.get("filters") or []), codec.get("compressor")]
    lines = [_with_options(c["id"], {k: v for k, v in c.items() if k != "id"}) for c in chain if c]
    return "\n".join(lines) or "none"


def _codec_lines(codec: Mapping[str, Any]) -> list[str]:
    options = dict(codec.get("configuration", {}))
    inner = options.pop("codecs", [])
    options.pop("index_codecs", None)
    lines = [_with_options(codec["name"], options)]
    return lines + [f"  {line}" for one in inner for line in _codec_lines(one)]


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    if not options:
        return name
    return f"{name} ({', '.join(f'{k} {json.dumps(v)}' for k, v in options.items())})"


def shortened(text: str, length: int = 80) -> str:
    """Return `text`, or its beginning and three dots if it has more than `length` characters.

    >>> shortened("abcdef", 5)
    'ab...'
    """
    return text if len(text) <= length else text[: length - 3] + "..."


def lines_of(facts: Sequence[Fact]) -> Iterator[Fact]:
    r"""Yield the facts line by line, with names of one width; further lines of a value have none.

    >>> list(lines_of([("a", "1"), ("bc", "2\n3")]))
    [('a ', '1'), ('bc', '2'), ('  ', '3')]
    """
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *more = value.split("\n")
        yield name.ljust(width), first
        for line in more:
            yield " " * width, line


def text_of(title: str, facts: Sequence[Fact]) -> str:
    """Return a title and facts below it as text."""
    return "\n".join([title, *(f"  {name}  {value}".rstrip() for name, value in lines_of(facts))])
