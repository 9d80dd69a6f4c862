"""Compressions of N5: their types and options.

==========  ================================================  ==================
type        options                                           codec
==========  ================================================  ==================
``raw``                                                       none
``gzip``    ``level``, ``useZlib``                            ``gzip``, ``zlib``
``bzip2``   ``blockSize``                                     ``bz2``
``xz``      ``preset``                                        ``lzma``
``blosc``   ``cname``, ``clevel``, ``shuffle``, ``blocksize`` ``blosc``
``zstd``    ``level``                                         ``zstd``
==========  ================================================  ==================

Java's ``lz4`` has a format of its own around each block, which neither TensorStore nor gpustore
reads.

Source: TensorStore ``driver/n5/schema.yml``; https://github.com/saalfeldlab/n5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.named_configuration import json_equal
from gpustore.strict_json.near_names import near_or_known
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    expect_bool,
    expect_int,
    expect_object,
    expect_str,
    quote,
    text,
)

Compression: TypeAlias = Mapping[str, JsonValue]

_CNAMES: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


class _Option(NamedTuple):
    """One option of a compression: its name, conversion and default."""

    name: str
    convert: Callable[[JsonValue], JsonValue]
    default: JsonValue | Required = REQUIRED


def _integer(minimum: int, maximum: int) -> Callable[[JsonValue], JsonValue]:
    return lambda value: expect_int(value, minimum, maximum, integral_floats=True)


def _cname(value: JsonValue) -> str:
    if isinstance(value, str) and value not in _CNAMES:
        raise MetadataError(f"Expected one of {','.join(_CNAMES)}, but received: {text(value)}")
    return expect_str(value)


_TYPES: Final[Mapping[str, tuple[_Option, ...]]] = {
    "raw": (),
    "gzip": (_Option("level", _integer(-1, 9), -1), _Option("useZlib", expect_bool, False)),
    "bzip2": (_Option("blockSize", _integer(1, 9), 9),),
    "xz": (_Option("preset", _integer(0, 9), 6),),
    "blosc": (
        _Option("cname", _cname),
        _Option("clevel", _integer(0, 9)),
        _Option("shuffle", _integer(0, 2)),
        _Option("blocksize", _integer(0, 2**64 - 1), 0),
    ),
    "zstd": (_Option("level", _integer(-131072, 22), 0),),
}


def parse_compression(value: JsonValue) -> dict[str, JsonValue]:
    """Return a validated compression with its defaults.

    Raises
    ------
    MetadataError
        If the type or an option is not known.

    Examples
    --------
    >>> parse_compression({"type": "gzip"})
    {'type': 'gzip', 'level': -1, 'useZlib': False}
    """
    members = Members(expect_object(value))
    name = members.take_str("type")
    found = _TYPES.get(name)
    if found is None:
        hint = near_or_known(name, _TYPES)
        raise members.error(f"{quote(name)} is not registered{hint}", "type")
    parsed: dict[str, JsonValue] = {"type": name}
    for option in found:
        parsed[option.name] = members.take_with(option.name, option.convert, option.default)
    members.finish()
    return parsed


def default_compression(itemsize: int) -> dict[str, JsonValue]:
    """Return the compression of a new array without a constraint: Blosc, as in TensorStore."""
    shuffle = 2 if itemsize == 1 else 1
    return parse_compression({"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle})


def merge_compressions(a: Compression | None, b: Compression | None) -> Compression | None:
    """Return the compression that satisfies `a` and `b`; None is no constraint.

    Raises
    ------
    MismatchError
        If they differ: ``"compression" does not match``.
    """
    if a is not None and b is not None and not json_equal(a, b):
        raise MismatchError('"compression" does not match', status="")
    return b if a is None else a
