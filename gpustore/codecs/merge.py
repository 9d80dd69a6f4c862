"""Chains of Zarr v3 codecs before they are resolved: parsing, merging, completing.

Codecs arrive as names and options, from stored metadata or as constraints in a spec.

:func:`parse_v3`
    Validates them. Stored metadata must say everything; constraints may leave options, and the
    array -> bytes codec, to be chosen. The order of the kinds is array -> array, array -> bytes,
    bytes -> bytes.
:func:`merge_v3`
    The constraints of both of two, option by option, or MismatchError.
:func:`complete_v3`, :func:`shard_v3`
    Choose what a new array is left free to choose, as TensorStore does.
:func:`inner_order_v3`
    Tell which order of the dimensions in a chunk v3 codecs come to.

Source: TensorStore ``driver/zarr3/codec/codec_chain_spec.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from gpustore import registry
from gpustore._json import JsonValue, Members, at_position, in_member, text
from gpustore.codecs._vlen import VlenCodec
from gpustore.codecs.base import ArrayCodec, Codec, Face, LayoutCodec, Option, Options, ShardCodec
from gpustore.codecs.value import ValueFace
from gpustore.dtype import dtype as DataType
from gpustore.errors import (
    MetadataError,
    MismatchError,
    UnsupportedError,
    prefixing,
)
from gpustore.metadata.component import is_opaque
from gpustore.metadata.data_type import V3DataType, native_dtype
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.object_type import OBJECT_CODECS, is_object

__all__ = [
    "ArrayChoice",
    "ChainSpec",
    "Choice",
    "LayoutChoice",
    "StageChoice",
    "ValueChoice",
    "complete_v3",
    "composed_order",
    "face_v2",
    "inner_order_v3",
    "merge_v3",
    "of_codec",
    "parse_chain",
    "parse_codecs",
    "parse_v3",
    "passed_over",
    "read_chunk_shape_v3",
    "resolving",
    "shard_v3",
    "unknown_codec",
]

_V3_DEFAULT: Final = "bytes"
_V3_TRANSPOSE: Final = "transpose"
_V3_SHARDING: Final = "sharding_indexed"
_NUMCODECS: Final = "numcodecs."
"""What zarr-python puts before the ids of Zarr v2 for which Zarr v3 has no name."""


@dataclass(frozen=True, slots=True)
class ArrayChoice:
    """An array -> array codec and the options chosen for it."""

    codec: ArrayCodec
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """The options it has."""
        return self.codec.options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.codec.name, self.options)


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """An array -> bytes codec and the options chosen for it."""

    codec: LayoutCodec | ShardCodec | VlenCodec
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """The options it has."""
        return self.codec.options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.codec.name, self.options)


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A bytes -> bytes codec, its face in one version of the format, and the options chosen.

    `name` is the one it has in that version.
    """

    name: str
    codec: Codec
    face: Face
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """The options it has."""
        return self.face.options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.name, self.options)

    def completed(self, itemsize: int | None) -> StageChoice:
        """With every option chosen, for elements of `itemsize` bytes (None: no elements)."""
        return replace(self, options=self.face.complete(self.face, self.options, itemsize))


@dataclass(frozen=True, slots=True)
class ValueChoice:
    """A codec of elements, its face in one version of the format, and the options chosen.

    `name` is the one it has in that version.
    """

    name: str
    codec: Codec
    face: ValueFace
    options: Options

    @property
    def known(self) -> tuple[Option, ...]:
        """The options it has."""
        return self.face.options

    @property
    def named(self) -> NamedConfiguration:
        """As it stands in Zarr v3 metadata."""
        return NamedConfiguration(self.name, self.options)

    def completed(self, dtype: np.dtype[Any] | None) -> ValueChoice:
        """With every option chosen, for elements of `dtype` if that is known."""
        return replace(self, options=self.face.complete(self.options, dtype))


