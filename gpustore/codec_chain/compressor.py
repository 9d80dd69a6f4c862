"""Parsing, merging and completion of the compressor of a Zarr v2 array.

Stored metadata must be complete, constraints may leave options to be chosen. Two constraints agree
only if they are the same once defaults are filled in.

Source: TensorStore ``driver/zarr/metadata.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from gpustore import registry
from gpustore.codec_chain.chain_spec import (
    StageChoice,
    ValueChoice,
    of_codec,
    unknown_codec,
    variant_v2,
)
from gpustore.codec_chain.registered import Codec
from gpustore.codec_chain.value import ValueVariant
from gpustore.errors import MismatchError
from gpustore.metadata.named_configuration import json_equal
from gpustore.metadata.zarr2_member import UNSET, Unset
from gpustore.strict_json.parsing import JsonValue, Members, in_member, text

Compressor: TypeAlias = Mapping[str, JsonValue]

_V2_DEFAULT: Final = "blosc"


def parse_v2(compressor: Compressor | None, *, stored: bool) -> dict[str, JsonValue] | None:
    """Return the validated compressor of an array or a spec, with its defaults.

    Raises
    ------
    MetadataError
        If the id or an option is not known: ``Error parsing object member "compressor": ...``. No
        code is looked up by an id that is not registered in this package.

    Examples
    --------
    >>> parse_v2({"id": "zlib"}, stored=True)
    {'id': 'zlib', 'level': 1}
    >>> parse_v2({"id": "pickle"}, stored=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpustore.errors.MetadataError: ... member "id": "pickle" is not registered; known: ...
    """
    choice = choose_v2(compressor, stored=stored)
    return None if choice is None else {"id": choice.codec.name, **choice.options}


def choose_v2(compressor: Compressor | None, *, stored: bool) -> StageChoice | ValueChoice | None:
    """Return the codec of a compressor and its options, validated as by :func:`parse_v2`."""
    if compressor is None:
        return None
    with in_member("compressor"):
        members = Members(dict(compressor))
        name = members.take_str("id")
        codec = registry.find("codecs", name)
        variant = variant_v2(codec) if isinstance(codec, Codec) else None
        if variant is None:
            raise members.error(unknown_codec(name, "v2"), "id")
        if isinstance(variant, ValueVariant):
            with of_codec(name):
                options = variant.parse(members, stored=stored)
            return ValueChoice(name, codec, variant, options).completed(None)
        options = variant.parse(members, stored=stored)
        return StageChoice(name, codec, variant, options).completed(None)


def merge_v2(
    a: Compressor | Unset | None, b: Compressor | Unset | None
) -> dict[str, JsonValue] | Unset | None:
    """Return the compressor that satisfies `a` and `b`.

    None is no compression, UNSET no constraint.

    Raises
    ------
    MismatchError
        If they differ once defaults are filled in: ``"compressor" does not match``.
    """
    left = UNSET if a is UNSET else parse_v2(a, stored=False)
    right = UNSET if b is UNSET else parse_v2(b, stored=False)
    if left is UNSET:
        return right
    if right is not UNSET and not json_equal(left, right):
        raise MismatchError(
            f'"compressor" does not match: {text(left)} vs {text(right)}', status=""
        )
    return left


def complete_v2(compressor: Compressor | Unset | None) -> dict[str, JsonValue] | None:
    """Return the compressor of a new array; UNSET stands for Blosc with LZ4, as in TensorStore.

    >>> complete_v2(UNSET)
    {'id': 'blosc', 'cname': 'lz4', 'clevel': 5, 'shuffle': -1, 'blocksize': 0}
    """
    return parse_v2({"id": _V2_DEFAULT} if compressor is UNSET else compressor, stored=False)
