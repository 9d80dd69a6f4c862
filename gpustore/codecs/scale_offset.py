"""The ``scale_offset`` codec.

============  ======================================================================
content       Differences to an offset, multiplied by a scale
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/scale_offset
v3 name       ``scale_offset``
v2 id         none: ``fixedscaleoffset`` is this and a rounding
============  ======================================================================

Zarr v3::

    {"name": "scale_offset", "configuration": {"offset": 5, "scale": 0.1}}

Elements are encoded as ``(x - offset) * scale`` and decoded as ``x / scale + offset``, in the type
of the elements; both numbers have the form of fill values. Results that the type cannot hold are an
error: integers that overflow, floating-point numbers that become infinite, and integers that are no
multiple of the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import Elements, ValueStage, ValueVariant, blocks
from gpustore.data_types.dtype import dtype as DataType
from gpustore.device.kernels.value import Conversion, number_format
from gpustore.errors import CorruptChunkError, LimitError, MetadataError
from gpustore.metadata.fill_value import parse_v3_fill_value
from gpustore.strict_json.parsing import REQUIRED, JsonValue, in_member


@dataclass(frozen=True, slots=True)
class _ScaleOffset(ValueStage):
    """Stage with `offset` and `scale`: integers for integers, else arrays of rank 0."""

    name = "scale_offset"
    offset: Any
    scale: Any

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Encode in the type of the elements; LimitError for results that do not fit."""
        if decoded.dtype.kind in "iu":
            differences = [int(x) - self.offset for x in (decoded.min(), decoded.max())]
            if not _fit(decoded, differences + [x * self.scale for x in differences]):
                raise LimitError(f"Elements do not fit type {decoded.dtype.name}", codec=self.name)
            np.subtract(decoded, decoded.dtype.type(self.offset), out=encoded)
            np.multiply(encoded, decoded.dtype.type(self.scale), out=encoded)
            return
        for block in blocks(len(decoded)):
            part = (decoded[block] - self.offset) * self.scale
            if not _is_finite(part, decoded[block]):
                raise LimitError(f"Elements do not fit type {decoded.dtype.name}", codec=self.name)
            encoded[block] = part

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Decode in the type of the elements; CorruptChunkError for results that do not fit."""
        if decoded.dtype.kind in "iu":
            scale = decoded.dtype.type(self.scale)
            ends = [int(x) // self.scale for x in (encoded.min(), encoded.max())]
            # The quotient of the least integer and -1 does not fit, and no remainder tells.
            if self.scale == -1 and not _fit(decoded, [int(x) for x in ends]):
                raise self._damaged(decoded)
            if self.scale != 1 and np.any(np.remainder(encoded, scale)):
                raise CorruptChunkError(
                    f"Elements are no multiples of {self.scale}", codec=self.name
                )
            np.floor_divide(encoded, scale, out=decoded)
            if not _fit(decoded, [int(x) + self.offset for x in (decoded.min(), decoded.max())]):
                raise self._damaged(decoded)
            np.add(decoded, decoded.dtype.type(self.offset), out=decoded)
            return
        for block in blocks(len(encoded)):
            part = decoded[block]
            np.true_divide(encoded[block], self.scale, out=part)
            np.add(part, self.offset, out=part)
            if not _is_finite(part, encoded[block]):
                raise self._damaged(decoded)

    def conversions(self) -> Sequence[Conversion] | str:
        """Return the conversions in the type of the elements."""
        if number_format(self.decoded) is None:
            return f"elements of type {self.decoded.name} are scaled by the host"
        is_integer = self.decoded.kind in "iu"
        scale, offset = (
            int(number) if is_integer else float(number) for number in (self.scale, self.offset)
        )
        return [Conversion(self.encoded, self.decoded, scale=scale, offset=offset)]

    def _damaged(self, decoded: NDArray[Any]) -> CorruptChunkError:
        return CorruptChunkError(f"Elements do not fit type {decoded.dtype.name}", codec=self.name)


def _fit(elements: NDArray[Any], values: list[int]) -> bool:
    info = np.iinfo(elements.dtype)
    return all(info.min <= value <= info.max for value in values)


def _is_finite(found: NDArray[Any], given: NDArray[Any]) -> bool:
    """Return whether no finite number became infinite or NaN."""
    finite = np.isfinite(found)
    return bool(finite.all()) or not np.any(np.isfinite(given) & ~finite)


def _unchanged(value: JsonValue) -> JsonValue:
    return value


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _ScaleOffset:
    del encoded
    dtype = decoded.dtype
    name = dtype.name
    if dtype.kind not in "iuf" and not name.startswith(("bfloat", "float8_e")):
        raise MetadataError(f"Elements of type {name} are not scaled")
    numbers = {}
    for option in ("offset", "scale"):
        with in_member(option):
            found = parse_v3_fill_value(options[option], DataType(name))
            if not np.isfinite(found):
                raise MetadataError("Expected finite number")
            numbers[option] = int(found) if dtype.kind in "iu" else found
    if not numbers["scale"]:
        raise MetadataError('"scale" is 0, so nothing could be decoded')
    return _ScaleOffset(dtype, dtype, numbers["offset"], numbers["scale"])


CODEC = Codec(
    name="scale_offset",
    v3=ValueVariant(
        options=(
            Option(name="offset", convert=_unchanged, default=ABSENT, constraint_default=REQUIRED),
            Option(name="scale", convert=_unchanged, default=ABSENT, constraint_default=REQUIRED),
        ),
        prepare=_prepare,
        in_shards=True,
    ),
)
