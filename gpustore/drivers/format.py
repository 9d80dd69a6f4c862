"""Interface of a chunked format: translation between metadata documents and the description of an
array.

A :class:`Format` translates between a metadata document and an :class:`ArrayDescription`, which is
all the chunked driver knows. Adding a format is one such translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np

from gpustore.codec_chain.chain import CodecChain
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.selection import Selection
from gpustore.errors import MetadataError, MismatchError, UnsupportedError, prefixing
from gpustore.index_space import IndexDomain
from gpustore.index_space.bounds import Box
from gpustore.index_space.domain import make_domain
from gpustore.metadata.component import Component
from gpustore.metadata.data_type import V3_DATA_TYPES
from gpustore.metadata.document import ArrayMetadata
from gpustore.metadata.object_type import is_object
from gpustore.pipelines.chunked_array import ArrayTemplate
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.planning.chunk_format import KeyNames
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.domain_merge import merge_domains, merge_units, units_text
from gpustore.schema.fill_value import check_broadcast, refuse_text
from gpustore.sharding.shard import ShardLevel
from gpustore.strict_json.parsing import JsonValue, Members


@dataclass(frozen=True, slots=True)
class SchemaWords:
    """Wording of the comparison of stored metadata with a schema, after TensorStore.

    Attributes
    ----------
    dtype : str
        Name of the metadata member that holds the data type.
    rank : str
        Template of the message about ranks, with the fields ``schema`` and ``stored``.
    domain : str
        Beginning of a message about domains.
    status : str
        Status of errors about domain and fill value.
    stored_first : bool
        Whether messages name the stored domain before that of the schema.
    has_units : bool
        Whether the format stores dimension units.
    name : str
        Name of the format.
    has_fill_value : bool
        Whether the format stores a fill value.
    units_are_complete : bool
        Whether a dimension without a stored unit contradicts a schema that has one.
    """

    dtype: str
    rank: str
    domain: str
    status: str
    stored_first: bool
    has_units: bool
    name: str = "zarr"
    has_fill_value: bool = True
    units_are_complete: bool = False

    @property
    def fill_value_refused(self) -> str:
        """Message for a fill value of the schema where the format has none."""
        return f"fill_value not supported by {self.name} format"

    def merge_domains(self, schema: IndexDomain, stored: IndexDomain) -> IndexDomain:
        """Merge two domains; raises a MetadataError without the beginning :attr:`domain`."""
        return merge_domains(stored, schema) if self.stored_first else merge_domains(schema, stored)


_NO_UNITS = "Dimension units not supported by zarr driver"


@dataclass(frozen=True)
class ArrayDescription:
    """Properties of an array derived from its metadata, independent of the format.

    Attributes
    ----------
    shape, chunk_shape : tuple of int
        Shape of the array and of its stored chunks, in elements.
    dtype : dtype
    fill_value : ndarray, or None
        Fill value of shape (), or of the shape of the inner dimensions. None if the format leaves
        it undefined; missing chunks then read as zero, and chunks of zeros are stored if
        `stores_zeros`.
    read_shape : tuple of int
        Shape of the innermost chunks: `chunk_shape`, unless these are shards.
    levels : tuple of ShardLevel
        Levels of sharding, outermost first; empty without sharding.
    chain : CodecChain
        Codecs of the innermost chunks.
    inner_order : tuple of int
        Dimensions from the slowest to the fastest in the decoded chunk.
    key_prefix, key_separator : str
        Prefix and separator of chunk keys, relative to the array.
    labels : tuple of str
    units : tuple of Unit or None
    codec_json : JsonValue
        The codec spec.
    inner_rank : int
        Number of dimensions, the last ones, inside each stored element.
    blank : ndarray of shape (), or None
        Bytes ``V<n>`` of a missing stored element, where elements are parts of stored ones.
    grid : RectilinearGrid, or None
        Grid of chunks that differ in shape; `chunk_shape` is then the largest extent in each
        dimension.
    passed_over : tuple of str
        Names of unknown extensions that reads may ignore.
    stores_zeros : bool
        Whether chunks of zeros are stored where the fill value is undefined.
    names : KeyNames or None
        Other names of chunks than their indices.
    origin : tuple of int, or None
        Origin of the domain of an array that cannot be resized; None for other arrays.
    layout : ChunkLayout, or None
        The chunk layout, where it does not follow from the other attributes.
    domain : IndexDomain
        Domain: from `origin`, or with origin zero and implicit (resizable) upper bounds except for
        inner dimensions.
    templates : dict
        Templates of the arrays with this description, by ``gpu_decode_trust``, whether the store is
        trusted, and whether missing chunks are filled and chunks of fill values stored.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: dtype_
    fill_value: Any
    read_shape: tuple[int, ...]
    levels: tuple[ShardLevel, ...]
    chain: CodecChain
    inner_order: tuple[int, ...]
    key_prefix: str
    key_separator: str
    labels: tuple[str, ...]
    units: tuple[Unit | None, ...]
    codec_json: JsonValue
    inner_rank: int = 0
    blank: Any = None
    grid: RectilinearGrid | None = None
    passed_over: tuple[str, ...] = ()
    stores_zeros: bool = True
    names: KeyNames | None = None
    origin: tuple[int, ...] | None = None
    layout: ChunkLayout | None = None
    domain: IndexDomain = field(init=False)
    templates: dict[tuple[str, bool, bool, bool], ArrayTemplate] = field(
        init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        vars(self)["templates"] = {}
        if self.origin is not None:
            vars(self)["domain"] = IndexDomain(
                inclusive_min=self.origin, shape=self.shape, labels=self.labels
            )
            return
        rank = len(self.shape)
        implicit = (True,) * (rank - self.inner_rank) + (False,) * self.inner_rank
        # The metadata have checked the bounds.
        box = Box((0,) * rank, self.shape, (False,) * rank, implicit)
        vars(self)["domain"] = make_domain(box, self.labels)

    def with_shape(self, shape: tuple[int, ...]) -> ArrayDescription:
        """Return the description of the array resized to `shape`, which lacks the inner
        dimensions.
        """
        inner = self.shape[len(self.shape) - self.inner_rank :]
        return self.with_members(shape=shape + inner)

    def with_members(self, **members: Any) -> ArrayDescription:
        """Return the description with other values of these attributes."""
        changed = object.__new__(ArrayDescription)
        vars(changed).update(vars(self), **members)
        changed.__post_init__()
        return changed

    def cells(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of chunks with keys along each outer dimension."""
        if self.grid is not None:
            return self.grid.cells(shape)
        return tuple(-(-size // chunk) for size, chunk in zip(shape, self.chunk_shape))

    @property
    def codec(self) -> CodecSpec:
        """Codec spec, made on first use because most opened arrays never need it."""
        return CodecSpec(self.codec_json)

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Layout with the innermost chunks as read chunks and the outermost as write chunks.

        The chunk shape is unset along dimensions with chunks of several sizes.
        """
        if self.layout is not None:
            return self.layout
        rank = len(self.shape)
        write = self.chunk_shape if self.grid is None else self.grid.uniform(self.shape)
        read = write if self.grid is not None and not self.levels else self.read_shape
        return ChunkLayout(
            rank=rank,
            grid_origin=[0] * rank,
            inner_order=self.inner_order,
            read_chunk=ChunkLayout.Grid(shape=read),
            write_chunk=ChunkLayout.Grid(shape=write),
        )

    def check(self, schema: Schema, words: SchemaWords) -> None:
        """Compare the array with the constraints of a schema.

        Parameters
        ----------
        schema : Schema
            Soft constraints are ignored.
        words : SchemaWords
            Wording of the format.

        Raises
        ------
        MismatchError, MetadataError
            The message, in TensorStore's words, names the first property that differs.
        """
        if schema.is_empty:
            return
        rank = len(self.shape)
        if schema.rank is not None and schema.rank != rank:
            raise MismatchError(words.rank.format(schema=schema.rank, stored=rank))
        if schema.dtype is not None and schema.dtype != self.dtype:
            raise MismatchError(
                f"{words.dtype} from metadata ({self.dtype.name}) does not match dtype in schema "
                f"({schema.dtype.name})"
            )
        if schema.domain is not None:
            with prefixing(words.domain, status=words.status):
                words.merge_domains(schema.domain, self.domain)
        if schema.has_chunk_shapes:
            layout, own = schema.chunk_layout, self.chunk_layout
            if not any(own.codec_chunk.shape or ()):
                check_codec_chunk(layout)
            layout.merged(own)
            if self.grid is not None and self.layout is None:
                _check_uniform("read_chunk", layout.read_chunk.shape, own.read_chunk.shape)
                _check_uniform("write_chunk", layout.write_chunk.shape, own.write_chunk.shape)
        if words.has_fill_value:
            self._check_fill_value(schema, words)
        elif schema.fill_value is not None:
            raise MetadataError(words.fill_value_refused)
        if schema.codec is not None:
            with prefixing("codec from metadata does not match codec in schema"):
                merged = self.codec.merged(schema.codec)
                if not _has_filters(self.codec) and _has_filters(merged):
                    # As a constraint an array's null would let any filters pass.
                    raise MismatchError(f'"filters" does not match: null vs {merged}', status="")
        units = schema.dimension_units
        if units is not None and (self.units is None or units.count(None) < len(units)):
            if not words.has_units and units.count(None) < len(units):
                raise MetadataError(_NO_UNITS)
            with prefixing(
                "dimension_units from metadata does not match dimension_units in schema",
                status="FAILED_PRECONDITION",
            ):
                merged_units = merge_units(self.units, units)
            if words.units_are_complete and merged_units != self.units:
                raise MismatchError(
                    f"Dimension units in metadata {units_text(self.units)} do not match dimension "
                    f"units in schema {units_text(units)}"
                )

    def _check_fill_value(self, schema: Schema, words: SchemaWords) -> None:
        wanted = schema.fill_value
        if wanted is None:
            return
        found = None if self.fill_value is None else np.asarray(self.fill_value)
        inner = self.shape[len(self.shape) - self.inner_rank :]
        check_broadcast(wanted.shape, inner)
        refuse_text(wanted, self.dtype)
        cast = np.broadcast_to(wanted.astype(self.dtype.array_dtype), inner)
        if is_object(self.dtype):
            same = found is not None and bool((cast == found).all())
        else:
            same = found is not None and cast.tobytes() == found.tobytes()
        if not same:
            raise MismatchError(
                f"Invalid fill_value: schema requires fill value of {wanted}, but metadata "
                f"specifies {'no fill value' if found is None else f'fill value of {found}'}",
                status=words.status,
            )


def _check_uniform(
    name: str, wanted: tuple[int | None, ...] | None, own: tuple[int | None, ...] | None
) -> None:
    """Refuse a chunk size along a dimension along which chunks differ."""
    for d, size in enumerate(wanted or ()):
        if size and (own is None or not own[d]):
            raise MismatchError(
                f"{name} shape of {size} was asked for along dimension {d}, along which the chunks "
                f"of the rectilinear grid differ in size"
            )


OPAQUE = ("char", "byte")
"""Data types of elements whose number in a stored element only the metadata know."""


def constrain_rank(schema: Schema, inner_rank: int) -> int | None:
    """Merge in a chunk grid that begins at zero; return the rank, None if unknown.

    Raises
    ------
    MetadataError
        If the rank is less than `inner_rank`, the number of dimensions of the data type.
    """
    rank = schema.rank
    if rank is not None:
        if rank < inner_rank:
            raise MetadataError(
                f"Rank specified by schema ({rank}) is less than the {inner_rank} dimensions of "
                f"the data type"
            )
        schema.update(chunk_layout=_layout_from_zero(rank))
    return rank


@cache
def _layout_from_zero(rank: int) -> ChunkLayout:
    """Return the layout of a chunk grid that begins at zero; schemas do not change it."""
    return ChunkLayout(rank=rank, grid_origin=[0] * rank)


def zarr_domain(
    shape: Sequence[int], inner: Sequence[int], labels: Sequence[str] | None = None
) -> IndexDomain:
    """Return the domain of an array of `shape`, resizable, with the fixed dimensions `inner`."""
    implicit = (True,) * len(shape) + (False,) * len(inner)
    return IndexDomain(shape=(*shape, *inner), labels=labels, implicit_upper_bounds=implicit)


def created_domain(schema: Schema) -> IndexDomain:
    """Return the domain of a new Zarr array; :func:`with_zarr_domain` has checked its lower bounds.

    Raises
    ------
    MetadataError
        If an upper bound is unknown.
    """
    # Without dimensions there is nothing left to say about a domain.
    domain = IndexDomain(rank=0) if schema.rank == 0 else schema.domain
    if domain is None or not all(dim.finite for dim in domain):
        raise MetadataError("domain must be specified")
    return domain


def with_zarr_domain(schema: Schema, words: SchemaWords, inner_rank: int = 0) -> Schema:
    """Return the schema with the bounds of a Zarr array: from zero to a resizable end.

    The last `inner_rank` dimensions cannot be resized.

    Raises
    ------
    MetadataError
        If a lower bound is not zero.
    """
    domain = schema.domain
    if domain is None:
        return schema
    rank = domain.rank
    zeros, never = (0,) * rank, (False,) * rank
    implicit_upper = (True,) * (rank - inner_rank) + (False,) * inner_rank
    if domain.box != Box(zeros, domain.exclusive_max, never, implicit_upper):
        domain = words.merge_domains(domain, IndexDomain(inclusive_min=zeros))
        box = Box(domain.inclusive_min, domain.exclusive_max, never, implicit_upper)
        domain = make_domain(box, domain.labels)
    return schema.with_domain(domain)


def merge_codec(schema: Schema, codec: CodecSpec) -> None:
    """Merge the codec that a format implies into a schema; opening refuses one of another
    driver.
    """
    if schema.codec is None or schema.codec.driver == codec.driver:
        schema.update(codec=codec)


def _has_filters(codec: CodecSpec) -> bool:
    """Whether a codec spec asks for filters of Zarr v2."""
    json = codec.to_json()
    return isinstance(json, dict) and bool(json.get("filters"))


def check_codec_chunk(layout: ChunkLayout) -> None:
    """Raise MetadataError for a constraint on chunks of the codec, which no codec has."""
    if any(layout.codec_chunk.shape or ()):
        raise MetadataError("codec_chunk_shape not supported")


def check_rank(rank: int) -> int:
    """Return `rank`, inner dimensions included, if arrays can have it."""
    if rank > 32:
        raise MetadataError(f"Rank {rank} is outside valid range [0, 32]")
    return rank


def check_dtype(dtype: dtype_, *, more: Sequence[str] = ()) -> None:
    """Refuse data types that need more metadata than a schema has, and those that Zarr arrays lack.

    Parameters
    ----------
    dtype : dtype
    more : sequence of str
        Further data types of this format.
    """
    numbers = (*V3_DATA_TYPES, *more)
    is_other = is_object(dtype) or dtype.array_dtype.kind in "MmU"
    if dtype.name not in numbers and not is_other:
        words = ("datetime64[<unit>]", "timedelta64[<unit>]", "U<length>", "string", "ustring")
        raise UnsupportedError(
            f"{dtype.name} data type is not one of the supported data types: "
            f"{', '.join((*numbers, *words))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributesPlace:
    """Place where a format keeps the attributes of an array.

    Attributes
    ----------
    key : str
        Document beside that of the metadata; empty if they are in that one.
    member : str or None
        Member of the document with the attributes; None if they are members themselves.
    reserved : frozenset of str
        Members of the document that are no attributes.
    field : str
        Field of the metadata with the attributes; empty if they are in another document.
    """

    key: str = ""
    member: str | None = None
    reserved: frozenset[str] = frozenset()
    field: str = ""


class Format(Protocol):
    """A metadata format; `M` is the class of its metadata, `C` that of its constraints."""

    id: str
    """Name of the driver, and the scheme of its URL."""

    json_id: str
    """Name in specs and messages."""

    zarr_format: int
    """Version of Zarr that its hierarchies have; 0 for other formats, whose paths are keys."""

    words: SchemaWords
    """Wording of mismatches with a schema."""

    attributes_place: AttributesPlace
    """Place of the attributes of the user."""

    has_components: bool
    """Whether a spec may name a part of each stored element."""

    metadata_key: str
    """Key of the metadata, relative to the array, unless the spec says otherwise."""

    no_constraints: Any
    """Result of :meth:`constraints` for an empty object."""

    def __hash__(self) -> int:
        """Equal formats describe metadata alike, which is remembered."""

    @property
    def selection(self) -> Selection:
        """Part of each stored element that the format opens."""

    @property
    def metadata_class(self) -> type[ArrayMetadata]:
        """Class of the metadata, which parses stored documents."""

    def selecting(self, selection: Selection) -> Format:
        """Return the format for another part of each stored element."""

    def component(self, metadata: Any) -> Component:
        """Return the opened part of each stored element, from (native or stored) metadata."""

    def constraints(self, value: JsonValue) -> Any:
        """Parse the ``metadata`` member of a spec."""

    def constraints_of(self, metadata: Any) -> Any:
        """Return constraints that only these metadata fulfil."""

    def describe(self, metadata: Any, *, limits: Limits) -> ArrayDescription:
        """Return the array that `metadata` describe, with its codecs resolved.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError
            If a codec is unknown, unsupported or not applicable.
        """

    def redescribe(
        self, metadata: Any, first: ArrayDescription, *, limits: Limits
    ) -> ArrayDescription:
        """Return the array that `metadata` describe, made from the description `first` of their
        :attr:`~gpustore.metadata.document.ArrayMetadata.original`; raises the errors of
        :meth:`describe`.
        """

    def create(self, constraints: Any, merged: Schema, *, limits: Limits) -> Any:
        """Return new metadata that fulfil `constraints`, and those of a schema, with the format's
        defaults; `merged` is what :meth:`constrained` returned for both.
        """

    def constrained(self, constraints: Any, schema: Schema) -> Schema:
        """Merge `constraints` into `schema`.

        Raises
        ------
        MetadataError
            If the two contradict each other.
        """

    def completed(self, constraints: Any, metadata: Any) -> Any:
        """Return stored metadata, completed from the spec where the document leaves a
        member open.
        """

    def validate(self, constraints: Any, metadata: Any) -> None:
        """Compare stored metadata with the caller's constraints.

        Raises
        ------
        MismatchError
            The message names the first member that differs.
        """

    def take_constraints(self, members: Members) -> Any:
        """Take the members of a spec that constrain the metadata."""

    def members(self, constraints: Any, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of a spec that :meth:`take_constraints` takes."""

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """Take the members of a spec that only this format has; those equal to their default are
        left out.
        """

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs.

        Raises
        ------
        MetadataError
            If the two contradict each other.
        """
