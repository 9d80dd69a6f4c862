"""The ``astype`` codec.

============  ======================================================================
content       The elements as another type
specification https://numcodecs.readthedocs.io/en/stable/filter/astype.html
v3 name       ``numcodecs.astype``
v2 id         ``astype``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"}]

Values that the stored type cannot hold change, as in numcodecs; ``cast_value`` is the codec with
defined results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_values import cast_conversions
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import Elements, Types, ValueStage, ValueVariant, cast, numpy_type
from gpustore.device.kernels.value import Conversion
from gpustore.strict_json.parsing import REQUIRED

_TYPE = numpy_type("biufc")


@dataclass(frozen=True, slots=True)
class _AsType(ValueStage):
    name = "astype"
    decode_ns = 0.3

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Convert by NumPy's rule "unsafe"."""
        cast(decoded, encoded)

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Convert by NumPy's rule "unsafe"."""
        cast(encoded, decoded)

    def conversions(self) -> Sequence[Conversion] | str:
        """Return the conversion by NumPy's rule "unsafe"."""
        return cast_conversions(self.encoded, self.decoded)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    return np.dtype(options.get("decode_dtype", dtype)), np.dtype(options["encode_dtype"])


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _AsType:
    del options
    return _AsType(decoded.dtype, encoded.dtype)


CODEC = Codec(
    name="astype",
    filter=ValueVariant(
        options=(
            Option(name="encode_dtype", convert=_TYPE, default=ABSENT, constraint_default=REQUIRED),
            Option(name="decode_dtype", convert=_TYPE, default=ABSENT, constraint_default=REQUIRED),
        ),
        prepare=_prepare,
        types=_types,
        type_option="decode_dtype",
    ),
)
