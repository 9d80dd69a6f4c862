"""An opened array of chunks in a transaction: its writes are staged, its reads see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpustore.backends.base import Output
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.index_space import IndexTransform
from gpustore.kvstores.transaction import TransactedKvStore
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.staged_writes import LayerStage, staged_read, staged_write
from gpustore.runtime.batch import Batch
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.runtime.future import Future
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures


class TransactedDriver(ChunkedDriver):
    """An opened Zarr array in a transaction."""

    @property
    def transaction(self) -> Transaction:
        transaction = self.kvstore.transaction
        assert transaction is not None
        return transaction

    @cached_attribute
    def plain_array(self) -> ChunkedArray:
        """Argument of the pipelines outside of the transaction.

        It is what layers keep: with the transaction they would keep themselves alive.
        """
        return replace(self.array, store=self.array.store.plain)

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read what is stored under what is staged; the commit waits for it."""
        if batch is None and not self.is_outdated:
            found = staged_read(self.plain_array, self.stage, transform, output)
            if found is not None:
                return found
        return self.transaction._during(lambda: ChunkedDriver.read(self, transform, output, batch))

    @property
    def stage(self) -> LayerStage:
        """Place of staged chunks: their kvstore."""
        store = self.kvstore.driver
        assert isinstance(store, TransactedKvStore)
        return store

    def _write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        return staged_write(self.plain_array, self.stage, transform, source)
