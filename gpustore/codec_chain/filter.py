"""Parsing and merging of the filters of a Zarr v2 array.

Filters encode before the compressor, in their order. Filters are codecs that gpustore has,
compressors too; no code is looked up by an id that is not registered.

TensorStore supports no filters: it refuses arrays with filters, and ignores those of a CodecSpec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from gpustore import registry
from gpustore.codec_chain.chain_spec import (
    LayoutChoice,
    StageChoice,
    ValueChoice,
    of_codec,
    variant_v2,
)
from gpustore.codec_chain.registered import Codec
from gpustore.codec_chain.value import ValueVariant
from gpustore.codec_chain.vlen import VlenCodec
from gpustore.errors import MetadataError, MismatchError, UnsupportedError
from gpustore.metadata.named_configuration import json_equal
from gpustore.metadata.zarr2_member import UNSET, Unset
from gpustore.strict_json.parsing import JsonValue, Members, at_position, in_member, text

Filters: TypeAlias = Sequence[Mapping[str, JsonValue]]


def parse_filters(filters: Filters | None, *, stored: bool) -> list[JsonValue]:
    """Return the validated filters of an array or a spec, with their defaults.

    Raises
    ------
    UnsupportedError
        If a filter is not known: ``Error parsing object member "filters": ...``.
    MetadataError
        If an option is not as expected.

    Examples
    --------
    >>> parse_filters([{"id": "shuffle"}], stored=False)
    [{'id': 'shuffle', 'elementsize': 4}]
    >>> parse_filters([{"id": "pickle"}], stored=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpustore.errors.UnsupportedError: ... filter "pickle" is not supported: it makes objects ...
    """
    return [
        {"id": choice.codec.name, **choice.options}
        for choice in choose_filters(filters, stored=stored)
    ]


def choose_filters(
    filters: Filters | None, *, stored: bool
) -> list[StageChoice | ValueChoice | LayoutChoice]:
    """Return the codecs of filters and their options, validated as by :func:`parse_filters`.

    The first one may be the array -> bytes codec of strings or bytes of any length.
    """
    with in_member("filters"):
        return [_choose(one, index, stored=stored) for index, one in enumerate(filters or ())]


def _choose(
    one: Mapping[str, JsonValue], index: int, *, stored: bool
) -> StageChoice | ValueChoice | LayoutChoice:
    members = Members(dict(one))
    name = members.take_str("id")
    codec = registry.find("codecs", name)
    if isinstance(codec, VlenCodec):
        if index:
            raise MetadataError(f"{text(name)} must be the first filter: it is for elements")
        with at_position(index):
            return LayoutChoice(codec, codec.parse(members, stored=stored))
    variant = variant_v2(codec, first=True) if isinstance(codec, Codec) else None
    if variant is None:
        if name in _OBJECTS:
            raise UnsupportedError(
                f"filter {text(name)} is not supported: it makes objects of bytes, which runs "
                f"what the bytes say or is no array"
            )
        known = ", ".join(map(text, _known()))
        raise UnsupportedError(f"filters are not supported, except {known}: {text(name)}")
    with at_position(index), of_codec(name):
        options = variant.parse(members, stored=stored)
        if isinstance(variant, ValueVariant):
            return ValueChoice(name, codec, variant, options).completed(None)
        return StageChoice(name, codec, variant, options).completed(None)


_OBJECTS: Final = ("pickle", "json2", "json", "msgpack2", "msgpack")
"""Ids of numcodecs' codecs of Python objects, which are not supported."""


def _known() -> list[str]:
    found = ((name, registry.find("codecs", name)) for name in registry.ids("codecs"))
    return [name for name, codec in found if isinstance(codec, Codec) and variant_v2(codec)]


def merge_filters(a: Filters | Unset, b: Filters | Unset) -> Filters | Unset:
    """Return the filters that satisfy `a` and `b`; UNSET is no constraint.

    Raises
    ------
    MismatchError
        If they differ once defaults are filled in: ``"filters" does not match``.
    """
    left = UNSET if isinstance(a, Unset) else parse_filters(a, stored=False)
    right = UNSET if isinstance(b, Unset) else parse_filters(b, stored=False)
    if isinstance(left, Unset):
        return right
    if not isinstance(right, Unset) and not json_equal(left, right):
        raise MismatchError(f'"filters" does not match: {text(left)} vs {text(right)}', status="")
    return left
