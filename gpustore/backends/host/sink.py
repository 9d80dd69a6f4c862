"""Sink of the host, whose methods return when values are in their places.

One chunk is decoded at a time, so that it is placed while it is still in the processor's cache. A
chunk that lands contiguously is decoded where it belongs.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Self

import numpy as np

from gpustore.backends.base import Check
from gpustore.backends.host.memory import HostMemory, empty, object_view, too_large
from gpustore.backends.host.points import elements_of, is_record, of_record, scatter_points
from gpustore.backends.stack import STACK_NBYTES, stacks
from gpustore.codec_chain.base import ChunkBytes
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import GpustoreError
from gpustore.kvstores.arena import thread_arena
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

_REGIONS_LISTED = 4096
"""Regions of a block turned into Python numbers at once."""


_GAP_NBYTES = 64
_CONFLICTING_NBYTES = 512
_CONFLICTING_LINES = 16
"""Lines at multiples of 512 bytes from each other share 8 of the 64 sets of a first-level cache."""


class _Scratch(threading.local):
    """Decode buffer of a thread, kept across calls: a fresh large one costs page faults."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, nbytes: int) -> memoryview:
        if len(self._buffer) < nbytes:
            self._buffer = bytearray(nbytes)
        return memoryview(self._buffer)[:nbytes]


_DECODED = _Scratch()
_SPREAD = _Scratch()


