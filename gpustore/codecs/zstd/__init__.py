"""The ``zstd`` codec.

============  ====================================================================
content       Zstandard frames (RFC 8878)
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/zstd
v3 name       ``zstd``
v2 id         ``zstd``
============  ====================================================================

Zarr v3::

    {"name": "zstd", "configuration": {"level": 3, "checksum": false}}

Zarr v2::

    {"id": "zstd", "level": 1}

The default level is 3 in v3 and 1 in v2, TensorStore's. A v2 ``checksum`` member is read because
numcodecs writes it; TensorStore refuses such an array. Several frames in a row, skippable ones
too, are read if together they are exactly one chunk; TensorStore reads the first alone. Bytes
after the end are an error; TensorStore ignores them in v3.

A device decodes values of one frame that tells its content size and has neither a dictionary nor
a content checksum; the host decodes the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import zstandard

from gpustore.codec_chain.base import BytesCodec, deliver, too_long, too_short
from gpustore.codec_chain.device_segments import HIGHEST_LEVELS, EncodedValues, Framed
from gpustore.codec_chain.device_streams import decompress_values
from gpustore.codec_chain.registered import (
    ABSENT,
    Codec,
    CodecVariant,
    Option,
    Options,
    boolean,
    integer,
)
from gpustore.codecs.zstd.columns import read_values
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList, cannot_compress
from gpustore.device.headers import HeaderColumns
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer

# Up to here zstandard decodes faster: it reuses contexts, and numcodecs makes one a call (9 us).
# Above, numcodecs is a few percent faster. Measured in docs/design/002-dependencies.md.
_SMALL_NBYTES: Final = 256 << 10

_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_BLOCK_NBYTES: Final = 128 << 10


class _Contexts(threading.local):
    """Context of zstandard, for one thread at a time."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a value.

    Attributes
    ----------
    start, stop : int
        Byte range of the frame in the value.
    decoded_max : int
        Upper bound of the decoded bytes of its blocks; 0 for a skippable frame.
    """

    start: int
    stop: int
    decoded_max: int


def walk_frames(encoded: memoryview) -> Iterator[Frame]:
    """Walk the frames of a value by their headers and those of their blocks.

    Raises
    ------
    CorruptChunkError
        If frames and blocks do not add up to the whole value.
    """
    position = 0
    while position < len(encoded):
        start = position
        magic = _uint(encoded, position, 4)
        if magic & ~0xF == _SKIPPABLE_MAGIC:
            position += 8 + _uint(encoded, position + 4, 4)
            blocks = 0
        elif magic == _MAGIC:
            position, blocks = _walk_blocks(encoded, position + 4)
        else:
            raise CorruptChunkError(
                f"Unknown Zstd frame descriptor 0x{magic:08x} at byte {start}", codec="zstd"
            )
        if position > len(encoded):
            raise _truncated(encoded)
        yield Frame(start, position, blocks * _BLOCK_NBYTES)


def _walk_blocks(encoded: memoryview, position: int) -> tuple[int, int]:
    """Return the end of a frame and its number of blocks, from behind the magic number."""
    descriptor = _uint(encoded, position, 1)
    single_segment = descriptor >> 5 & 1
    position += 2 - single_segment
    position += (0, 1, 2, 4)[descriptor & 3]
    position += (single_segment, 2, 4, 8)[descriptor >> 6]
    blocks = last = 0
    while not last:
        header = _uint(encoded, position, 3)
        last, kind = header & 1, header >> 1 & 3
        position += 3 + (1 if kind == 1 else header >> 3)  # A run stores the one byte it repeats.
        blocks += 1
    return position + (descriptor & 4), blocks


def _uint(encoded: memoryview, position: int, nbytes: int) -> int:
    if position + nbytes > len(encoded):
        raise _truncated(encoded)
    return int.from_bytes(encoded[position : position + nbytes], "little")


def _truncated(encoded: memoryview) -> CorruptChunkError:
    return CorruptChunkError(
        f"Truncated Zstd-compressed stream; at byte {len(encoded)}", codec="zstd"
    )


@dataclass(frozen=True, slots=True)
class _Zstd(BytesCodec):
    name = "zstd"
    decode_ns = 1.2
    level: int
    checksum: bool

    @property
    def native_codec(self) -> str:
        return "zstd"

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int]:
        """Return level and checksum."""
        del decoded_nbytes
        return {"level": self.level, "checksum": int(self.checksum)}

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of stored blocks, even of small ones, with headers, in bytes."""
        return decoded_nbytes + (decoded_nbytes >> 6) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one frame with its content size."""
        import numcodecs.zstd  # On use: the package imports all of its codecs.

        # By the library whose functions the native core calls: other versions may encode otherwise.
        encoded: bytes = numcodecs.zstd.compress(decoded, self.level, self.checksum)
        return encoded

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one frame of known size at once, other values frame by frame."""
        # On an error, of several frames or damage, the walk over frames below decodes or raises.
        with contextlib.suppress(zstandard.ZstdError, RuntimeError, ValueError):
            if exact and zstandard.frame_content_size(encoded) == decoded_max:
                return _decode_known(encoded, decoded_max, out)
        decoded = _decode_frames(memoryview(encoded), decoded_max)
        if exact and len(decoded) != decoded_max:
            raise too_short(decoded_max, len(decoded), codec="zstd")
        return deliver(decoded, decoded_max, exact=exact, out=out)

    @property
    def device_codec(self) -> str:
        return "zstd"

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of values of one plain frame."""

        def read(columns: EncodedColumns) -> tuple[HeaderColumns, dict[int, str]]:
            nbytes, reasons = read_values(columns)
            wrong = (nbytes != decoded_max) if exact else (nbytes > decoded_max)
            (others,) = wrong.nonzero()
            if len(others):
                size = f"zstd: does not hold {decoded_max} bytes"
                reasons = {**dict.fromkeys(others.tolist(), size), **reasons}
            return HeaderColumns((nbytes,)), reasons

        headers = self._headers(commands, read)
        if headers is not None:
            (nbytes,) = headers.columns
            decompress_values(
                commands, device, "zstd", commands.values, nbytes, decoded_max if exact else None
            )

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why a device encodes no values: a high level, a content checksum, no library."""
        if self.checksum:
            return "zstd: the host encodes frames with a content checksum"
        if self.level > HIGHEST_LEVELS["zstd"]:
            return f"zstd: the host encodes levels above {HIGHEST_LEVELS['zstd']}"
        return cannot_compress(device, "zstd", decoded_nbytes)

    def encode_device(self, commands: EncodingList) -> EncodedValues:
        """Record the encoding of each value as one frame."""
        return Framed(commands, "zstd")


