"""Reads of many arrays that are stored alike, in one pass of the native core.

Arrays with the same codecs, chunks and shape, each in a directory of its own, differ for the core
in the prefixes of their keys alone. Where each of them is read at the same place, one plan is
repeated for all: the rows of the first array, with other prefixes and other places in the array
that is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.job import address_of
from gpustore.codec_chain.chain import CodecChain
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import KeyDirectory
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray
from gpustore.pipelines.native_read import NativeRead
from gpustore.pipelines.strided_reads import NATIVE_ROW_S
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.chunk_plan import WINDOW_ROWS, check_row_count
from gpustore.planning.row_table import RowTable
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
    """

    first: ChunkedArray
    directory: KeyDirectory
    prefixes: Integers
    _memory: Any

    @classmethod
    def of(cls, arrays: Sequence[ChunkedArray]) -> AlikeArrays | None:
        """Return the arrays together, None if they are not alike."""
        first = arrays[0]
        if first.native is None or first.grid is not None:
            return None
        if not all([_is_alike(first, one) for one in arrays]):
            return None
        directories = [one.store.key_directory(one.key_prefix) for one in arrays]
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
        return cls(first, directory, address_of(memory) + lengths.cumsum() - lengths, memory)


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
    memory: HostMemory,
    result: Any,
    read_again: Callable[[Sequence[tuple[int, int]]], Future[Any]],
) -> Future[Any]:
    """Read regions of one array from many others.

    Parameters
    ----------
    arrays : AlikeArrays
    parts : sequence of AlikePart
    memory : HostMemory
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
    native = first.native
    assert native is not None
    left: list[tuple[int, int]] = []
    works: list[Callable[[], None]] = []
    rows = 0
    for number, part in enumerate(parts):
        ((array, plan),) = first.plans(part.transform, memory.strides)
        rows += plan.rows * len(part.numbers)
        check_row_count(plan.rows * len(part.numbers), first.limits.chunks_per_request)
        seconds = plan.rows * len(part.numbers) * (array.chain.decode_s + NATIVE_ROW_S)
        threads = max(1, min(array.executor.limit, len(part.numbers), int(seconds / SPLIT_S)))
        tables = list(plan.tables(1, array.unit_rows))

        def leave(table: RowTable, some: Sequence[int], number: int = number) -> None:
            (regions, rows_of_one) = table.index
            found = {int(regions[row // rows_of_one]) for row in some}
            left.extend((number, region) for region in found)

        reading = NativeRead(
            native,
            _repeated(tables, arrays.prefixes[part.numbers], part.starts),
            ([plan.src_stride], [plan.dst_stride]),
            [memory],
            lambda: arrays.directory,
            threads,
            leave,
        )
        works += [reading.work] * threads
    STATISTICS.add(reads=1, chunks_planned=rows)

    def finish() -> Any:
        return read_again(sorted(set(left))) if left else result

    return first.executor.run_all(works, finish, helped=True)


def _repeated(
    tables: Sequence[RowTable], prefixes: Integers, starts: Integers
) -> Iterator[RowTable]:
    """Yield the rows of one array for all, with the numbers of the regions in `index`."""
    for table in tables:
        most = max(1, WINDOW_ROWS // table.rows)
        for begin in range(0, len(prefixes), most):
            numbers = np.arange(begin, min(begin + most, len(prefixes)))
            yield _table(table, prefixes[numbers], starts[numbers], numbers)


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
        index=(numbers, rows),
        prefixes=np.repeat(prefixes, rows),
    )
