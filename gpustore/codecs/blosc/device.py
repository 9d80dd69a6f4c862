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

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gpustore.codec_chain.device_streams import (
    aligned,
    destinations,
    destinations_alike,
    pitch_of,
    unfit,
)
from gpustore.codecs._deflate_columns import (
    ZLIB_CHECKSUM_NBYTES,
    ZLIB_HEADER_NBYTES,
    adler32s,
    read_zlib,
)
from gpustore.codecs.blosc.columns import BloscColumns, read_columns
from gpustore.codecs.zstd.columns import read_frames
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns, Integers, Mask
from gpustore.device.headers import FrameColumns, FramePart
from gpustore.device.kernels.block import (
    bit_unshuffle_launches,
    stream_launches,
    unshuffle_launches,
)
from gpustore.device.protocol import Device, Spans
from gpustore.device.table import Table

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

_BITS: Final = 2

_HEADER_NBYTES: Final = 16


def read_blosc(
    decoded_max: int, encoded: EncodedColumns, *, exact: bool
) -> tuple[BloscColumns, dict[int, str]]:
    """Read and check frames, and the headers of their streams.

    Parameters and result are those of :func:`~gpustore.codecs.blosc.columns.read_columns`.
    """
    columns, reasons = read_columns(encoded, decoded_max, exact=exact)
    if reasons:
        frames = columns.frames.whole
        ok = _all_but(reasons, len(encoded))
        kept = frames.streams[:, ok[frames.streams[0]]]
        part = FramePart.of(frames.heads, frames.blocks, kept)
        columns = replace(columns, frames=FrameColumns([part]))
    if _READERS.keys().isdisjoint(columns.codes):
        return columns, reasons
    every = columns.streams
    for code, some in columns.compressed(every):
        read = _READERS.get(code)
        if read is None:
            continue
        streams = every.take(some)
        start = encoded.start[streams.frame] + streams.src
        nbytes, damaged = read(encoded, start, streams.src_nbytes)
        wrong = np.flatnonzero((nbytes != streams.dst_nbytes) & (nbytes >= 0)).tolist()
        for i in {*wrong, *damaged}:
            reason = damaged.get(i, f"{_CODECS[code]}: a stream of another size")
            reasons.setdefault(int(streams.frame[i]), f"blosc: {reason}")
    if _ZLIB in columns.codes:
        zlib = (columns.code == _ZLIB) & _all_but(reasons, len(encoded))
        zlib = zlib[every.frame] & ~every.is_stored
        start = encoded.start[every.frame[zlib]] + every.src[zlib]
        adler32 = every.adler32
        adler32[zlib] = adler32s(encoded, start, every.src_nbytes[zlib])
        columns = replace(columns, adler32=adler32)
    return columns, reasons


def _all_but(numbers: Collection[int], count: int) -> Mask:
    """Return a mask of all values but those of some numbers."""
    found = np.ones(count, np.bool_)
    found[list(numbers)] = False
    return found


def decode_frames(commands: CommandList, device: Device, columns: BloscColumns) -> None:
    """Record the decoding of all values of `commands`, each one frame; see the module."""
    if _decode_alike(commands, device, columns):
        return
    streams = columns.streams
    compressed = columns.compressed(streams)
    reasons: dict[int, str] = {}
    for code, some in compressed:
        longest = int(streams.dst_nbytes[some].max(initial=0))
        reason = unfit(device, _CODECS[code], longest, commands.distrust)
        if reason is not None:
            frames = streams.frame[some].tolist()
            reasons.update(dict.fromkeys(frames, f"blosc: {reason}"))
    if reasons:
        commands.fall_back(reasons)
        if not len(commands):
            return
        columns = commands.headers
        compressed = columns.compressed(columns.streams)
    _record(commands, device, columns, compressed)