def _decode_known(encoded: Buffer, nbytes: int, out: memoryview | None) -> Buffer:
    """Decode a value that is one frame of `nbytes` decoded bytes."""
    if nbytes <= _SMALL_NBYTES:
        decoded = _contexts.decompressor.decompress(encoded, allow_extra_data=False)
        return deliver(decoded, nbytes, exact=True, out=out)
    whole = memoryview(bytearray(nbytes)) if out is None else out[:nbytes]
    import numcodecs.zstd

    # Further frames can only be empty: what does not fit is an error.
    numcodecs.zstd.decompress(encoded, whole)
    return whole


def _decode_frames(encoded: memoryview, decoded_max: int) -> bytes:
    parts = []
    room = decoded_max
    frames = list(walk_frames(encoded))
    if not frames:
        raise _truncated(encoded)
    for frame in frames:
        if frame.decoded_max == 0:
            continue
        part = _decode_frame(encoded[frame.start : frame.stop], frame, room)
        if len(part) > room:
            raise too_long(decoded_max, codec="zstd")
        parts.append(part)
        room -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode_frame(encoded: memoryview, frame: Frame, room: int) -> bytes:
    """Decode one frame; a frame longer than `room` gives one byte more than `room` or an error."""
    try:
        # A known size is what the library allocates, so it has to be looked at first.
        if zstandard.frame_content_size(encoded) > room:
            raise too_long(room, codec="zstd")
        return _contexts.decompressor.decompress(
            encoded, max_output_size=min(room + 1, frame.decoded_max), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptChunkError(f"ZSTD_decompress() failed: {error}", codec="zstd") from error


# --------------------------------------------------------------------------- options


def _prepare(options: Options, itemsize: int | None) -> _Zstd:
    del itemsize
    return _Zstd(options["level"], options.get("checksum", False))


_LEVEL = integer(-131072, 22)

CODEC = Codec(
    name="zstd",
    v3=CodecVariant(
        options=(
            # Decoding needs no level: codecs may be given by name alone.
            Option(name="level", convert=_LEVEL, default=3, stored_default=3),
            Option(name="checksum", convert=boolean, default=False, stored_default=False),
        ),
        prepare=_prepare,
    ),
    v2=CodecVariant(
        options=(
            Option(name="level", convert=_LEVEL, default=1, stored_default=1),
            Option(name="checksum", convert=boolean, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
    ),
)
