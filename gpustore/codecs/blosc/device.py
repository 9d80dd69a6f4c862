"""Commands that decode Blosc 1 frames on a device.

1. Read all frames of the list (:mod:`gpustore.codecs.blosc.columns`), and the headers of their
   streams where the code has any.
2. One launch copies streams that are stored, and those that must be aligned.
3. One call for each code decompresses the others: raw LZ4 and Snappy blocks, one Zstandard frame,
   the Deflate stream inside a zlib stream, blosclz by a kernel. A kernel compares the Adler-32
   of zlib streams with what was decoded.
4. One launch for each kernel instance undoes the shuffles. Frames without shuffle are decompressed
   to their last place at once.

The bytes of a stored frame are used in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from gpustore.codec_chain.device_streams import aligned, destinations, unfit
from gpustore.codecs._deflate_columns import (
    ZLIB_CHECKSUM_NBYTES,
    ZLIB_HEADER_NBYTES,
    adler32s,
    read_zlib,
)
from gpustore.codecs.blosc.columns import BloscColumns, BloscStreams, read_columns
from gpustore.codecs.zstd.columns import read_frames
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns, Integers
from gpustore.device.kernels.block import (
    bit_unshuffle_launches,
    stream_launches,
    unshuffle_launches,
)
from gpustore.device.protocol import Device, Spans
from gpustore.resources.gpu_decode_trust import Distrust

_CODECS: Final = ("blosclz", "lz4", "snappy", "deflate", "zstd")
"""Device codec of the streams, by the number of their code."""

DEVICE_CODECS: Final = {
    "blosclz": "blosclz",
    "lz4": "lz4",
    "lz4hc": "lz4",
    "snappy": "snappy",
    "zlib": "deflate",
    "zstd": "zstd",
}
"""Device codec of the streams, by ``cname``."""

_SNAPPY, _ZLIB, _ZSTD = 2, 3, 4


def read_blosc(
    decoded_max: int, encoded: EncodedColumns, *, exact: bool
) -> tuple[BloscColumns, dict[int, str]]:
    """Read and check frames, and the headers of their streams.

    Parameters and result are those of :func:`~gpustore.codecs.blosc.columns.read_columns`.
    """
    columns, reasons = read_columns(encoded, decoded_max, exact=exact)
    ok = np.ones(len(encoded), np.bool_)
    ok[list(reasons)] = False
    streams = columns.streams.take(ok[columns.streams.frame])
    columns = replace(columns, streams=streams)
    reasons.update(_damaged_streams(encoded, columns))
    ok[list(reasons)] = False
    zlib = (columns.code[streams.frame] == _ZLIB) & ~streams.is_stored & ok[streams.frame]
    start = encoded.start[streams.frame[zlib]] + streams.src[zlib]
    streams.adler32[zlib] = adler32s(encoded, start, streams.src_nbytes[zlib])
    return columns, reasons


def decode_frames(commands: CommandList, device: Device, columns: BloscColumns) -> None:
    """Record the decoding of all values of `commands`, each one frame; see the module."""
    commands.fall_back(_unfit_codes(device, columns, commands.distrust))
    if len(commands):
        _record(commands, device, commands.headers)


def _of_code(columns: BloscColumns, code: int) -> BloscStreams:
    """Return the compressed streams of one code."""
    streams = columns.streams
    return streams.take((columns.code[streams.frame] == code) & ~streams.is_stored)


def _damaged_streams(encoded: EncodedColumns, columns: BloscColumns) -> dict[int, str]:
    """Return the frames with streams whose headers are wrong."""
    found: dict[int, str] = {}
    for code, read in ((_SNAPPY, _read_snappy), (_ZLIB, read_zlib), (_ZSTD, read_frames)):
        streams = _of_code(columns, code)
        if not len(streams.frame):
            continue
        nbytes, reasons = read(
            encoded, encoded.start[streams.frame] + streams.src, streams.src_nbytes
        )
        wrong = np.flatnonzero((nbytes != streams.dst_nbytes) & (nbytes >= 0)).tolist()
        for i in {*wrong, *reasons}:
            reason = reasons.get(i, f"{_CODECS[code]}: a stream of another size")
            found.setdefault(int(streams.frame[i]), f"blosc: {reason}")
    return found


def _read_snappy(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Return the decoded sizes at the beginning of raw Snappy blocks.

    Source: https://github.com/google/snappy/blob/main/format_description.txt
    """
    size = np.zeros(len(start), np.int64)
    goes_on = np.ones(len(start), np.bool_)
    for k in range(5):
        goes_on &= nbytes > k
        byte = encoded.uint(start + k, 1, goes_on)
        size |= (byte & 0x7F) << (7 * k)
        goes_on &= byte >= 0x80
    return size, dict.fromkeys(np.flatnonzero(goes_on).tolist(), "snappy: no size")


