"""Ray: data sets whose rows are parts of an array, read by tasks on many machines.

A task holds the spec of the array and reads whole shards, so no chunk is fetched by two tasks
unless patches lie across the edge of a shard.

Source: https://docs.ray.io/en/latest/data/custom-datasource-example.html
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import gpustore
from gpustore.interop import extra
from gpustore.interop.reopened import Reopened

with extra("ray"):
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasource, ReadTask


def read(
    store: Any, patch: Sequence[int] | None = None, *, context: Any = None, **options: Any
) -> ray.data.Dataset:
    """Return a data set of the parts of an array, which are read when it is used.

    Parameters
    ----------
    store : TensorStore, str, os.PathLike, dict or Spec
        Array, also a view; or its place, see :func:`gpustore.open`. All machines must see it there.
    patch : sequence of int, optional
        Shape of the parts, which form a grid from the first element on; those at the end may be
        smaller. By default the shape of the shards, or of the chunks if there are no shards.
    context : Context or dict, optional
        Context in which a place is opened.
    **options
        Options of :func:`ray.data.read_datasource`, such as ``concurrency`` and
        ``override_num_blocks``, at most the number of tasks.

    Returns
    -------
    ray.data.Dataset
        A row has ``"start"``, the indices of the first element, of int64, counted as in the array's
        domain, and ``"values"``, the elements in host memory. Those of a GPU are copied there.

    Raises
    ------
    UnsupportedError
        If Arrow, in which Ray keeps rows, lacks the data type; or the array is in memory.
    MismatchError
        If `patch` has another number of dimensions, or, while it is read, the metadata of the
        array have changed since.
    NotFoundError
        If nothing is there.
    """
    if not isinstance(store, gpustore.TensorStore):
        store = gpustore.open(store, read=True, context=context).result()
    return ray.data.read_datasource(ArraySource(store, patch), **options)


class ArraySource(Datasource):
    """Source of the rows of :func:`read`."""

    def __init__(self, store: gpustore.TensorStore, patch: Sequence[int] | None) -> None:
        super().__init__()
        elements = store.dtype.array_dtype
        if elements.kind not in "biuf" or elements.isbuiltin == 2:
            raise gpustore.UnsupportedError(
                f"Arrow, in which Ray keeps rows, has no tensors of {store.dtype.name}: read the "
                'store as another type, as in gpustore.cast(store, "float32")'
            )
        shape = store.shards or store.chunks or store.shape
        self._patch = tuple(patch or shape)
        if len(self._patch) != store.rank or min(self._patch, default=1) < 1:
            raise gpustore.MismatchError(
                f"patch: expected {store.rank} sizes of at least 1, got {list(self._patch)}"
            )
        self._shape, self._itemsize = store.shape, elements.itemsize
        # Patches that begin in one shard are read together.
        self._groups = [
            _grouped(range(0, size, step), unit)
            for size, step, unit in zip(self._shape, self._patch, shape, strict=True)
        ]
        self._origin = store.domain.origin
        self._source = Reopened(store.translate_to[0] if store.rank else store)
        self._source.__getstate__()  # A store in memory is an error here, not in a task.

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all elements."""
        return math.prod(self._shape) * self._itemsize

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return at most `parallelism` tasks, each of which reads whole shards."""
        del data_context
        units = list(itertools.product(*self._groups))
        tasks = []
        for part in np.array_split(np.arange(len(units)), max(1, min(parallelism, len(units)))):
            mine = [units[i] for i in part]
            metadata = BlockMetadata(
                num_rows=sum(math.prod(map(len, unit)) for unit in mine),
                size_bytes=self.estimate_inmemory_data_size() * len(mine) // max(1, len(units)),
                input_files=None,
                exec_stats=None,
            )
            blocks = partial(_blocks, self._source, self._patch, self._origin, mine)
            tasks.append(ReadTask(blocks, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def _grouped(starts: range, unit: int) -> list[list[int]]:
    """Divide starts along a dimension by the unit in which they lie."""
    return [list(group) for _, group in itertools.groupby(starts, lambda start: start // unit)]


def _blocks(
    source: Reopened,
    patch: tuple[int, ...],
    origin: tuple[int, ...],
    units: list[tuple[list[int], ...]],
) -> Iterator[Any]:
    """Read the patches of each unit together, and yield them as a block."""
    store = source.opened()
    for unit in units:
        starts = list(itertools.product(*unit))
        with gpustore.Batch() as batch:
            read = [
                store[
                    tuple(
                        slice(start, min(start + step, size))
                        for start, step, size in zip(corner, patch, store.shape, strict=True)
                    )
                ].read(batch=batch, to="numpy")
                for corner in starts
            ]
        values = [future.result() for future in read]
        whole = len({array.shape for array in values}) == 1
        column = np.stack(values) if whole else _ragged(values)
        indices = np.array(starts, np.int64).reshape(len(starts), store.rank)
        indices += np.array(origin, np.int64)
        yield BlockAccessor.batch_to_block({"start": indices, "values": column})


def _ragged(arrays: list[Any]) -> Any:
    """Return an array of arrays of different shapes."""
    column = np.empty(len(arrays), object)
    for i, one in enumerate(arrays):
        column[i] = one
    return column
