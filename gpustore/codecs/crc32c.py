"""The ``crc32c`` codec.

============  ======================================================================
content       Four bytes after the data: their CRC-32C (Castagnoli), little endian
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/crc32c/index.html
v3 name       ``crc32c``, and ``numcodecs.crc32c``
v2 id         ``crc32c``, among the filters
============  ======================================================================

Zarr v3::

    {"name": "crc32c"}

The check costs 36 us a MiB and is never left out. Bytes after the checksum are an error;
TensorStore takes the checksum from its expected place and ignores the bytes behind it. numcodecs
has the checksum before the data if ``location`` is ``start``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import numpy as np

from gpustore.codec_chain.base import BytesCodec, deliver, too_long, too_short
from gpustore.codec_chain.device_streams import fall_back_where
from gpustore.codec_chain.registered import Codec, CodecVariant, Options
from gpustore.codecs._checksum import checksum_variant
from gpustore.device.command_list import CommandList
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer

_NBYTES = 4

# CRC-32C of any bytes followed by their own CRC-32C: checking needs no slice of the value.
_RESIDUE = 0x48674BC7

# The library takes only bytes; other buffers are copied to it in pieces that stay in cache.
_PIECE_NBYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class _Crc32c(BytesCodec):
    name = "crc32c"
    decode_ns = 0.03
    is_exact = True
    is_view = True
    verifies = True
    needs_bytes = False
    appends = "crc32c"

    @property
    def native_codec(self) -> str:
        return "crc32c"

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int]:
        """Return no options: there is one CRC-32C."""
        del decoded_nbytes
        return {}

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the exact length of the encoding, in bytes."""
        return decoded_nbytes + _NBYTES

    def encode(self, decoded: Buffer) -> Buffer:
        """Return the data and their checksum."""
        return b"".join((decoded, _crc32c(decoded).to_bytes(_NBYTES, "little")))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Return a view of `encoded` without its checksum, or a copy in `out`."""
        nbytes = len(encoded) - _NBYTES
        if nbytes < 0 or (exact and nbytes < decoded_max):
            raise too_short(
                decoded_max + _NBYTES if exact else _NBYTES, len(encoded), codec="crc32c"
            )
        if nbytes > decoded_max:
            raise too_long(decoded_max + _NBYTES, len(encoded), codec="crc32c")
        view = memoryview(encoded)
        if _crc32c(encoded) != _RESIDUE:
            stored = int.from_bytes(view[nbytes:], "little")
            raise CorruptChunkError(
                f"Digest mismatch, stored digest is 0x{stored:08x} but computed digest is "
                f"0x{_crc32c(view[:nbytes]):08x}",
                status="DATA_LOSS",
                codec="crc32c",
            )
        return deliver(view[:nbytes], decoded_max, exact=exact, out=out)

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return None: a kernel decodes on every device."""
        del device, distrust
        return None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the comparison of all values, also of those only on the device; copies nothing."""
        del device
        nbytes = commands.values.nbytes.astype(np.int64) - _NBYTES
        wrong = (nbytes < 0) | ((nbytes != decoded_max) if exact else (nbytes > decoded_max))
        fall_back_where(commands, wrong, f"crc32c: not {decoded_max} bytes and a checksum")
        commands.checksum("crc32c", commands.values, np.full(len(commands), _RESIDUE, np.uint32))
        if commands.distrust is not None and commands.distrust.ends_with_checksum:
            commands.distrust = None
        commands.narrow(0, _NBYTES)


def _crc32c(data: Buffer) -> int:
    if isinstance(data, bytes):
        whole: int = google_crc32c.value(data)
        return whole
    view = memoryview(data)
    crc = 0
    for start in range(0, len(view), _PIECE_NBYTES):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _PIECE_NBYTES]))
    return crc


def _prepare(options: Options, itemsize: int | None) -> _Crc32c:
    del options, itemsize
    return _Crc32c()


def _prepare_v2(options: Options, itemsize: int | None) -> BytesCodec:
    return _prepare({}, itemsize) if options["location"] == "end" else _at_start(options, itemsize)


def _numcodecs(**options: Any) -> Any:
    from numcodecs.checksum32 import CRC32C  # On use: the package imports all of its codecs.

    return CRC32C(**options)


_v2 = checksum_variant("crc32c", _numcodecs, "end")
_at_start = _v2.prepare

CODEC = Codec(
    name="crc32c",
    v3=CodecVariant(options=(), prepare=_prepare),
    filter=replace(_v2, prepare=_prepare_v2),
)
