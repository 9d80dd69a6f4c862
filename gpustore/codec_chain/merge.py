"""Constraints on the codecs of Zarr v3: merging and completion.

:func:`merge_v3`
    Merges two constraints, option by option, or raises MismatchError.
:func:`complete_v3`, :func:`shard_v3`
    Choose the options that constraints leave open for a new array, as TensorStore does.
:func:`inner_order_v3`, :func:`read_chunk_shape_v3`
    Return the order of the dimensions in a chunk, and the innermost chunks, that codecs lead to.

Source: TensorStore ``driver/zarr3/codec/codec_chain_spec.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gpustore import registry
from gpustore.codec_chain.chain_spec import (
    ArrayChoice,
    ChainSpec,
    Choice,
    LayoutChoice,
    ValueChoice,
    composed_order,
    parse_chain,
    parse_codecs,
    parse_v3,
    resolving,
)
from gpustore.codec_chain.registered import ArrayCodec, Codec, LayoutCodec, Options, ShardCodec
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import (
    MetadataError,
    MismatchError,
    UnsupportedError,
)
from gpustore.metadata.component import is_opaque
from gpustore.metadata.data_type import V3DataType, native_dtype
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.object_type import OBJECT_CODECS, is_object
from gpustore.strict_json.parsing import JsonValue, text

_V3_DEFAULT: Final = "bytes"
_V3_TRANSPOSE: Final = "transpose"
_V3_SHARDING: Final = "sharding_indexed"


def merge_v3(
    a: Sequence[NamedConfiguration] | None,
    b: Sequence[NamedConfiguration] | None,
    *,
    strict: bool = False,
) -> tuple[NamedConfiguration, ...] | None:
    """Return the codec constraints that satisfy `a` and `b`; None is no constraint.

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
        If they contradict: ``Cannot merge zarr codec constraints ... and ...``.
    MetadataError, UnsupportedError
        If codecs are not valid, as :func:`parse_v3`.

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
    """Return the number of nested levels of shards."""
    if spec.layout is None or not spec.is_sharded:
        return 0
    inner = NamedConfiguration.list_from_json(spec.layout.options.get("codecs", []))
    return 1 + _levels(parse_codecs(inner, stored=False))


def _with_inner(shard: ChainSpec, inner: ChainSpec) -> ChainSpec:
    """Return a chain of shards with `inner` merged into the codecs of its inner chunks."""
    assert shard.layout is not None
    options = dict(shard.layout.options)
    own = NamedConfiguration.list_from_json(options.get("codecs", [])) or None
    merged = merge_v3(own, inner.named)
    options["codecs"] = [codec.to_json() for codec in merged or ()]
    return ChainSpec(shard.arrays, replace(shard.layout, options=options), shard.stages)


def _with_last_transpose(spec: ChainSpec, other: ChainSpec) -> ChainSpec:
    """Return `spec` with the last codec of `other` if that is one more transpose."""
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
            continue  # None is a value that some options may have.
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
    """Return the codecs of a new array under the constraints `codecs`.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration or None
        None is no constraint: the array is not compressed, as in TensorStore.
    dtype : dtype
        Data type of the elements.
    rank : int
        Number of dimensions of the array.
    inner_order : sequence of int, optional
        Required order of the dimensions of a chunk, from the slowest to the fastest. If `codecs`
        lead to another order, a ``transpose`` is put before the array -> bytes codec.

    Returns
    -------
    tuple of NamedConfiguration
        Codecs with every option, as they are stored.

    Examples
    --------
    >>> from gpustore.data_types.dtype import uint16
    >>> str(complete_v3([NamedConfiguration("zstd")], uint16, 2)[1])
    '{"configuration":{"checksum":false,"level":3},"name":"zstd"}'
    >>> str(complete_v3(None, uint16, 2, inner_order=(1, 0))[0])
    '{"configuration":{"order":[1,0]},"name":"transpose"}'
    """
    spec = parse_chain(codecs or (), stored=False)
    arrays, element = _complete_arrays(spec.arrays, native_dtype(dtype), rank)
    rest: tuple[int, ...] | None = None
    if inner_order is not None:
        found = composed_order(arrays, rank)
        rest = tuple(found.index(dim) for dim in inner_order)
        if rest != tuple(range(rank)) and not _is_reordered(arrays):
            axes = ", ".join(map(str, inner_order))
            raise MetadataError(f'Invalid "inner_order" constraint: {{{axes}}}')
    if spec.layout is not None and isinstance(spec.layout.codec, ShardCodec):
        _refuse_stages_after_shards(spec)
        with resolving(spec.layout.named):
            inner_dtype = dtype if element == native_dtype(dtype) else DataType(element.name)
            options = spec.layout.codec.complete(spec.layout.options, inner_dtype, rank, rest)
        return ChainSpec(tuple(arrays), LayoutChoice(spec.layout.codec, options), ()).named
    if rest is not None and rest != tuple(range(rank)):
        transpose = registry.find("codecs", _V3_TRANSPOSE)
        arrays.append(ArrayChoice(transpose, {"order": list(rest)}))
    layout, itemsize = _complete_layout(spec.layout, dtype, element)
    completed = []
    for stage in spec.stages:
        with resolving(stage.named):
            completed.append(stage.completed(itemsize))
        itemsize = None
    return ChainSpec(tuple(arrays), layout, tuple(completed)).named


