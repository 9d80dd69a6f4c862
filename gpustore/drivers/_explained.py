"""Explanations of reads and writes of an array of chunks, from their plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpustore import registry
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import contiguous
from gpustore.pipelines.read_many import plan_many
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.crop_plan import check_starts

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation


def explained_read(array: ChunkedArray, transform: IndexTransform) -> Explanation:
    """Explain a read through :mod:`gpustore.explain.estimate`."""
    shape, plans = _planned(array, transform)
    estimate: Callable[..., Explanation] = registry.find("explain", "estimate")
    return estimate(array, plans, [shape])


def explained_write(array: ChunkedArray, transform: IndexTransform) -> WriteExplanation:
    """Explain a write through :mod:`gpustore.explain.write_estimate`."""
    shape, plans = _planned(array, transform)
    estimate: Callable[..., WriteExplanation] = registry.find("explain", "write_estimate")
    return estimate(array, plans, shape)


def explained_crops(
    array: ChunkedArray, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
) -> Explanation:
    """Explain a read of crops through :mod:`gpustore.explain.estimate`."""
    checked = check_starts(transform, starts, shape, array.shape)
    all_of_them = (len(checked), *shape)
    strides = contiguous(all_of_them, array.dtype.itemsize, "C")
    plans = plan_many(array, transform, checked, shape, strides)
    estimate: Callable[..., Explanation] = registry.find("explain", "estimate")
    return estimate(array, plans, [all_of_them], together=len(checked))


def _planned(
    array: ChunkedArray, transform: IndexTransform
) -> tuple[tuple[int, ...], list[tuple[ChunkedArray, ChunkPlan]]]:
    """Return the shape of an array for the domain of a transform, in C order, and its plans."""
    shape = tuple(transform.domain.shape)
    return shape, array.plans(transform, contiguous(shape, array.dtype.itemsize, "C"))