def _unfit_codes(
    device: Device, columns: BloscColumns, distrust: Distrust | None
) -> dict[int, str]:
    """Return the frames with codes that this device, or these commands, leave to the host."""
    found: dict[int, str] = {}
    for code, codec in enumerate(_CODECS):
        streams = _of_code(columns, code)
        if not len(streams.frame):
            continue
        reason = unfit(device, codec, streams.dst_nbytes, distrust)
        if reason is not None:
            found.update(dict.fromkeys(streams.frame.tolist(), f"blosc: {reason}"))
    return found


def _record(commands: CommandList, device: Device, columns: BloscColumns) -> None:
    base = commands.values.address.astype(np.int64)
    decoded = base + 16
    compressed = np.flatnonzero(~columns.is_stored)
    rows = commands.rows[compressed]
    decoded[compressed] = destinations(commands, columns.decoded_nbytes[compressed], rows).address
    # Where streams are decompressed to: the last place, or another if that is to be unshuffled.
    is_shuffled = columns.is_byte_shuffled | columns.is_bit_shuffled
    joined = decoded.copy()
    shuffled = np.flatnonzero(is_shuffled & ~columns.is_stored)
    rows = commands.rows[shuffled]
    joined[shuffled] = destinations(commands, columns.decoded_nbytes[shuffled], rows).address

    streams = columns.streams
    stored = streams.take(streams.is_stored)
    copies = [(_src(base, stored), _dst(joined, stored))]
    calls = []
    for code, codec in enumerate(_CODECS):
        some = _of_code(columns, code)
        if not len(some.frame):
            continue
        src = _src(base, some)
        if code == _ZLIB:
            src = src.inside(ZLIB_HEADER_NBYTES, ZLIB_CHECKSUM_NBYTES)
        known = device.codec(codec)
        if known is not None:
            src, moved = aligned(commands, src, known.src_alignment)
            copies.append(moved)
        calls.append((codec, src, _dst(joined, some), commands.rows[some.frame]))
    begin = np.concatenate([src.address for src, _ in copies])
    end = np.concatenate([dst.address for _, dst in copies])
    nbytes = np.concatenate([src.nbytes for src, _ in copies])
    commands.launch_tables(stream_launches(begin, end, nbytes))
    for codec, src, dst, rows in calls:
        commands.decompress(codec, src, dst, rows)
    zlib = _of_code(columns, _ZLIB)
    if len(zlib.frame):
        expected = zlib.adler32.astype(np.uint32)
        commands.checksum("adler32", _dst(joined, zlib), expected, commands.rows[zlib.frame])

    blocks = columns.blocks
    for is_so, launches in (
        (columns.is_byte_shuffled, unshuffle_launches),
        (columns.is_bit_shuffled, bit_unshuffle_launches),
    ):
        some_blocks = is_so[blocks.frame]
        frame, offset = blocks.frame[some_blocks], blocks.offset[some_blocks]
        if len(frame):
            commands.launch_tables(
                launches(
                    joined[frame] + offset,
                    decoded[frame] + offset,
                    blocks.nbytes[some_blocks],
                    columns.typesize[frame],
                )
            )
    commands.values = Spans(decoded.astype(np.uint64), columns.decoded_nbytes.astype(np.uint64))
    commands.encoded = None


def _src(base: Integers, streams: BloscStreams) -> Spans:
    address = base[streams.frame] + streams.src
    return Spans(address.astype(np.uint64), streams.src_nbytes.astype(np.uint64))


def _dst(joined: Integers, streams: BloscStreams) -> Spans:
    address = joined[streams.frame] + streams.dst
    return Spans(address.astype(np.uint64), streams.dst_nbytes.astype(np.uint64))