def _complete_arrays(
    given: Sequence[ArrayChoice | ValueChoice], element: np.dtype[Any], rank: int
) -> tuple[list[ArrayChoice | ValueChoice], np.dtype[Any]]:
    """Return the array -> array codecs with every option, and the type of encoded elements."""
    arrays: list[ArrayChoice | ValueChoice] = []
    for array in given:
        with resolving(array.named):
            if isinstance(array, ArrayChoice):
                arrays.append(ArrayChoice(array.codec, array.codec.complete(array.options, rank)))
                continue
            value = array.completed(element)
            arrays.append(value)
            element = value.variant.types(value.options, element)[1]
            rank = value.variant.rank(value.options, rank)
    return arrays, element


def _refuse_stages_after_shards(spec: ChainSpec) -> None:
    """Raise UnsupportedError for codecs after shards in a new array: TensorStore reads none."""
    if spec.stages and spec.layout is not None:
        stages = [stage.named.to_json() for stage in spec.stages]
        raise UnsupportedError(
            f"Sharding codec {spec.layout.named} is not compatible with subsequent bytes -> "
            f"bytes codecs {text(stages)} that apply to the entire shard.  Instead, bytes -> "
            f"bytes codecs may be specified as inner codecs that apply to each sub-chunk "
            f"individually."
        )


def _complete_layout(
    given: LayoutChoice | ValueChoice | None, dtype: V3DataType, element: np.dtype[Any]
) -> tuple[LayoutChoice | ValueChoice, int | None]:
    """Return the array -> bytes codec with every option, and the itemsize for the first stage."""
    itemsize = 1 if _is_bytes(dtype) else element.itemsize
    layout: LayoutChoice | ValueChoice
    if isinstance(given, ValueChoice):
        layout = given.completed(element)
        itemsize = 1
    else:
        default = OBJECT_CODECS[dtype.name] if is_object(dtype) else _V3_DEFAULT
        layout = given or LayoutChoice(registry.find("codecs", default), {})
        if isinstance(layout.codec, LayoutCodec):
            options = layout.codec.complete(layout.options, itemsize or 1)
            layout = LayoutChoice(layout.codec, options)
    if (isinstance(dtype, np.dtype) and dtype.subdtype is None) or is_object(dtype):
        itemsize = 1  # To TensorStore the stages after records encode bytes.
    return layout, itemsize


def _is_reordered(arrays: Sequence[ArrayChoice | ValueChoice]) -> bool:
    """Whether a transpose behind these codecs permutes the dimensions of the array."""
    return all(isinstance(a, ArrayChoice) or a.variant.is_elementwise for a in arrays)


def _is_bytes(dtype: V3DataType) -> bool:
    """Whether elements consist of single bytes, which have no byte order."""
    if not isinstance(dtype, np.dtype) or dtype.names is None:
        return isinstance(dtype, np.dtype) and (is_opaque(dtype) or dtype.base.itemsize == 1)
    return all(_is_bytes(dtype[name]) for name in dtype.names)


def inner_order_v3(codecs: Sequence[NamedConfiguration], rank: int) -> tuple[int, ...] | None:
    """Return the order of the dimensions in a chunk that constraints lead to.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    rank : int
        Number of dimensions of the array.

    Returns
    -------
    tuple of int or None
        Dimensions from the slowest to the fastest; None if the constraints have no array -> bytes
        codec, so that the order may still be chosen.

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
    """Return the shape of the innermost chunks in constraints, None if they leave it open.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
    rank : int
        Number of dimensions of the array.
    """
    spec = parse_codecs(codecs, stored=False)
    if not spec.is_sharded or spec.layout is None or spec.stages:
        return None  # Behind other codecs a shard is read as a whole.
    order = composed_order(spec.arrays, rank)
    options = spec.layout.options
    if "codecs" not in options:
        return None  # The inner codecs may still become shards. TensorStore does so.
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
    """Return constraints by which chunks of `write_shape` hold inner chunks of `read_shape`.

    ``sharding_indexed`` is put around the codecs if the shapes differ and the codecs have no
    shards; an open shape of inner chunks, at any level, becomes `read_shape`. Shapes are in
    elements.
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
