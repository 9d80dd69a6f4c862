"""The ``fixedscaleoffset`` codec.

============  ======================================================================
content       Scaled differences to an offset, rounded to the nearest integer
specification https://numcodecs.readthedocs.io/en/stable/filter/fixedscaleoffset.html
v3 name       ``numcodecs.fixedscaleoffset``
v2 id         ``fixedscaleoffset``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [
        {"id": "fixedscaleoffset", "scale": 10, "offset": 1000, "dtype": "<f8", "astype": "|u1"}
    ]

The stored value is ``around((x - offset) * scale)`` as ``astype``, which is ``dtype`` by default;
it decodes to ``x / scale + offset``. Values that ``astype`` cannot hold change, as in numcodecs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_values import cast_conversions
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import (
    BLOCK,
    Elements,
    Types,
    ValueStage,
    ValueVariant,
    blocks,
    cast,
    number,
    numpy_type,
)
from gpustore.device.kernels.value import Conversion
from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import REQUIRED

_TYPE = numpy_type("iuf")

_EXACT = 1 << 53
"""Largest integer up to which float64 represents all integers."""


@dataclass(frozen=True, slots=True)
class _FixedScaleOffset(ValueStage):
    name = "fixedscaleoffset"
    offset: int | float
    scale: int | float

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Return scaled and rounded differences."""
        for block in blocks(len(decoded)):
            cast(np.around((decoded[block] - self.offset) * self.scale), encoded[block])

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Divide in floating point, then add the offset."""
        scale = float(self.scale)  # An integer need not fit the type of the elements.
        dtype = np.true_divide(encoded[:0], scale).dtype
        temporary = np.empty(min(len(encoded), BLOCK), dtype)
        for block in blocks(len(encoded)):
            part = decoded[block]
            quotient = part if dtype == decoded.dtype else temporary[: len(part)]
            np.true_divide(encoded[block], scale, out=quotient)
            np.add(quotient, self.offset, out=part, casting="unsafe")

    def conversions(self) -> Sequence[Conversion] | str:
        """Return the conversions to and from the type of the quotient."""
        dtype = np.true_divide(np.zeros(0, self.encoded), 1.0).dtype
        before, behind = (
            cast_conversions(*pair) for pair in ((self.encoded, dtype), (dtype, self.decoded))
        )
        if isinstance(before, str) or isinstance(behind, str):
            return f"the host scales {self.encoded.name} to {self.decoded.name}"
        # Scale and offset as NumPy rounds them to that type.
        with np.errstate(over="ignore"):
            scale, offset = (float(dtype.type(float(x))) for x in (self.scale, self.offset))
        exact = abs(self.offset) <= _EXACT or isinstance(self.offset, float)
        if not (scale and exact and np.isfinite(scale) and np.isfinite(offset)):
            return f"a scale of {self.scale} and an offset of {self.offset} are left to the host"
        scaled = Conversion(dtype, dtype, beyond="infinity", scale=scale, offset=offset)
        return [*before, scaled, *behind]


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    decoded = np.dtype(options.get("dtype", dtype))
    return decoded, np.dtype(options.get("astype", decoded))


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _FixedScaleOffset:
    stage = _FixedScaleOffset(decoded.dtype, encoded.dtype, options["offset"], options["scale"])
    try:
        stage.encode(bytes(decoded.dtype.itemsize))
    except OverflowError as error:
        raise MetadataError(f"Elements of type {decoded.dtype.name}: {error}") from error
    return stage


CODEC = Codec(
    name="fixedscaleoffset",
    filter=ValueVariant(
        options=(
            Option(name="scale", convert=number, default=ABSENT, constraint_default=REQUIRED),
            Option(name="offset", convert=number, default=ABSENT, constraint_default=REQUIRED),
            Option(name="dtype", convert=_TYPE, default=ABSENT, constraint_default=REQUIRED),
            Option(name="astype", convert=_TYPE, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
        types=_types,
        type_option="dtype",
    ),
)