def _decode_alike(commands: CommandList, device: Device, columns: BloscColumns) -> bool:
    """Record the decoding by tables that the native core writes; return False if it does not."""
    if columns.reader is None or commands.looks_at_tables:
        return False
    found = columns.reader.frame_tables(columns.frames, commands.values.address, commands.rows)
    if found is None or found.code == _ZLIB:
        return False
    codec, nbytes, count = _CODECS[found.code], found.nbytes, len(commands)
    known = device.codec(codec)
    if known is not None and found.src_bits & (known.src_alignment - 1):
        return False
    if found.compressed and unfit(device, codec, found.most_nbytes, commands.distrust) is not None:
        return False
    outputs = destinations_alike(commands, nbytes, 2 if found.shuffle else 1)
    decoded, joined = int(outputs.address[0]), int(outputs.address[-count])
    begin, end = 32 * found.stored, 32 * (found.stored + found.compressed)
    copies, memory = commands.reserve_table(end + 32 * found.blocks * bool(found.shuffle))
    owner, sizes = found.write(decoded, joined, pitch_of(nbytes), memory)
    if found.stored:
        stored = np.uint32(found.stored)
        commands.launch("stream", "gs::copy_stream", found.copy_blocks, [copies, stored])
    src, src_nbytes, dst, _ = memory[begin:end].view(np.uint64).reshape(4, -1)
    # What is compared with the results may not lie in memory that is used again.
    streams = Spans(src, src_nbytes), Spans(dst, sizes.view(np.uint64))
    longest_and_all = found.most_nbytes, found.total_nbytes
    commands.decompress(codec, *streams, owner, Table(copies.offset + begin), longest_and_all)
    if found.shuffle:
        kernel = f"gs::{'bit_' if found.shuffle == _BITS else ''}unshuffle<{found.typesize}>"
        blocks = np.uint32(found.blocks)
        commands.launch(
            "shuffle", kernel, found.shuffle_blocks, [Table(copies.offset + end), blocks]
        )
    commands.values = Spans(outputs.address[:count], outputs.nbytes[:count])
    commands.encoded = None
    return True


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


_READERS: Final = {_SNAPPY: _read_snappy, _ZLIB: read_zlib, _ZSTD: read_frames}
"""Reader of the headers of streams, by the number of their code."""


def _record(
    commands: CommandList,
    device: Device,
    columns: BloscColumns,
    compressed: Sequence[tuple[int, Integers | slice]],
) -> None:
    base = commands.values.address.view(np.int64)
    decoded = _outputs(commands, columns, ~columns.is_stored, base + _HEADER_NBYTES)
    # Where streams are decompressed to: the last place, or another if that is to be unshuffled.
    by_byte, by_bit = columns.is_byte_shuffled, columns.is_bit_shuffled
    is_shuffled = (by_byte | by_bit) & ~columns.is_stored
    joined = _outputs(commands, columns, is_shuffled, decoded)

    streams = columns.streams
    begin, end = base[streams.frame], joined[streams.frame]
    begin += streams.src
    end += streams.dst
    (stored,) = streams.is_stored.nonzero()
    nbytes = streams.src_nbytes[stored]
    copies = [(_spans(begin[stored], nbytes), _spans(end[stored], nbytes))]
    calls = []
    for code, some in compressed:
        src = _spans(begin[some], streams.src_nbytes[some])
        dst = _spans(end[some], streams.dst_nbytes[some])
        rows, adler32 = commands.rows[streams.frame[some]], streams.adler32[some]
        if code == _ZLIB:
            src = src.inside(ZLIB_HEADER_NBYTES, ZLIB_CHECKSUM_NBYTES)
        known = device.codec(_CODECS[code])
        if known is not None:
            src, moved = aligned(commands, src, known.src_alignment)
            copies.append(moved)
        calls.append((code, src, dst, rows, adler32))
    commands.launch_tables(
        stream_launches(
            np.concatenate([src.address for src, _ in copies]),
            np.concatenate([dst.address for _, dst in copies]),
            np.concatenate([src.nbytes for src, _ in copies]),
        )
    )
    for code, src, dst, rows, adler32 in calls:
        commands.decompress(_CODECS[code], src, dst, rows)
        if code == _ZLIB:
            commands.checksum("adler32", dst, adler32.astype(np.uint32), rows)

    blocks = columns.blocks
    for is_so, launches in (
        (by_byte, unshuffle_launches),
        (by_bit, bit_unshuffle_launches),
    ):
        some_blocks = slice(None) if is_so.all() else is_so[blocks.frame].nonzero()[0]
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
    commands.values = Spans(decoded.view(np.uint64), columns.decoded_nbytes.view(np.uint64))
    commands.encoded = None


def _outputs(
    commands: CommandList, columns: BloscColumns, chosen: Mask, others: Integers
) -> Integers:
    """Return addresses of new, guarded outputs for the chosen frames, and those of the others."""
    if chosen.all():
        return destinations(commands, columns.decoded_nbytes, commands.rows).address.view(np.int64)
    address, some = others.copy(), np.flatnonzero(chosen)
    spans = destinations(commands, columns.decoded_nbytes[some], commands.rows[some])
    address[some] = spans.address
    return address


def _spans(address: Integers, nbytes: Integers) -> Spans:
    return Spans(address.view(np.uint64), nbytes.view(np.uint64))
