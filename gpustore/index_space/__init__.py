"""Index space: domains, transforms and NumPy-style indexing as pure algebra.

An :class:`IndexDomain` is a product of :class:`Dim` intervals; an :class:`IndexTransform` maps a
domain to an output space, one :class:`OutputIndexMap` per output dimension.
"""

from __future__ import annotations

from gpustore.index_space.dim import Dim
from gpustore.index_space.domain import IndexDomain
from gpustore.index_space.interval import INF as inf
from gpustore.index_space.output_map import OutputIndexMap, OutputIndexMaps, OutputIndexMethod
from gpustore.index_space.transform import IndexTransform

newaxis = None

__all__ = [
    "Dim",
    "IndexDomain",
    "IndexTransform",
    "OutputIndexMap",
    "OutputIndexMaps",
    "OutputIndexMethod",
    "inf",
    "newaxis",
]
