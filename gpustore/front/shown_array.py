"""An opened array as people see it: :class:`ShownArray`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore import registry
from gpustore.errors import GpustoreError
from gpustore.front.explained_array import ExplainedArray

if TYPE_CHECKING:
    from gpustore.display.array_info import ArrayInfo


class ShownArray(ExplainedArray):
    """An opened array with texts and pictures of itself, for a terminal or a notebook."""

    __slots__ = ()

    @property
    def info(self) -> ArrayInfo:
        """Facts on one screen: shape, chunks, codecs, attributes, stored bytes, decoders.

        The stored values, and their bytes, are counted where that is cheap: in a local kvstore, if
        the array has no more than 10 000. :meth:`info_complete` counts them everywhere.

        >>> import gpustore
        >>> store = gpustore.open(
        ...     "memory://i/|zarr3:", create=True, dtype="uint8", shape=[4, 6], chunks=[2, 6]
        ... ).result()
        >>> store[0] = 1
        >>> info = store.info
        >>> info.chunk, info.values_stored, info.values_possible
        ((2, 6), 1, 2)
        """
        found: ArrayInfo = registry.find("display", "array_info")(self, complete=False)
        return found

    def info_complete(self) -> ArrayInfo:
        """Return :attr:`info` with the stored values counted, which lists all their keys.

        Raises
        ------
        StoreIOError
            If the kvstore cannot be read.
        """
        found: ArrayInfo = registry.find("display", "array_info")(self, complete=True)
        return found

    def __repr__(self) -> str:
        domain = self.domain
        is_plain = not any(domain.origin)
        words = [f"shape={self.shape}" if is_plain else f"domain={domain}"]
        if is_plain and any(domain.labels):
            words.append(f"dims=({', '.join(label or '-' for label in domain.labels)})")
        words.append(f"dtype={self.dtype.name}")
        if self.chunks:
            words.append(f"chunks={self.chunks}")
        if self.shards:
            words.append(f"shards={self.shards}")
        if self.device != "cpu":
            words.append(f"device={self.device}")
        return f"<gpustore.TensorStore {' '.join(words)}{self._place()}>"

    def _place(self) -> str:
        """Return the place of the array as the end of a text; empty if no URL names it."""
        try:
            return f" at {self.url}"
        except GpustoreError:
            kvstore = self.kvstore
            return "" if kvstore is None else f" at {kvstore.driver.describe(kvstore.path)}"

    def _repr_html_(self) -> str:
        """Return a table of the facts that need no I/O, beside a picture of the chunk grid."""
        html: str = registry.find("display", "array_html")(self)
        return html