Choice: TypeAlias = ArrayChoice | LayoutChoice | StageChoice | ValueChoice


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """The codecs of a Zarr v3 chain by kind.

    Attributes
    ----------
    arrays : tuple of ArrayChoice or ValueChoice
        The array -> array codecs in the order of encoding.
    layout : LayoutChoice, ValueChoice or None
        The array -> bytes codec, None if that is left to be chosen.
    stages : tuple of StageChoice
        The bytes -> bytes codecs in the order of encoding.
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
        """As it stands in metadata."""
        first: tuple[Choice, ...] = () if self.layout is None else (self.layout,)
        return tuple(choice.named for choice in (*self.arrays, *first, *self.stages))

    @property
    def keeps_shape(self) -> bool:
        """Whether its codecs take chunks of any shape."""
        return all(one.face.keeps_shape for one in self.arrays if isinstance(one, ValueChoice))


def resolving(named: NamedConfiguration, *, what: str = "resolving codec spec") -> prefixing:
    """Prefix errors of the block with the codec they are about."""
    return prefixing(lambda: f"Error {what} through codec {named}")


def of_codec(name: str) -> prefixing:
    """Prefix errors of the block with the codec of Zarr v2 they are about."""
    return prefixing(lambda: f"Codec {text(name)}")


def unknown_codec(name: str, version: str) -> MetadataError:
    """The error for a name without a codec in that version of the format; lists those there are."""
    known: list[str] = []
    prefixed: list[str] = []
    for candidate in registry.ids("codecs"):
        codec = registry.find("codecs", candidate)
        if isinstance(codec, (ArrayCodec, LayoutCodec, ShardCodec, VlenCodec)):
            has_face = version == "v3"
        elif version == "v2":
            has_face = face_v2(codec) is not None
        else:
            has_face = codec.v3 is not None
            if face_v2(codec) is not None:
                prefixed.append(_NUMCODECS + candidate)
        if has_face:
            known.append(candidate)
    known += prefixed
    return MetadataError(f"{text(name)} is not registered; registered are: {', '.join(known)}")


def face_v2(codec: Codec, *, first: bool = False) -> Face | ValueFace | None:
    """How a codec is written in Zarr v2, None if not at all; `first` prefers that of filters."""
    face: Face | ValueFace | None = codec.filter if first else codec.v2
    return face or codec.v2 or codec.filter


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
        return parse_codecs(codecs, stored=stored)


def parse_codecs(codecs: Sequence[NamedConfiguration], *, stored: bool) -> ChainSpec:
    """As :func:`parse_chain`, for codecs that are not the member ``codecs`` of metadata."""
    choices = []
    for index, named in enumerate(codecs):
        if stored and _is_passed_over(named):
            continue
        with at_position(index):
            choices.append(_choose_v3(named, stored=stored))
    return _by_kind(choices, stored=stored)


def _is_passed_over(named: NamedConfiguration) -> bool:
    """Whether a stored codec is not known, and need not be."""
    return not named.must_understand and _find_v3(named.name) == (None, None)


def passed_over(codecs: Sequence[NamedConfiguration]) -> tuple[str, ...]:
    """Names of the stored codecs that are not known and need not be, also inside shards.

    Specification 3.1 lets a reader ignore the presence of such a codec, so values are decoded as if
    it were not listed. What those make of values written without it who know it is not said:
    such arrays are not written.

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
            isinstance(choice, ValueChoice) and choice.face.kind != ArrayCodec.kind
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
    codec, face = _find_v3(named.name)
    if codec is None:
        with in_member("name"):
            raise unknown_codec(named.name, "v3")
    with in_member("configuration"):
        members = Members(dict(named.configuration))
        if isinstance(codec, ArrayCodec):
            return ArrayChoice(codec, codec.parse(members, stored=stored))
        if isinstance(codec, LayoutCodec | ShardCodec | VlenCodec):
            return LayoutChoice(codec, codec.parse(members, stored=stored))
        if isinstance(face, ValueFace):
            options = face.parse(members, stored=stored, typed=False)
            return ValueChoice(named.name, codec, face, options)
        assert face is not None
        return StageChoice(named.name, codec, face, face.parse(members, stored=stored))


def _find_v3(name: str) -> tuple[Any, Face | ValueFace | None]:
    """The codec of that name, and how it is written there if it may be written in several ways."""
    codec = registry.find("codecs", name)
    if isinstance(codec, (ArrayCodec, LayoutCodec, ShardCodec, VlenCodec)):
        return codec, None
    face = codec.v3 if isinstance(codec, Codec) else None
    if name.startswith(_NUMCODECS):
        codec = registry.find("codecs", name.removeprefix(_NUMCODECS))
        if isinstance(codec, VlenCodec):
            return codec, None  # Read like the others; written under the registered name.
        face = face_v2(codec, first=True) if isinstance(codec, Codec) else None
    return (None, None) if face is None else (codec, face)


