"""Shards: one stored value that holds many inner chunks behind an index.

:class:`ShardLevel` says where the inner chunks of one level of sharding stand, seen from the cells
of the innermost chunks. :class:`ShardRefiner` narrows a read down to them: it asks for the index of
each shard once, and gives each row the bytes of its inner chunk. Shards that later codecs encode as
a whole have no place that could be looked up: they are chunks, see
:mod:`gpustore.sharding.shard_codec`.

Source: Zarr v3 specification, "Sharding codec".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.chain_spec import ChainSpec, ValueChoice, composed_order, parse_chain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.resolve import resolve_chain, resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import uint64
from gpustore.data_types.json_array import shape_text
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.limits import Limits
from gpustore.sharding.refiner import Probe
from gpustore.sharding.shard_codec import ShardStage
from gpustore.sharding.shard_index import ShardIndex, ShardIndexFormat
from gpustore.strict_json.parsing import JsonValue, in_member


@dataclass(frozen=True, slots=True)
class ShardLevel:
    """One level of sharding: its index, the order of its dimensions, the size of its inner chunks.

    Attributes
    ----------
    index : ShardIndexFormat
        Stored form of the index; its shape is in the order of the encoded dimensions.
    order : tuple of int
        Array dimension of each encoded dimension: the transposes before the codec.
    divisor : tuple of int, one an array dimension
        Innermost chunks along each dimension in one inner chunk of this level: 1, unless the
        inner chunks are shards again.
    """

    index: ShardIndexFormat
    order: tuple[int, ...]
    divisor: tuple[int, ...]

    def position(self, cell: Sequence[int]) -> int:
        """Return the position in its shard of the inner chunk of an innermost cell."""
        position = 0
        for d, count in zip(self.order, self.index.chunks_per_shard):
            position = position * count + cell[d] // self.divisor[d] % count
        return position

    @property
    def ratio(self) -> tuple[int, ...]:
        """Number of innermost chunks in a shard along each array dimension."""
        ratio = [0] * len(self.order)
        for d, count in zip(self.order, self.index.chunks_per_shard):
            ratio[d] = count * self.divisor[d]
        return tuple(ratio)


@dataclass(frozen=True, slots=True)
class ShardRefiner:
    """Narrows each row of a plan to the bytes of its inner chunk at one level of sharding.

    Attributes
    ----------
    level : ShardLevel
    """

    level: ShardLevel

    def probe(self, rows: PlanWindow) -> Probe | None:
        """Return the byte range of the index of each shard, once a shard."""
        low, high = self.level.index.byte_range
        nbytes = self.level.index.nbytes
        probed, start, stop = [], [], []
        for row in self._first_rows(rows):
            probed.append(row)
            if rows.byte_start is None or rows.byte_stop is None:
                start.append(low)
                stop.append(high)
                continue
            # A shard inside a shard: its own range is known.
            at, end = rows.byte_start[row], rows.byte_stop[row]
            start.append(max(at, end - nbytes) if low < 0 else at)
            stop.append(end if low < 0 else min(end, at + nbytes))
        return Probe(probed, start, stop) if probed else None

    def _first_rows(self, rows: PlanWindow) -> list[int]:
        """Return the first row of each shard that is there."""
        seen: dict[tuple[str, int], int] = {}
        starts = rows.byte_start
        for row, key in enumerate(rows.keys):
            if rows.absent is None or not rows.absent[row]:
                seen.setdefault((key, 0 if starts is None else starts[row]), row)
        return list(seen.values())

    def refine(
        self, rows: PlanWindow, heads: Sequence[Buffer | None], totals: Sequence[int]
    ) -> PlanWindow:
        """Look each row up in the index of its shard.

        Raises
        ------
        CorruptChunkError
            If an index is damaged.
        """
        indices: dict[tuple[str, int], tuple[ShardIndex, int] | None] = {}
        starts, stops = rows.byte_start, rows.byte_stop
        for row, head, total in zip(self._first_rows(rows), heads, totals):
            base = 0 if starts is None else starts[row]
            size = total if stops is None else stops[row] - base
            shard = None
            if head is not None:
                try:
                    shard = (self.level.index.decode(head, total=size), base)
                except CorruptChunkError as error:
                    raise error.prefixed("shard index", key=rows.keys[row]) from error
            indices[rows.keys[row], base] = shard
        cells = list(zip(*(list(column) for column in rows.cells)))
        begin, end, absent = [], [], []
        for row, key in enumerate(rows.keys):
            gone = rows.absent is not None and rows.absent[row]
            shard = None if gone else indices[key, 0 if starts is None else starts[row]]
            at = -1
            if shard is not None:
                index, base = shard
                position = self.level.position(cells[row]) if cells else 0
                at = int(index.offset[position])
            if shard is None or at < 0:
                begin.append(0)
                end.append(0)
                absent.append(True)
            else:
                begin.append(base + at)
                end.append(base + at + int(index.nbytes[position]))
                absent.append(False)
        return replace(rows, byte_start=begin, byte_stop=end, absent=absent)


@dataclass(frozen=True, slots=True)
class ResolvedCodecs:
    """The codecs of an array, down to its innermost chunks.

    Attributes
    ----------
    chain : CodecChain
        Codecs of the innermost chunks; the layout is in the order of the array's dimensions.
    chunk_shape : tuple of int
        Shape of the innermost chunks, in elements.
    levels : tuple of ShardLevel
        Levels of sharding, outermost first; empty without sharding.
    """

    chain: CodecChain
    chunk_shape: tuple[int, ...]
    levels: tuple[ShardLevel, ...]

    @property
    def key_ratio(self) -> tuple[int, ...]:
        """Number of innermost chunks that share a key, along each dimension."""
        return self.levels[0].ratio if self.levels else (1,) * len(self.chunk_shape)


def resolve_codecs(
    codecs: Sequence[NamedConfiguration],
    dtype: DataType | Component,
    chunk_shape: Sequence[int],
    *,
    limits: Limits,
    missing: Callable[[np.dtype[Any]], bytes] | None = None,
) -> ResolvedCodecs:
    """Resolve the stored codecs of a Zarr v3 array.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
        The stored codecs, with all options.
    dtype : dtype or Component
        Data type of the stored elements.
    chunk_shape : sequence of int
        Shape of the outermost chunks, in elements.
    limits : Limits
        The limits ``codecs``, ``nested_shardings``, ``chunk_nbytes`` and ``shard_index_nbytes``
        apply.
    missing : callable, optional
        Function from a data type to the bytes of a stored element of a missing inner chunk; zeros
        by default. Only shards that are encoded as a whole use it.

    Raises
    ------
    MetadataError, UnsupportedError, LimitError
        The errors of :func:`gpustore.codec_chain.resolve.resolve_v3`; also if inner chunks do not
        divide a shard, or an index has no fixed size.
    """
    component = dtype if isinstance(dtype, Component) else Component.whole(dtype)
    given = _Given(component, limits, missing or (lambda dtype: bytes(dtype.itemsize)))
    return _resolve(tuple(codecs), tuple(chunk_shape), given)


@dataclass(frozen=True, slots=True)
class _Given:
    """Arguments of :func:`resolve_codecs` that all levels share.

    Attributes
    ----------
    dtype : Component
    limits : Limits
    missing : callable
        The argument of :func:`resolve_codecs`.
    depth : int
        Levels of sharding around them.
    before : tuple of ValueChoice
        Codecs before those, which encode each element by itself.
    is_whole : bool
        Whether a shard around them is encoded as a whole, so that these are not looked up either.
    """

    dtype: Component
    limits: Limits
    missing: Callable[[np.dtype[Any]], bytes]
    depth: int = 0
    before: tuple[ValueChoice, ...] = ()
    is_whole: bool = False


def _resolve(
    codecs: tuple[NamedConfiguration, ...], chunk_shape: tuple[int, ...], given: _Given
) -> ResolvedCodecs:
    """Resolve the codecs of one level, and of those inside."""
    limits, dtype, depth, before = given.limits, given.dtype, given.depth, given.before
    limits.check("codecs", len(codecs), "codecs")
    spec = parse_chain(codecs, stored=True)
    if not spec.is_sharded or spec.layout is None:
        spec = replace(spec, arrays=before + spec.arrays)
        chain = resolve_chain(spec, dtype, chunk_shape, limits=limits)
        return ResolvedCodecs(chain, chunk_shape, ())
    limits.check("nested_shardings", depth + 1, "Shards within shards")
    rank = len(chunk_shape)
    order = composed_order(spec.arrays, rank)
    options = spec.layout.options
    encoded_shape = tuple(chunk_shape[d] for d in order)
    encoded_inner = _inner_shape(spec.layout.named, encoded_shape)
    form = _index_format(options, encoded_shape, encoded_inner, limits)
    values = tuple(_in_shards(array) for array in spec.arrays if isinstance(array, ValueChoice))
    is_whole = given.is_whole or bool(spec.stages)
    inner = _resolve(
        NamedConfiguration.list_from_json(options["codecs"]),
        encoded_inner,
        replace(given, depth=depth + 1, before=before + values, is_whole=is_whole),
    )
    if is_whole:
        return _whole(
            spec, chunk_shape, order, ShardStage.of(form, inner.chain, given.missing), given
        )
    # The inner levels see the dimensions as the transposes have left them.
    level = ShardLevel(form, order, _to_array(order, inner.key_ratio))
    deeper = tuple(
        ShardLevel(
            below.index, tuple(order[d] for d in below.order), _to_array(order, below.divisor)
        )
        for below in inner.levels
    )
    every = order + tuple(range(rank, len(inner.chain.inner_order)))
    chain = CodecChain(
        inner.chain.layout.transposed(every),
        inner.chain.stages,
        {"codecs": [named.to_json() for named in spec.named]},
        inner_order=tuple(every[d] for d in inner.chain.inner_order),
        objects=inner.chain.objects,
        objects_max=inner.chain.objects_max,
    )
    return ResolvedCodecs(chain, _to_array(order, inner.chunk_shape), (level, *deeper))


def _whole(
    spec: ChainSpec,
    chunk_shape: tuple[int, ...],
    order: tuple[int, ...],
    shard: ShardStage,
    given: _Given,
) -> ResolvedCodecs:
    """Shards as chunks, encoded by `shard` and the codecs after it."""
    component = replace(given.dtype, stored=shard.inner.layout.dtype)
    stored = ChunkBytes.of_component(component, shard.stored_shape)
    rank = len(chunk_shape)
    inner_order = tuple(order[d] for d in shard.inner.inner_order[:rank])
    inner_order += tuple(range(rank, rank + component.rank))
    given.limits.check("chunk_nbytes", stored.nbytes, "Decoded chunk")
    stages = [stage.variant.prepare(stage.options, None) for stage in spec.stages]
    chain = CodecChain(
        stored.transposed(inner_order),
        [shard, *stages],
        {"codecs": [named.to_json() for named in spec.named]},
        inner_order=inner_order,
    )
    return ResolvedCodecs(chain, chunk_shape, ())


def _in_shards(array: ValueChoice) -> ValueChoice:
    """A codec before shards as one of their inner chunks, which it comes to.

    Inner chunks that are missing hold the fill value as it encodes that, so it must come back.
    """
    if not array.variant.in_shards:
        raise UnsupportedError(
            f"Codec {array.named} is not supported before sharding_indexed: put it among the "
            f'"codecs" of the shards'
        )
    return replace(array, variant=replace(array.variant, keeps_fill=True))


def _to_array(order: tuple[int, ...], encoded: tuple[int, ...]) -> tuple[int, ...]:
    """Values of the encoded dimensions, by array dimension."""
    values = [0] * len(order)
    for d, value in zip(order, encoded):
        values[d] = value
    return tuple(values)


def _inner_shape(named: NamedConfiguration, encoded_shape: tuple[int, ...]) -> tuple[int, ...]:
    inner = tuple(named.configuration["chunk_shape"])
    if len(inner) != len(encoded_shape):
        raise MetadataError(
            f"sharding_indexed sub-chunk shape of {shape_text(inner)} is not compatible with array "
            f"of rank {len(encoded_shape)}"
        )
    if any(outer % part for outer, part in zip(encoded_shape, inner)):
        raise MetadataError(
            f"sharding_indexed sub-chunk shape of {shape_text(inner)} does not evenly divide chunk "
            f"shape of {shape_text(encoded_shape)}"
        )
    return inner


def _index_format(
    options: Mapping[str, JsonValue],
    shape: tuple[int, ...],
    inner: tuple[int, ...],
    limits: Limits,
) -> ShardIndexFormat:
    counts = tuple(outer // part for outer, part in zip(shape, inner))
    limits.check("shard_index_nbytes", 16 * math.prod(counts), "Decoded shard index")
    with in_member("index_codecs"):
        codecs = NamedConfiguration.list_from_json(options["index_codecs"])
        chain = resolve_v3(codecs, uint64, (*counts, 2), limits=limits)
    if not chain.is_view:
        raise MetadataError(
            "Invalid index_codecs specified: only fixed-size encodings are supported"
        )
    return ShardIndexFormat(counts, chain, options.get("index_location", "end") == "end")
