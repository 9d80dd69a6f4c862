"""The ``zfp`` codec.

============  ======================================================================
content       Arrays of one to four dimensions in few bits, with or without loss
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/zfp
v3 name       ``zfp``
v2 id         none; :mod:`gpustore.codecs.zfpy` is another format
============  ======================================================================

Zarr v3::

    {"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0.05}}

An array -> bytes codec. ``mode`` is ``reversible``, ``fixed_accuracy`` (with ``tolerance``),
``fixed_rate`` (``rate``, bits an element) or ``fixed_precision`` (``precision``, bits). The library
zfpy has no mode ``expert``. Numbers of 8 and 16 bits, ``float16`` and ``bfloat16`` are stored as
32 bits of their kind. zfp has no unsigned integers of 32 and 64 bits: they are stored as signed
ones, and larger values are an error.

The codec needs the extra ``zfp``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, choice
from gpustore.codec_chain.value import Elements, Types, ValueVariant
from gpustore.codecs._zfp import Zfp
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Required,
    expect_float,
    expect_int,
    text,
)

_PARAMETERS: Final = {
    "reversible": (),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
    "expert": ("minbits", "maxbits", "maxprec", "minexp"),
}

_CODED: Final = {
    **{f"{kind}{bits}": "int32" for kind in ("int", "uint") for bits in (8, 16, 32)},
    **{"int64": "int64", "uint64": "int64", "float64": "float64"},
    **{"float16": "float32", "bfloat16": "float32", "float32": "float32"},
}


def _tolerance(value: JsonValue) -> JsonValue:
    found = expect_float(value)
    if not (math.isfinite(found) and found >= 0):
        raise MetadataError(f"Expected number of at least 0, but received: {text(value)}")
    return found


def _rate(value: JsonValue) -> JsonValue:
    found = expect_float(value)
    if not 0 < found <= 64:
        raise MetadataError(f"Expected number in (0, 64], but received: {text(value)}")
    return found


def _precision(value: JsonValue) -> JsonValue:
    return expect_int(value, 1, 64, integral_floats=True)


def _any_integer(value: JsonValue) -> JsonValue:
    return expect_int(value, -(2**31), 2**31, integral_floats=True)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, np.dtype(np.uint8)


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> Zfp:
    del encoded
    mode = options["mode"]
    wanted = _PARAMETERS[mode]
    for name in options:
        if name != "mode" and name not in wanted:
            raise MetadataError(f"{text(name)} is no option of mode {text(mode)}")
    for name in wanted:
        if name not in options:
            raise MetadataError(f"Mode {text(mode)} needs {text(name)}")
    if mode == "expert":
        raise UnsupportedError('Mode "expert" is not supported: the library zfpy does not have it')
    coded = _CODED.get(decoded.dtype.name)
    if coded is None:
        raise MetadataError(f"Elements of type {decoded.dtype.name} are not compressed by zfp")
    parameters = {name: options[name] for name in wanted}
    return Zfp.of("zfp", decoded, np.dtype(coded), parameters, has_header=False)


def _option(name: str, convert: Any, required: Required | Any = ABSENT) -> Option:
    return Option(
        name=name,
        convert=convert,
        default=ABSENT,
        stored_default=required,
        constraint_default=required,
    )


CODEC = Codec(
    name="zfp",
    v3=ValueVariant(
        kind="array -> bytes",
        options=(
            _option("mode", choice(*_PARAMETERS), REQUIRED),
            _option("tolerance", _tolerance),
            _option("rate", _rate),
            _option("precision", _precision),
            *(_option(name, _any_integer) for name in _PARAMETERS["expert"]),
        ),
        prepare=_prepare,
        types=_types,
        is_elementwise=False,
        has_fixed_size=False,
    ),
)
