"""Launches of codecs of values, for any number of chunks: conversions, sums, packed bits.

A :class:`Conversion` changes each element by itself; consecutive ones are one launch. A kernel
reports the values that it must not decode, block by block: see ``kernels/value.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.device.kernels.descriptor import (
    ITEMS_PER_TILE,
    VALUE_RUN,
    VALUE_STEP,
    first_tiles,
)

Integers = NDArray[np.int64]

ROUNDING: Final = {
    "nearest-even": 0,
    "towards-zero": 1,
    "towards-positive": 2,
    "towards-negative": 3,
    "nearest-away": 4,
}
"""Number of each rounding mode in kernels, by its name in the codec ``cast_value``."""

BEYOND: Final = {"error": 0, "clamp": 1, "wrap": 2, "infinity": 3, "least": 4}
"""Number of each rule in kernels for values out of the range of the target type.

With ``least`` floats become signed integers as on x86: NaN and values that do not fit become the
least integer. For unsigned targets, which must have 64 bits, a value too large becomes 0.
"""

_LOOK_UP, _CONVERT, _SCALE, _SCALE_INTEGER = range(4)
_UNSIGNED, _SIGNED, _BOOL, _FLOAT, _FLOAT_OF_ONE_NAN = range(5)

NARROW: Final = {"int2": 2, "int4": 4, "uint2": 2, "uint4": 4}
"""Bits of integers that are narrower than a byte, by name."""

_FLOATS: Final = {
    "float16": (10, 15),
    "bfloat16": (7, 127),
    "float32": (23, 127),
    "float64": (52, 1023),
}
"""Bits of the significand behind the point, and bias of the exponent, by name."""


def number_format(dtype: np.dtype[Any]) -> tuple[int, int, int, int] | None:
    """Return the fields of ``gs::NumberFormat``, None if kernels do not convert such numbers.

    >>> number_format(np.dtype("i2")), number_format(np.dtype(">f4")), number_format(np.dtype("O"))
    ((1, 16, 0, 0), (3, 32, 23, 127), None)
    """
    name = dtype.name
    if dtype == np.bool_:
        return _BOOL, 8, 0, 0
    if dtype.kind in "iu":
        return (_SIGNED if dtype.kind == "i" else _UNSIGNED), 8 * dtype.itemsize, 0, 0
    if name in NARROW:
        return (_SIGNED if name.startswith("int") else _UNSIGNED), NARROW[name], 0, 0
    if name in _FLOATS:
        kind = _FLOAT_OF_ONE_NAN if name == "bfloat16" else _FLOAT
        return kind, 8 * dtype.itemsize, *_FLOATS[name]
    return None


@dataclass(frozen=True, slots=True)
class Conversion:
    """One conversion step of each number.

    Attributes
    ----------
    source, target : numpy.dtype
        Types of real numbers, in any byte order.
    rounding : str
        Rounding mode, a key of :data:`ROUNDING`.
    beyond : str
        Rule for values out of range, a key of :data:`BEYOND`. An integer never becomes an infinity,
        and NaN never an integer.
    pairs : tuple of pairs of numpy scalar
        Numbers of type `source` that are replaced by numbers of type `target` before any other
        rule.
    scale, offset : int or float, or None
        If given, a number becomes ``number / scale + offset``; `source` and `target` are then the
        same type. Integers must be multiples of the scale; each step of floats is rounded. `beyond`
        is ``error`` or ``infinity``. Both are exact in that type, and the scale is not 0.
    """

    source: np.dtype[Any]
    target: np.dtype[Any]
    rounding: str = "nearest-even"
    beyond: str = "error"
    pairs: tuple[tuple[Any, Any], ...] = ()
    scale: float | None = None
    offset: float | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """Layout of elements in memory: `nbytes` of each, 1, 2, 4 or 8, are read or written.

    Bytes between elements are skipped when read, and written as zeros; `stride`, in bytes, is a
    multiple of `nbytes`.
    """

    nbytes: int
    stride: int
    is_swapped: bool

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Side:
        """Return the layout of numbers of a type; of complex ones that of the real part.

        >>> Side.of(np.dtype(">c8"))
        Side(nbytes=4, stride=8, is_swapped=True)
        """
        nbytes = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        return cls(nbytes, dtype.itemsize, nbytes > 1 and not dtype.isnative)

    @property
    def arguments(self) -> tuple[np.uint32, ...]:
        """Kernel arguments: `nbytes`, `stride` and whether bytes are swapped."""
        return np.uint32(self.nbytes), np.uint32(self.stride), np.uint32(self.is_swapped)


def as_words(elements: NDArray[Any]) -> NDArray[np.uint64]:
    """Return elements of up to 8 bytes as the uint64 words that kernels use."""
    native = elements.astype(elements.dtype.newbyteorder("="), copy=False)
    return native.reshape(-1).view(f"u{native.dtype.itemsize}").astype(np.uint64)


def steps_and_words(
    conversions: Sequence[Conversion], table: tuple[NDArray[Any], NDArray[np.bool_]] | None
) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
    """Return the descriptors of conversion steps, and the words of their tables and maps.

    Parameters
    ----------
    conversions : sequence of Conversion
        Steps in their order.
    table : tuple of ndarray of length 256, optional
        Value of each byte, and whether the byte is legal: a step before all others.
    """
    steps = np.zeros(len(conversions) + (table is not None), VALUE_STEP)
    words: list[int] = []
    if table is not None:
        steps[0]["kind"] = _LOOK_UP
        words += as_words(table[0]).tolist()
        words += np.packbits(table[1], bitorder="little").view(np.uint64).tolist()
    for step, one in zip(steps[table is not None :], conversions):
        step["from"], step["to"] = number_format(one.source), number_format(one.target)
        step["rounding"], step["beyond"] = ROUNDING[one.rounding], BEYOND[one.beyond]
        if one.scale is not None and one.source.kind in "iu":
            step["kind"] = _SCALE_INTEGER
            step["scale"], step["offset"] = (int(x) % 2**64 for x in (one.scale, one.offset or 0))
        elif one.scale is not None:
            step["kind"] = _SCALE
            numbers = np.array([one.scale, one.offset], np.float64)
            step["scale"], step["offset"] = numbers.view(np.uint64)
        else:
            step["kind"] = _CONVERT
            step["word"] = len(words)
            pairs = _map_words(one)
            step["map_length"] = len(pairs) // 2
            words += pairs
    return steps, np.array(words or [0], np.uint64)


def _map_words(conversion: Conversion) -> list[int]:
    """Return the words of a map: whether it has NaN, what NaN becomes, then pairs of numbers.

    Kernels use the first pair of a number.
    """
    if not conversion.pairs:
        return []
    is_integer = (number_format(conversion.source) or (_FLOAT,))[0] < _FLOAT
    of_nan: list[int] = [0, 0]
    pairs: list[int] = []
    for key, value in conversion.pairs:
        (word,) = as_words(np.array([value], conversion.target)).tolist()
        if key != key:
            of_nan = of_nan if of_nan[0] else [1, word]
            continue
        # Zeros of both signs are equal.
        keys = np.array([key] if is_integer or key else [0.0, -0.0]).astype(conversion.source)
        for found in as_words(keys).tolist():
            pairs += [found, word]
    return of_nan + pairs


def value_runs(
    src: ArrayLike, dst: ArrayLike, elements: ArrayLike, *, blocks_each: int = 0
) -> tuple[NDArray[np.void], NDArray[np.int64], int]:
    """Return descriptors of runs, the number of thread blocks of each, and of all.

    Parameters
    ----------
    src, dst, elements : integers, shape (n,)
        Device addresses and number of elements of each run.
    blocks_each : int, optional
        Thread blocks of each run; by default one for each tile of elements, and at least one.
    """
    elements = np.asarray(elements, np.int64)
    table = np.zeros(len(elements), VALUE_RUN)
    table["src"], table["dst"], table["elements"] = src, dst, elements
    blocks = np.maximum(1, -(-elements // ITEMS_PER_TILE))
    if blocks_each:
        blocks[:] = blocks_each
    table["first_tile"], count = first_tiles(blocks)
    table["result"] = np.arange(len(elements))
    return table, blocks, count
