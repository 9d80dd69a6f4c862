"""Drivers of images: one file as an array of height, width and channels, uint8.

JSON example::

    {"driver": "tiff", "kvstore": "file:///data/scan.tif", "page": 2}

An image is one chunk without metadata of its own, so that the pipelines of chunked arrays read it,
into devices too: a library of the device decodes plain JPEG and TIFF there, the host the others.
Images are not written, as in TensorStore. ``page`` is a member of TIFF only; the options of
encoders (``quality`` and others) are kept in specs, and say nothing to a reader.

Source: TensorStore's ``driver/image``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.image_file import MAX_FILE_NBYTES, ImageFile, shape_of
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.data_types.dtype import dtype as DataType
from gpustore.drivers._steps import Steps
from gpustore.drivers.base import Driver, DriverSpec, Opening, OpenRequest
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.drivers.chunked_spec import ChunkedSpec
from gpustore.drivers.format import ArrayDescription, AttributesPlace, SchemaWords
from gpustore.drivers.options import DEFAULTS_OF_A_FILE, take_options
from gpustore.drivers.selection import WholeElements
from gpustore.drivers.transacted import TransactedDriver
from gpustore.errors import (
    MetadataError,
    NotFoundError,
    UnsupportedError,
    naming_key,
    prefixing,
)
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, Members

_ENCODER_OPTIONS: Mapping[str, Mapping[str, JsonValue]] = {
    "avif": {"quantizer": 0, "speed": 6},
    "jpeg": {"quality": 75},
    "png": {"compression_level": -1},
    "webp": {"lossless": True, "quality": 95},
}
"""Options of encoders by format, with their values if they are not given."""

_INT32 = (-(2**31), 2**31 - 1)
_UINT8 = DataType("uint8")
_DOMAIN = IndexDomain(inclusive_min=[0] * 3)


class OnlyName:
    """Name of the only chunk: the key is the path of the image."""

    def name(self, cell: Sequence[int]) -> str:
        """Return no name behind the path."""
        del cell
        return ""

    def cell(self, name: str) -> tuple[int, ...]:
        """Return the only cell."""
        del name
        return (0, 0, 0)


class _NoConstraints:
    """Constraints on metadata, of which images have none."""

    rank = 3


class _Meaning:
    """Stand-in for metadata in caches: there is one way to decode an image."""

    free_member = "extra"

    def __init__(self, shape: tuple[int, ...], page: int | None) -> None:
        self.shape, self.page = shape, page

    def with_members(self, **members: Any) -> _Meaning:
        """Return it unchanged."""
        del members
        return self

    def encode(self) -> bytes:
        """Return its bytes."""
        return f"image {self.shape} {self.page}".encode()


@dataclass(frozen=True)
class ImageFormat(WholeElements):
    """Files of images of one format.

    Attributes
    ----------
    id : str
        Name of the driver, and of Pillow's format in lower case.
    page : int or None
        Page of a TIFF file.
    """

    id: str
    page: int | None = None

    zarr_format = 0
    words = SchemaWords(
        dtype="dtype",
        rank="Rank specified by schema ({schema}) does not match rank of the image ({stored})",
        domain="Schema domain does not match image domain",
        status="",
        stored_first=False,
        has_units=False,
        name="image",
        has_fill_value=False,
    )
    metadata_key = ""
    attributes_place = AttributesPlace()
    no_constraints = _NoConstraints()

    @property
    def json_id(self) -> str:
        """Name in specs."""
        return self.id

    @property
    def encoder_options(self) -> Mapping[str, JsonValue]:
        """Options of the encoder, with their values if they are not given."""
        return _ENCODER_OPTIONS.get(self.id, {})

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """Take the options of the encoder; those equal to their default are left out."""
        options: dict[str, JsonValue] = {}
        for name, default in self.encoder_options.items():
            if isinstance(default, bool):
                options[name] = members.take_bool(name, default)
            else:
                options[name] = members.take_int(name, *_INT32, default)
        return {n: value for n, value in options.items() if value != self.encoder_options[n]}

    def members(self, constraints: Any, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return ``page``, if there is one."""
        del constraints, include_defaults
        return {} if self.page is None else {"page": self.page}

    def constrained(self, constraints: Any, schema: Schema) -> Schema:
        """Merge what all images have into `schema`."""
        del constraints
        if schema.fill_value is not None:
            raise MetadataError("fill_value not supported by image driver")
        merged = schema.copy()
        merged.set_dtype(_UINT8)
        merged.set_rank(3, "rank")
        merged.update(domain=_DOMAIN)
        return merged

    def description(self, shape: tuple[int, int, int], file_nbytes: int) -> ArrayDescription:
        """Return the array of an image in a file of so many bytes."""
        layout = ChunkBytes.contiguous(np.dtype(np.uint8), shape)
        chain = CodecChain(layout, [ImageFile(self.id, shape, self.page, file_nbytes)], None)
        return ArrayDescription(
            shape=shape,
            chunk_shape=shape,
            dtype=_UINT8,
            fill_value=None,
            read_shape=shape,
            levels=(),
            chain=chain,
            inner_order=(0, 1, 2),
            key_prefix="",
            key_separator="",
            labels=("",) * 3,
            units=(None,) * 3,
            codec_json=None,
            names=OnlyName(),
            origin=(0, 0, 0),
            layout=ChunkLayout(rank=3),
        )


