"""Resolution of stored codecs to a chain: :func:`resolve_v3` and :func:`resolve_v2`.

1. Validate the codecs strictly (:mod:`gpustore.codec_chain.chain_spec`).
2. Lay out the elements of a chunk, in Python integers, under the limits.
3. Prepare the stages. The chain computes how many bytes each may decode to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.chain_spec import (
    ArrayChoice,
    ChainSpec,
    Choice,
    LayoutChoice,
    StageChoice,
    ValueChoice,
    composed_order,
    of_codec,
    parse_chain,
    resolving,
)
from gpustore.codec_chain.compressor import choose_v2
from gpustore.codec_chain.filter import choose_filters
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.order import PermuteStage, SwapStage
from gpustore.codec_chain.registered import LayoutCodec, ShardCodec
from gpustore.codec_chain.value import Elements, ValueStage
from gpustore.codec_chain.vlen import VlenCodec
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import (
    MetadataError,
    UnsupportedError,
)
from gpustore.metadata.component import Component, is_opaque
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import JsonValue, at_position, in_member, text


def resolve_v3(
    codecs: Sequence[NamedConfiguration],
    dtype: DataType | Component,
    chunk_shape: Sequence[int],
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> CodecChain:
    """Return the codec chain of a Zarr v3 array.

    Parameters
    ----------
    codecs : sequence of NamedConfiguration
        Stored codecs, complete.
    dtype : dtype or Component
        Data type of the stored elements, or the component of them that is read.
    chunk_shape : sequence of int
        Stored elements of a chunk along each dimension.
    limits : Limits, optional
        Limits, of which ``codecs`` and ``chunk_nbytes`` apply.

    Raises
    ------
    MetadataError
        If a codec is not known, or an option is not as expected.
    UnsupportedError
        If gpustore has no implementation of a codec of the format.
    LimitError
        If there are too many codecs, or a chunk is too large.
    """
    limits.check("codecs", len(codecs), "codecs")
    return resolve_chain(parse_chain(codecs, stored=True), dtype, chunk_shape, limits=limits)


def resolve_chain(
    spec: ChainSpec, dtype: DataType | Component, chunk_shape: Sequence[int], *, limits: Limits
) -> CodecChain:
    """Return the codec chain of parsed codecs, as :func:`resolve_v3` does."""
    component = dtype if isinstance(dtype, Component) else Component.whole(dtype)
    assert spec.layout is not None  # Stored chains have one.
    if isinstance(spec.layout.codec, ShardCodec):
        # Only the codecs of a shard's index get here with shards: an index has a fixed size.
        raise MetadataError(f"Expected no sharding, but received: {spec.layout.named}")
    if any(isinstance(array, ValueChoice) for array in (*spec.arrays, spec.layout)):
        # The byte order is that of the elements behind the array -> array codecs.
        component = replace(component, stored=component.stored.newbyteorder("="))
    rank = len(chunk_shape)
    before = _ValueStages(component, chunk_shape)
    for array in spec.arrays:
        before.add(array)
    inner_order = composed_order(spec.arrays, rank)
    stored_shape = tuple(chunk_shape[dim] for dim in inner_order)
    stages: list[BytesCodec] = before.stages
    objects = None
    if isinstance(spec.layout, ValueChoice):
        before.add(spec.layout)
        stored = ChunkBytes.of_component(component, stored_shape)
    else:
        with resolving(spec.layout.named):
            options, encoded = spec.layout.options, before.component
            _check_elements(spec.layout, encoded)
            if isinstance(spec.layout.codec, VlenCodec):
                objects = spec.layout.codec
                stored = objects.layout(stored_shape)
            else:
                assert isinstance(spec.layout.codec, LayoutCodec)
                stored = spec.layout.codec.layout(options, encoded, stored_shape)
            if encoded is not component:
                if not stored.dtype.isnative:
                    stages.append(SwapStage.of(encoded.stored))
                stored = ChunkBytes.of_component(component, stored_shape)
    inner_order += tuple(range(rank, rank + component.rank))
    layout = stored.transposed(inner_order)
    limits.check("chunk_nbytes", layout.nbytes, "Decoded chunk")
    itemsize: int | None = before.elements.dtype.itemsize if before.typed else component.nbytes
    if objects is not None:
        itemsize = None
    for stage in spec.stages:
        stages.append(stage.variant.prepare(stage.options, itemsize))
        itemsize = None
    json = {"codecs": [named.to_json() for named in spec.named]}
    return CodecChain(
        layout,
        stages,
        json,
        inner_order=inner_order,
        objects=objects,
        objects_max=limits.chunk_nbytes,
    )


def _check_elements(choice: LayoutChoice, component: Component) -> None:
    """Raise MetadataError unless the array -> bytes codec supports the elements."""
    codec = choice.codec
    if isinstance(codec, VlenCodec):
        fits, wanted = component.dtype == codec.dtype, codec.dtype.name
    else:
        fits, wanted = not component.stored.hasobject, "a fixed size"
    if not fits:
        raise MetadataError(
            f"{text(codec.name)} codec is for elements of {wanted}, but the data type is "
            f"{component.dtype.name}"
        )


class _ValueStages:
    """Stages of array -> array codecs, added one after the other.

    Attributes
    ----------
    stages : list of BytesCodec
        Stages added so far, in the order of encoding.
    elements : Elements
        Elements behind the codecs added so far.
    typed : bool
        Whether a codec of values was added.
    """

    def __init__(self, component: Component, shape: Sequence[int]) -> None:
        self.stages: list[BytesCodec] = []
        self.elements = Elements(component.stored, tuple(shape))
        self.typed = False
        self._component = component
        self._is_ordered = False

    @property
    def component(self) -> Component:
        """Component of each element that the array -> bytes codec encodes."""
        if not self.typed:
            return self._component
        return Component.whole(DataType(self.elements.dtype.name))

    def add(self, choice: Choice) -> None:
        """Add an array -> array codec, or an array -> bytes codec of values."""
        with resolving(choice.named):
            if isinstance(choice, ArrayChoice):
                self._transpose(choice.codec.order(choice.options, len(self.elements.shape)))
            elif isinstance(choice, ValueChoice):
                self._add_value(choice)

    def _transpose(self, order: tuple[int, ...]) -> None:
        shape = self.elements.shape
        if self._is_ordered:
            itemsize = self.elements.dtype.itemsize if self.typed else self._component.nbytes
            self.stages.append(PermuteStage(shape, order, itemsize))
        self.elements = Elements(self.elements.dtype, tuple(shape[dim] for dim in order))

    def _add_value(self, choice: ValueChoice) -> None:
        variant = choice.variant
        stored = self._component.stored
        if (
            not self._component.is_element
            or is_opaque(stored)
            or stored.subdtype is not None
            or stored.hasobject
        ):
            raise UnsupportedError(
                "codecs of elements are not supported for records, strings and raw bytes"
            )
        decoded, encoded = variant.given(choice.options, self.elements)
        stage = variant.prepare(choice.options, decoded, encoded)
        if stage is not None:
            if variant.keeps_fill and isinstance(stage, ValueStage):
                stage = replace(stage, keeps_fill=True)
            self.stages.append(stage)
        self.typed |= stage is not None
        self._is_ordered |= not variant.is_elementwise
        self.elements = encoded


def v2_inner_order(rank: int, inner_rank: int, order: str) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest: `rank` chunked, then inner ones."""
    dims = tuple(range(rank))
    return (dims[::-1] if order == "F" else dims) + tuple(range(rank, rank + inner_rank))


