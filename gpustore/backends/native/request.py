"""Reads that the native core plans by itself: through strided maps, of few chunks of one shape.

Such reads are many: a plan in Python takes longer than they do.
"""

from __future__ import annotations

import ctypes
from array import array as numbers
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.job import AGAIN, SLICE_NS, Counts
from gpustore.backends.native.library import library
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KeyDirectory
from gpustore.runtime.cancel_token import CancelToken

MOST_ROWS: Final = 4096
"""Most chunks of a read that the core plans."""


class StridedMaps(NamedTuple):
    """Maps of a read that the core can plan.

    Attributes
    ----------
    rows : int
        Number of chunks that the read touches.
    words : list of int
        Input dimension or -1, offset and stride of each output dimension.
    """

    rows: int
    words: list[int]


def strided_maps(
    transform: IndexTransform, shape: Sequence[int], chunk_shape: Sequence[int]
) -> StridedMaps | None:
    """Return the maps of a read inside an array; None for others, and for those of diagonals."""
    domain = transform.domain
    low, extent = domain.inclusive_min, domain.shape
    rows, seen = 1, set()
    words: list[int] = []
    for map_, size, chunk in zip(transform.output, shape, chunk_shape):
        d, stride, offset = map_.input_dimension, map_.stride, map_.offset
        if d is None or not stride:
            if map_.index_array is not None or not 0 <= offset < size:
                return None
            words += (-1, offset, 0)
            continue
        n = extent[d]
        first = offset + stride * low[d]
        last = first + stride * (n - 1)
        if not 0 <= first < size or not 0 <= last < size or d in seen:
            return None
        seen.add(d)
        rows *= n if not -chunk < stride < chunk else abs(last // chunk - first // chunk) + 1
        words += (d, offset, stride)
    return StridedMaps(rows, words) if 0 not in extent else None


class Request:
    """Struct ``Request`` of ``kernels/host/job.h``, and the memory it refers to.

    Parameters
    ----------
    array : NativeArray
    transform : IndexTransform
        Maps the domain of `out` to the array.
    maps : StridedMaps
        Its maps.
    out : HostMemory
        Array to fill.
    directory : KeyDirectory
        Directory of the keys.
    threads : int
        Number of threads that will take part.
    """

    __slots__ = ("_kept", "_planned", "_words")

    def __init__(
        self,
        array: NativeArray,
        transform: IndexTransform,
        maps: StridedMaps,
        out: HostMemory,
        directory: KeyDirectory,
        threads: int = 1,
    ) -> None:
        domain = transform.domain
        prefix = directory.prefix
        flat = out.flat
        words = numbers(
            "q",
            (
                *(array.address, directory.descriptor, directory.resolve, 0),
                *(flat.__array_interface__["data"][0], out.offset, flat.size),
                *(MOST_ROWS, threads, domain.rank),
            ),
        )
        words.extend(maps.words)
        for triple in zip(domain.inclusive_min, domain.shape, out.strides):
            words.extend(triple)
        at = len(words)
        words.frombytes(prefix + bytes(8 - len(prefix) % 8))
        words.extend(_NO_COUNTS)
        words[3] = words.buffer_info()[0] + 8 * at
        self._words = words
        self._planned = 0
        self._kept = (array, out, directory)

    def read_now(self) -> Counts | None:
        """Read on this thread; None if the core does not plan the read."""
        at, length = self._words.buffer_info()
        counts = at + 8 * (length - len(_NO_COUNTS))
        if not _core().gpustore_core_read_now(at, counts):
            return None
        return Counts._make(self._words[-len(_NO_COUNTS) :])

    def plan(self) -> bool:
        """Plan the read for several threads; return whether the core does so."""
        self._planned = _core().gpustore_core_plan(self._words.buffer_info()[0]) or 0
        return bool(self._planned)

    def read(self, wanted: CancelToken) -> bool:
        """Read until nothing is left or a slice of time is over; return whether something is left.

        Any number of threads may call this at once, once the read is planned, each with the token
        of its task. If the work is no longer wanted, something is left.
        """
        core = _core()
        progress: int = core.gpustore_core_read_planned(self._planned, SLICE_NS, wanted.address)
        return progress == AGAIN

    def end(self) -> Counts:
        """Forget the plan, on which no thread works any more, and return what was done."""
        at, length = self._words.buffer_info()
        planned, self._planned = self._planned, 0
        _core().gpustore_core_end(planned, at + 8 * (length - len(_NO_COUNTS)))
        return Counts._make(self._words[-len(_NO_COUNTS) :])

    def __del__(self) -> None:
        if self._planned:
            self.end()


_NO_COUNTS: Final = (0,) * len(Counts._fields)


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gpustore_core_plan", pointer, (pointer,)),
        ("gpustore_core_read_planned", number, (pointer, number, pointer)),
        ("gpustore_core_end", None, (pointer, pointer)),
        ("gpustore_core_read_now", number, (pointer, pointer)),
    ):
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core
