"""Types of the keywords of chunk layouts, for type checkers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from gpustore.schema.chunk_grid import ChunkGrid


class ChunkLayoutKeywords(TypedDict, total=False):
    """Keywords of :class:`ChunkLayout`."""

    rank: int | None
    inner_order: Iterable[int] | None
    inner_order_soft_constraint: Iterable[int] | None
    grid_origin: Iterable[int | None] | None
    grid_origin_soft_constraint: Iterable[int | None] | None
    chunk: ChunkGrid | None
    write_chunk: ChunkGrid | None
    read_chunk: ChunkGrid | None
    codec_chunk: ChunkGrid | None
    chunk_shape: Iterable[int | None] | None
    chunk_shape_soft_constraint: Iterable[int | None] | None
    write_chunk_shape: Iterable[int | None] | None
    write_chunk_shape_soft_constraint: Iterable[int | None] | None
    read_chunk_shape: Iterable[int | None] | None
    read_chunk_shape_soft_constraint: Iterable[int | None] | None
    codec_chunk_shape: Iterable[int | None] | None
    codec_chunk_shape_soft_constraint: Iterable[int | None] | None
    chunk_aspect_ratio: Iterable[float | None] | None
    chunk_aspect_ratio_soft_constraint: Iterable[float | None] | None
    write_chunk_aspect_ratio: Iterable[float | None] | None
    write_chunk_aspect_ratio_soft_constraint: Iterable[float | None] | None
    read_chunk_aspect_ratio: Iterable[float | None] | None
    read_chunk_aspect_ratio_soft_constraint: Iterable[float | None] | None
    codec_chunk_aspect_ratio: Iterable[float | None] | None
    codec_chunk_aspect_ratio_soft_constraint: Iterable[float | None] | None
    chunk_elements: int | None
    chunk_elements_soft_constraint: int | None
    write_chunk_elements: int | None
    write_chunk_elements_soft_constraint: int | None
    read_chunk_elements: int | None
    read_chunk_elements_soft_constraint: int | None
    codec_chunk_elements: int | None
    codec_chunk_elements_soft_constraint: int | None
    finalize: bool | None
