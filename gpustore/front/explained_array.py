"""Estimates of reads and writes of an opened array: :class:`ExplainedArray`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpustore.errors import MetadataError
from gpustore.front.opened_array import OpenedArray
from gpustore.planning.crop_plan import crop_shape
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.future import Future
from gpustore.runtime.then import then

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

ORDERS = ("C", "F")


@dataclass(kw_only=True, slots=True)
class StorageStatistics:
    """Whether the chunks of an array are stored; see :meth:`TensorStore.storage_statistics`.

    Attributes
    ----------
    not_stored : bool, optional
        Whether no chunk of the domain is stored; None if that was not asked.
    fully_stored : bool, optional
        Whether every chunk of the domain is stored; None if that was not asked.
    """

    not_stored: bool | None = None
    fully_stored: bool | None = None

    def __repr__(self) -> str:
        return (
            f"TensorStore.StorageStatistics(not_stored={self.not_stored}, "
            f"fully_stored={self.fully_stored})"
        )


class ExplainedArray(OpenedArray):
    """An opened array, estimates of what reads and writes of it do, and which chunks are stored."""

    __slots__ = ()

    StorageStatistics: TypeAlias = StorageStatistics

    def explain(self) -> Explanation:
        """Estimate a read: the path of the bytes, the decoder of each codec, and the costs.

        The estimate follows from the metadata; no stored value is read. Index first to estimate the
        read of a part: ``store[10:20].explain()``.

        Returns
        -------
        Explanation
            The decoder of each codec with the reason, and bounds of the read's ``statistics``, such
            as bytes fetched and decoded. ``print`` shows the estimate. Launches and copies on a
            GPU, missing chunks, and chunks that the GPU leaves to the CPU depend on the stored
            bytes: ``launches``, ``copies``, ``chunks_missing`` and ``host_fallbacks`` of the
            statistics count them.

        Raises
        ------
        UnsupportedError
            If the store has no chunks.
        OutOfBoundsError, LimitError
            The errors of :meth:`read` before any I/O.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://e/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[8, 8]
        ... ).result()
        >>> store.write(7).result()
        >>> explanation = store[0].explain()
        >>> explanation.chunks, explanation.bytes_returned, explanation.bytes_fetched
        (1, 8, 8)
        """
        self._check_readable("C")
        return self._driver.explain(self._transform)

    def explain_many(self, starts: Any, shape: Sequence[int]) -> Explanation:
        """Estimate a :meth:`read_many` with these arguments; see :meth:`explain`.

        :meth:`Batch.explain` estimates the reads of a :class:`Batch`.

        Parameters
        ----------
        starts, shape
            Arguments of :meth:`read_many`.

        Raises
        ------
        UnsupportedError
            If the store has no chunks.
        OutOfBoundsError, LimitError
            The errors of :meth:`read_many` before any I/O.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://em/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[8, 8]
        ... ).result()
        >>> explanation = store.explain_many([[0, 0], [1, 2], [5, 5]], [3, 3])
        >>> explanation.together, explanation.chunks, explanation.bytes_returned
        (3, 1, 27)
        """
        self._check_readable("C")
        extent = crop_shape(shape, self.rank)
        return self._driver.explain_many(self._transform, starts, extent)

    def explain_write(self) -> WriteExplanation:
        """Estimate a write: the encoder of each codec, and what is read first.

        The estimate follows from the metadata; no stored value is read. It is for an array of the
        store's data type in the memory space of the store (:attr:`device`). Index first to estimate
        the write of a part: ``store[10:20].explain_write()``.

        Returns
        -------
        WriteExplanation
            The encoder of each codec, with the reason if the CPU encodes what is on a GPU, and
            bounds of the write's ``statistics``. ``print`` shows the estimate. Chunks that a GPU
            leaves to the CPU depend on the elements: ``host_encodings`` of the statistics counts
            them.

        Raises
        ------
        UnsupportedError
            If the store has no chunks.
        OutOfBoundsError, LimitError
            The errors of :meth:`write` before any I/O.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://ew/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[8, 8]
        ... ).result()
        >>> explanation = store[0].explain_write()
        >>> explanation.chunks, explanation.read_chunks, explanation.bytes_written
        (1, 1, 8)
        """
        return self._driver.explain_write(self._transform)

    def storage_statistics(
        self, *, query_not_stored: bool = False, query_fully_stored: bool = False
    ) -> Future[StorageStatistics]:
        """Look up whether the chunks of the domain are stored; none is read.

        Chunks count as a whole, whichever of their elements were written. Inner chunks of a sharded
        array are looked up in the index of their shard.

        Parameters
        ----------
        query_not_stored : bool
            Ask whether no chunk of the domain is stored.
        query_fully_stored : bool
            Ask whether every chunk of the domain is stored.

        Returns
        -------
        Future of TensorStore.StorageStatistics
            Its attributes are None where nothing was asked.

        Raises
        ------
        UnsupportedError
            If the driver does not tell.
        OutOfBoundsError, LimitError
            The errors of :meth:`read` before any I/O.
        CorruptChunkError, StoreIOError
            Through the Future; the message names the key.

        Examples
        --------
        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://s/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[8, 8]
        ... ).result()
        >>> store.storage_statistics(query_not_stored=True).result()
        TensorStore.StorageStatistics(not_stored=True, fully_stored=None)
        """

        def asked(found: StoredChunks) -> StorageStatistics:
            return StorageStatistics(
                not_stored=found.none if query_not_stored else None,
                fully_stored=found.every if query_fully_stored else None,
            )

        if not (query_not_stored or query_fully_stored):
            return Future(StorageStatistics())
        return then(self._driver.stored_chunks(self._transform), asked, self._driver.executor)

    def _check_readable(self, order: str) -> None:
        if order not in ORDERS:
            raise TypeError(f"`order` must be specified as 'C' or 'F', but received: {order!r}")
        if not self.readable:
            raise MetadataError("Source does not support reading.")
