"""An opened scale of a Neuroglancer precomputed volume: chunks from an origin of their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpustore.backends.base import Output
from gpustore.drivers.base import Driver
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.drivers.transacted import TransactedDriver
from gpustore.errors import UnsupportedError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.neuroglancer_uint64_sharded.shards import Uint64Shards
from gpustore.kvstores.transaction import TransactedKvStore
from gpustore.pipelines.staged_writes import LayerStage
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.write_futures import WriteFutures
from gpustore.sharding.staged_shards import ShardStage

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation


class PrecomputedDriver(ChunkedDriver):
    """A scale; its domain begins at the origin of the scale, and its chunks at zero."""

    def _from_zero(self, transform: IndexTransform) -> IndexTransform:
        """Return the transform into the chunks of one into the domain."""
        origin = self.description.origin
        assert origin is not None
        if not any(origin):
            return transform
        inside = IndexTransform(IndexDomain(shape=self.description.shape))
        return inside.translate_to[origin][transform]

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        return super().read(self._from_zero(transform), output, batch)

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        return super().read_many(self._from_zero(transform), starts, shape, output)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        return super().preload(self._from_zero(transform), progress)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        return super().stored_chunks(self._from_zero(transform))

    def explain(self, transform: IndexTransform) -> Explanation:
        return super().explain(self._from_zero(transform))

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        return super().explain_write(self._from_zero(transform))

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        return super().explain_many(self._from_zero(transform), starts, shape)

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        return super().write(self._from_zero(transform), source)

    def resolve(self, bound: float = math.inf) -> ChunkedDriver:
        """Return the driver unchanged: its bounds never change."""
        del bound
        return self

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise an error: the bounds are fixed."""
        request.output(transform)
        raise UnsupportedError("Resize not supported")


class TransactedPrecomputedDriver(PrecomputedDriver, TransactedDriver):
    """A scale in a transaction."""

    @cached_attribute
    def stage(self) -> LayerStage:
        """Place of staged chunks: their kvstore, or shards in it, which change as a whole."""
        store, shards = super().stage, self.plain_array.store
        assert isinstance(store, TransactedKvStore)
        return ShardStage(store, shards) if isinstance(shards, Uint64Shards) else store
