"""The ``cast_value`` codec.

============  ======================================================================
content       The values of the elements as another type
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/cast_value
v3 name       ``cast_value``
v2 id         none: ``astype`` does it without saying what becomes of what does not fit
============  ======================================================================

Zarr v3::

    {
        "name": "cast_value",
        "configuration": {
            "data_type": "uint8",
            "rounding": "towards-zero",
            "out_of_range": "clamp",
            "scalar_map": {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}
        }
    }

For each element, in both directions:

1. An element in the map becomes the value of the map. All NaNs are equal there.
2. A value of the other type stays unchanged.
3. Other values are rounded as ``rounding`` says, ``nearest-even`` if it is absent: to integers, or
   to the numbers of a narrower floating-point type as if its exponents had no end.
4. A result beyond the least or largest finite number is an error, unless ``out_of_range`` is
   ``clamp``, or for integers ``wrap``. The same holds for infinities in a type that has none.

A NaN in a type without NaN is an error, unless the map names it. The types are those of real
numbers. The fill value must survive encoding and decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, choice
from gpustore.codec_chain.value import Elements, Types, ValueStage, ValueVariant, blocks
from gpustore.data_types.dtype import dtype as DataType
from gpustore.device.kernels.value import Conversion, number_format
from gpustore.errors import CorruptChunkError, GpustoreError, LimitError, MetadataError
from gpustore.metadata.data_type import parse_v3_data_type
from gpustore.metadata.fill_value import parse_v3_fill_value
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    at_position,
    expect_list,
    expect_str,
    in_member,
    text,
)

_MODES: Final = (
    "nearest-even",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "nearest-away",
)

Pairs = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class _CastValue(ValueStage):
    name = "cast_value"
    rounding: str
    out_of_range: str
    encode_map: Pairs
    decode_map: Pairs

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Convert to the stored type; raises LimitError where that is impossible."""
        self._cast(decoded, encoded, self.encode_map, LimitError)

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Convert to the decoded type; raises CorruptChunkError where that is impossible."""
        self._cast(encoded, decoded, self.decode_map, CorruptChunkError)

    def conversions(self) -> Sequence[Conversion] | str:
        """Return one conversion, or none if nothing changes."""
        source, target = self.encoded, self.decoded
        if number_format(source) is None or number_format(target) is None:
            return f"the host casts {source.name} to {target.name}"
        if source == target and not self.decode_map:
            return []
        beyond = self.out_of_range
        if beyond == "wrap" and not _is_integer(target):
            beyond = "error"
        return [Conversion(source, target, self.rounding, beyond, self.decode_map)]

    def _cast(
        self,
        source: NDArray[Any],
        target: NDArray[Any],
        pairs: Pairs,
        error: Callable[..., GpustoreError],
    ) -> None:
        if not pairs and _holds_all(source.dtype, target.dtype):
            target[:] = source.astype(target.dtype)
            return
        for block in blocks(len(source)):
            elements = source[block]
            mapped = [(_are(elements, key), value) for key, value in pairs]
            if mapped:
                elements = elements.copy()
                for where, _ in mapped:
                    elements[where] = np.ones((), elements.dtype)
            try:
                if _is_integer(target.dtype):
                    found = self._to_integers(elements, target.dtype)
                else:
                    found = self._to_floats(elements, target.dtype)
            except OverflowError as wrong:
                raise error(str(wrong), codec=self.name) from None
            # The first pair of a value counts.
            for where, value in reversed(mapped):
                found[where] = value
            target[block] = found

    def _to_integers(self, source: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return rounded values in range; OverflowError if that is not allowed."""
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        if _is_integer(source.dtype):
            values = _wide(source)
            below, above = values < low, values > high
        else:
            values = source.astype(np.float64)
            if np.isnan(values).any():
                raise OverflowError(f"NaN is no value of type {dtype.name}")
            values = _ROUND[self.rounding](values)
            below, above = values < float(low), values >= float(high + 1)
        outside = below | above
        if not outside.any():
            return _integers(values, low).astype(dtype)
        infinite = values.dtype.kind == "f" and bool(np.isinf(values).any())
        if self.out_of_range == "error" or (self.out_of_range == "wrap" and infinite):
            raise _beyond(source[np.argmax(outside)], dtype, low, high)
        if self.out_of_range == "wrap":
            return _wrapped(values, low, high).astype(dtype)
        found = _integers(np.where(outside, values.dtype.type(0), values), low)
        found[below], found[above] = low, high
        return found.astype(dtype)

    def _to_floats(self, source: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return rounded values in range; OverflowError if that is not allowed."""
        info = ml_dtypes.finfo(dtype)
        values = source.astype(np.float64)
        special = ~np.isfinite(values)
        if dtype != np.float64:
            quantum = np.maximum(np.frexp(values)[1] - 1, int(info.minexp)) - int(info.nmant)
            scaled = np.ldexp(np.where(special, 0.0, values), -quantum)
            values = np.where(special, values, np.ldexp(_ROUND[self.rounding](scaled), quantum))
        if source.dtype in (np.int64, np.uint64):
            # float64 has too few bits for large integers, which are rounded once, as integers.
            for at in np.flatnonzero(_magnitude(source) > _EXACT).tolist():
                values[at] = _round_integer(int(source[at]), int(info.nmant) + 1, self.rounding)
        largest, infinite = float(info.max), np.isinf(values)
        outside = np.abs(values) > largest
        if np.isinf(np.array(np.inf).astype(dtype)):
            outside &= ~(infinite & special)
        if (np.isnan(values) & ~np.isnan(values.astype(dtype).astype(np.float64))).any():
            raise OverflowError(f"NaN is no value of type {dtype.name}")
        if outside.any():
            if self.out_of_range != "clamp":
                raise _beyond(source[np.argmax(outside)], dtype, -largest, largest)
            values = np.where(outside, np.copysign(largest, values), values)
        found: NDArray[Any] = values.astype(dtype)
        return found


def _nearest_away(values: NDArray[Any]) -> NDArray[Any]:
    whole = np.trunc(values)
    up: NDArray[Any] = np.where(np.abs(values - whole) >= 0.5, np.copysign(1.0, values), 0.0)
    up += whole
    np.copysign(up, values, out=up)  # Nothing and -0 were 0.
    return up


_ROUND: Final[dict[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
    "nearest-away": _nearest_away,
}

_EXACT: Final = 1 << 53
"""Largest integer up to which float64 represents all integers."""


def _round_integer(value: int, bits: int, mode: str) -> int:
    """Return `value` rounded to `bits` significant bits.

    >>> [_round_integer(-11, 3, mode) for mode in _MODES]
    [-12, -10, -10, -12, -12]
    """
    quantum = 1 << max(abs(value).bit_length() - bits, 0)
    below, rest = divmod(value, quantum)
    up = {
        "nearest-even": 2 * rest > quantum or (2 * rest == quantum and below % 2 == 1),
        "towards-zero": rest > 0 and value < 0,
        "towards-positive": rest > 0,
        "towards-negative": False,
        "nearest-away": 2 * rest > quantum or (2 * rest == quantum and value > 0),
    }[mode]
    return (below + up) * quantum


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int2", "int4", "uint2", "uint4")


def _wide(source: NDArray[Any]) -> NDArray[Any]:
    unsigned = source.dtype.kind == "u" or source.dtype.name.startswith("uint")
    found: NDArray[Any] = source.astype(np.uint64 if unsigned else np.int64)
    return found


def _magnitude(source: NDArray[Any]) -> NDArray[np.uint64]:
    """Return absolute values, also that of the least integer."""
    found = source.astype(np.uint64)
    return np.where(source < 0, np.uint64(0) - found, found)


def _integers(values: NDArray[Any], low: int) -> NDArray[Any]:
    """Return whole numbers as 64 bits, signed if the least may be `low`."""
    return values.astype(np.int64 if low < 0 else np.uint64)


def _wrapped(values: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    """Return whole numbers modulo the number of values from `low` to `high`."""
    if values.dtype.kind == "f":
        rest = np.fmod(values, float(high - low + 1))
        bits = np.abs(rest).astype(np.uint64)
        bits = np.where(rest < 0, np.uint64(0) - bits, bits)
    else:
        bits = values.astype(np.uint64)
    bits = bits & np.uint64(high - low)
    if low < 0:
        sign = np.uint64(-low)
        bits = (bits ^ sign) - sign
    found: NDArray[Any] = bits.view(np.int64) if low < 0 else bits
    return found


def _beyond(value: Any, dtype: np.dtype[Any], low: float, high: float) -> OverflowError:
    return OverflowError(f"{value} is out of range of type {dtype.name}: [{low}, {high}]")


def _holds_all(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether every value of one type is a value of the other, by NumPy's rules."""
    if target.kind == "f" and source.kind in "iu":
        return 2 * source.itemsize <= target.itemsize and source.itemsize < 8
    return source.kind in "iuf" and target.kind in "iuf" and np.can_cast(source, target)


def _are(elements: NDArray[Any], key: Any) -> NDArray[np.bool_]:
    if key != key:
        return np.isnan(elements.astype(np.float64))
    found: NDArray[np.bool_] = elements == key
    return found


# --------------------------------------------------------------------------- options


def _data_type(value: JsonValue) -> JsonValue:
    found = parse_v3_data_type(value)
    if not isinstance(found, DataType) or not _is_real(found.array_dtype):
        raise MetadataError(f"Expected a data type of real numbers, but received: {text(value)}")
    return found.name


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are numbers with a zero, unlike types of exponents alone."""
    name = dtype.name
    is_float = name.startswith(("bfloat16", "float")) and name != "float8_e8m0fnu"
    return is_float or _is_integer(dtype)


def _scalar_map(value: JsonValue) -> JsonValue:
    members = Members(value)
    found = {}
    for direction in ("encode", "decode"):
        pairs = members.take_with(direction, _pairs, None)
        if pairs is not None:
            found[direction] = pairs
    members.finish()
    return found


def _pairs(value: JsonValue) -> JsonValue:
    pairs = expect_list(value)
    for index, pair in enumerate(pairs):
        with at_position(index):
            expect_list(pair, length=2)
    return pairs


def _parse_pairs(
    options: Options, direction: str, source: np.dtype[Any], target: np.dtype[Any]
) -> Pairs:
    pairs = options.get("scalar_map", {}).get(direction, [])
    found = []
    with in_member("scalar_map"), in_member(direction):
        for index, (key, value) in enumerate(pairs):
            with at_position(index):
                found.append(
                    (
                        parse_v3_fill_value(key, DataType(source.name)),
                        parse_v3_fill_value(value, DataType(target.name)),
                    )
                )
    return tuple(found)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    if not _is_real(dtype):
        raise MetadataError(f"Elements of type {dtype.name} are not cast: they are no real numbers")
    return dtype, DataType(expect_str(options["data_type"])).array_dtype


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _CastValue:
    out_of_range = options.get("out_of_range", "error")
    if out_of_range == "wrap" and not _is_integer(encoded.dtype):
        raise MetadataError(f'"out_of_range" of "wrap" is for integers, not {encoded.dtype.name}')
    return _CastValue(
        decoded.dtype,
        encoded.dtype,
        options.get("rounding", _MODES[0]),
        out_of_range,
        _parse_pairs(options, "encode", decoded.dtype, encoded.dtype),
        _parse_pairs(options, "decode", encoded.dtype, decoded.dtype),
    )


CODEC = Codec(
    name="cast_value",
    v3=ValueVariant(
        options=(
            Option(
                name="data_type", convert=_data_type, default=ABSENT, constraint_default=REQUIRED
            ),
            Option(name="rounding", convert=choice(*_MODES), default=ABSENT, stored_default=ABSENT),
            Option(
                name="out_of_range",
                convert=choice("error", "clamp", "wrap"),
                default=ABSENT,
                stored_default=ABSENT,
            ),
            Option(name="scalar_map", convert=_scalar_map, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
        types=_types,
        keeps_fill=True,
        in_shards=True,
    ),
)