class ImageDriver(ChunkedDriver):
    """An opened image."""

    codec = None  # type: ignore[assignment]
    attributes = None  # type: ignore[assignment]

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return the spec, which is the same with and without `minimal`."""
        del minimal
        return self.origin.respec(self, None)

    def resolve(self, bound: float = math.inf) -> ChunkedDriver:
        """Return the driver unchanged: its bounds never change."""
        del bound
        return self

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise an error: images are not written."""
        del transform, request
        raise MetadataError("Destination does not support writing.")


class TransactedImageDriver(ImageDriver, TransactedDriver):
    """An opened image in a transaction."""


class ImageSteps(Steps):
    """One call of opening an image."""

    __slots__ = ()

    kind = ImageDriver
    transacted = TransactedImageDriver

    @property
    def _is_plain_read(self) -> bool:
        """Not of a document, which other openings may read together."""
        return False

    def _metadata(self) -> tuple[Any, ArrayDescription]:
        format_, key = self.format, self.store.path
        if self.mode.delete_existing:
            raise UnsupportedError(f'"{format_.id}" driver does not support creating images')
        name = self.store.driver.describe(key)
        columns = self.store.driver.read_many(ReadRequest([key], max_nbytes=MAX_FILE_NBYTES))
        columns.raise_first()
        value = columns.value[0]
        if value is None:
            if self.mode.create:
                raise UnsupportedError(f'"{format_.id}" driver does not support creating images')
            raise NotFoundError(f"Error reading {name}", key=key, status="NOT_FOUND")
        with naming_key(key), prefixing(f"Error reading {name}"):
            shape = shape_of(value, format_.id, format_.page)
            self.setting.limits.check("chunk_nbytes", math.prod(shape), "Image")
        description = format_.description(shape, len(value))
        description.check(self.spec.constraints, format_.words)
        return _Meaning(shape, format_.page), description

    def _driver(self, metadata: Any, description: ArrayDescription) -> ChunkedDriver:
        driver = super()._driver(metadata, description)
        driver.recheck, driver.writable = -math.inf, False
        driver.readable = True
        return driver

    def array(self, metadata: Any, description: ArrayDescription) -> ChunkedArray:
        """Return the array for the pipelines; an image that is gone is an error."""
        return replace(super().array(metadata, description), fill_missing=False)

    def respec(self, opened: ChunkedDriver, metadata: Any) -> DriverSpec:
        """Return the unopened spec."""
        del metadata
        schema = Schema(dtype=opened.description.dtype, rank=3)
        spec: Any = replace(self.spec, kvstore=self.store.spec(), constraints=schema)
        found: DriverSpec = spec
        return found


@dataclass(frozen=True)
class ImageSpec(ChunkedSpec):
    """An image to be opened."""

    steps = ImageSteps

    @property
    def defaults(self) -> Mapping[str, JsonValue]:
        """Options other than context resources, with their values if they are not given."""
        format_: Any = self.format
        return {**DEFAULTS_OF_A_FILE, **format_.encoder_options}

    def open(self, request: OpenRequest) -> Opening:
        """Open the image in the steps of :mod:`gpustore.drivers._steps`."""
        if request.write:
            raise MetadataError(f'Error opening "{self.id}" driver: only reading is supported')
        return super().open(request)

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in; the path is that of a file."""
        spec: Any = self
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            spec = replace(self, kvstore=kvstore)
        options.pop("minimal", False)
        found: DriverSpec = ChunkedSpec.updated(spec, schema=schema, **options)
        return found


class ImageKind:
    """Object that the module of an image driver registers."""

    is_adapter = False
    shares_members = True

    def __init__(self, name: str) -> None:
        self.format: Any = ImageFormat(name)
        self.id = name
        self.schemes = (name,)

    def from_json(self, members: Members, schema: Schema) -> ChunkedSpec:
        """Take the members of an image driver."""
        spec = members.take_with("kvstore", KvStore.Spec.from_json, None)
        path = members.take_str("path", default="")
        if spec is not None and path:
            spec = spec / path
        format_: Any = self.format
        if format_.id == "tiff":
            format_ = replace(format_, page=members.take_int("page", *_INT32, None))
        options = take_options(members, DEFAULTS_OF_A_FILE)
        options.update(format_.take_options(members))
        if schema.domain is None and schema.rank in (None, 3):
            schema.update(domain=_DOMAIN)  # TensorStore shows it.
        parsed = ImageSpec(format_, spec, schema, format_.no_constraints, options)
        parsed.constrained()  # Raises on contradictions.
        return parsed

    def from_url(self, base: KvStore.Spec, path: str) -> ChunkedSpec:
        """``<kvstore>|<format>:``."""
        if path:
            raise MetadataError(
                f'Invalid TensorStore URL component "{self.id}:{path}": Path not supported'
            )
        return ImageSpec(self.format, base, Schema(domain=_DOMAIN), self.format.no_constraints)
