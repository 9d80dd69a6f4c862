"""Downsampling of NumPy arrays, with the results of TensorStore.

**mean** of integers is exact and rounds halves to the even number; floats are added in the order of
the elements of a block, those of two bytes or less as float32. **median** is the lower one of two.
**mode** is the smallest of the most frequent ones. **min** and **max** leave NaN out; where floats
are put in order -0.0 lies before 0.0 and NaN behind all, and a result that is NaN is the positive
quiet one without more bits. The native core does what it can
(:mod:`gpustore.backends.native.blocks`), a device by its kernels, NumPy the rest; results are equal
bit for bit.

Source: TensorStore's ``driver/downsample``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.downsampling import GAUSSIAN, Downsampling
from gpustore.backends.host.gaussian import smooth
from gpustore.backends.native.blocks import core_downsample

_MANY: Final = 4096
"""Elements of a block from which on cells are computed one by one."""

_FEW: Final = 64
"""Elements of a block up to which those at one position of all blocks are looked at together."""

_EXTREMA: Final[dict[str, tuple[Any, np.ufunc]]] = {
    "min": (lambda dtype: np.iinfo(dtype).max, np.minimum),
    "max": (lambda dtype: np.iinfo(dtype).min, np.maximum),
}
"""Neutral element of a data type, and the reduction of two elements, by method."""


def downsample(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    """Write one element for each block of an array.

    Parameters
    ----------
    elements : ndarray
        Elements of the blocks, in any layout; the first and last blocks may be cut.
    job : Downsampling
        Method and blocks.
    out : ndarray
        Array of the shape of the blocks and of the same data type.
    """
    if out.ndim == 0:
        out[...] = elements
        return
    if core_downsample(elements, job, out):
        return
    # Sums of floats may be beyond the largest one, or of infinities of both signs.
    with np.errstate(invalid="ignore", over="ignore"):
        _downsample(elements, job, out)


def _downsample(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    if job.method == GAUSSIAN:
        smooth(elements, job, out)
    elif math.prod(job.factors) > max(_MANY, out.size):
        for cell in np.ndindex(out.shape):
            block = tuple(
                slice(max(0, c * f - b), (c + 1) * f - b)
                for c, f, b in zip(cell, job.factors, job.before, strict=True)
            )
            out[cell] = _of_block(elements[block], job.method)
    elif job.method == "mean":
        _mean(elements, job, out)
    elif job.method in ("min", "max"):
        _extremum(elements, job, out)
    else:
        _ranked(elements, job, out)


def _mean(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    counts = _counts(elements, job, out)
    dtype = out.dtype
    if not _is_integer(dtype):
        total = np.zeros(out.shape, _sum_type(dtype))
        for cells, part in _parts(elements, job, out.shape):
            total[cells] += part.astype(total.dtype, copy=False)
        # Both parts of a complex number, as NumPy divides it by a complex one otherwise.
        parts = total.reshape(*total.shape, 1).view(total.real.dtype)
        parts /= counts.astype(parts.dtype)[..., np.newaxis]
        parts[np.isnan(parts)] = np.nan
        out[...] = total
        return
    if dtype.itemsize < 8:
        bits = 8 * dtype.itemsize + math.prod(job.factors).bit_length()
        wide: Any = np.int32 if bits < 32 else np.int64
        total = np.zeros(out.shape, wide)
        for cells, part in _parts(elements, job, out.shape):
            total[cells] += part if part.dtype.kind in "biu" else part.astype(wide)
        out[...] = _divided(total, counts.astype(wide))
        return
    # Sums of halves of 64-bit integers: high * 2**32 + low.
    high, low = np.zeros(out.shape, np.int64), np.zeros(out.shape, np.int64)
    for cells, part in _parts(elements, job, out.shape):
        high[cells] += (part >> 32).astype(np.int64)
        low[cells] += (part & np.array(0xFFFFFFFF, dtype)).astype(np.int64)
    quotient, rest = np.divmod(high, counts)
    below = _divided(rest * (1 << 32) + low, counts)
    out[...] = quotient.astype(dtype) * np.array(1 << 32, dtype) + below.astype(dtype)


def _divided(total: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """Return quotients rounded to the nearest integer, halves to the even one."""
    quotient, rest = np.divmod(total, counts)
    twice = 2 * rest
    quotient += (twice > counts) | ((twice == counts) & (quotient % 2 == 1))
    return quotient


def _extremum(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    keys = _keys(elements, job.method)
    worst, better = _EXTREMA[job.method]
    found = np.full(out.shape, worst(keys.dtype), keys.dtype)
    for cells, part in _parts(keys, job, out.shape):
        found[cells] = better(found[cells], part)
    out[...] = _of_keys(found, out.dtype)


def _ranked(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    """Median and mode: of cells whose blocks are cut in the same way at once."""
    for cells, blocks in _uniform(elements, job, out.shape):
        if out.dtype == object:
            for cell in np.ndindex(blocks.shape[:-1]):
                out[cells][cell] = _mode_of_objects(blocks[cell].tolist())
            continue
        out[cells] = _of_rank(blocks, job.method)


def _of_block(block: NDArray[Any], method: str) -> Any:
    """Return the element for one block."""
    if method == "mean":
        if _is_integer(block.dtype):
            total = (
                sum(map(int, block.ravel().tolist()))
                if block.dtype.itemsize == 8
                else int(block.sum(dtype=np.int64))
            )
            quotient, rest = divmod(total, block.size)
            return quotient + (2 * rest > block.size or (2 * rest == block.size and quotient % 2))
        # Added one after the other, as where many cells are computed at once.
        type_ = _sum_type(block.dtype)
        added = np.add.accumulate(block.astype(type_).ravel())[-1:]
        parts = added.view(added.real.dtype)
        parts /= block.size
        return np.nan if np.isnan(parts).all() else added[0]
    if method in _EXTREMA:
        found = _EXTREMA[method][1].reduce(_keys(block.ravel(), method))
        return _of_keys(np.asarray(found), block.dtype)
    if block.dtype == object:
        return _mode_of_objects(block.ravel().tolist())
    return _of_rank(block.reshape(1, -1), method)[0]


def _mode_of_objects(block: list[Any]) -> Any:
    """Return the smallest of the most frequent strings, bytes or JSON values."""
    ranked = sorted(block, key=_json_order)
    runs = [list(run) for _, run in itertools.groupby(ranked, _json_order)]
    return max(runs, key=len)[0]


def _json_order(value: Any) -> tuple[int, Any]:
    """Return a key in the order of TensorStore: null, booleans, numbers, objects, lists, strings.

    Objects and lists are ordered by their text.
    """
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int | float):
        return 2, value
    if isinstance(value, str | bytes):
        return 5, value
    return (3 if isinstance(value, dict) else 4), json.dumps(value, sort_keys=True)


def _of_rank(elements: NDArray[Any], method: str) -> NDArray[Any]:
    """Return the median or mode along the last axis."""
    keys = np.sort(_keys(elements, method), axis=-1)
    count = keys.shape[-1]
    if method == "median":
        return _of_keys(keys[..., (count - 1) // 2], elements.dtype)
    ranked = _of_keys(keys, elements.dtype)
    if count <= _FEW:
        return _mode_of_few(ranked)
    blocks = ranked.reshape(-1, count)
    begins = np.ones(blocks.shape, bool)
    np.not_equal(blocks[:, 1:], blocks[:, :-1], out=begins[:, 1:])
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=blocks.size)
    # Runs of all blocks in one row: the first run of each block, then the longest ones.
    firsts = np.searchsorted(starts, np.arange(0, blocks.size, count))
    longest = np.maximum.reduceat(lengths, firsts)
    of_block = starts // count
    candidates = np.flatnonzero(lengths == longest[of_block])
    chosen = candidates[np.unique(of_block[candidates], return_index=True)[1]]
    return blocks.reshape(-1)[starts[chosen]].reshape(ranked.shape[:-1])


def _mode_of_few(ranked: NDArray[Any]) -> NDArray[Any]:
    """Return the mode along the last axis of sorted elements, all blocks at once."""
    mode = ranked[..., 0].copy()
    first = mode.copy()  # Of a run: zeros of both signs are equal.
    most = np.ones(mode.shape, np.int64)
    run = most.copy()
    for i in range(1, ranked.shape[-1]):
        here = ranked[..., i]
        goes_on = here == ranked[..., i - 1]
        run = np.where(goes_on, run + 1, 1)
        first = np.where(goes_on, first, here)
        better = run > most
        mode[better] = first[better]
        most[better] = run[better]
    return mode


def _parts(
    elements: NDArray[Any], job: Downsampling, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
    """Yield the cells that have an element at each position of a block, and these elements."""
    axes = []
    for n, factor, before, cells in zip(
        elements.shape, job.factors, job.before, shape, strict=True
    ):
        along = []
        for position in range(factor):
            first = 0 if position >= before else 1
            start = first * factor + position - before
            count = len(range(start, n, factor))
            if count:
                assert first + count <= cells
                along.append((slice(first, first + count), slice(start, None, factor)))
        axes.append(along)
    for chosen in itertools.product(*axes):
        yield tuple(cells for cells, _ in chosen), elements[tuple(part for _, part in chosen)]


def _uniform(
    elements: NDArray[Any], job: Downsampling, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
    """Yield cells with blocks of one shape, and these blocks flat along a last axis."""
    axes = []
    for n, factor, before, cells in zip(
        elements.shape, job.factors, job.before, shape, strict=True
    ):
        edges = [max(0, c * factor - before) for c in range(cells)] + [n]
        sizes = [end - start for start, end in itertools.pairwise(edges)]
        along = []
        for size, group in itertools.groupby(range(cells), key=sizes.__getitem__):
            numbers = list(group)
            along.append((slice(numbers[0], numbers[-1] + 1), edges[numbers[0]], size))
        axes.append(along)
    for chosen in itertools.product(*axes):
        cells_ = tuple(cells for cells, _, _ in chosen)
        counts = [cells.stop - cells.start for cells in cells_]
        part = elements[
            tuple(
                slice(start, start + count * size)
                for (_, start, size), count in zip(chosen, counts, strict=True)
            )
        ]
        split = part.reshape(
            [n for (_, _, s), c in zip(chosen, counts, strict=True) for n in (c, s)]
        )
        rank = len(counts)
        moved = split.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        yield cells_, moved.reshape([*counts, -1])


def _counts(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of elements of each block, broadcastable to the cells."""
    counts = np.ones((1,) * out.ndim, np.int64)
    for d, (n, factor, before) in enumerate(
        zip(elements.shape, job.factors, job.before, strict=True)
    ):
        starts = np.arange(out.shape[d]) * factor - before
        along = np.minimum(starts + factor, n) - np.maximum(starts, 0)
        counts = counts * along.reshape([-1 if i == d else 1 for i in range(out.ndim)])
    return counts


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" or dtype.name in ("int4", "int2", "uint4", "uint2")