def merge_v3(
    a: Sequence[NamedConfiguration] | None,
    b: Sequence[NamedConfiguration] | None,
    *,
    strict: bool = False,
) -> tuple[NamedConfiguration, ...] | None:
    """The codec constraints of both `a` and `b`; None is no constraint.

    Parameters
    ----------
    a, b : sequence of NamedConfiguration or None
    strict : bool, optional
        Whether both must have the same array -> array codecs. By default one of them may lack a
        ``transpose`` at the end, which a constraint on the inner order stands for, and codecs
        that do not shard are those of the inner chunks of ``sharding_indexed`` alone.

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
    if not strict:
        # Codecs with fewer levels of shards are those of the inner chunks.
        less, more = sorted((left, right), key=_levels)
        if _levels(less) < _levels(more) and not (more.arrays or more.stages):
            return _with_inner(more, less).named
        left, right = _with_last_transpose(left, right), _with_last_transpose(right, left)
    _check_lengths(left.arrays, right.arrays, ArrayCodec.kind)
    arrays = tuple(
        replace(mine, options=_merge_options(mine, other))
        for mine, other in zip(left.arrays, right.arrays, strict=True)
    )
    layout = left.layout or right.layout
    if left.layout is not None and right.layout is not None:
        options = _merge_options(left.layout, right.layout, strict=strict)
        layout = replace(left.layout, options=options)
    _check_lengths(left.stages, right.stages, Codec.kind)
    stages = tuple(
        replace(mine, options=_merge_options(mine, other))
        for mine, other in zip(left.stages, right.stages, strict=True)
    )
    return ChainSpec(arrays, layout, stages).named


def _levels(spec: ChainSpec) -> int:
    """How many levels of shards lie in each other."""
    if spec.layout is None or not spec.is_sharded:
        return 0
    inner = NamedConfiguration.list_from_json(spec.layout.options.get("codecs", []))
    return 1 + _levels(parse_codecs(inner, stored=False))


def _with_inner(shard: ChainSpec, inner: ChainSpec) -> ChainSpec:
    """A chain that ends in shards, with the codecs of its inner chunks constrained further."""
    assert shard.layout is not None
    options = dict(shard.layout.options)
    own = NamedConfiguration.list_from_json(options.get("codecs", [])) or None
    merged = merge_v3(own, inner.named)
    options["codecs"] = [codec.to_json() for codec in merged or ()]
    return ChainSpec(shard.arrays, replace(shard.layout, options=options), shard.stages)


def _with_last_transpose(spec: ChainSpec, other: ChainSpec) -> ChainSpec:
    """`spec` with the last codec of `other` if that is the one transpose it has more."""
    arrays = other.arrays
    if len(arrays) == len(spec.arrays) + 1 and arrays[-1].named.name == _V3_TRANSPOSE:
        return ChainSpec((*spec.arrays, arrays[-1]), spec.layout, spec.stages)
    return spec


def _check_lengths(a: Sequence[Choice], b: Sequence[Choice], kind: str) -> None:
    if len(a) != len(b):
        raise _cannot_merge(
            [choice.named.to_json() for choice in a],
            [choice.named.to_json() for choice in b],
            f": Mismatch in number of {kind} codecs ({len(a)} vs {len(b)})",
        )


def _merge_options(a: Choice, b: Choice, *, strict: bool = False) -> Options:
    if a.named.name != b.named.name:
        raise _cannot_merge(a.named.to_json(), b.named.to_json())
    merged = {**a.options, **b.options}
    for option in a.known:
        name = option.name
        if name not in a.options or name not in b.options:
            continue
        if strict and name == "codecs":
            inner = [NamedConfiguration.list_from_json(c.options[name]) for c in (a, b)]
            merged[name] = [codec.to_json() for codec in merge_v3(*inner, strict=True) or ()]
            continue
        mine, other = a.options[name], b.options[name]
        if mine is None and other is None:
            continue  # Which an option may be.
        merged[name] = option.merge(mine, other)
        if merged[name] is None:
            reason = f': Incompatible "{name}": {text(mine)} vs {text(other)}'
            raise _cannot_merge(a.named.to_json(), b.named.to_json(), reason)
    return merged


def _cannot_merge(a: JsonValue, b: JsonValue, reason: str = "") -> MismatchError:
    return MismatchError(f"Cannot merge zarr codec constraints {text(a)} and {text(b)}{reason}")


def complete_v3(
    codecs: Sequence[NamedConfiguration] | None,
    dtype: V3DataType,
    rank: int,
    *,
    inner_order: Sequence[int] | None = None,
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
    inner_order : sequence of int, optional
        Dimensions of a chunk from the slowest to the fastest, as they shall be. If `codecs` come
        to another order, a ``transpose`` is put before the array -> bytes codec.

    Returns
    -------
    tuple of NamedConfiguration
        With every option, as it is stored.

    Examples
    --------
    >>> from gpustore.dtype import uint16
    >>> str(complete_v3([NamedConfiguration("zstd")], uint16, 2)[1])
    '{"configuration":{"checksum":false,"level":3},"name":"zstd"}'
    >>> str(complete_v3(None, uint16, 2, inner_order=(1, 0))[0])
    '{"configuration":{"order":[1,0]},"name":"transpose"}'
    """
    spec = parse_chain(codecs or (), stored=False)
    arrays: list[ArrayChoice | ValueChoice] = []
    element, encoded_rank = native_dtype(dtype), rank
    for array in spec.arrays:
        with resolving(array.named):
            if isinstance(array, ArrayChoice):
                options = array.codec.complete(array.options, encoded_rank)
                arrays.append(ArrayChoice(array.codec, options))
                continue
            value = array.completed(element)
            arrays.append(value)
            element = value.face.types(value.options, element)[1]
            encoded_rank = value.face.rank(value.options, encoded_rank)
    rest: tuple[int, ...] | None = None
    if inner_order is not None:
        found = composed_order(arrays, rank)
        rest = tuple(found.index(dim) for dim in inner_order)
        if rest != tuple(range(rank)) and not _is_reordered(arrays):
            axes = ", ".join(map(str, inner_order))
            raise MetadataError(f'Invalid "inner_order" constraint: {{{axes}}}')
    if spec.layout is not None and isinstance(spec.layout.codec, ShardCodec):
        if spec.stages:
            # They are read, but TensorStore could not.
            stages = [stage.named.to_json() for stage in spec.stages]
            raise UnsupportedError(
                f"Sharding codec {spec.layout.named} is not compatible with subsequent bytes -> "
                f"bytes codecs {text(stages)} that apply to the entire shard.  Instead, bytes -> "
                f"bytes codecs may be specified as inner codecs that apply to each sub-chunk "
                f"individually."
            )
        with resolving(spec.layout.named):
            inner_dtype = dtype if element == native_dtype(dtype) else DataType(element.name)
            options = spec.layout.codec.complete(spec.layout.options, inner_dtype, rank, rest)
        return ChainSpec(tuple(arrays), LayoutChoice(spec.layout.codec, options), ()).named
    if rest is not None and rest != tuple(range(rank)):
        transpose = registry.find("codecs", _V3_TRANSPOSE)
        arrays.append(ArrayChoice(transpose, {"order": list(rest)}))
    layout: LayoutChoice | ValueChoice
    itemsize: int | None = 1 if _is_bytes(dtype) else element.itemsize
    if isinstance(spec.layout, ValueChoice):
        layout = spec.layout.completed(element)
        itemsize = 1
    else:
        default = OBJECT_CODECS[dtype.name] if is_object(dtype) else _V3_DEFAULT
        layout = spec.layout or LayoutChoice(registry.find("codecs", default), {})
        if isinstance(layout.codec, LayoutCodec):
            options = layout.codec.complete(layout.options, itemsize or 1)
            layout = LayoutChoice(layout.codec, options)
    if (isinstance(dtype, np.dtype) and dtype.subdtype is None) or is_object(dtype):
        itemsize = 1  # To TensorStore the stages after records encode bytes.
    completed = []
    for stage in spec.stages:
        with resolving(stage.named):
            completed.append(stage.completed(itemsize))
        itemsize = None
    return ChainSpec(tuple(arrays), layout, tuple(completed)).named


