"""The ``pcodec`` codec of numcodecs.

============  ======================================================================
content       Sequences of numbers, without loss
specification https://numcodecs.readthedocs.io/en/stable/compression/pcodec.html
v3 name       ``numcodecs.pcodec``, array -> bytes
v2 id         ``pcodec``, as a compressor or among the filters
============  ======================================================================

Zarr v2::

    "compressor": {"id": "pcodec", "level": 8, "mode_spec": "auto", "delta_spec": "auto",
                   "paging_spec": "equal_pages_up_to", "delta_encoding_order": null,
                   "equal_pages_up_to": 262144}

The codec is for integers and floats of 16, 32 and 64 bits. ``delta_encoding_order`` is an option of
the ``delta_spec`` ``try_consecutive``, which it selects in place of ``auto``, as in numcodecs.

The codec needs the extra ``pcodec``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.base import BytesCodec, deliver, too_long, too_short
from gpustore.codec_chain.registered import Codec, Option, Options, choice, integer
from gpustore.codec_chain.value import Elements, Types, ValueVariant
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue, expect_int, text

_library: Any
_files: Any
try:
    import pcodec
    from pcodec import standalone
except ImportError:
    _library = _files = None
else:
    _library, _files = pcodec, standalone


_TYPES: Final = frozenset(
    {"uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "float32", "float64"}
)


@dataclass(frozen=True, slots=True)
class _Pcodec(BytesCodec):
    """Codec of a chunk as a stand-alone file of pcodec."""

    name = "pcodec"
    decode_ns = 1.0

    dtype: np.dtype[Any]
    count: int
    config: Any

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the numbers with tables of each page and headers, in bytes."""
        return decoded_nbytes + (decoded_nbytes >> 1) + 64 * self.count // 100 + (1 << 16)

    def encode(self, decoded: Buffer) -> Buffer:
        elements = np.frombuffer(decoded, self.dtype)
        encoded: bytes = _files.simple_compress(elements, self.config)
        return encoded

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one file with the number of elements of a chunk."""
        del decoded_max, exact  # Nothing else than a whole chunk is encoded so.
        nbytes = self.count * self.dtype.itemsize
        # Room for one more element than expected shows whether there are more.
        found = np.empty(self.count + 1, self.dtype)
        try:
            progress = _files.simple_decompress_into(bytes(encoded), found)
        except Exception as error:
            raise CorruptChunkError(f"pcodec: {error}", codec=self.name) from error
        if progress.n_processed > self.count or not progress.finished:
            raise too_long(nbytes, codec=self.name)
        if progress.n_processed < self.count:
            count = progress.n_processed * self.dtype.itemsize
            raise too_short(nbytes, count, codec=self.name)
        return deliver(found[: self.count].view(np.uint8).data, nbytes, exact=True, out=out)


def _order(value: JsonValue) -> JsonValue:
    return None if value is None else expect_int(value, 0, 7, integral_floats=True)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, np.dtype(np.uint8)


def _delta(options: Options) -> Any:
    spec, order = options["delta_spec"], options["delta_encoding_order"]
    known = _library.DeltaSpec
    if order is not None and spec not in ("auto", "try_consecutive"):
        raise MetadataError(f'"delta_encoding_order" is no option of delta_spec {text(spec)}')
    if spec == "try_consecutive" and order is None:
        raise MetadataError('delta_spec "try_consecutive" needs "delta_encoding_order"')
    if order is not None:
        return known.try_consecutive(order)
    if spec == "none":
        # Its name before pcodec 1.0, and since.
        return known.none() if hasattr(known, "none") else known.no_op()
    return getattr(known, spec)()


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _Pcodec:
    del encoded
    dtype = decoded.dtype
    if dtype.name not in _TYPES or not dtype.isnative:
        raise MetadataError(
            f"Only integers and floats of 16, 32 and 64 bits in the byte order of the machine are "
            f"compressed by pcodec, not {text(dtype.str)}"
        )
    if _library is None:
        raise UnsupportedError(
            '"pcodec" is decoded by the library pcodec, which is not installed: '
            "pip install 'gpustore[pcodec]'"
        )
    config = _library.ChunkConfig(
        compression_level=options["level"],
        delta_spec=_delta(options),
        mode_spec=getattr(_library.ModeSpec, options["mode_spec"])(),
        paging_spec=_library.PagingSpec.equal_pages_up_to(options["equal_pages_up_to"]),
    )
    return _Pcodec(dtype, decoded.count, config)


def _option(name: str, convert: Any, default: JsonValue) -> Option:
    return Option(name=name, convert=convert, default=default, stored_default=default)


CODEC = Codec(
    name="pcodec",
    v2=ValueVariant(
        kind="array -> bytes",
        options=(
            _option("level", integer(0, 12), 8),
            _option("mode_spec", choice("auto", "classic"), "auto"),
            _option(
                "delta_spec", choice("auto", "none", "try_consecutive", "try_lookback"), "auto"
            ),
            _option("paging_spec", choice("equal_pages_up_to"), "equal_pages_up_to"),
            _option("delta_encoding_order", _order, None),
            _option("equal_pages_up_to", integer(1, 2**24), 262144),
        ),
        prepare=_prepare,
        types=_types,
        is_elementwise=False,
        has_fixed_size=False,
    ),
)