def resolve_v2(
    compressor: Mapping[str, JsonValue] | None,
    filters: Sequence[Mapping[str, JsonValue]] | None,
    component: Component,
    chunk_shape: Sequence[int],
    order: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> CodecChain:
    """Return the codec chain of a Zarr v2 array.

    Parameters
    ----------
    compressor : mapping or None
        Stored compressor.
    filters : sequence of mapping or None
        Stored filters in the order of encoding.
    component : Component
        Component of the stored elements that is read.
    chunk_shape : sequence of int
        Stored elements of a chunk along each chunked dimension.
    order : str
        ``"C"``, or ``"F"`` if the first dimension is innermost; inner dimensions are in C order.
    limits : Limits, optional
        Limits, of which ``chunk_nbytes`` applies.

    Raises
    ------
    MetadataError
        If a codec is not known, or an option is not as expected.
    UnsupportedError
        If gpustore has no implementation of a codec.
    LimitError
        If a chunk is too large.
    """
    layout = ChunkBytes.of_component(component, tuple(chunk_shape), order=order)
    inner_order = v2_inner_order(len(chunk_shape), component.rank, order)
    limits.check("chunk_nbytes", layout.nbytes, "Decoded chunk")
    stored = component.stored if component.is_element else np.dtype(f"V{component.nbytes}")
    shape = tuple(reversed(chunk_shape)) if order == "F" else tuple(chunk_shape)
    given = _Given(Elements(stored, shape), component.nbytes)
    stages: list[BytesCodec] = []
    chosen = choose_filters(filters, stored=True)
    objects = None
    for index, one in enumerate(chosen):
        if isinstance(one, LayoutChoice):
            assert isinstance(one.codec, VlenCodec)
            with in_member("filters"), at_position(index):
                _check_elements(one, component)
                one.codec.layout(tuple(chunk_shape))  # Raises MetadataError.
            objects, given = one.codec, _Given(None, None)
            continue
        with in_member("filters"), at_position(index):
            given = _add_v2(stages, one, given)
    choice = choose_v2(compressor, stored=True)
    if choice is not None:
        with in_member("compressor"):
            _add_v2(stages, choice, given)
    json: JsonValue = {
        "compressor": None if choice is None else {"id": choice.name, **choice.options},
        "filters": [{"id": one.named.name, **one.options} for one in chosen] or None,
    }
    return CodecChain(
        layout,
        stages,
        json,
        inner_order=inner_order,
        objects=objects,
        objects_max=limits.chunk_nbytes,
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """Input of a codec of Zarr v2: elements, None if their number is not known.

    `itemsize` is None for bytes without elements.
    """

    elements: Elements | None
    itemsize: int | None


def _add_v2(stages: list[BytesCodec], choice: StageChoice | ValueChoice, given: _Given) -> _Given:
    """Add the stage of a filter or compressor to `stages`; return the input of the next one."""
    if isinstance(choice, StageChoice):
        stage = choice.variant.prepare(choice.options, given.itemsize)
        stages.append(stage)
        if given.elements is None or not stage.is_exact:
            return _Given(None, None)
        nbytes = given.elements.count * given.elements.dtype.itemsize
        nbytes = stage.encoded_bound(nbytes)  # Raises MetadataError.
        return _Given(Elements(np.dtype(np.uint8), (nbytes,)), None)
    with of_codec(choice.name):
        if given.elements is None:
            raise MetadataError(
                "It is for elements, and follows a codec whose encoding may have any number of "
                "bytes"
            )
        decoded, encoded = choice.variant.viewed(choice.options, given.elements)
        prepared = choice.variant.prepare(choice.options, decoded, encoded)
    if prepared is not None:
        stages.append(prepared)
    if not choice.variant.has_fixed_size:
        return _Given(None, None)
    return _Given(encoded, encoded.dtype.itemsize)
