"""Scatter and gather of elements that index arrays select; fill values of records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.host.memory import HostMemory
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer


def _offsets(
    start: int, strides: tuple[int, ...], shape: tuple[int, ...], points: list[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Compute the byte offsets of all elements of a row, in the order of the request."""
    offsets = np.array(start, np.int64)
    for added in points:
        offsets = np.add.outer(offsets, added)
    for stride, count in zip(strides, shape):
        if count != 1:
            offsets = np.add.outer(offsets, stride * np.arange(count))
    return offsets.ravel()


def elements_of(rows: PlanWindow, i: int, *, base: int) -> tuple[Any, Any]:
    """Compute byte offsets of the elements of row `i`, in the decoded chunk and the flat array."""
    assert rows.points is not None
    src_start, dst_start, shapes = rows.part(i, i + 1).rows()
    pairs = rows.points[i]
    src = _offsets(src_start[0], rows.src_stride, shapes[0], [pair[0] for pair in pairs])
    dst = _offsets(base + dst_start[0], rows.dst_stride, shapes[0], [pair[1] for pair in pairs])
    return src, dst


def scatter_points(
    rows: PlanWindow,
    i: int,
    decoded: Buffer | None,
    layout: ChunkBytes,
    fill_value: Any,
    out: HostMemory,
) -> None:
    """Place the elements that an index array selects, one by one."""
    src, dst = elements_of(rows, i, base=out.offset)
    src += layout.offset
    dtype = out.array.dtype
    if decoded is None and is_record(fill_value, layout):
        decoded = fill_value.tobytes()
        src %= layout.record
    if decoded is None:
        values = np.broadcast_to(np.asarray(fill_value, dtype), src.shape)
    else:
        values = _taken(np.frombuffer(decoded, np.uint8), src, layout).astype(dtype, copy=False)
    if all(stride % dtype.itemsize == 0 for stride in out.strides):
        out.flat.view(dtype)[dst // dtype.itemsize] = values
    else:  # A field of records: its elements are no whole steps apart.
        steps = np.arange(dtype.itemsize)
        out.flat[dst[:, None] + steps] = values[:, None].view(np.uint8)


def _taken(chunk: NDArray[np.uint8], src: NDArray[np.int64], layout: ChunkBytes) -> NDArray[Any]:
    """Return the elements at byte offsets `src` of a chunk."""
    itemsize = layout.dtype.itemsize
    if not layout.record:
        return chunk.view(layout.dtype)[src // itemsize]
    # Inside records elements are no whole steps apart.
    taken: NDArray[Any] = chunk[src[:, None] + np.arange(itemsize)].view(layout.dtype)
    return taken.reshape(len(src))


def is_record(fill_value: NDArray[Any], layout: ChunkBytes) -> bool:
    """Whether a fill value is the bytes of a stored record, and not one element."""
    return fill_value.dtype.type is np.void and fill_value.dtype.itemsize == layout.record


def of_record(
    record: NDArray[Any],
    layout: ChunkBytes,
    first: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> NDArray[Any]:
    """Return the elements of a row if every stored element is `record`."""
    nbytes = layout.record
    inside = tuple([stride % nbytes if stride >= 0 else -(-stride % nbytes) for stride in strides])
    part: NDArray[Any] = np.ndarray(shape, layout.dtype, record.tobytes(), first % nbytes, inside)
    return part


def gather_points(
    rows: PlanWindow, i: int, chunk: NDArray[np.uint8], layout: ChunkBytes, source: HostMemory
) -> None:
    """Copy elements into a chunk one by one; of several for one place the last is kept."""
    src, dst = elements_of(rows, i, base=source.offset)
    src += layout.offset
    itemsize = source.array.dtype.itemsize
    values = source.flat.view(source.array.dtype)[dst // itemsize]
    if not layout.record:
        chunk.view(layout.dtype)[src // itemsize] = values
        return
    stored = values.astype(layout.dtype)[:, None].view(np.uint8)
    chunk[src[:, None] + np.arange(itemsize)] = stored
