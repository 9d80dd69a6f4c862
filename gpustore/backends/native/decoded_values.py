"""Encoded values in host memory, decoded and placed by the native core."""

from __future__ import annotations

from array import array as numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpustore.backends.native.job import AGAIN, Job, address_of
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken

if TYPE_CHECKING:
    from gpustore.backends.host.memory import HostMemory
    from gpustore.backends.native.array import NativeArray


def decode_values(
    array: NativeArray, rows: PlanWindow, values: Sequence[Buffer | None], out: HostMemory
) -> list[int]:
    """Decode values and place their elements; missing ones are the fill value.

    Parameters
    ----------
    array : NativeArray
        Constants of the chunks.
    rows : PlanWindow
        Places of the elements; without index arrays, and not narrowed.
    values : sequence of buffer or None
        Encoded chunk of each row, in host memory.
    out : HostMemory
        Array to fill.

    Returns
    -------
    list of int
        Rows that the core has left alone.

    Raises
    ------
    Cancelled
        If the work of this thread is no longer wanted.
    """
    n = len(values)
    words = numbers("q", range(n + 1))
    for column in (rows.src_start, rows.dst_start, *rows.count):
        words.extend(column.tolist() if isinstance(column, np.ndarray) else column)
    table = RowTable(words, units=n, rows=n, regions=n, rank=0, input_rank=len(rows.count))
    addresses, sizes = numbers("q"), numbers("q")
    for value in values:
        nbytes = 0 if value is None else len(value)
        # An empty value is there, but has no address; nothing reads it.
        at = address_of(np.frombuffer(value, np.uint8)) if value and nbytes else 1
        addresses.append(0 if value is None else at)
        sizes.append(nbytes)
    job = Job.of(
        *(array, table, [rows.src_stride], [rows.dst_stride], [out], None, 1),
        values=(addresses, sizes),
    )
    wanted = CancelToken.current()
    while job.read(wanted) == AGAIN:
        wanted.check()
    return job.left()
