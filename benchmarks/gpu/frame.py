"""Streams out of the ordinary, valid and damaged: what nvcomp does with them is to be found out."""

import struct
import zlib
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.stream import KIB, MIB, deflate, encode, make_data

_SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"hello"
_EMPTY_ZSTD = bytes.fromhex("28b52ffd2000010000")


class Unusual(NamedTuple):
    """A stream at `shift` modulo 16 bytes, and what it stands for.

    `valid` is whether the CPU's decoder gives just that.
    """

    name: str
    encoded: bytes
    decoded: bytes
    shift: int = 0
    valid: bool = True


def without_content_size(frame):
    """The same Zstandard frame, but its header gives a window of 8 MiB and no content size."""
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    nbytes = {0: single, 1: 2, 2: 4, 3: 8}[descriptor >> 6]
    header = frame[:4] + bytes([descriptor & 4, (23 - 10) << 3])
    return header + frame[5 + (not single) + nbytes :]


def _flipped(stream, place):
    """One bit of the byte at `place` turned over."""
    changed = bytearray(stream)
    changed[place] ^= 1
    return bytes(changed)


def _zstd(small, large, noise):
    def encoded(decoded, level=3, checksum=False):
        # numcodecs is imported by `encode` too, which says what is missing.
        from numcodecs.zstd import Zstd

        return bytes(Zstd(level, checksum=checksum).encode(decoded))

    plain, summed = encode("zstd", small), None
    summed = encoded(large, checksum=True)
    both = small + noise
    return [
        Unusual("no_content_size_1MiB", without_content_size(encoded(large)), large),
        Unusual("no_content_size_64KiB", without_content_size(plain), small),
        Unusual("checksum", summed, large),
        Unusual("checksum_wrong", _flipped(summed, -1), large, valid=False),
        Unusual("level_1", encoded(large, 1), large),
        Unusual("level_19", encoded(large, 19), large),
        Unusual("one_byte_repeated", encoded(b"\7" * 64 * KIB), b"\7" * 64 * KIB),
        Unusual("one_frame_of_20MiB", encoded(large * 20), large * 20),
        Unusual("two_frames", plain + encoded(noise), both),
        Unusual("skippable_frame_first", _SKIPPABLE + plain, small),
        Unusual("skippable_frame_last", plain + _SKIPPABLE, small),
        Unusual("empty_frame", _EMPTY_ZSTD, b"", valid=False),
    ]


def _gzip(small, large, noise):
    tail = deflate(small, -15) + struct.pack("<II", zlib.crc32(small), len(small))
    plain = encode("gzip", small)

    def header(flags):
        return b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<I", 1_700_000_000) + b"\0\3"

    summed = header(2)
    summed += struct.pack("<H", zlib.crc32(summed) & 0xFFFF)
    extra = header(4) + struct.pack("<H", 6) + b"AB\2\0xy"
    wrong_size = plain[:-4] + struct.pack("<I", len(small) + 1)
    return [
        Unusual("time_and_extra_field", extra + tail, small),
        Unusual("name_and_comment", header(24) + b"file.bin\0note\0" + tail, small),
        Unusual("header_checksum", summed + tail, small),
        Unusual("two_members", plain + encode("gzip", noise), small + noise, valid=False),
        Unusual("checksum_wrong", _flipped(plain, -8), small, valid=False),
        Unusual("size_wrong", wrong_size, small, valid=False),
        Unusual("level_9_1MiB", deflate(large, 31, 9), large),
        Unusual("level_0", deflate(small, 31, 0), small),
        Unusual("fixed_codes", deflate(small, 31, 6, zlib.Z_FIXED), small),
        Unusual("empty", encode("gzip", b""), b""),
    ]


def _deflate(small, large, noise):
    del noise
    whole = deflate(small, 15)
    return [
        *(Unusual(f"body_of_zlib_at_{k}_mod_4", whole[2:-4], small, k) for k in range(4)),
        Unusual("body_of_zlib_and_checksum", whole[2:], small),
        Unusual("level_0", deflate(small, -15, 0), small),
        Unusual("fixed_codes", deflate(small, -15, 6, zlib.Z_FIXED), small),
        Unusual("level_9_1MiB", deflate(large, -15, 9), large),
        Unusual("empty", encode("deflate", b""), b""),
    ]


def _lz4(small, large, noise):
    del small, noise
    return [
        Unusual("block_of_1MiB", encode("lz4", large), large),
        Unusual("block_of_20MiB", encode("lz4", large * 20), large * 20),
        Unusual("empty", b"\0", b""),
    ]


def _snappy(small, large, noise):
    del small, noise
    return [
        Unusual("stream_of_1MiB", encode("snappy", large), large),
        Unusual("empty", b"\0", b""),
    ]


_OF_CODEC = {"zstd": _zstd, "gzip": _gzip, "deflate": _deflate, "lz4": _lz4, "snappy": _snappy}


def unusual(codec):
    """Streams that a reader of Zarr may meet, of any provenance."""
    small = bytes(make_data("labels_u4", 64 * KIB))
    large = bytes(make_data("camera_u2", MIB))
    noise = np.random.default_rng(3).bytes(64 * KIB)
    plain = encode(codec, small)
    refuses_more = codec in ("lz4", "snappy", "zstd")
    return [
        Unusual("plain_64KiB", plain, small),
        Unusual("noise_64KiB", encode(codec, noise), noise),
        *(Unusual(f"at_{k}_mod_4", plain, small, k) for k in (1, 2, 3)),
        Unusual("bytes_after_the_end", plain + b"\x5a" * 7, small, valid=not refuses_more),
        *_OF_CODEC[codec](small, large, noise),
    ]


DAMAGED_COUNT, DAMAGED_NBYTES = 32, 64 * KIB


def damaged(codec):
    """Batches of which every other stream, the odd ones, is damaged, or its output too small.

    Returns
    -------
    dict
        name -> (streams, capacities)
    bytes
        What all streams were made of, ``DAMAGED_NBYTES`` long.
    """
    rng = np.random.default_rng(4)
    decoded = bytes(make_data("smooth_f4", DAMAGED_NBYTES))
    good = encode(codec, decoded)
    count, nbytes = DAMAGED_COUNT, DAMAGED_NBYTES

    def each(change):
        return [good if i % 2 == 0 else bytes(change(i)) for i in range(count)]

    def flip(low, high):
        changed = bytearray(good)
        changed[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))
        return changed

    full = [nbytes] * count
    return {
        "room_one_short": ([good] * count, [nbytes - i % 2 for i in range(count)]),
        "room_half": ([good] * count, [nbytes >> i % 2 for i in range(count)]),
        "room_larger": ([good] * count, [nbytes + 4096 * (i % 2) for i in range(count)]),
        "cut_off": (each(lambda i: good[: len(good) * i // count]), full),
        "bit_flipped": (each(lambda i: flip(0, len(good))), full),
        "bit_flipped_in_header": (each(lambda i: flip(0, 16)), full),
        "random_after_32_bytes": (each(lambda i: good[:32] + rng.bytes(len(good) - 32)), full),
        "random_bytes": (each(lambda i: rng.bytes(len(good))), full),
        "all_ones": (each(lambda i: b"\xff" * len(good)), full),
    }, decoded
