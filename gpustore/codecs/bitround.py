"""The ``bitround`` codec.

============  ======================================================================
content       Numbers rounded to some of their leading bits
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/bitround
v3 name       ``bitround``, and ``numcodecs.bitround``
v2 id         ``bitround``, among the filters
============  ======================================================================

Zarr v3::

    {"name": "bitround", "configuration": {"keepbits": 10}}

``keepbits`` bits of the mantissa of floating-point numbers are kept, or of integers (only in Zarr
v3) so many bits from the highest set one; ties go to the even neighbour. The filter
``numcodecs.bitround`` gives the same bytes as numcodecs, which can make a number of a NaN. The
codec of Zarr v3 keeps every NaN. Decoding changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import deliver
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, integer
from gpustore.codec_chain.value import Elements, ValueStage, ValueVariant
from gpustore.device.kernels.value import Conversion
from gpustore.errors import MetadataError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import REQUIRED, text

_MANTISSA: Final = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


@dataclass(frozen=True, slots=True)
class _BitRound(ValueStage):
    """Rounding of elements as unsigned integers; floats have `mantissa` bits after the point."""

    name = "bitround"
    is_view = True
    decodes_parts = False
    decode_ns = 0.05

    keepbits: int
    mantissa: int
    keeps_nan: bool

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Round; sums that overflow wrap around, as in numcodecs, or become the largest value."""
        bits = decoded.astype(decoded.dtype.newbyteorder("="), copy=False)
        word = bits.dtype.type
        if self.mantissa:
            drop = np.full(len(bits), max(self.mantissa - self.keepbits, 0), word)
        else:
            drop = np.maximum(_bit_lengths(bits), word(self.keepbits)) - word(self.keepbits)
        if self.mantissa and self.keeps_nan:
            magnitude = (1 << (8 * bits.itemsize - 1)) - 1
            infinity = magnitude + 1 - (1 << self.mantissa)
            drop[(bits & word(magnitude)) > word(infinity)] = 0
        one = word(1)
        half = (one << (np.maximum(drop, one) - one)) - one
        rounded = bits + np.where(drop > 0, half + ((bits >> drop) & one), word(0))
        if not self.mantissa:
            rounded[rounded < bits] = np.iinfo(bits.dtype).max
        encoded[:] = (rounded >> drop) << drop

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Copy the encoded elements, which are decoded already."""
        decoded[:] = encoded

    def conversions(self) -> Sequence[Conversion]:
        """Return no conversions: encoded elements are decoded already."""
        return ()

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Return `encoded` unchanged, or a copy in `out`."""
        self._decoded_nbytes(len(encoded), decoded_max, exact=exact)
        return deliver(encoded, decoded_max, exact=exact, out=out)


def _bit_lengths(bits: NDArray[Any]) -> NDArray[Any]:
    """Return the position after the highest set bit of each value.

    >>> _bit_lengths(np.array([0, 1, 2, 255], np.uint8)).tolist()
    [0, 1, 2, 8]
    """
    word = bits.dtype.type
    rest, found = bits.copy(), np.zeros_like(bits)
    step = 4 * bits.itemsize
    while step:
        above = rest >> word(step)
        found += np.where(above > 0, word(step), word(0))
        rest = np.where(above > 0, above, rest)
        step //= 2
    found += rest > 0
    return found


def _stage(dtype: np.dtype[Any], keepbits: int, mantissa: int, *, keeps_nan: bool) -> _BitRound:
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    bits = np.dtype(f"u{part}").newbyteorder("=" if dtype.isnative else "S")
    return _BitRound(bits, bits, keepbits, mantissa, keeps_nan)


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _BitRound:
    del encoded
    dtype, keepbits = decoded.dtype, options["keepbits"]
    mantissa = _MANTISSA.get(dtype.name, 0)
    if dtype.kind == "c":
        mantissa = 23 if dtype.itemsize == 8 else 52
    elif not mantissa and dtype.kind not in "iu":
        raise MetadataError(f"Elements of type {dtype.name} are not rounded")
    return _stage(dtype, keepbits, mantissa, keeps_nan=True)


def _prepare_v2(options: Options, decoded: Elements, encoded: Elements) -> _BitRound:
    del encoded
    dtype, keepbits = decoded.dtype, options["keepbits"]
    if dtype.kind != "f":
        raise MetadataError(f"Only float16, float32 and float64 are rounded, not {dtype.name}")
    mantissa = _MANTISSA[dtype.name]
    if keepbits > mantissa:
        raise MetadataError(
            f'"keepbits" of {keepbits} is more than the {mantissa} bits of {text(dtype.str)}'
        )
    return _stage(dtype, keepbits, mantissa, keeps_nan=False)


CODEC = Codec(
    name="bitround",
    v3=ValueVariant(
        options=(
            Option(
                name="keepbits",
                convert=integer(1, 64),
                default=ABSENT,
                constraint_default=REQUIRED,
            ),
        ),
        prepare=_prepare,
        in_shards=True,
    ),
    filter=ValueVariant(
        options=(
            Option(
                name="keepbits",
                convert=integer(0, 64),
                default=ABSENT,
                constraint_default=REQUIRED,
            ),
        ),
        prepare=_prepare_v2,
    ),
)