class HostSink:
    """Sink into host memory; parameters are those of :meth:`~gpustore.backends.base.Backend.sink`.

    Parameters
    ----------
    counts_fallbacks : bool
        Whether decoded chunks are counted as fallbacks of a device.
    """

    __slots__ = ("_chain", "_check", "_counts_fallbacks", "_decoded", "_fill_value", "_out")

    nbytes = None
    arena = staticmethod(thread_arena)

    def __init__(
        self,
        chain: CodecChain,
        fill_value: Any,
        out: Sequence[HostMemory],
        check: Check,
        blocks: tuple[int, ...],
        *,
        counts_fallbacks: bool,
    ) -> None:
        self._chain = chain
        self._fill_value = fill_value
        self._out = out
        self._check = check
        # Chunks are decoded into blocks, or into the only array.
        self._decoded = empty(blocks, out[0].array.dtype) if blocks else out[0]
        self._counts_fallbacks = counts_fallbacks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is under way."""

    def finish(self) -> None:
        """Nothing is under way."""

    def scatter(self, rows: PlanWindow, values: Sequence[Buffer | None]) -> None:
        self._check(rows, values, self._scatter(rows, values))

    def copy_regions(
        self, regions: CopyWindow, first: int, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> None:
        """Decode chunks into blocks, and copy the regions of blocks whose chunks are all there."""
        group = bisect_right(regions.first_chunk, first) - 1
        begin = 0
        while begin < len(rows):
            last = regions.first_chunk[group + 1] - first
            end = min(last, len(rows))
            some = rows.part(begin, end)
            encoded = values[begin:end]
            self._check(some, encoded, self._scatter(some, encoded))
            if end == last:
                self._copy_groups(regions, *regions.first[group : group + 2])
                group += 1
            begin = end

    def _scatter(
        self, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> dict[int, GpustoreError]:
        """Decode and place each value; return the errors of those that fail."""
        chain, fill_value, out = self._chain, self._fill_value, self._decoded
        if chain.objects is not None:
            return self._scatter_objects(rows, values)
        errors: dict[int, GpustoreError] = {}
        src_start, dst_start, shapes = rows.rows()
        stored, dtype = chain.layout.dtype, out.array.dtype
        src_stride, dst_stride = rows.src_stride, rows.dst_stride
        flat, base, nbytes = out.flat, out.offset, chain.layout.nbytes
        # Same strides and type: a chunk that is covered whole is one run of bytes in `out`.
        in_place = (
            not chain.is_raw
            and chain.layout.is_dense
            and stored == dtype
            and src_stride == dst_stride
            and min(src_stride, default=0) >= 0
        )
        scratch = None
        if not chain.is_view and values.count(None) < len(values):
            try:
                scratch = _DECODED.take(nbytes)
            except MemoryError:
                return {0: too_large(chain.layout.shape, stored)}
        pitch = (
            0 if rows.narrowed or rows.points is not None else _pitch(rows, shapes, chain.layout)
        )
        placed: set[int] = set()
        if not (in_place or pitch or rows.narrowed or chain.decodes_parts):
            placed = self._scatter_stacks(rows, (src_start, dst_start, shapes), values)
        view = flat.data
        for i, value in enumerate(values):
            if i in placed:
                continue
            start, first, begin = base + dst_start[i], src_start[i], 0
            if not rows.narrowed:
                first += chain.layout.offset
            try:
                if rows.points is not None:
                    decoded = None if value is None else chain.decode(value, scratch)
                    scatter_points(rows, i, decoded, chain.layout, fill_value, out)
                    continue
                if value is None:
                    np.ndarray(shapes[i], dtype, flat, start, dst_stride)[...] = (
                        of_record(fill_value, chain.layout, first, shapes[i], src_stride)
                        if is_record(fill_value, chain.layout)
                        else fill_value
                    )
                    continue
                if rows.narrowed:
                    decoded = value if chain.all_legal else chain.check(value)
                elif in_place and shapes[i] == chain.layout.shape:
                    chain.decode(value, view[start : start + nbytes])
                    continue
                elif chain.decodes_parts and scratch is not None:
                    low, high = rows.span(first, shapes[i], stored.itemsize)
                    if high - low <= nbytes // 2:
                        decoded, begin = chain.decode_part(value, low, high, scratch)
                        first -= begin
                    else:
                        decoded = chain.decode(value, scratch)
                else:
                    decoded = chain.decode(value, scratch)
                strides = src_stride
                lines = pitch and begin % pitch == len(decoded) % pitch == 0
                if lines and nbytes <= 4 * math.prod(shapes[i]) * stored.itemsize:
                    decoded = _spread(decoded, pitch)
                    first = _spread_offset(first, pitch)
                    strides = tuple([_spread_offset(stride, pitch) for stride in src_stride])
                np.ndarray(shapes[i], dtype, flat, start, dst_stride)[...] = np.ndarray(
                    shapes[i], stored, decoded, first, strides
                )
            except GpustoreError as error:
                errors[i] = error
            except MemoryError:
                errors[i] = too_large(chain.layout.shape, stored)
        return errors

    def _scatter_stacks(
        self,
        rows: PlanWindow,
        places: tuple[list[int], list[int], list[tuple[int, ...]]],
        values: Sequence[Buffer | None],
    ) -> set[int]:
        """Place stacks of small chunks with one assignment each; return their rows.

        `places` is the result of ``rows.rows()``.
        """
        placed: set[int] = set()
        chain, out = self._chain, self._decoded
        nbytes, dtype = chain.layout.nbytes, out.array.dtype
        if len(values) == 1 or 2 * nbytes > STACK_NBYTES or rows.points is not None:
            return placed
        src_start, dst_start, shapes = places
        present = [value is not None for value in values]
        most = STACK_NBYTES // max(nbytes, 1)
        for stack, step in stacks(src_start, dst_start, shapes, present, most):
            source = _decode_stack([values[i] for i in stack], chain)
            if source is None:
                continue
            shape = (len(stack), *shapes[stack[0]])
            there = out.offset + dst_start[stack[0]]
            here = chain.layout.offset + src_start[stack[0]]
            np.ndarray(shape, dtype, out.flat, there, (step, *rows.dst_stride))[...] = np.ndarray(
                shape, chain.layout.dtype, source, here, (nbytes, *rows.src_stride)
            )
            placed.update(stack)
        return placed

    def _scatter_objects(
        self, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> dict[int, GpustoreError]:
        """Decode and place strings or bytes of any length."""
        errors: dict[int, GpustoreError] = {}
        chain, fill_value, out = self._chain, self._fill_value, self._decoded
        src_start, dst_start, shapes = rows.rows()
        for i, value in enumerate(values):
            try:
                elements = None if value is None else chain.decode_objects(value)
                if rows.points is not None:
                    src, dst = elements_of(rows, i, base=out.offset)
                    found = fill_value if elements is None else elements[src // elements.itemsize]
                    out.flat[dst // out.flat.itemsize] = found
                    continue
                view = object_view(out.flat, shapes[i], out.offset + dst_start[i], rows.dst_stride)
                view[...] = (
                    fill_value
                    if elements is None
                    else object_view(elements, shapes[i], src_start[i], rows.src_stride)
                )
            except GpustoreError as error:
                errors[i] = error
            except MemoryError:
                errors[i] = too_large(chain.layout.shape, chain.layout.dtype)
        if self._counts_fallbacks:
            STATISTICS.add(host_fallbacks=len(values) - values.count(None))
        return errors

    def _copy_groups(self, regions: CopyWindow, lo: int, hi: int) -> None:
        """Copy regions `lo` to `hi` from the blocks into the arrays."""
        block, out = self._decoded, self._out
        if regions.of_elements:
            (memory,) = out
            dtype = memory.array.dtype
            there = (regions.dst_start[lo:hi] + memory.offset) // dtype.itemsize
            here = regions.src_start[lo:hi] // dtype.itemsize
            memory.flat.view(dtype)[there] = block.flat.view(dtype)[here]
            return
        for first in range(lo, hi, _REGIONS_LISTED):
            _copy_some(block, regions, slice(first, min(first + _REGIONS_LISTED, hi)), out)


def _decode_stack(values: Sequence[Any], chain: CodecChain) -> memoryview | None:
    """Decode chunks one behind the other; None if one fails, to be placed alone."""
    nbytes = chain.layout.nbytes
    try:
        scratch = _DECODED.take(len(values) * nbytes)
        for i, value in enumerate(values):
            part = scratch[i * nbytes : (i + 1) * nbytes]
            decoded = memoryview(chain.decode(value, part))
            if decoded.obj is not scratch.obj:
                part[:] = decoded
    except (GpustoreError, MemoryError):
        return None
    return scratch


def _copy_some(
    block: HostMemory, regions: CopyWindow, rows: slice, out: Sequence[HostMemory]
) -> None:
    dtype, flat, base = block.array.dtype, block.flat, block.offset
    src_start = regions.src_start[rows].tolist()
    dst_start = regions.dst_start[rows].tolist()
    counts = regions.count[:, rows].tolist()
    shapes = zip(*counts) if counts else repeat(())
    targets = repeat(0) if regions.target is None else regions.target[rows].tolist()
    src_stride, dst_stride = regions.src_stride, regions.dst_stride
    for src, dst, shape, target in zip(src_start, dst_start, shapes, targets):
        memory = out[target]
        there = memory.offset + dst
        if dtype.hasobject:
            object_view(memory.flat, shape, there, dst_stride[target])[...] = object_view(
                flat, shape, base + src, src_stride[target]
            )
            continue
        np.ndarray(shape, dtype, memory.flat, there, dst_stride[target])[...] = np.ndarray(
            shape, dtype, flat, base + src, src_stride[target]
        )


def _pitch(rows: PlanWindow, shapes: Sequence[tuple[int, ...]], layout: ChunkBytes) -> int:
    """Return the bytes between an array's neighbours in a chunk if they conflict in the cache.

    A transposing copy reads one element after the other at this distance. If it is a multiple of a
    large power of two these share a few lines of the CPU's cache and push each other out: chunks of
    32 x 128 x 128 in F order were copied at 0.76 GB/s, and at 2.8 with gaps (Zen 5, one thread).
    """
    steps = [abs(step) for step in rows.dst_stride]
    wide = [d for d, step in enumerate(steps) if step and any(shape[d] > 1 for shape in shapes)]
    if not wide:
        return 0
    inner = min(wide, key=steps.__getitem__)
    pitch = abs(rows.src_stride[inner])
    if pitch % _CONFLICTING_NBYTES or pitch not in layout.strides:
        return 0
    if any(abs(stride) > pitch and stride % pitch for stride in rows.src_stride):
        return 0
    return pitch if any(shape[inner] > _CONFLICTING_LINES for shape in shapes) else 0


def _spread_offset(offset: int, pitch: int) -> int:
    """Convert an offset or a stride of bytes to that with gaps behind every `pitch` bytes."""
    lines, rest = divmod(abs(offset), pitch)
    spread = lines * (pitch + _GAP_NBYTES) + rest
    return spread if offset >= 0 else -spread


def _spread(decoded: Buffer, pitch: int) -> memoryview:
    """Copy decoded bytes with a gap behind every `pitch` of them."""
    lines = len(decoded) // pitch
    spread = _SPREAD.take(lines * (pitch + _GAP_NBYTES))
    strides = (pitch + _GAP_NBYTES, 1)
    np.ndarray((lines, pitch), np.uint8, spread, 0, strides)[...] = np.ndarray(
        (lines, pitch), np.uint8, decoded
    )
    return spread