def _is_reordered(arrays: Sequence[ArrayChoice | ValueChoice]) -> bool:
    """Whether a transpose after these is one of the whole array's dimensions."""
    return all(isinstance(a, ArrayChoice) or a.face.is_elementwise for a in arrays)


def _is_bytes(dtype: V3DataType) -> bool:
    """Whether elements are made of parts of one byte each, which have no byte order."""
    if not isinstance(dtype, np.dtype) or dtype.names is None:
        return isinstance(dtype, np.dtype) and (is_opaque(dtype) or dtype.base.itemsize == 1)
    return all(_is_bytes(dtype[name]) for name in dtype.names)


def composed_order(arrays: Sequence[ArrayChoice | ValueChoice], rank: int) -> tuple[int, ...]:
    """The one permutation that array -> array codecs come to, and so the inner order.

    What follows a codec that needs the elements in order does not count: it moves what that made.

    >>> transpose = registry.find("codecs", "transpose")
    >>> composed_order([ArrayChoice(transpose, {"order": o}) for o in ([2, 0, 1], [1, 0, 2])], 3)
    (0, 2, 1)
    """
    composed = tuple(range(rank))
    for array in arrays:
        if isinstance(array, ValueChoice):
            if not array.face.is_elementwise:
                break
            continue
        with resolving(array.named, what="propagating data type and shape"):
            order = array.codec.order(array.options, rank)
        composed = tuple(composed[dim] for dim in order)
    return composed


