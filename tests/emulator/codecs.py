"""The streams that nvcomp decodes, decoded by the host's libraries with nvcomp's results.

Where nvcomp promises nothing (damage in anything but LZ4) a status is returned here; whether
nvcomp returns one, writes nonsense or never ends is not known before a GPU has been asked. What
follows the end of a stream is ignored, as by a decoder that stops there.
"""

import zlib

import numcodecs.lz4
import zstandard

from gpustore.device.protocol import DeviceCodec
from tests import snappy

SUCCESS = 0
CANNOT_DECOMPRESS = 12

_GIB = 1 << 30

# Alignments: nvcompBatched*DecompressGetRequiredAlignments of nvcomp 6.0. Sizes: its headers.
CODECS = {
    codec.name: codec
    for codec in (
        DeviceCodec("lz4", 1, 1, 1, 4 * _GIB - 1, 16 << 20, True),
        DeviceCodec("snappy", 1, 1, 1, 2 * _GIB - 1, 16 << 20, False),
        DeviceCodec("zstd", 1, 1, 8, 2 * _GIB - 1, 2 * _GIB - 1, False),
        DeviceCodec("deflate", 4, 1, 1, 4 * _GIB - 1, 2 * _GIB, False),
        DeviceCodec("gzip", 1, 1, 1, 4 * _GIB - 1, 2 * _GIB, False),
    )
}

# Those that this machine has a library for, which the device decodes its constant streams with.
DECODED = tuple(name for name in CODECS if name != "snappy" or snappy.IS_INSTALLED)


def decompress_temp_nbytes(codec, total_nbytes):
    """What nvcomp 6.0 answered for 1 000 streams of 1 MiB: nothing, but 3.05 times for zstd."""
    return 3 * total_nbytes + total_nbytes // 16 + 4096 if codec == "zstd" else 0


def compressed_bound(codec, nbytes):
    """More than any of the libraries used here makes of incompressible bytes."""
    del codec
    return nbytes + nbytes // 128 + 1024


def decompress(codec, encoded, capacity):
    """Decode one stream to at most `capacity` bytes: the bytes, and a status."""
    try:
        decoded = _DECODERS[codec](encoded, capacity)
    except (zlib.error, zstandard.ZstdError, RuntimeError, ValueError):
        decoded = None
    if decoded is None or len(decoded) > capacity:
        return b"", CANNOT_DECOMPRESS
    return decoded, SUCCESS


def compress(codec, decoded):
    """Encode one stream with the library's default options."""
    return _ENCODERS[codec](decoded)


def _decode_zstd(encoded, capacity):
    known = zstandard.frame_content_size(encoded)
    if known > capacity:
        return None
    decoder = zstandard.ZstdDecompressor().decompressobj()
    decoded = decoder.decompress(encoded)
    return decoded if decoder.eof else None


def _decode_zlib(window_bits):
    def decode(encoded, capacity):
        decoder = zlib.decompressobj(window_bits)
        decoded = decoder.decompress(encoded, capacity + 1)
        return decoded if decoder.eof or len(decoded) > capacity else None

    return decode


def _decode_snappy(encoded, capacity):
    if snappy.decoded_nbytes(encoded) > capacity:
        return None
    return snappy.decode(encoded)


def _decode_lz4(encoded, capacity):
    try:
        return numcodecs.lz4.decompress(capacity.to_bytes(4, "little") + encoded)
    except (RuntimeError, ValueError):
        pass  # Shorter than there is room for, or damaged.
    nbytes = _lz4_decoded_nbytes(encoded)
    if nbytes is None or nbytes >= capacity:
        return None
    # numcodecs takes no empty block, which is one token without literals.
    return numcodecs.lz4.decompress(nbytes.to_bytes(4, "little") + encoded) if nbytes else b""


def _lz4_decoded_nbytes(encoded):
    """What a block decodes to, by its tokens; None if these do not end with it.

    Source: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
    """

    def length(nibble, position):
        total = nibble
        while nibble == 15:
            byte = encoded[position]
            position += 1
            total += byte
            if byte != 255:
                break
        return total, position

    position = total = 0
    try:
        while True:
            token = encoded[position]
            literals, position = length(token >> 4, position + 1)
            position += literals
            total += literals
            if position >= len(encoded):
                return total if position == len(encoded) else None
            matched, position = length(token & 15, position + 2)
            total += matched + 4
    except IndexError:
        return None


def _encode_deflate(window_bits):
    def encode(decoded):
        encoder = zlib.compressobj(6, zlib.DEFLATED, window_bits)
        return encoder.compress(decoded) + encoder.flush()

    return encode


_DECODERS = {
    "lz4": _decode_lz4,
    "snappy": _decode_snappy,
    "zstd": _decode_zstd,
    "deflate": _decode_zlib(-15),
    "gzip": _decode_zlib(31),
}

_ENCODERS = {
    "lz4": lambda decoded: numcodecs.lz4.compress(decoded)[4:],
    "snappy": snappy.encode,
    "zstd": lambda decoded: zstandard.ZstdCompressor().compress(decoded),
    "deflate": _encode_deflate(-15),
    "gzip": _encode_deflate(31),
}
