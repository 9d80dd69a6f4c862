"""Properties and indexing of objects that are seen through a transform: stores and specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpustore.index_space.accessor import IndexAccessors

if TYPE_CHECKING:
    from typing import Self

    from gpustore.index_space.transform import IndexTransform


class IndexedView(IndexAccessors):
    """Base class of stores and specs: indexing composes their index transform."""

    __slots__ = ()

    def _indexed(self) -> IndexTransform:
        """Return the transform from the domain of this object."""
        raise NotImplementedError

    def _through(self, transform: IndexTransform) -> Self:
        """Return the same object seen through `transform`, which is :meth:`_indexed` composed."""
        raise NotImplementedError

    def _accessed(self, name: str, index: Any) -> Self:
        return self._through(getattr(self._indexed(), name)[index])

    @property
    def origin(self) -> tuple[int, ...]:
        """First index of each dimension, ``-inf`` if unbounded."""
        return self._indexed().domain.origin

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension, in elements."""
        return self._indexed().domain.shape

    @property
    def size(self) -> int:
        """Number of elements, at most ``2**63 - 1``."""
        return self._indexed().domain.size

    def transpose(self, axes: Any = None) -> Self:
        """Return the view with its dimensions in the order `axes`, reversed by default."""
        return self._through(self._indexed().transpose(axes))
