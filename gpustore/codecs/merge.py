"""Chains of codecs before they are resolved: parsing, merging, completing.

Codecs arrive as names and options, from stored metadata or as constraints in a spec.

:func:`parse_v3`, :func:`parse_v2`
    Validate them. Stored metadata must say everything; constraints may leave options, and in v3
    the array -> bytes codec, to be chosen.
:func:`merge_v3`, :func:`merge_v2`
    The constraints of both of two, or MismatchError. v3 merges option by option, v2 wants equal
    objects.
:func:`complete_v3`, :func:`complete_v2`
    Choose what a new array is left free to choose, as TensorStore does.

Source: TensorStore ``driver/zarr3/codec/codec_chain_spec.cc`` and ``driver/zarr/metadata.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpustore import registry
from gpustore._json import JsonValue, Members, at_position, in_member, text
from gpustore.codecs.base import Codec, Face, LayoutCodec, Options
from gpustore.dtype import dtype as DataType
from gpustore.errors import GpustoreError, MetadataError, MismatchError, UnsupportedError
from gpustore.metadata.named_configuration import NamedConfiguration, json_equal
from gpustore.metadata.zarr2_member import UNSET, Unset

__all__ = [
    "ChainSpec",
    "LayoutChoice",
    "StageChoice",
    "choose_v2",
    "complete_v2",
    "complete_v3",
    "merge_v2",
    "merge_v3",
    "parse_chain",
    "parse_v2",
    "parse_v3",
    "resolving",
]

Compressor: TypeAlias = Mapping[str, JsonValue]

# Part of the format and of TensorStore, but not built yet.
_PLANNED: Final = ("transpose", "sharding_indexed")

_V3_DEFAULT: Final = "bytes"
_V2_DEFAULT: Final = "blosc"


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """An array -> bytes codec and the options chosen for it."""

    codec: LayoutCodec
    options: Options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.codec.name, self.options)


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A bytes -> bytes codec, its face in one version of the format, and the options chosen."""

    codec: Codec
    face: Face
    options: Options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.codec.name, self.options)

    def completed(self, itemsize: int | None) -> StageChoice:
        """With every option chosen, for elements of `itemsize` bytes (None: no elements)."""
        return StageChoice(
            self.codec, self.face, self.face.complete(self.face, self.options, itemsize)
        )


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """The codecs of a Zarr v3 chain by kind.

    Attributes
    ----------
    layout : LayoutChoice or None
        The array -> bytes codec, None if that is left to be chosen.
    stages : tuple of StageChoice
        The bytes -> bytes codecs in the order of encoding.
    """

    layout: LayoutChoice | None
    stages: tuple[StageChoice, ...]

    @property
    def named(self) -> tuple[NamedConfiguration, ...]:
        """As it stands in metadata."""
        first = () if self.layout is None else (self.layout.named,)
        return (*first, *(stage.named for stage in self.stages))


@contextmanager
def resolving(named: NamedConfiguration) -> Iterator[None]:
    """Prefix errors of the block with the codec they are about."""
    try:
        yield
    except GpustoreError as error:
        context = f"Error resolving codec spec through codec {named}"
        raise error.prefixed(context) from error.__cause__


def _unknown(name: str, version: str) -> GpustoreError:
    if version == "v3" and name in _PLANNED:
        return UnsupportedError(f"codec {text(name)} is not supported yet")
    known = []
    for candidate in registry.ids("codecs"):
        codec = registry.find("codecs", candidate)
        if isinstance(codec, LayoutCodec):
            has_face = version == "v3"
        else:
            has_face = getattr(codec, version) is not None
        if has_face:
            known.append(candidate)
    return MetadataError(f"{text(name)} is not registered; registered are: {', '.join(known)}")


# --------------------------------------------------------------------------- Zarr v3


