"""The ``quantize`` codec.

============  ======================================================================
content       Floating-point numbers rounded to some decimal digits
specification https://numcodecs.readthedocs.io/en/stable/filter/quantize.html
v3 name       ``numcodecs.quantize``
v2 id         ``quantize``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "quantize", "digits": 2, "dtype": "<f8", "astype": "<f4"}]

Encoding rounds to a multiple of the power of two next below ``10 ** -digits``. Decoding only
changes the type from ``astype``, which is ``dtype`` by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_values import cast_conversions
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, integer
from gpustore.codec_chain.value import Elements, Types, ValueStage, ValueVariant, cast, numpy_type
from gpustore.device.kernels.value import Conversion
from gpustore.strict_json.parsing import REQUIRED

_TYPE = numpy_type("f")
_MAX_DIGITS = 300


@dataclass(frozen=True, slots=True)
class _Quantize(ValueStage):
    name = "quantize"
    decode_ns = 0.3
    digits: int

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Round, in the type of the elements."""
        scale = _scale(self.digits)
        cast(np.around(scale * decoded) / scale, encoded)

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Return the rounded values."""
        cast(encoded, decoded)

    def conversions(self) -> Sequence[Conversion] | str:
        """Return the conversion of the rounded values to the other type."""
        return cast_conversions(self.encoded, self.decoded)


def _scale(digits: int) -> float:
    """Return the power of two whose reciprocal is the step.

    >>> _scale(0), _scale(1), _scale(2), _scale(-2)
    (1.0, 16.0, 128.0, 0.015625)
    """
    exponent = math.log10(10.0**-digits)
    exponent = math.floor(exponent) if exponent < 0 else math.ceil(exponent)
    return 2.0 ** math.ceil(math.log2(10.0**-exponent))


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    decoded = np.dtype(options.get("dtype", dtype))
    return decoded, np.dtype(options.get("astype", decoded))


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _Quantize:
    return _Quantize(decoded.dtype, encoded.dtype, options["digits"])


CODEC = Codec(
    name="quantize",
    filter=ValueVariant(
        options=(
            Option(
                name="digits",
                convert=integer(-_MAX_DIGITS, _MAX_DIGITS),
                default=ABSENT,
                constraint_default=REQUIRED,
            ),
            Option(name="dtype", convert=_TYPE, default=ABSENT, constraint_default=REQUIRED),
            Option(name="astype", convert=_TYPE, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
        types=_types,
        type_option="dtype",
    ),
)
