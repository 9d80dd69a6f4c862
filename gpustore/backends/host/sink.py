"""Sink of the host, whose parts have values in their places when a method returns.

One chunk is decoded at a time, so that it is placed while it is still in the processor's cache. A
chunk that lands contiguously is decoded where it belongs.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gpustore.backends.base import Check
from gpustore.backends.host.memory import HostMemory, empty, object_view, too_large
from gpustore.backends.host.points import elements_of, is_record, of_record, scatter_points
from gpustore.backends.native.decoded_values import decode_values
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import GpustoreError
from gpustore.kvstores.arena import thread_arena
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import STATISTICS

if TYPE_CHECKING:
    from gpustore.backends.native.array import NativeArray

_REGIONS_LISTED = 4096
"""Regions of a block turned into Python numbers at once."""


class _Scratch(threading.local):
    """Decode buffer of a thread, kept across calls: a fresh large one costs page faults."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, nbytes: int) -> memoryview:
        if len(self._buffer) < nbytes:
            self._buffer = bytearray(nbytes)
        return memoryview(self._buffer)[:nbytes]


_DECODED = _Scratch()


class HostSink:
    """Sink into host memory; parameters are those of :meth:`~gpustore.backends.base.Backend.sink`.

    Parameters
    ----------
    counts_fallbacks : bool
        Whether decoded chunks are counted as fallbacks of a device.
    """

    __slots__ = ("_check", "_counts_fallbacks", "_fill_value", "_out")

    nbytes = None

    def __init__(
        self, fill_value: Any, out: Sequence[HostMemory], check: Check, *, counts_fallbacks: bool
    ) -> None:
        self._fill_value = fill_value
        self._out = out
        self._check = check
        self._counts_fallbacks = counts_fallbacks

    def part(
        self,
        chain: CodecChain,
        *,
        rows: int,
        blocks: tuple[int, ...] = (),
        native: NativeArray | None = None,
    ) -> HostPart:
        """Make the part of one task; see :meth:`gpustore.backends.base.Sink.part`."""
        del rows
        return HostPart(
            chain,
            self._fill_value,
            self._out,
            self._check,
            blocks,
            native,
            counts_fallbacks=self._counts_fallbacks,
        )

    def staging_parts(
        self, chain: CodecChain, file_system: Callable[[], int | None], file_nbytes: int | None
    ) -> None:
        """Return None: values for host memory are fetched and decoded at once."""

    def run(
        self,
        executor: Executor,
        tasks: Sequence[Callable[[], object]],
        result: Callable[[], Any],
        *,
        helped: bool = False,
    ) -> Future[Any]:
        """Run the tasks of the read, then `result`."""
        return executor.run_all(tasks, result, helped=helped)

    def defer(
        self,
        executor: Executor,
        tasks: Callable[[], Iterable[Callable[[], object]]],
        result: Callable[[], Any],
    ) -> Future[Any]:
        """Return the Future of a small read, done by the thread that asks for the result."""

        def read_now() -> Any:
            for task in tasks():
                task()
            return result()

        return Future.deferred(read_now, executor)


class HostPart:
    """Part of a read into host memory; parameters are those of :class:`HostSink` and its part."""

    __slots__ = (
        "_chain",
        "_check",
        "_counts_fallbacks",
        "_decoded",
        "_fill_value",
        "_native",
        "_out",
    )

    arena = staticmethod(thread_arena)

    def __init__(
        self,
        chain: CodecChain,
        fill_value: Any,
        out: Sequence[HostMemory],
        check: Check,
        blocks: tuple[int, ...],
        native: NativeArray | None,
        *,
        counts_fallbacks: bool,
    ) -> None:
        self._chain = chain
        self._fill_value = fill_value
        self._out = out
        self._check = check
        self._native = native
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

    def scatter(
        self,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: None = None,
        *,
        target: int = 0,
    ) -> None:
        del cached, target  # No device has any, and each array has a sink.
        self._check(rows.keys, values.count(None), self._scatter(rows, values))

    def copy_regions(
        self,
        regions: CopyWindow,
        first: int,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: None = None,
    ) -> None:
        """Decode chunks into blocks, and copy the regions of blocks whose chunks are all there."""
        del cached  # No device has any.
        group = bisect_right(regions.first_chunk, first) - 1
        begin = 0
        while begin < len(rows):
            last = regions.first_chunk[group + 1] - first
            end = min(last, len(rows))
            some = rows.part(begin, end)
            encoded = values[begin:end]
            self._check(some.keys, encoded.count(None), self._scatter(some, encoded))
            if end == last:
                self._copy_groups(regions, *regions.first[group : group + 2])
                group += 1
            begin = end

    def _scatter(
        self, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> dict[int, GpustoreError]:
        """Decode and place each value; return the errors of those that fail."""
        if self._chain.objects is not None:
            return self._scatter_objects(rows, values)
        if self._native is None or rows.narrowed or rows.points is not None:
            return self._scatter_here(rows, values)
        errors: dict[int, GpustoreError] = {}
        for row in decode_values(self._native, rows, values, self._decoded):
            failed = self._scatter_here(rows.part(row, row + 1), values[row : row + 1])
            errors.update((row, error) for error in failed.values())
        return errors

    def _scatter_here(
        self, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> dict[int, GpustoreError]:
        """Decode and place each value in Python."""
        chain, fill_value, out = self._chain, self._fill_value, self._decoded
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
        view = flat.data
        for i, value in enumerate(values):
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
                np.ndarray(shapes[i], dtype, flat, start, dst_stride)[...] = np.ndarray(
                    shapes[i], stored, decoded, first, src_stride
                )
            except GpustoreError as error:
                errors[i] = error
            except MemoryError:
                errors[i] = too_large(chain.layout.shape, stored)
        return errors

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
