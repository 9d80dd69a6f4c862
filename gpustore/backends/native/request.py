"""Reads that the native core plans by itself: through strided maps, of few chunks of one shape.

Such reads are many: a plan in Python takes longer than they do.
"""

from __future__ import annotations

import ctypes
import struct
from array import array as numbers
from collections.abc import Sequence
from functools import cache
from operator import lt
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.job import AGAIN, NO_COUNTS, SLICE_NS, Counts, address_of
from gpustore.backends.native.library import library
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KeyDirectory
from gpustore.planning.row_table import RowTable
from gpustore.runtime.cancel_token import CancelToken

MOST_ROWS: Final = 4096
"""Most chunks of a read that the core plans."""


class StridedItem(Protocol):
    """A read into one array.

    Attributes
    ----------
    transform : IndexTransform
        Maps the domain of the array that is filled to the array that is read.
    words : sequence of int or None
        Its maps: input dimension or -1, offset and stride of each output dimension; None for the
        identity.
    out : HostMemory or None
        Array to fill; None if it is `result`, in C order without gaps.
    result : object
        Result of the read.
    """

    transform: IndexTransform
    words: Sequence[int] | None
    out: HostMemory | None
    result: Any


def strided_maps(
    transform: IndexTransform, shape: Sequence[int], chunk_shape: Sequence[int]
) -> tuple[int, Sequence[int] | None] | None:
    """Check the maps of a read that the core can plan.

    Returns
    -------
    (rows, words) or None
        Number of chunks that the read touches, and the maps as :class:`StridedItem` has them. None
        for reads that are not inside the array, and for diagonals.
    """
    starts, ends = transform._low, transform._high
    rows = 1
    if transform._is_plain:
        for low, high, size, chunk in zip(starts, ends, shape, chunk_shape):
            if not 0 <= low < high <= size:
                return None
            rows *= (high - 1) // chunk - low // chunk + 1
        return rows, None
    seen = set()
    words: list[int] = []
    for map_, size, chunk in zip(transform.output, shape, chunk_shape):
        d, stride, offset = map_.input_dimension, map_.stride, map_.offset
        if d is None or not stride:
            if map_.index_array is not None or not 0 <= offset < size:
                return None
            words += (-1, offset, 0)
            continue
        n = ends[d] - starts[d]
        first = offset + stride * starts[d]
        last = first + stride * (n - 1)
        if not 0 <= first < size or not 0 <= last < size or d in seen:
            return None
        seen.add(d)
        rows *= n if not -chunk < stride < chunk else abs(last // chunk - first // chunk) + 1
        words += (d, offset, stride)
    return (rows, words) if all(map(lt, starts, ends)) else None


def strided_table(
    array: NativeArray,
    transform: IndexTransform,
    rows: int,
    maps: Sequence[int] | None,
    strides: Sequence[int],
) -> tuple[RowTable, tuple[int, ...]] | None:
    """Plan a read for one thread.

    Parameters
    ----------
    rows, maps
        Result of :func:`strided_maps`.
    strides : sequence of int
        Bytes between neighbours in the array that is filled.

    Returns
    -------
    RowTable, tuple of int
        Rows of the read, one a chunk; bytes between neighbours in a decoded chunk, along each
        dimension of the domain. None if the core does not plan the read.
    """
    low, high = transform.input_inclusive_min, transform.input_exclusive_max
    rank = len(low)
    header = (array.address, -1, 0, 0, rows, 1, 0, 1)
    item = (0, 0, 0, 0, rank, *low, *high, *(_identity(rank) if maps is None else maps), *strides)
    request = numbers("q", (*header, *item))
    words: NDArray[np.int64] = np.empty(rows + 1 + (array.rank + 2 + rank) * rows + rank, np.int64)
    here = address_of(words)
    units: int = _core().gpustore_core_table(request.buffer_info()[0], here, len(words))
    if not units:
        return None
    end = units + 1 + (array.rank + 2 + rank) * rows
    table = RowTable(words, units, rows, rows, array.rank, rank)
    return table, tuple(words[end : end + rank].tolist())


class Request:
    """Struct ``Request`` of ``kernels/host/job.h``, and the memory it refers to.

    Parameters
    ----------
    array : NativeArray
    items : sequence of StridedItem
        Reads of the array, which meet each chunk once.
    directory : KeyDirectory
        Directory of the keys.
    most_rows : int
        Most chunks that all items touch together, counted as often as they do.
    threads : int
        Number of threads that will take part.
    """

    __slots__ = ("_count", "_counts", "_kept", "_planned", "_words")

    def __init__(
        self,
        array: NativeArray,
        items: Sequence[StridedItem],
        directory: KeyDirectory,
        most_rows: int = MOST_ROWS,
        threads: int = 1,
    ) -> None:
        prefix = directory.prefix
        count = len(items)
        counts = numbers("q", NO_COUNTS)
        decoded = counts.buffer_info()[0] + 8 * _DECODED
        header = (array.address, directory.descriptor, directory.resolve, 0, most_rows, threads)
        values = [*header, decoded, count]
        for item in items:
            transform, out, words = item.transform, item.out, item.words
            if out is None and words is None:  # Most are, and there are many.
                values.append(id(item.result))
                values.append(_HEADER_NBYTES)
                values += transform._low
                values += transform._high
                continue
            low, high = transform._low, transform._high
            if out is None:
                result = item.result
                place, strides = (address_of(result), 0, 0, result.nbytes), result.strides
            else:
                place = address_of(out.flat), 0, out.offset, out.flat.size
                strides = out.strides
            if words is None:
                words = _identity(len(low))
            values += (*place, len(low), *low, *high, *words, *strides)
        struct_ = numbers("q")
        struct_.frombytes(struct.pack(f"{len(values)}q", *values))
        at = len(struct_)
        struct_.frombytes(prefix + bytes(8 - len(prefix) % 8))
        struct_[3] = struct_.buffer_info()[0] + 8 * at
        self._words = struct_
        self._counts = counts
        self._count = count
        self._planned = 0
        self._kept = (array, items, directory)

    def read_now(self) -> Counts | None:
        """Read on this thread; None if the core does not plan the read."""
        counts = self._counts
        if not _core().gpustore_core_read_now(
            self._words.buffer_info()[0], counts.buffer_info()[0]
        ):
            return None
        return Counts._make(counts)

    def plan(self) -> int:
        """Plan the read for several threads; return the chunks it meets, 0 if the core does not."""
        self._planned = _core().gpustore_core_plan(self._words.buffer_info()[0]) or 0
        return _quick().gpustore_core_rows(self._planned) if self._planned else 0

    def read(self, wanted: CancelToken) -> bool:
        """Read until nothing is left or a slice of time is over; return whether something is left.

        Any number of threads may call this at once, once the read is planned, each with the token
        of its task. If the work is no longer wanted, something is left.
        """
        core = _core()
        progress: int = core.gpustore_core_read_planned(self._planned, SLICE_NS, wanted.address)
        return progress == AGAIN

    def decoded(self) -> int:
        """Return the decoded bytes so far; any thread may look."""
        return self._counts[_DECODED]

    def end(self) -> tuple[Counts, bytes]:
        """Forget the plan, on which no thread works any more.

        Returns
        -------
        counts : Counts
            Work that was done.
        left : bytes
            For each item, 1 if some of its chunks were left alone.
        """
        planned, self._planned = self._planned, 0
        left = numbers("b", bytes(self._count))
        _quick().gpustore_core_end(planned, self._counts.buffer_info()[0], left.buffer_info()[0])
        return Counts._make(self._counts), left.tobytes()

    def __del__(self) -> None:
        if self._planned:
            self.end()


@cache
def _identity(rank: int) -> Sequence[int]:
    """Return the maps of the identity, as :class:`StridedItem` has others."""
    return tuple([word for d in range(rank) for word in (d, 0, 1)])


_HEADER_NBYTES: Final = object.__basicsize__
"""Bytes of an array before the address of its first element: `PyArrayObject` of NumPy's C API."""

_DECODED: Final = Counts._fields.index("decoded")


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gpustore_core_plan", pointer, (pointer,)),
        ("gpustore_core_read_planned", number, (pointer, number, pointer)),
        ("gpustore_core_read_now", number, (pointer, pointer)),
        ("gpustore_core_table", number, (pointer, pointer, number)),
    ):
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


@cache
def _quick() -> Any:
    """Return the core for calls that keep the interpreter's lock.

    They take less time than a thread needs to get it back from another.
    """
    core = ctypes.PyDLL(None, handle=_core()._handle)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gpustore_core_rows", number, (pointer,)),
        ("gpustore_core_end", None, (pointer, pointer, pointer)),
    ):
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core
