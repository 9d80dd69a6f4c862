"""Steps on a device that codecs share: destinations, alignment, decompression of streams."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, overload

import numpy as np

from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import Integers, Mask
from gpustore.device.guard import between
from gpustore.device.kernels.block import stream_launches
from gpustore.device.own_kernels import OWN_KERNELS, can_decompress, checks_bounds
from gpustore.device.protocol import Decoders, Device, Spans
from gpustore.resources.gpu_decode_trust import Distrust

_ALIGNMENT: Final = 16
# Least bytes of the guards before, between and behind outputs.
_PADDING: Final = 32
_NO_SPANS: Final = np.zeros(0, np.uint64)


def cannot(device: Decoders, codec: str, distrust: Distrust | None) -> str | None:
    """Return why a device decodes no streams of a codec, None if it decodes them."""
    if not can_decompress(device, codec):
        own = device.own_kernel_failure(codec) if codec in OWN_KERNELS else None
        reasons = filter(None, (device.decoders().missing.get(codec), own))
        return f"{codec}: {'; '.join(reasons) or 'no library decodes it'}"
    if distrust is not None and (distrust.of_all or not checks_bounds(device, codec)):
        return f"{codec}: {distrust.reason}"
    return None


def unfit(device: Device, codec: str, max_nbytes: int, distrust: Distrust | None) -> str | None:
    """Return why a device does not decode streams of a codec, None if it does.

    Parameters
    ----------
    max_nbytes : int
        Decoded bytes of the longest stream.
    """
    reason = cannot(device, codec, distrust)
    if reason is not None:
        return reason
    known = device.codec(codec)
    if known is not None and max_nbytes > known.decoded_max_nbytes:
        return f"{codec}: a stream of {max_nbytes} bytes, the device decodes at most " + str(
            known.decoded_max_nbytes
        )
    return None


def fall_back_where(commands: CommandList, wrong: Mask, reason: str) -> None:
    """Leave values to the host where `wrong` is true."""
    (rows,) = wrong.nonzero()
    if len(rows):
        commands.fall_back(dict.fromkeys(rows.tolist(), reason))


@overload
def pitch_of(nbytes: int) -> int: ...


@overload
def pitch_of(nbytes: Integers) -> Integers: ...


def pitch_of(nbytes: int | Integers) -> int | Integers:
    """Return the bytes from one of the :func:`destinations` to the next."""
    return nbytes + (_PADDING + _ALIGNMENT - 1) & -_ALIGNMENT


def destinations(commands: CommandList, nbytes: Integers, rows: Integers | None = None) -> Spans:
    """Allocate device memory for outputs, at multiples of 16 and with room around them.

    Parameters
    ----------
    nbytes : ndarray of int64, shape (n,)
        Bytes of each output.
    rows : ndarray of int64, shape (n,), optional
        Row of each output. If given, the room around outputs is guarded: a row fails if a guard
        beside its output is overwritten.
    """
    if not len(nbytes):
        return Spans.contiguous(0, [])
    outputs, total = _laid_out(nbytes)
    address = commands.scratch(total)
    if rows is not None:
        commands.guard(address, between(outputs, total), rows)
    return Spans(outputs.address + np.uint64(address), outputs.nbytes)


def destinations_alike(commands: CommandList, nbytes: int, sets: int = 1) -> Spans:
    """Allocate guarded :func:`destinations` of `nbytes` bytes for all values of `commands`.

    `sets` is the number of outputs that each value has: the first of all values, then the second.
    """
    outputs, around, total = _alike(len(commands), nbytes, sets)
    address = commands.scratch(total)
    commands.guard(address, around, commands.rows, sets)
    return Spans(outputs.address + np.uint64(address), outputs.nbytes)


def _laid_out(nbytes: Integers) -> tuple[Spans, int]:
    """Return where outputs begin in their memory, and its bytes."""
    pitch = pitch_of(nbytes)
    ends = np.cumsum(pitch)
    starts = ends - pitch + _PADDING
    return Spans(starts.view(np.uint64), nbytes.view(np.uint64)), _PADDING + int(ends[-1])


@lru_cache(maxsize=32)
def _alike(count: int, nbytes: int, sets: int) -> tuple[Spans, Spans, int]:
    """Return where outputs and what lies around them begin in their memory, and its bytes."""
    one, total = _laid_out(np.full(count, nbytes, np.int64))
    found = []
    for spans in (one, between(one, total)):
        origins = total * np.arange(sets, dtype=np.uint64).reshape(-1, 1)
        columns = (spans.address + origins).ravel(), np.tile(spans.nbytes, sets)
        for column in columns:
            column.flags.writeable = False
        found.append(Spans(*columns))
    return found[0], found[1], sets * total


def aligned(commands: CommandList, src: Spans, alignment: int) -> tuple[Spans, tuple[Spans, Spans]]:
    """Return streams at multiples of `alignment`, and the copies (from, to) that align them.

    Alignments are powers of 2.
    """
    begin = end = Spans(_NO_SPANS, _NO_SPANS)
    if alignment > 1 and int(np.bitwise_or.reduce(src.address)) & (alignment - 1):
        (wrong,) = (src.address & np.uint64(alignment - 1)).nonzero()
        begin = src.take(wrong)
        end = destinations(commands, begin.nbytes.view(np.int64))
        address = src.address.copy()
        address[wrong] = end.address
        src = Spans(address, src.nbytes)
    return src, (begin, end)


def decompress_values(
    commands: CommandList,
    device: Device,
    codec: str,
    src: Spans,
    nbytes: Integers,
    alike: int | None = None,
) -> None:
    """Record that each value, one stream, is decompressed; the outputs become the list's values.

    Parameters
    ----------
    src : Spans, length of the list
        Streams in device memory.
    nbytes : ndarray of int64, length of the list
        Decoded bytes of each stream.
    alike : int, optional
        Decoded bytes of each stream, if they all have as many.
    """
    if not len(commands):
        return
    longest = int(nbytes.max()) if alike is None else alike
    reason = unfit(device, codec, longest, commands.distrust)
    if reason is not None:
        fall_back_where(commands, np.ones(len(commands), np.bool_), reason)
        return
    known = device.codec(codec)
    src, (begin, end) = aligned(commands, src, 1 if known is None else known.src_alignment)
    if len(begin):
        commands.launch_tables(stream_launches(begin.address, end.address, begin.nbytes))
    if alike is None:
        dst = destinations(commands, nbytes, commands.rows)
    else:
        dst = destinations_alike(commands, alike)
    total = int(nbytes.sum()) if alike is None else alike * len(nbytes)
    commands.decompress(codec, src, dst, sizes=(longest, total))
    commands.values, commands.encoded = dst, None
