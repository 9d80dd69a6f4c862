"""The ``lzma`` codec.

============  ====================================================================
content       xz files, or what the ``lzma`` module makes in its other formats
specification https://numcodecs.readthedocs.io/en/stable/compression/lzma.html
v3 name       none
v2 id         ``lzma``
============  ====================================================================

Zarr v2::

    {"id": "lzma", "format": 1, "check": -1, "preset": null, "filters": null}

The options are those of :func:`lzma.compress`: `format` 1 is xz, 2 the older .lzma, 3 bare data,
which `filters` must describe; 0 is any of the first two, and written as xz. A `filter` is an object
with the members of Python's filter specifiers. They are compared here with the library's limits,
because the library decodes bare data with a dictionary of any requested size.

Several xz streams in a row are read if together they are exactly one chunk. TensorStore does not
have this codec; numcodecs cannot read xz with `filters`, though it writes it.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpustore.codec_chain.base import BytesCodec, deliver, too_short
from gpustore.codec_chain.registered import (
    Codec,
    CodecVariant,
    Option,
    Options,
    fill_defaults,
    integer,
)
from gpustore.codecs._streams import decode_streams
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_int,
    expect_list,
    text,
)

# The dictionary of the highest preset, and what decoding with it takes.
_MAX_DICTIONARY_NBYTES: Final = 64 << 20
_MEMORY_NBYTES: Final = 80 << 20

_MAX_FILTERS: Final = 4
_UINT32_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Lzma(BytesCodec):
    name = "lzma"
    decode_ns = 15.0
    format: int
    check: int
    preset: int | None
    filters: tuple[Mapping[str, int], ...] | None

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return a bound for incompressible data: 2 % more, and room for many small blocks."""
        return decoded_nbytes + (decoded_nbytes >> 4) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        written = self.format or lzma.FORMAT_XZ
        try:
            return lzma.compress(decoded, written, self.check, self.preset, self._filters)
        except (lzma.LZMAError, ValueError) as error:
            raise UnsupportedError(f"lzma: the library refuses its options: {error}") from error

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one stream, or several if they are xz."""
        try:
            decoded = decode_streams(
                self._start,
                memoryview(encoded),
                decoded_max,
                codec="lzma",
                name="LZMA",
                several=self.format in (lzma.FORMAT_AUTO, lzma.FORMAT_XZ),
            )
        except (lzma.LZMAError, EOFError) as error:
            raise CorruptChunkError(f"lzma_code() failed: {error}", codec="lzma") from error
        if exact and len(decoded) != decoded_max:
            raise too_short(decoded_max, len(decoded), codec="lzma")
        return deliver(decoded, decoded_max, exact=exact, out=out)

    def _start(self) -> lzma.LZMADecompressor:
        # Bare data have no header that could ask for more memory than the filters do.
        if self.format == lzma.FORMAT_RAW:
            return lzma.LZMADecompressor(lzma.FORMAT_RAW, None, self._filters)
        return lzma.LZMADecompressor(self.format, _MEMORY_NBYTES)

    @property
    def _filters(self) -> list[Mapping[str, Any]] | None:
        return None if self.filters is None else list(self.filters)


# --------------------------------------------------------------------------- options


def _or_null(convert: Callable[[JsonValue], JsonValue]) -> Callable[[JsonValue], JsonValue]:
    return lambda value: None if value is None else convert(value)


def _one_of(*choices: int) -> Callable[[JsonValue], JsonValue]:
    def convert(value: JsonValue) -> int:
        number = expect_int(value, integral_floats=True)
        if number not in choices:
            expected = ", ".join(map(str, choices))
            raise MetadataError(f"Expected one of {expected}, but received: {text(value)}")
        return number

    return convert


def _preset(value: JsonValue) -> int:
    """Check a preset: 0 to 9, with a high bit for "extreme"."""
    number = expect_int(value, 0, _UINT32_MAX, integral_floats=True)
    expect_int(number & ~lzma.PRESET_EXTREME, 0, 9)
    return number


_CHECK: Final = _one_of(-1, lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256)
_BYTE_CODE: Final = {"start_offset": integer(0, _UINT32_MAX)}
_LZMA: Final = {
    "preset": _preset,
    "dict_size": integer(4096, _MAX_DICTIONARY_NBYTES),
    "lc": integer(0, 4),
    "lp": integer(0, 4),
    "pb": integer(0, 4),
    "mode": integer(lzma.MODE_FAST, lzma.MODE_NORMAL),
    "nice_len": integer(2, 273),
    "mf": _one_of(lzma.MF_HC3, lzma.MF_HC4, lzma.MF_BT2, lzma.MF_BT3, lzma.MF_BT4),
    "depth": integer(0, _UINT32_MAX),
}
_FILTERS: Final[Mapping[int, Mapping[str, Callable[[JsonValue], JsonValue]]]] = {
    lzma.FILTER_DELTA: {"dist": integer(1, 256)},
    lzma.FILTER_X86: _BYTE_CODE,
    lzma.FILTER_POWERPC: _BYTE_CODE,
    lzma.FILTER_IA64: _BYTE_CODE,
    lzma.FILTER_ARM: _BYTE_CODE,
    lzma.FILTER_ARMTHUMB: _BYTE_CODE,
    lzma.FILTER_SPARC: _BYTE_CODE,
    lzma.FILTER_LZMA1: _LZMA,
    lzma.FILTER_LZMA2: _LZMA,
}
_LAST: Final = (lzma.FILTER_LZMA1, lzma.FILTER_LZMA2)


def _filter_chain(value: JsonValue) -> list[dict[str, JsonValue]]:
    specifiers = expect_list(value)
    if not 1 <= len(specifiers) <= _MAX_FILTERS:
        raise MetadataError(
            f"Expected array of 1 to {_MAX_FILTERS} filters, but received: {text(value)}"
        )
    filters = []
    for index, specifier in enumerate(specifiers):
        with at_position(index):
            filters.append(_filter(specifier, is_last=index == len(specifiers) - 1))
    return filters


def _filter(value: JsonValue, *, is_last: bool) -> dict[str, JsonValue]:
    members = Members(value)
    parsed: dict[str, JsonValue] = {"id": members.take_with("id", partial(_filter_id, is_last))}
    for name, convert in _FILTERS[parsed["id"]].items():
        option = members.take_with(name, convert, None)
        if option is not None:
            parsed[name] = option
    members.finish()
    if parsed.get("lc", 3) + parsed.get("lp", 0) > 4:
        raise MetadataError(
            f'"lc" and "lp" must not exceed 4 together, but received: {text(value)}'
        )
    return parsed


def _filter_id(is_last: bool, value: JsonValue) -> int:
    number = expect_int(value, integral_floats=True)
    known = [one for one in _FILTERS if (one in _LAST) == is_last]
    if number not in known:
        place = "the last filter" if is_last else "a filter before the last"
        raise MetadataError(
            f"Expected one of {', '.join(map(str, known))} for {place}, but received: {text(value)}"
        )
    return number


def _complete(
    variant: CodecVariant, options: Options, itemsize: int | None
) -> dict[str, JsonValue]:
    """Fill in numcodecs' defaults, and check that the options fit together."""
    completed = fill_defaults(variant, options, itemsize)
    form, filters = completed["format"], completed["filters"]
    if completed["preset"] is not None and filters is not None:
        raise MetadataError('"preset" and "filters" must not both be specified')
    if form == lzma.FORMAT_RAW and filters is None:
        raise MetadataError(f'"filters" must be specified for "format" {form}')
    if form != lzma.FORMAT_XZ and completed["check"] not in (-1, lzma.CHECK_NONE):
        raise MetadataError(
            f'"check" must be -1 for "format" {form}, but received: {completed["check"]}'
        )
    ids = [one["id"] for one in filters or ()]
    if form == lzma.FORMAT_XZ and lzma.FILTER_LZMA1 in ids:
        raise MetadataError(f'Filter {lzma.FILTER_LZMA1} is not one of "format" {form}')
    if form == lzma.FORMAT_ALONE and ids not in ([], [lzma.FILTER_LZMA1]):
        raise MetadataError(f'Filter {lzma.FILTER_LZMA1} is the only one of "format" {form}')
    return completed


def _prepare(options: Options, itemsize: int | None) -> _Lzma:
    del itemsize
    filters = options["filters"]
    return _Lzma(
        options["format"],
        options["check"],
        options["preset"],
        None if filters is None else tuple(filters),
    )


CODEC = Codec(
    name="lzma",
    v2=CodecVariant(
        options=(
            Option(
                name="format",
                convert=integer(lzma.FORMAT_AUTO, lzma.FORMAT_RAW),
                default=lzma.FORMAT_XZ,
                stored_default=lzma.FORMAT_XZ,
            ),
            Option(name="check", convert=_CHECK, default=-1, stored_default=-1),
            Option(name="preset", convert=_or_null(_preset), default=None, stored_default=None),
            Option(
                name="filters", convert=_or_null(_filter_chain), default=None, stored_default=None
            ),
        ),
        complete=_complete,
        prepare=_prepare,
    ),
)
