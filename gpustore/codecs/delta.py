"""The ``delta`` codec.

============  ======================================================================
what          The difference of each element to the one before it
specification https://numcodecs.readthedocs.io/en/stable/filter/delta.html
v3 name       ``numcodecs.delta``
v2 id         ``delta``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "delta", "dtype": "<f8", "astype": "<f4"}]

The first element is stored as it is. ``astype``, the type of what is stored, is ``dtype`` if it is
absent. Integers that do not fit wrap around, as in numcodecs; floats add up their rounding errors.
The one before is that in the order in which elements are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore._json import REQUIRED
from gpustore.codecs.base import ABSENT, Codec, Option, Options
from gpustore.codecs.value import Elements, Types, ValueFace, ValueStage, numpy_type
from gpustore.errors import MetadataError

__all__ = ["CODEC"]

_TYPE = numpy_type("iufc")


@dataclass(frozen=True, slots=True)
class _Delta(ValueStage):
    name = "delta"
    decode_ns = 0.8
    decodes_parts = False

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """The first element, then differences in the type of the elements."""
        encoded[:1] = decoded[:1]
        np.subtract(decoded[1:], decoded[:-1], out=encoded[1:], casting="unsafe")

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Sums in the type of the elements."""
        np.cumsum(encoded, out=decoded)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    decoded = np.dtype(options.get("dtype", dtype))
    return decoded, np.dtype(options.get("astype", decoded))


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _Delta:
    del options
    stage = _Delta(decoded.dtype, encoded.dtype)
    try:
        stage.to_decoded(np.zeros(1, encoded.dtype), np.zeros(1, decoded.dtype))
    except TypeError as error:
        raise MetadataError(
            f"Elements of type {decoded.dtype.str} are no sums of differences of type "
            f"{encoded.dtype.str}"
        ) from error
    return stage


CODEC = Codec(
    name="delta",
    filter=ValueFace(
        options=(
            Option(name="dtype", convert=_TYPE, default=ABSENT, constraint_default=REQUIRED),
            Option(name="astype", convert=_TYPE, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
        types=_types,
        type_option="dtype",
        is_elementwise=False,
    ),
)