def _sum_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which floats are added: float32 for those of two bytes or less."""
    return dtype if dtype.kind in "fc" and dtype.itemsize > 2 else np.dtype(np.float32)


def _keys(elements: NDArray[Any], method: str) -> NDArray[Any]:
    """Return integers in the order of real elements; complex ones are returned unchanged.

    NaN lies behind all others, which is before them where the largest is wanted.
    """
    if elements.dtype.kind == "c" or elements.dtype.kind in "iu":
        return elements
    if _is_integer(elements.dtype):
        return elements.astype(np.int8)
    floats = elements if elements.dtype.kind == "f" else elements.astype(np.float32)
    keys = _folded(floats.view(f"i{floats.dtype.itemsize}"))
    keys[np.isnan(floats)] = _of_nan(keys.dtype, method)
    return keys


def _of_keys(keys: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements that some keys are of; of floats of one byte as float32."""
    if dtype.kind == "c" or _is_integer(dtype):
        return keys
    kind = np.dtype(f"f{keys.dtype.itemsize}")
    found: NDArray[Any] = np.asarray(_folded(keys)).view(kind)  # Of one key a number.
    found[np.isnan(found)] = np.nan
    return found


def _of_nan(dtype: np.dtype[Any], method: str) -> Any:
    return np.iinfo(dtype).min if method == "max" else np.iinfo(dtype).max


def _folded(bits: NDArray[Any]) -> NDArray[Any]:
    """Exchange bits of floats, as signed integers, and integers in their order."""
    kind = np.iinfo(bits.dtype)
    found: NDArray[Any] = bits ^ ((bits >> (kind.bits - 1)) & kind.max)
    return found
