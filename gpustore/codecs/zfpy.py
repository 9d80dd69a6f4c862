"""The ``zfpy`` codec of numcodecs.

============  ======================================================================
content       Arrays of one to four dimensions in few bits, with or without loss
specification https://numcodecs.readthedocs.io/en/stable/compression/zfpy.html
v3 name       ``numcodecs.zfpy``, array -> bytes
v2 id         ``zfpy``, as a compressor or among the filters
============  ======================================================================

Zarr v2::

    "compressor": {"id": "zfpy", "mode": 4, "tolerance": 0.05, "rate": -1, "precision": -1}

``mode`` is 2 (``rate``), 3 (``precision``) or 4 (``tolerance``); the other numbers are -1, and mode
4 with a tolerance of -1 is lossless. A header repeats type, shape and mode, and decides when
reading. ``compression_kwargs``, which numcodecs writes and ignores, is kept. In order F the shape
is that of the transposed chunk; numcodecs refuses to write such arrays.

The codec needs the extra ``zfp``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, integer
from gpustore.codec_chain.value import Elements, Types, ValueVariant
from gpustore.codecs._zfp import Zfp
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.strict_json.parsing import JsonValue, expect_float, expect_object, text

_PARAMETERS: Final = {2: "rate", 3: "precision", 4: "tolerance"}


def _number(value: JsonValue) -> JsonValue:
    found = expect_float(value)
    if not math.isfinite(found) or not (found == -1 or found >= 0):
        raise MetadataError(f"Expected -1 or number of at least 0, but received: {text(value)}")
    return value


def _object(value: JsonValue) -> JsonValue:
    return None if value is None else expect_object(value)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, np.dtype(np.uint8)


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> Zfp:
    del encoded
    dtype, mode = decoded.dtype, options["mode"]
    if dtype.name not in ("int32", "int64", "float32", "float64") or not dtype.isnative:
        raise MetadataError(
            f"Only int32, int64, float32 and float64 in the byte order of the machine are "
            f"compressed by zfp, not {text(dtype.str)}"
        )
    if mode not in _PARAMETERS:
        raise UnsupportedError(f"Mode {mode} is not supported; known are 2, 3 and 4")
    name = _PARAMETERS[mode]
    given = options[name]
    if name == "rate" and not 0 < given <= 64:
        raise MetadataError(f"Expected rate in (0, 64], but received: {text(given)}")
    if name == "precision" and not (1 <= given <= 64 and given == int(given)):
        raise MetadataError(f"Expected precision from 1 to 64, but received: {text(given)}")
    parameters = {} if given == -1 else {name: int(given) if name == "precision" else float(given)}
    return Zfp.of("zfpy", decoded, dtype, parameters, has_header=True)


def _option(name: str, convert: Any, default: Any) -> Option:
    return Option(name=name, convert=convert, default=default, stored_default=default)


CODEC = Codec(
    name="zfpy",
    v2=ValueVariant(
        kind="array -> bytes",
        options=(
            _option("mode", integer(0, 5), 4),
            _option("compression_kwargs", _object, ABSENT),
            _option("tolerance", _number, -1),
            _option("rate", _number, -1),
            _option("precision", _number, -1),
        ),
        prepare=_prepare,
        types=_types,
        is_elementwise=False,
        has_fixed_size=False,
    ),
)
