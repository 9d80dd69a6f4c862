"""Schema: constraints on an array that is opened or created, and their merging.

In reading order: `chunk_constraint` (one vector, hard and soft), `chunk_grid` (one level of
chunks), `chunk_layout` (all levels), `chunk_shape` (choice of sizes), `codec_spec`, `fill_value`,
`schema` (all constraints), and `schema_transform` (constraints through an index transform).
"""

from __future__ import annotations

from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.schema import Schema

__all__ = ["ChunkLayout", "CodecSpec", "Schema"]
