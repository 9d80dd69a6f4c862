"""Chains of codecs as names and options, parsed and sorted by kind.

Chains come from stored metadata, which must be complete, or from constraints in a spec, which may
leave options, and the array -> bytes codec, to be chosen. The order of the kinds is array -> array,
array -> bytes, bytes -> bytes.

Source: TensorStore ``driver/zarr3/codec/codec_chain_spec.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from gpustore import registry
from gpustore.codec_chain.registered import (
    ArrayCodec,
    Codec,
    CodecVariant,
    LayoutCodec,
    Option,
    Options,
    ShardCodec,
)
from gpustore.codec_chain.value import ValueVariant
from gpustore.codec_chain.vlen import VlenCodec
from gpustore.errors import (
    MetadataError,
    prefixing,
)
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.strict_json.near_names import near_or_known
from gpustore.strict_json.parsing import Members, at_position, in_member, text

_V3_SHARDING: Final = "sharding_indexed"
_NUMCODECS: Final = "numcodecs."
"""Prefix of zarr-python for the ids of Zarr v2 codecs that have no name in Zarr v3."""


@dataclass(frozen=True, slots=True)
class _OfCodec:
    """Codec with options of its own, and the options chosen for it."""

    codec: ArrayCodec | LayoutCodec | ShardCodec | VlenCodec
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """Options that the codec has."""
        return self.codec.options

    @property
    def named(self) -> NamedConfiguration:
        """Name and options as in Zarr v3 metadata."""
        return NamedConfiguration(self.codec.name, self.options)


@dataclass(frozen=True, slots=True)
class ArrayChoice(_OfCodec):
    """Array -> array codec that permutes dimensions, and the options chosen for it."""

    codec: ArrayCodec


@dataclass(frozen=True, slots=True)
class LayoutChoice(_OfCodec):
    """Array -> bytes codec that determines a layout, and the options chosen for it."""

    codec: LayoutCodec | ShardCodec | VlenCodec


@dataclass(frozen=True, slots=True)
class _VariantChoice:
    """Codec, its variant for one version of the format, and the options chosen for it.

    `name` is the name of the codec in that version.
    """

    name: str
    codec: Codec
    variant: CodecVariant | ValueVariant
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """Options that the codec has."""
        return self.variant.options

    @property
    def named(self) -> NamedConfiguration:
        """Name and options as in Zarr v3 metadata."""
        return NamedConfiguration(self.name, self.options)


@dataclass(frozen=True, slots=True)
class StageChoice(_VariantChoice):
    """Bytes -> bytes codec, and the options chosen for it."""

    variant: CodecVariant

    def completed(self, itemsize: int | None) -> StageChoice:
        """Return the choice with every option, for elements of `itemsize` bytes (None: bytes)."""
        return replace(self, options=self.variant.complete(self.variant, self.options, itemsize))


@dataclass(frozen=True, slots=True)
class ValueChoice(_VariantChoice):
    """Codec of elements, and the options chosen for it."""

    variant: ValueVariant

    def completed(self, dtype: np.dtype[Any] | None) -> ValueChoice:
        """Return the choice with every option, for elements of `dtype` if that is known."""
        return replace(self, options=self.variant.complete(self.options, dtype))


Choice: TypeAlias = ArrayChoice | LayoutChoice | StageChoice | ValueChoice


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """Codecs of a Zarr v3 chain by kind; immutable.

    Attributes
    ----------
    arrays : tuple of ArrayChoice or ValueChoice
        Array -> array codecs in the order of encoding.
    layout : LayoutChoice, ValueChoice or None
        Array -> bytes codec, None if it is left to be chosen.
    stages : tuple of StageChoice
        Bytes -> bytes codecs in the order of encoding.
    """

    arrays: tuple[ArrayChoice | ValueChoice, ...]
    layout: LayoutChoice | ValueChoice | None
    stages: tuple[StageChoice, ...]

    @property
    def is_sharded(self) -> bool:
        """Whether the array -> bytes codec is ``sharding_indexed``."""
        return self.layout is not None and isinstance(self.layout.codec, ShardCodec)

    @property
    def named(self) -> tuple[NamedConfiguration, ...]:
        """Names and options of all codecs, as in metadata."""
        first: tuple[Choice, ...] = () if self.layout is None else (self.layout,)
        return tuple(choice.named for choice in (*self.arrays, *first, *self.stages))

    @property
    def keeps_shape(self) -> bool:
        """Whether no codec changes the shape of chunks."""
        return all(one.variant.keeps_shape for one in self.arrays if isinstance(one, ValueChoice))


def resolving(named: NamedConfiguration, *, what: str = "resolving codec spec") -> prefixing:
    """Return a context manager that puts ``Error <what> through codec <named>: `` before errors."""
    return prefixing(lambda: f"Error {what} through codec {named}")


def of_codec(name: str) -> prefixing:
    """Return a context manager that puts ``Codec <name>: `` before errors."""
    return prefixing(lambda: f"Codec {text(name)}")


def unknown_codec(name: str, version: str) -> MetadataError:
    """Return the error for a name without a codec in that version; it suggests known names."""
    known: list[str] = []
    prefixed: list[str] = []
    for candidate in registry.ids("codecs"):
        codec = registry.find("codecs", candidate)
        if isinstance(codec, (ArrayCodec, LayoutCodec, ShardCodec, VlenCodec)):
            has_variant = version == "v3"
        elif version == "v2":
            has_variant = variant_v2(codec) is not None
        else:
            has_variant = codec.v3 is not None
            if variant_v2(codec) is not None:
                prefixed.append(_NUMCODECS + candidate)
        if has_variant:
            known.append(candidate)
    known += prefixed
    return MetadataError(f"{text(name)} is not registered{near_or_known(name, known)}")


def variant_v2(codec: Codec, *, first: bool = False) -> CodecVariant | ValueVariant | None:
    """Return the Zarr v2 variant of a codec, None without one; `first` prefers its filter."""
    variant: CodecVariant | ValueVariant | None = codec.filter if first else codec.v2
    return variant or codec.v2 or codec.filter


# --------------------------------------------------------------------------- Zarr v3


def parse_v3(
    codecs: Sequence[NamedConfiguration], *, stored: bool
) -> tuple[NamedConfiguration, ...]:
    """Validate the codecs of an array or of a spec.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    stored : bool
        Whether they are stored metadata, which must be complete, or constraints. Options that may
        be missing from stored metadata get their default.

    Returns
    -------
    tuple of NamedConfiguration
        The codecs with validated options, under their registered names.

    Raises
    ------
    MetadataError
        If a codec or option is not known: ``Error parsing object member "codecs": ...``.
    UnsupportedError
        If gpustore has no implementation of a codec of the format.
    """
    return parse_chain(codecs, stored=stored).named


def parse_chain(codecs: Sequence[NamedConfiguration], *, stored: bool) -> ChainSpec:
    """Validate the member ``codecs`` of metadata as :func:`parse_v3` does, and sort it by kind."""
    with in_member("codecs"):
        return parse_codecs(codecs, stored=stored)


def parse_codecs(codecs: Sequence[NamedConfiguration], *, stored: bool) -> ChainSpec:
    """Validate codecs that are not the member ``codecs`` of metadata, and sort them by kind.

    Errors are those of :func:`parse_v3` without the name of that member.
    """
    choices = []
    for index, named in enumerate(codecs):
        if stored and _is_passed_over(named):
            continue
        with at_position(index):
            choices.append(_choose_v3(named, stored=stored))
    return _by_kind(choices, stored=stored)


def _is_passed_over(named: NamedConfiguration) -> bool:
    """Whether a stored codec is unknown and may be ignored."""
    return not named.must_understand and _find_v3(named.name) == (None, None)


def passed_over(codecs: Sequence[NamedConfiguration]) -> tuple[str, ...]:
    """Return the names of stored codecs that are unknown and may be ignored, also inside shards.

    Specification 3.1 lets a reader ignore such a codec (``must_understand`` false), so values are
    decoded as if it were not listed. It does not say how readers that know the codec decode values
    written without it: such arrays are not written.

    >>> passed_over([NamedConfiguration("bytes"), NamedConfiguration("new", must_understand=False)])
    ('new',)
    """
    names: list[str] = []
    for named in codecs:
        if _is_passed_over(named):
            names.append(named.name)
        elif named.name == _V3_SHARDING:
            for member in ("codecs", "index_codecs"):
                inner = named.configuration.get(member) or []
                names += passed_over(NamedConfiguration.list_from_json(inner))
    return tuple(names)


def _by_kind(choices: Sequence[Choice], *, stored: bool) -> ChainSpec:
    arrays: list[ArrayChoice | ValueChoice] = []
    layout: LayoutChoice | ValueChoice | None = None
    stages: list[StageChoice] = []
    for choice in choices:
        if isinstance(choice, StageChoice):
            stages.append(choice)
        elif layout is not None or stages:
            raise MetadataError(f"Expected bytes -> bytes codec, but received: {choice.named}")
        elif isinstance(choice, LayoutChoice) or (
            isinstance(choice, ValueChoice) and choice.variant.kind != ArrayCodec.kind
        ):
            layout = choice
        else:
            arrays.append(choice)
        if stages and stored and layout is None:
            break
    if stored and layout is None:
        raise MetadataError("array -> bytes codec must be specified")
    return ChainSpec(tuple(arrays), layout, tuple(stages))


def _choose_v3(named: NamedConfiguration, *, stored: bool) -> Choice:
    codec, variant = _find_v3(named.name)
    if codec is None:
        with in_member("name"):
            raise unknown_codec(named.name, "v3")
    with in_member("configuration"):
        members = Members(dict(named.configuration))
        if isinstance(codec, ArrayCodec):
            return ArrayChoice(codec, codec.parse(members, stored=stored))
        if isinstance(codec, LayoutCodec | ShardCodec | VlenCodec):
            return LayoutChoice(codec, codec.parse(members, stored=stored))
        if isinstance(variant, ValueVariant):
            options = variant.parse(members, stored=stored, typed=False)
            return ValueChoice(named.name, codec, variant, options)
        assert variant is not None
        return StageChoice(named.name, codec, variant, variant.parse(members, stored=stored))


def _find_v3(name: str) -> tuple[Any, CodecVariant | ValueVariant | None]:
    """Return the codec of a Zarr v3 name, and its variant if it has variants."""
    codec = registry.find("codecs", name)
    if isinstance(codec, (ArrayCodec, LayoutCodec, ShardCodec, VlenCodec)):
        return codec, None
    variant = codec.v3 if isinstance(codec, Codec) else None
    if name.startswith(_NUMCODECS):
        codec = registry.find("codecs", name.removeprefix(_NUMCODECS))
        if isinstance(codec, VlenCodec):
            return codec, None  # An alias: it is read, and the registered name is written.
        variant = variant_v2(codec, first=True) if isinstance(codec, Codec) else None
    return (None, None) if variant is None else (codec, variant)


def composed_order(arrays: Sequence[ArrayChoice | ValueChoice], rank: int) -> tuple[int, ...]:
    """Return the permutation that array -> array codecs compose to, which is the inner order.

    Transposes behind a codec that needs the elements in order do not count: they move its output.

    >>> transpose = registry.find("codecs", "transpose")
    >>> composed_order([ArrayChoice(transpose, {"order": o}) for o in ([2, 0, 1], [1, 0, 2])], 3)
    (0, 2, 1)
    """
    composed = tuple(range(rank))
    for array in arrays:
        if isinstance(array, ValueChoice):
            if not array.variant.is_elementwise:
                break
            continue
        with resolving(array.named, what="propagating data type and shape"):
            order = array.codec.order(array.options, rank)
        composed = tuple(composed[dim] for dim in order)
    return composed
