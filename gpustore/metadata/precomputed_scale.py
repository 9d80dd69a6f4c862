"""Scales of a Neuroglancer precomputed volume: members of the document ``info``, and of specs.

Each scale is an array with dimensions x, y, z and channel. :class:`Scale` is one as it is stored,
:class:`ScaleConstraints` the member ``scale_metadata`` of a spec, where every member is optional.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/volume.md`` and
``sharded.md``; TensorStore's neuroglancer_precomputed driver page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import MetadataError
from gpustore.metadata.document import check_length
from gpustore.metadata.zarr2_member import UNSET, Unset
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    at_position,
    expect_float,
    expect_int,
    expect_list,
    text,
)

ENCODINGS: Final = ("raw", "jpeg", "compressed_segmentation", "png")
_HASHES: Final = ("identity", "murmurhash3_x86_128")
_DATA_ENCODINGS: Final = ("raw", "gzip")
_MAX: Final = 2**62 - 2

Sizes = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Sharding:
    """Distribution of the chunks of a scale over shards.

    Attributes
    ----------
    preshift_bits, minishard_bits, shard_bits : int
    hash : {"identity", "murmurhash3_x86_128"}
    data_encoding, minishard_index_encoding : {"raw", "gzip"}
    """

    preshift_bits: int
    minishard_bits: int
    shard_bits: int
    hash: str
    data_encoding: str = "raw"
    minishard_index_encoding: str = "raw"

    @classmethod
    def from_json(cls, value: JsonValue) -> Sharding | None:
        """Parse the member ``sharding``; None for null."""
        if value is None:
            return None
        members = Members(value, integral_floats=True)
        members.take_str("@type", choices=("neuroglancer_uint64_sharded_v1",))
        preshift = members.take_int("preshift_bits", 0, 64)
        minishard = members.take_int("minishard_bits", 0, 60)
        found = cls(
            preshift,
            minishard,
            members.take_int("shard_bits", 0, 64 - minishard),
            members.take_str("hash", choices=_HASHES),
            members.take_str("data_encoding", "raw", choices=_DATA_ENCODINGS),
            members.take_str("minishard_index_encoding", "raw", choices=_DATA_ENCODINGS),
        )
        members.finish()
        return found

    def to_json(self) -> dict[str, JsonValue]:
        """Return the member ``sharding``."""
        names = self.__dataclass_fields__
        return {
            "@type": "neuroglancer_uint64_sharded_v1",
            **{name: getattr(self, name) for name in names},
        }


@dataclass(frozen=True, kw_only=True)
class ScaleConstraints:
    """Constraints on a scale; None, and UNSET for the sharding, stand for members without one.

    Attributes
    ----------
    key : str
        Path of the chunks below that of the volume.
    resolution : tuple of 3 floats
        Size of an element along x, y and z, in nm.
    size, voxel_offset : tuple of 3 ints
        Extents and origin in elements.
    chunk_size : tuple of 3 ints
        Extents of a chunk in elements.
    encoding : str
        One of :data:`ENCODINGS`.
    jpeg_quality, png_level : int
    block_size : tuple of 3 ints
        Block of ``compressed_segmentation``.
    sharding : Sharding or None
        None without shards.
    """

    key: str | None = None
    resolution: tuple[float, float, float] | None = None
    size: Sizes | None = None
    voxel_offset: Sizes = (0, 0, 0)
    chunk_size: Sizes | None = None
    encoding: str | None = None
    jpeg_quality: int | None = None
    png_level: int | None = None
    block_size: Sizes | None = None
    sharding: Sharding | Unset | None = UNSET

    @classmethod
    def from_json(cls, value: JsonValue) -> Self:
        """Validate ``scale_metadata`` of a spec; MetadataError if a member is not as expected."""
        members = Members(value, integral_floats=True)
        taken = _common(members, None)
        taken["size"] = members.take_with("size", three(_size), None)
        if "voxel_offset" in members and taken["size"] is None:
            raise members.error('cannot be specified without "size"', "voxel_offset")
        taken["voxel_offset"] = members.take_with("voxel_offset", three(_index), (0, 0, 0))
        taken["chunk_size"] = members.take_with("chunk_size", three(_chunk), None)
        members.finish()
        return cls(**taken)

    def to_json(self) -> dict[str, JsonValue]:
        """Return ``scale_metadata``."""
        value = _common_json(self)
        if not isinstance(self.sharding, Unset):
            value["sharding"] = None if self.sharding is None else self.sharding.to_json()
        if self.size is not None:
            value |= {"size": list(self.size), "voxel_offset": list(self.voxel_offset)}
        if self.chunk_size is not None:
            value["chunk_size"] = list(self.chunk_size)
        return value


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A stored scale; attributes as of :class:`ScaleConstraints`, all known.

    Attributes
    ----------
    chunk_sizes : tuple of tuples of 3 ints
        Chunk shapes in which the scale is stored, one at least.
    """

    key: str
    resolution: tuple[float, float, float]
    size: Sizes
    voxel_offset: Sizes
    chunk_sizes: tuple[Sizes, ...]
    encoding: str
    jpeg_quality: int | None
    png_level: int | None
    block_size: Sizes | None
    sharding: Sharding | None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue) -> Self:
        """Validate a member of ``scales``; MetadataError if a member is not as expected."""
        members = Members(value, integral_floats=True)
        taken = _common(members, REQUIRED)
        if isinstance(taken["sharding"], Unset):
            taken["sharding"] = None
        taken["size"] = members.take_with("size", three(_size))
        taken["voxel_offset"] = members.take_with("voxel_offset", three(_index), (0, 0, 0))
        taken["chunk_sizes"] = members.take_with("chunk_sizes", _each(three(_chunk)))
        taken["extra"] = {name: members.take(name) for name in members.names()}
        scale = cls(**taken)
        if not scale.chunk_sizes:
            raise members.error("At least one chunk size must be specified")
        if scale.sharding is not None and len(scale.chunk_sizes) != 1:
            raise members.error("Sharded format does not support more than one chunk size")
        scale.check()
        return scale

    def check(self) -> None:
        """Raise MetadataError if the region is no domain, or chunks of shards have no number."""
        ends = (o + n for o, n in zip(self.voxel_offset, self.size))
        if any(abs(o) > _MAX for o in self.voxel_offset) or any(end > _MAX for end in ends):
            raise MetadataError(
                f'"size" of {text(list(self.size))} and "voxel_offset" of '
                f"{text(list(self.voxel_offset))} do not specify a valid region"
            )
        if self.sharding is not None and sum(z_index_bits(self.size, self.chunk_sizes[0])) > 64:
            raise MetadataError(
                f'"size" of {text(list(self.size))} with "chunk_size" of '
                f"{text(list(self.chunk_sizes[0]))} is not compatible with sharded format because "
                "the chunk keys would exceed 64 bits"
            )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the member of ``scales``."""
        value = _common_json(self)
        if self.sharding is not None:
            value["sharding"] = self.sharding.to_json()
        value |= {"size": list(self.size), "voxel_offset": list(self.voxel_offset)}
        value["chunk_sizes"] = [list(one) for one in self.chunk_sizes]
        return {**value, **self.extra}


def z_index_bits(size: Sizes, chunk_size: Sizes) -> Sizes:
    """Return the bits of a chunk's index along each dimension in its number (its Z-index)."""
    x, y, z = (max(0, -(-n // chunk) - 1).bit_length() for n, chunk in zip(size, chunk_size))
    return x, y, z


def check_encoding(encoding: str, dtype: DataType | None, channels: int | None) -> None:
    """Raise MetadataError if an encoding is not for these elements; None is unknown."""
    name = None if dtype is None else dtype.name
    if encoding == "compressed_segmentation" and name not in (None, "uint32", "uint64"):
        raise MetadataError(
            f"compressed_segmentation encoding only supported for uint32 and uint64, not for {name}"
        )
    if encoding == "jpeg" and name not in (None, "uint8"):
        raise MetadataError(f'"jpeg" encoding only supported for uint8, not for {name}')
    if encoding == "jpeg" and channels not in (None, 1, 3):
        raise MetadataError(f'"jpeg" encoding only supports 1 or 3 channels, not {channels}')
    if encoding == "png" and name not in (None, "uint8", "uint16"):
        raise MetadataError(f'"png" encoding only supported for uint8 and uint16, not for {name}')
    if encoding == "png" and channels is not None and not 1 <= channels <= 4:
        raise MetadataError(f'"png" encoding only supports 1 to 4 channels, not {channels}')


def three(convert: Callable[[JsonValue], Any]) -> Callable[[JsonValue], Any]:
    """Return the conversion of an array of three values."""

    def converted(value: JsonValue) -> tuple[Any, ...]:
        items = expect_list(value)
        check_length(items, 3)
        found = []
        for index, item in enumerate(items):
            with at_position(index):
                found.append(convert(item))
        return tuple(found)

    return converted


def _each(convert: Callable[[JsonValue], Any]) -> Callable[[JsonValue], Any]:
    def converted(value: JsonValue) -> tuple[Any, ...]:
        found = []
        for index, item in enumerate(expect_list(value)):
            with at_position(index):
                found.append(convert(item))
        return tuple(found)

    return converted


def _size(value: JsonValue) -> int:
    return expect_int(value, 0, _MAX, integral_floats=True)


def _index(value: JsonValue) -> int:
    return expect_int(value, integral_floats=True)


def _chunk(value: JsonValue) -> int:
    return expect_int(value, 1, _MAX, integral_floats=True)


def encoding_members(members: Members, default: Required | None) -> dict[str, Any]:
    """Take ``encoding`` and the options of images; a stored quality of JPEG is 75 by default."""
    encoding = members.take_str("encoding", default, choices=ENCODINGS)
    taken: dict[str, Any] = {"encoding": encoding}
    quality = 75 if default is REQUIRED and encoding == "jpeg" else None
    for name, of, high, otherwise in (
        ("jpeg_quality", "jpeg", 100, quality),
        ("png_level", "png", 9, None),
    ):
        if name in members and encoding != of:
            raise members.error(f'Only valid for "{of}" encoding', name)
        taken[name] = members.take_int(name, 0, high, otherwise)
    return taken


def _common(members: Members, default: Required | None) -> dict[str, Any]:
    """Take the members that stored scales and constraints share."""
    taken: dict[str, Any] = {
        "key": members.take_str("key", default),
        "resolution": members.take_with("resolution", three(expect_float), default),
        "sharding": members.take_with("sharding", Sharding.from_json, UNSET),
        **encoding_members(members, default),
    }
    name = "compressed_segmentation_block_size"
    is_segmentation = taken["encoding"] == "compressed_segmentation"
    if name in members and not is_segmentation:
        raise members.error('Only valid for "compressed_segmentation" encoding', name)
    wanted = default if is_segmentation else None
    taken["block_size"] = members.take_with(name, three(_chunk), wanted)
    return taken


def _common_json(value: Scale | ScaleConstraints) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {
        "key": value.key,
        "resolution": None if value.resolution is None else list(value.resolution),
        "encoding": value.encoding,
        "jpeg_quality": value.jpeg_quality,
        "png_level": value.png_level,
        "compressed_segmentation_block_size": (
            None if value.block_size is None else list(value.block_size)
        ),
    }
    return {name: one for name, one in found.items() if one is not None}
