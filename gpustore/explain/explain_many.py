"""What a read of many crops will do, said beforehand; see :mod:`gpustore.explain.explain`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from gpustore.explain.dry_run import rehearse_pieces
from gpustore.explain.explain import explained_pieces
from gpustore.explain.explanation import Explanation
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import contiguous
from gpustore.pipelines.read_many import ELEMENTWISE, plan_many
from gpustore.planning.crop_plan import check_starts


def explain_many(
    array: ChunkedArray, transform: IndexTransform, starts: Any, extent: tuple[int, ...]
) -> Explanation:
    """Explain the read of crops into a new array in C order.

    Parameters
    ----------
    array, transform, starts, extent
        As for :func:`gpustore.pipelines.read_many.read_many`.

    Raises
    ------
    OutOfBoundsError, LimitError, UnsupportedError
        As the read.
    CorruptChunkError, NotFoundError, StoreIOError
        As the read, if an index of a shard is damaged or missing chunks are an error.
    """
    checked = check_starts(transform, starts, extent, array.shape)
    shape = (len(checked), *extent)
    plans = plan_many(
        array, transform, checked, extent, contiguous(shape, array.dtype.itemsize, "C")
    )
    rehearsal = partial(
        rehearse_pieces, array, plans, [shape], by_element=math.prod(extent) <= ELEMENTWISE
    )
    return explained_pieces(array, plans, [shape], rehearsal, together=len(checked))


EXPLAIN = explain_many
