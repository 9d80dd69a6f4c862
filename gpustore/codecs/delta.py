"""The ``delta`` codec.

============  ======================================================================
content       The difference of each element to the one before it
specification https://numcodecs.readthedocs.io/en/stable/filter/delta.html
v3 name       ``numcodecs.delta``
v2 id         ``delta``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "delta", "dtype": "<f8", "astype": "<f4"}]

The first element is stored unchanged. ``astype``, the stored type, is ``dtype`` by default.
Integers that do not fit wrap around, as in numcodecs; floats add up their rounding errors. The
order of elements is that of storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_streams import fall_back_where
from gpustore.codec_chain.device_values import cast_conversions, component, convert, sum_values
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import Elements, Types, ValueStage, ValueVariant, numpy_type
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.value import Side, number_format
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import MetadataError
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.strict_json.parsing import REQUIRED

_TYPE = numpy_type("iufc")


@dataclass(frozen=True, slots=True)
class _Delta(ValueStage):
    name = "delta"
    decode_ns = 0.8
    decodes_parts = False

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Return the first element, then differences in the type of the elements."""
        encoded[:1] = decoded[:1]
        np.subtract(decoded[1:], decoded[:-1], out=encoded[1:], casting="unsafe")

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Return sums in the type of the elements."""
        np.cumsum(encoded, out=decoded)

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why a device cannot decode; no trust is needed, as kernels check bounds."""
        del device, distrust
        of_sums = np.result_type(self.decoded, self.encoded)
        are_integers = of_sums.kind in "iu"
        is_number = number_format(component(self.decoded)) is not None
        is_number &= (self.decoded.kind == "c") == (self.encoded.kind == "c")
        if is_number and (are_integers or of_sums == self.decoded.newbyteorder("=")):
            return None
        # NumPy adds these in a wider type, and rounds each sum.
        return f"delta: the host sums {self.encoded.name} as {self.decoded.name}"

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding: integers in parallel, floats in sequence in each chunk."""
        del device, exact  # A chunk is encoded whole.
        count = decoded_max // self.decoded.itemsize
        nbytes = count * self.encoded.itemsize
        fall_back_where(commands, commands.values.nbytes != nbytes, f"delta: not {nbytes} bytes")
        conversions = cast_conversions(self.encoded, self.decoded)
        if not len(commands) or not count or isinstance(conversions, str):
            return
        components = 2 if self.decoded.kind == "c" else 1
        source, target = component(self.encoded), component(self.decoded)
        src, dst = Side.of(source), Side.of(target)
        if conversions or src != dst:
            convert(commands, src, dst, count * components, conversions, None, self.name)
        sum_values(commands, target, count * components, components, self.name)


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
    filter=ValueVariant(
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