def parse_v3(
    codecs: Sequence[NamedConfiguration], *, stored: bool
) -> tuple[NamedConfiguration, ...]:
    """Validate the codecs of an array or of a spec.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    stored : bool
        Whether they are stored metadata, which must be whole, or constraints. Options that may
        be missing from stored metadata get the value that means.

    Raises
    ------
    MetadataError
        ``Error parsing object member "codecs": ...``.
    UnsupportedError
        For codecs of the format that are not built yet.
    """
    return parse_chain(codecs, stored=stored).named


def parse_chain(codecs: Sequence[NamedConfiguration], *, stored: bool) -> ChainSpec:
    """Validate codecs as :func:`parse_v3` does, and sort them by kind."""
    with in_member("codecs"):
        layout: LayoutChoice | None = None
        stages: list[StageChoice] = []
        for index, named in enumerate(codecs):
            with at_position(index):
                choice = _choose_v3(named, stored=stored)
            if isinstance(choice, StageChoice):
                stages.append(choice)
            elif layout is None and not stages:
                layout = choice
            else:
                raise MetadataError(f"Expected bytes -> bytes codec, but received: {choice.named}")
            if stored and layout is None:
                break
        if stored and layout is None:
            raise MetadataError("array -> bytes codec must be specified")
        return ChainSpec(layout, tuple(stages))


def _choose_v3(named: NamedConfiguration, *, stored: bool) -> LayoutChoice | StageChoice:
    codec = registry.find("codecs", named.name)
    if codec is None or (isinstance(codec, Codec) and codec.v3 is None):
        with in_member("name"):
            raise _unknown(named.name, "v3")
    with in_member("configuration"):
        members = Members(dict(named.configuration))
        if isinstance(codec, LayoutCodec):
            return LayoutChoice(codec, codec.parse(members, stored=stored))
        return StageChoice(codec, codec.v3, codec.v3.parse(members, stored=stored))


def merge_v3(
    a: Sequence[NamedConfiguration] | None, b: Sequence[NamedConfiguration] | None
) -> tuple[NamedConfiguration, ...] | None:
    """The codec constraints of both `a` and `b`; None is no constraint.

    Raises
    ------
    MismatchError
        ``Cannot merge zarr codec constraints ... and ...``.
    MetadataError, UnsupportedError
        As :func:`parse_v3`.

    Examples
    --------
    >>> gzip = NamedConfiguration("gzip")
    >>> merged = merge_v3([gzip], [NamedConfiguration("bytes"), gzip])
    >>> [str(codec) for codec in merged]
    ['{"name":"bytes"}', '{"name":"gzip"}']
    >>> merge_v3([gzip], [])  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
        ...
    gpustore.errors.MismatchError: FAILED_PRECONDITION: Cannot merge zarr codec constraints
        [{"name":"gzip"}] and []: Mismatch in number of bytes -> bytes codecs (1 vs 0)
    """
    if a is None or b is None:
        only = a if b is None else b
        return None if only is None else parse_v3(only, stored=False)
    left, right = parse_chain(a, stored=False), parse_chain(b, stored=False)
    layout = left.layout or right.layout
    if left.layout is not None and right.layout is not None:
        options = _merge_options(left.layout, right.layout)
        layout = LayoutChoice(left.layout.codec, options)
    if len(left.stages) != len(right.stages):
        raise _cannot_merge(
            [stage.named.to_json() for stage in left.stages],
            [stage.named.to_json() for stage in right.stages],
            f": Mismatch in number of bytes -> bytes codecs "
            f"({len(left.stages)} vs {len(right.stages)})",
        )
    stages = (
        StageChoice(mine.codec, mine.face, _merge_options(mine, other))
        for mine, other in zip(left.stages, right.stages, strict=True)
    )
    return ChainSpec(layout, tuple(stages)).named