def inner_order_v3(codecs: Sequence[NamedConfiguration], rank: int) -> tuple[int, ...] | None:
    """The order of the dimensions in a chunk that constraints come to.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    rank : int
        Of the array.

    Returns
    -------
    tuple of int or None
        Dimensions from the slowest to the fastest; None if no array -> bytes codec is named, so
        that the order may still be chosen.

    Raises
    ------
    MetadataError
        If a codec is not for arrays of this rank.
    """
    spec = parse_chain(codecs, stored=False)
    outer = composed_order(spec.arrays, rank)
    if spec.layout is None:
        return None
    if not spec.is_sharded:
        return outer
    codecs = NamedConfiguration.list_from_json(spec.layout.options.get("codecs", []))
    inner = inner_order_v3(codecs, rank)
    return None if inner is None else tuple(outer[dim] for dim in inner)


def read_chunk_shape_v3(codecs: Sequence[NamedConfiguration], rank: int) -> tuple[int, ...] | None:
    """The shape of the innermost chunks that constraints name, None if they leave it open.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    rank : int
        Of the array.
    """
    spec = parse_codecs(codecs, stored=False)
    if not spec.is_sharded or spec.layout is None or spec.stages:
        return None  # Behind other codecs a shard is read as a whole.
    order = composed_order(spec.arrays, rank)
    options = spec.layout.options
    if "codecs" not in options:
        return None  # They may turn out to be shards again. So TensorStore.
    inner = NamedConfiguration.list_from_json(options["codecs"])
    nested = parse_codecs(inner, stored=False).is_sharded
    shape = read_chunk_shape_v3(inner, rank) if nested else options.get("chunk_shape")
    if shape is None or len(shape) != rank:
        return None  # A wrong rank is refused with the whole codec at hand, when it is resolved.
    found = [0] * rank
    for dim, size in zip(order, shape, strict=True):
        found[dim] = size
    return tuple(found)


def shard_v3(
    codecs: Sequence[NamedConfiguration] | None,
    read_shape: tuple[int, ...],
    write_shape: tuple[int, ...],
) -> tuple[NamedConfiguration, ...] | None:
    """Constraints under which chunks of `write_shape` hold inner chunks of `read_shape`.

    ``sharding_indexed`` is put around the codecs if the shapes differ and they have none; where
    the shape of inner chunks is open, at any level, it becomes `read_shape`.
    """
    rank = len(read_shape)
    spec = parse_codecs(codecs or (), stored=False)
    if not spec.is_sharded or spec.layout is None:
        if read_shape == write_shape:
            return None if codecs is None else tuple(codecs)
        options: dict[str, JsonValue] = {
            "chunk_shape": list(read_shape),
            "codecs": [codec.to_json() for codec in codecs or ()],
        }
        return (NamedConfiguration(_V3_SHARDING, options),)
    order = composed_order(spec.arrays, rank)
    options = dict(spec.layout.options)
    inner = NamedConfiguration.list_from_json(options.get("codecs", []))
    read = tuple(read_shape[dim] for dim in order)
    if parse_codecs(inner, stored=False).is_sharded:
        middle = options.setdefault("chunk_shape", list(read))
        nested = shard_v3(inner, read, tuple(middle)) or ()
        options["codecs"] = [codec.to_json() for codec in nested]
    else:
        options.setdefault("chunk_shape", list(read))
    return ChainSpec(spec.arrays, replace(spec.layout, options=options), spec.stages).named
