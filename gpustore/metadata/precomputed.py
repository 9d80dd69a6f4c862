"""Metadata of a Neuroglancer precomputed volume: the document ``info``, and constraints in a spec.

A volume has several scales, each of which is an array. :class:`PrecomputedMetadata` is the content
of the document; once a scale has been selected (:meth:`PrecomputedMetadata.select`) it is that of
an array, too. :class:`PrecomputedConstraints` are the members of a spec.

Source: see :mod:`gpustore.metadata.precomputed_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import from_json as dtype_from_json
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError, MismatchError, NotFoundError
from gpustore.metadata.document import ArrayMetadata, expect_equal, expect_subset
from gpustore.metadata.precomputed_scale import Scale, ScaleConstraints, Sizes, check_encoding
from gpustore.metadata.zarr2_member import Unset
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_list,
    quote,
    text,
)

DATA_TYPES: Final = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "uint64", "float32")
MEMBERS: Final = frozenset({"@type", "type", "data_type", "num_channels", "scales"})
LABELS: Final = ("x", "y", "z", "channel")
_TYPE: Final = "neuroglancer_multiscale_volume"

Resolution = tuple[float | None, float | None, float | None]


def check_data_type(dtype: DataType) -> DataType:
    """Return `dtype`; MetadataError if the format lacks it."""
    if dtype.name not in DATA_TYPES:
        raise MetadataError(
            f"{dtype.name} data type is not one of the supported data types: "
            f"{', '.join(DATA_TYPES)}"
        )
    return dtype


def _data_type(value: JsonValue) -> DataType:
    return check_data_type(dtype_from_json(value))


@dataclass(frozen=True, kw_only=True)
class PrecomputedConstraints:
    """Constraints of a spec; None stands for members without one.

    Attributes
    ----------
    scale_index : int
    type : str
    dtype : dtype
    channels : int
    extra : mapping
        Other members of ``multiscale_metadata``.
    scale : ScaleConstraints
    units : tuple of 3 floats or None
        Size of an element in nm, by the units of the schema; not part of JSON.
    """

    scale_index: int | None = None
    type: str | None = None
    dtype: DataType | None = None
    channels: int | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict, hash=False)
    scale: ScaleConstraints = field(default_factory=ScaleConstraints, hash=False)
    units: Resolution = (None, None, None)

    @classmethod
    def take(cls, members: Members) -> Self:
        """Take the members of a spec."""
        index = members.take_int("scale_index", 0, 2**64 - 1, default=None)

        def multiscale(value: JsonValue) -> dict[str, Any]:
            given = Members(value, integral_floats=True)
            taken: dict[str, Any] = {
                "type": given.take_str("type", None),
                "dtype": given.take_with("data_type", _data_type, None),
                "channels": given.take_int("num_channels", 1, 2**31 - 1, default=None),
            }
            given.finish()
            return taken

        taken = members.take_with("multiscale_metadata", multiscale, {})

        def scale(value: JsonValue) -> ScaleConstraints:
            found = ScaleConstraints.from_json(value)
            if found.encoding is not None:
                check_encoding(found.encoding, taken.get("dtype"), taken.get("channels"))
            return found

        found = members.take_with("scale_metadata", scale, ScaleConstraints())
        return cls(scale_index=index, scale=found, **taken)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members of a spec, but the data type, which is a member of its own."""
        multiscale = {"type": self.type, "num_channels": self.channels, **self.extra}
        multiscale = {name: one for name, one in multiscale.items() if one is not None}
        found: dict[str, JsonValue] = {}
        if self.scale_index is not None:
            found["scale_index"] = self.scale_index
        if multiscale:
            found["multiscale_metadata"] = multiscale
        scale = self.scale.to_json()
        if scale:
            found["scale_metadata"] = scale
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class PrecomputedMetadata(ArrayMetadata):
    """Content of an ``info``, and the scale that is opened.

    Parameters
    ----------
    shape : tuple of 4 ints
        Extents of the selected scale and number of channels; empty before one is selected.
    type : str
        ``"image"`` or ``"segmentation"``.
    dtype : dtype
    channels : int
        Number of channels, the member ``num_channels``.
    scales : tuple of Scale
    extra : mapping of str to JsonValue
        Other members.
    index : int
        Number of the selected scale.
    chunk_size : tuple of 3 ints
        Extents of its chunks.
    """

    document_name: ClassVar[str] = "info"
    invalid_json_status: ClassVar[str] = "FAILED_PRECONDITION"
    free_member: ClassVar[str] = "extra"

    type: str
    dtype: DataType
    channels: int
    scales: tuple[Scale, ...]
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    index: int = -1
    chunk_size: Sizes = (1, 1, 1)

    def check_shape(self) -> None:
        """Accept any shape: it is that of the scale."""

    @classmethod
    def from_json(cls, value: JsonValue, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Validate parsed JSON.

        Raises
        ------
        MetadataError
            If it is not the metadata of a volume.
        """
        del limits
        members = Members(value, integral_floats=True)
        members.take_str("@type", _TYPE, choices=(_TYPE,))
        type_ = members.take_str("type")
        dtype = members.take_with("data_type", _data_type)
        channels = members.take_int("num_channels", 1, 2**31 - 1)

        def scales(value: JsonValue) -> tuple[Scale, ...]:
            found = []
            for index, item in enumerate(expect_list(value)):
                with at_position(index):
                    found.append(Scale.from_json(item))
            return tuple(found)

        taken = members.take_with("scales", scales)
        for scale in taken:
            check_encoding(scale.encoding, dtype, channels)
        extra = {name: members.take(name) for name in members.names()}
        return cls(shape=(), type=type_, dtype=dtype, channels=channels, scales=taken, extra=extra)

    @property
    def scale(self) -> Scale:
        """The selected scale."""
        return self.scales[self.index]

    def select(self, constraints: PrecomputedConstraints) -> Self:
        """Return the metadata with the first scale that `constraints` allow selected.

        Raises
        ------
        NotFoundError
            If there is none.
        MismatchError
            If the number in the constraints is not that of a scale.
        """
        index = constraints.scale_index
        if index is not None and index >= len(self.scales):
            raise MismatchError(
                f"Scale {index} does not exist, number of scales is {len(self.scales)}"
            )
        key, units = constraints.scale.key, constraints.scale.resolution or constraints.units
        if index is None:
            fitting = [
                number
                for number, scale in enumerate(self.scales)
                if key in (None, scale.key)
                and all(unit in (None, size) for unit, size in zip(units, scale.resolution))
            ]
            if not fitting:
                steps = [None if unit is None else str(Unit(unit, "nm")) for unit in (*units, None)]
                wanted = [f"dimension_units=[{', '.join(map(text, steps))}]"] if any(steps) else []
                wanted += [] if key is None else [f"key={quote(key)}"]
                raise NotFoundError(f"No scale found matching {', '.join(wanted)}")
            index = fitting[0]
        chunk = constraints.scale.chunk_size
        sizes = self.scales[index].chunk_sizes
        return self.selected(index, chunk if chunk in sizes else sizes[0])

    def selected(self, index: int, chunk_size: Any) -> Self:
        """Return the metadata with scale `index` selected, of chunks of this size."""
        shape = (*self.scales[index].size, self.channels)
        return replace(self, index=index, chunk_size=tuple(chunk_size), shape=shape)

    def with_scale(self, scale: Scale) -> Self:
        """Return the metadata with one more scale, which is selected."""
        more = replace(self, scales=(*self.scales, scale))
        return more.selected(len(self.scales), scale.chunk_sizes[0])

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        """Unit of a step along each dimension: nm, none for channels."""
        return (*(Unit(size, "nm") for size in self.scale.resolution), None)

    def same_array(self, other: Self) -> bool:
        """Whether the scale is stored in `other` in the same way."""
        return other.index == self.index and self._stored() == other._stored()

    def _stored(self) -> tuple[Any, ...]:
        scale = replace(self.scale, jpeg_quality=None, png_level=None, extra={})
        return self.dtype, self.channels, self.chunk_size, scale

    def to_json(self) -> dict[str, JsonValue]:
        """Return the document."""
        return {
            "@type": _TYPE,
            "type": self.type,
            "data_type": self.dtype.name,
            "num_channels": self.channels,
            "scales": [scale.to_json() for scale in self.scales],
            **self.extra,
        }

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.index))


def validate_volume(constraints: PrecomputedConstraints, metadata: PrecomputedMetadata) -> None:
    """Raise MismatchError unless a volume satisfies the constraints on it."""
    if constraints.dtype is not None:
        expect_equal("data_type", constraints.dtype.name, metadata.dtype.name)
    if constraints.channels is not None:
        expect_equal("num_channels", constraints.channels, metadata.channels)
    if constraints.type is not None:
        expect_equal("type", constraints.type, metadata.type)
    expect_subset(constraints.extra, metadata.extra)


def validate(constraints: PrecomputedConstraints, metadata: PrecomputedMetadata) -> None:
    """Raise MismatchError unless a volume and its selected scale satisfy the constraints."""
    validate_volume(constraints, metadata)
    asked, stored = constraints.scale.to_json(), metadata.scale.to_json()
    chunk = asked.pop("chunk_size", None)
    if chunk is not None and tuple(chunk) not in metadata.scale.chunk_sizes:
        raise MismatchError(
            f'Expected "chunk_size" of {text(chunk)} but received: {text(stored["chunk_sizes"])}'
        )
    if not isinstance(constraints.scale.sharding, Unset):
        stored.setdefault("sharding", None)
    expect_subset(asked, stored)