def _merge_options(a: LayoutChoice | StageChoice, b: LayoutChoice | StageChoice) -> Options:
    if a.codec is not b.codec:
        raise _cannot_merge(a.named.to_json(), b.named.to_json())
    for name, value in a.options.items():
        if name in b.options and not json_equal(value, b.options[name]):
            reason = f': Incompatible "{name}": {text(value)} vs {text(b.options[name])}'
            raise _cannot_merge(a.named.to_json(), b.named.to_json(), reason)
    return {**a.options, **b.options}


def _cannot_merge(a: JsonValue, b: JsonValue, reason: str = "") -> MismatchError:
    return MismatchError(f"Cannot merge zarr codec constraints {text(a)} and {text(b)}{reason}")


def complete_v3(
    codecs: Sequence[NamedConfiguration] | None, dtype: DataType, rank: int
) -> tuple[NamedConfiguration, ...]:
    """The codecs of a new array under the constraints `codecs`.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration or None
        None is no constraint: the array is not compressed, as in TensorStore.
    dtype : dtype
        Of the elements.
    rank : int
        Of the array.

    Returns
    -------
    tuple of NamedConfiguration
        With every option, as it is stored.

    Examples
    --------
    >>> from gpustore.dtype import uint16
    >>> str(complete_v3([NamedConfiguration("zstd")], uint16, 2)[1])
    '{"configuration":{"checksum":false,"level":3},"name":"zstd"}'
    """
    del rank  # For transpose and sharding_indexed to know.
    spec = parse_chain(codecs or (), stored=False)
    first = spec.layout or LayoutChoice(registry.find("codecs", _V3_DEFAULT), {})
    layout = LayoutChoice(first.codec, first.codec.complete(first.options, dtype.itemsize))
    stages = []
    itemsize: int | None = dtype.itemsize
    for stage in spec.stages:
        with resolving(stage.named):
            stages.append(stage.completed(itemsize))
        itemsize = None
    return ChainSpec(layout, tuple(stages)).named


# --------------------------------------------------------------------------- Zarr v2


def parse_v2(compressor: Compressor | None, *, stored: bool) -> dict[str, JsonValue] | None:
    """Validate the compressor of an array or of a spec, and fill in its defaults.

    Raises
    ------
    MetadataError
        ``Error parsing object member "compressor": ...``. No code is ever looked up by an id
        that is not one of this library's own.

    Examples
    --------
    >>> parse_v2({"id": "zlib"}, stored=True)
    {'id': 'zlib', 'level': 1}
    >>> parse_v2({"id": "pickle"}, stored=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpustore.errors.MetadataError: ... member "id": "pickle" is not registered; registered are: ...
    """
    choice = choose_v2(compressor, stored=stored)
    return None if choice is None else {"id": choice.codec.name, **choice.options}


def choose_v2(compressor: Compressor | None, *, stored: bool) -> StageChoice | None:
    """The codec that a compressor names and its options, validated as by :func:`parse_v2`."""
    if compressor is None:
        return None
    with in_member("compressor"):
        members = Members(dict(compressor))
        name = members.take_str("id")
        codec = registry.find("codecs", name)
        if not isinstance(codec, Codec) or codec.v2 is None:
            raise members.error(_unknown(name, "v2"), "id")
        options = codec.v2.parse(members, stored=stored)
        return StageChoice(codec, codec.v2, options).completed(None)


def merge_v2(
    a: Compressor | Unset | None, b: Compressor | Unset | None
) -> dict[str, JsonValue] | Unset | None:
    """The compressor that both `a` and `b` ask for; None is no compression, UNSET no constraint.

    Raises
    ------
    MismatchError
        ``"compressor" does not match`` unless they are the same, defaults filled in.
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
    """The compressor of a new array: UNSET is Blosc with LZ4, as in TensorStore.

    >>> complete_v2(UNSET)
    {'id': 'blosc', 'cname': 'lz4', 'clevel': 5, 'shuffle': -1, 'blocksize': 0}
    """
    return parse_v2({"id": _V2_DEFAULT} if compressor is UNSET else compressor, stored=False)
