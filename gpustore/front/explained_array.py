"""Estimates of reads and writes of an opened array: :class:`ExplainedArray`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpustore.errors import MetadataError
from gpustore.front.opened_array import OpenedArray
from gpustore.planning.crop_plan import crop_shape

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

ORDERS = ("C", "F")


class ExplainedArray(OpenedArray):
    """An opened array, and estimates of what reads and writes of it do."""

    __slots__ = ()

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

    def _check_readable(self, order: str) -> None:
        if order not in ORDERS:
            raise TypeError(f"`order` must be specified as 'C' or 'F', but received: {order!r}")
        if not self.readable:
            raise MetadataError("Source does not support reading.")
