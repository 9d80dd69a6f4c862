"""Reads of many arrays that are stored alike, in one pass of the native core.

Arrays with the same codecs, chunks and shape, each in a directory of its own, differ for the core
in the prefixes of their keys alone. Where each of them is read at the same place, one plan is
repeated for all: the rows of the first array, with other prefixes and other places in the array
that is filled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.job import address_of
from gpustore.codec_chain.chain import CodecChain
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KeyDirectory, KvStoreDriver
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray, with_decoder
from gpustore.pipelines.native_fill import fill_tasks
from gpustore.pipelines.native_read import NativeRead
from gpustore.pipelines.read import LAST, sink_of
from gpustore.pipelines.strided_reads import NATIVE_ROW_S, SMALL_ROWS, SMALL_S
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.chunk_plan import WINDOW_ROWS, ChunkPlan, check_row_count
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import STATISTICS


@dataclass(frozen=True, eq=False)
class AlikeArrays:
    """Arrays that are stored alike, in local files that the core reads.

    Attributes
    ----------
    first : ChunkedArray
        One of them, whose constants are those of all.
    directory : KeyDirectory
        Directory of its keys; those of the others differ in their prefixes.
    prefixes : int64 array, one entry an array
        Addresses of the prefixes of their keys.
    names : sequence of str
        These prefixes.
    """

    first: ChunkedArray
    directory: KeyDirectory
    prefixes: Integers
    names: Sequence[str]
    _memory: Any

    @classmethod
    def of(
        cls, arrays: Sequence[ChunkedArray], places: Sequence[tuple[KvStoreDriver, str]]
    ) -> AlikeArrays | None:
        """Return the arrays together, None if they are not alike.

        Parameters
        ----------
        arrays : sequence of ChunkedArray
            Those that may differ in more than the prefixes of their keys.
        places : sequence of (KvStoreDriver, str)
            Of all arrays, in order: the store of the chunks, and the prefix of their keys.
        """
        first = arrays[0]
        if first.stored is not None or first.grid is not None:
            return None  # Each array has its own chunks in a cache.
        if first.native is None and first.native_staging is None:
            return None
        if not all([_is_alike(first, one) for one in arrays]):
            return None
        directories = [store.key_directory(prefix) for store, prefix in places]
        directory = directories[0]
        names = []
        for one in directories:
            # Only directories that are not opened, as paths name them, are more than a few.
            if directory is None or one is None or one.descriptor >= 0 or b"\0" in one.prefix:
                return None
            if (one.descriptor, one.resolve) != (directory.descriptor, directory.resolve):
                return None
            names.append(one.prefix + b"\0")
        assert directory is not None
        memory = np.frombuffer(b"".join(names), np.uint8)
        lengths = np.array([len(name) for name in names], np.int64)
        addresses = address_of(memory) + lengths.cumsum() - lengths
        return cls(first, directory, addresses, [prefix for _, prefix in places], memory)


def _is_alike(one: ChunkedArray, other: ChunkedArray) -> bool:
    """Whether the core reads both with the same constants."""
    return one is other or (
        _decodes_alike(one.chain, other.chain)
        and (one.shape, one.chunk_shape) == (other.shape, other.chunk_shape)
        and one.key_separator == other.key_separator
        and one.levels == other.levels
        and one.fill_missing == other.fill_missing
        and one.dtype == other.dtype
        and (one.fill_value is other.fill_value or _bits(one) == _bits(other))
        and other.grid is None
        and other.stored is None
        and one.backend is other.backend
        and one.executor is other.executor
    )


def _decodes_alike(one: CodecChain, other: CodecChain) -> bool:
    return one is other or (
        one.layout == other.layout
        and one.inner_order == other.inner_order
        and one.to_json() == other.to_json()
    )


def _bits(array: ChunkedArray) -> bytes:
    return bytes(np.asarray(array.fill_value).tobytes())


@dataclass(frozen=True, slots=True, eq=False)
class AlikePart:
    """Arrays that are read at one place.

    Attributes
    ----------
    transform : IndexTransform
        Maps the domain of each region that is filled to the array it is read from; affine.
    numbers : int64 array
        Numbers of the arrays.
    starts : int64 array, one entry a number
        Bytes from the first element of the array that is filled to that of each region.
    """

    transform: IndexTransform
    numbers: Integers
    starts: Integers


def read_alike(
    arrays: AlikeArrays,
    parts: Sequence[AlikePart],
    memory: Any,
    result: Any,
    read_again: Callable[[Sequence[tuple[int, int]]], Future[Any]],
) -> Future[Any] | None:
    """Read regions of one array from many others; None if the core cannot.

    Parameters
    ----------
    arrays : AlikeArrays
    parts : sequence of AlikePart
    memory : Memory
        Array that is filled.
    result : object
        Result of the Future.
    read_again : callable
        Reads regions of which the core has left something alone, each given by the number of its
        part and its number in there.

    Returns
    -------
    Future of `result`

    Raises
    ------
    OutOfBoundsError, LimitError
        Before any I/O.
    """
    first = arrays.first
    left: list[tuple[int, int]] = []
    repeated = []
    for part in parts:
        ((array, plan),) = first.plans(part.transform, memory.strides)
        repeated.append((array, RepeatedPlan(plan, arrays, part)))
        check_row_count(len(repeated[-1][1]), first.limits.chunks_per_request)
    plans = with_decoder(repeated)

    def leave(number: int, table: RowTable, some: Sequence[int]) -> None:
        regions, rows, _ = table.index
        left.extend((number, int(regions[at])) for at in {row // rows for row in some})

    def finish() -> Any:
        return read_again(sorted(set(left))) if left else result

    rows = sum([len(plan) for _, plan in plans])
    if first.native is not None:
        seconds = sum([len(plan) * array.chain.decode_s for array, plan in plans])
        is_small = rows <= SMALL_ROWS and seconds <= SMALL_S and not LAST.waits()
        works = [
            work
            for number, (array, plan) in enumerate(plans)
            for work in _host_tasks(
                array, plan, lambda: arrays.directory, memory, partial(leave, number), is_small
            )
        ]
        STATISTICS.add(reads=1, chunks_planned=rows)
        if is_small:

            def run() -> Any:
                for work in works:
                    work()
                return finish()

            future = Future.deferred(run, first.executor)
            LAST.read = weakref.ref(future)
            return future
        return first.executor.run_all(works, finish, helped=first.is_helped)
    sink = sink_of(first, plans, [memory])
    tasks: list[Callable[[], None]] = []
    for number, (array, plan) in enumerate(plans):
        some = fill_tasks(array, plan, sink, leave=partial(leave, number))
        if some is None:
            return None
        tasks += some
    STATISTICS.add(reads=1, chunks_planned=rows)
    return sink.run(first.executor, tasks, finish)


def _host_tasks(
    array: ChunkedArray,
    plan: ChunkPlan,
    directory: Callable[[], KeyDirectory],
    memory: HostMemory,
    leave: Callable[[RowTable, Sequence[int]], None],
    is_small: bool,
) -> list[Callable[[], None]]:
    """Make the tasks of one plan: one, if the thread that asks for the read does it all."""
    native = array.native
    assert native is not None
    seconds = len(plan) * (array.chain.decode_s + NATIVE_ROW_S)
    most = 1 if is_small else min(array.executor.limit, len(plan))
    threads = max(1, min(most, int(seconds / SPLIT_S)))
    strides = [plan.src_stride], [plan.dst_stride]
    tables = plan.tables(1, array.unit_rows)
    reading = NativeRead(native, tables, strides, [memory], directory, threads, leave)
    return [reading.work] * threads


class RepeatedPlan(ChunkPlan):
    """Plan of one array, repeated for arrays that are stored alike.

    Parameters
    ----------
    plan : ChunkPlan
        Of the first array.
    arrays : AlikeArrays
    part : AlikePart
    """

    _plan: ChunkPlan
    _arrays: AlikeArrays
    _part: AlikePart

    def __init__(self, plan: ChunkPlan, arrays: AlikeArrays, part: AlikePart) -> None:
        vars(self).update(
            _plan=plan,
            _arrays=arrays,
            _part=part,
            rows=plan.rows * len(part.numbers),
            sets=plan.sets,
            format=plan.format,
            src_stride=plan.src_stride,
            dst_stride=plan.dst_stride,
            input_shape=plan.input_shape,
        )

    def tables(self, parts: int, unit_rows: int) -> Iterator[RowTable]:
        """Yield the rows of all arrays; `index` has the numbers of the regions, the rows of each,
        and the table of one array.
        """
        prefixes, starts = self._arrays.prefixes[self._part.numbers], self._part.starts
        for table in self._plan.tables(parts, unit_rows):
            most = max(1, WINDOW_ROWS // table.rows)
            for begin in range(0, len(prefixes), most):
                numbers = np.arange(begin, min(begin + most, len(prefixes)))
                yield _table(table, prefixes[numbers], starts[numbers], numbers)

    def rows_of(self, table: RowTable, rows: Sequence[int]) -> PlanWindow:
        """Write down one row of a table, with its key."""
        (row,) = rows
        regions, count, single = table.index
        number = int(regions[row // count])
        window = self._plan.rows_of(single, [row % count])
        name = self._arrays.names[int(self._part.numbers[number])]
        keys = [name + key[len(self._plan.format.key_prefix) :] for key in window.keys]
        return replace(window, keys=keys)


def _table(table: RowTable, prefixes: Integers, starts: Integers, numbers: Integers) -> RowTable:
    """Return the table of an array, repeated for arrays with other prefixes and places."""
    times, rows = len(prefixes), table.rows
    old = (
        np.frombuffer(table.words, np.int64)
        if not isinstance(table.words, np.ndarray)
        else (table.words)
    )
    units = table.units
    columns = old[units + 1 : units + 1 + (table.rank + 2 + table.input_rank) * rows]
    words = np.empty(times * units + 1 + len(columns) * times, np.int64)
    edges = old[:units] + rows * np.arange(times)[:, None]
    words[: times * units] = edges.reshape(-1)
    words[times * units] = times * rows
    repeated = words[times * units + 1 :].reshape(-1, times, rows)
    repeated[:] = columns.reshape(-1, 1, rows)
    repeated[table.rank + 1] += starts[:, None]
    return replace(
        table,
        words=words,
        units=times * units,
        rows=times * rows,
        regions=times * rows,
        index=(numbers, rows, table),
        prefixes=np.repeat(prefixes, rows),
    )
