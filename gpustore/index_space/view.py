"""Properties and indexing of objects that are seen through a transform: stores and specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpustore.index_space.accessor import Accessor

if TYPE_CHECKING:
    from typing import Self

    from gpustore.index_space.transform import IndexTransform


class IndexedView:
    """Base class of stores and specs: indexing composes their index transform."""

    __slots__ = ()

    def _indexed(self) -> IndexTransform:
        """Return the transform from the domain of this object."""
        raise NotImplementedError

    def _through(self, transform: IndexTransform) -> Self:
        """Return the same object seen through `transform`, which is :meth:`_indexed` composed."""
        raise NotImplementedError

    def _accessor(self, name: str) -> Accessor[Self]:
        of_transform = getattr(self._indexed(), name)
        return Accessor(self, name, lambda index: self._through(of_transform[index]))

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

    @property
    def oindex(self) -> Accessor[Self]:
        """Accessor ``x.oindex[...]``: each index array applies to its own dimension."""
        return self._accessor("oindex")

    @property
    def vindex(self) -> Accessor[Self]:
        """Accessor ``x.vindex[...]``: index arrays are broadcast, their dimensions come first."""
        return self._accessor("vindex")

    @property
    def translate_to(self) -> Accessor[Self]:
        """Accessor ``x.translate_to[origin]``: the domain moved to begin at `origin`."""
        return self._accessor("translate_to")

    @property
    def translate_by(self) -> Accessor[Self]:
        """Accessor ``x.translate_by[offset]``: the domain with `offset` added."""
        return self._accessor("translate_by")

    @property
    def translate_backward_by(self) -> Accessor[Self]:
        """Accessor ``x.translate_backward_by[offset]``: the domain minus `offset`."""
        return self._accessor("translate_backward_by")

    @property
    def label(self) -> Accessor[Self]:
        """Accessor ``x.label["a", "b"]``: the dimensions with these labels."""
        return self._accessor("label")

    @property
    def mark_bounds_implicit(self) -> Accessor[Self]:
        """Accessor ``x.mark_bounds_implicit[lower:upper]``: bounds that can be resized, or not."""
        return self._accessor("mark_bounds_implicit")

    def transpose(self, axes: Any = None) -> Self:
        """Return the view with its dimensions in the order `axes`, reversed by default."""
        return self._through(self._indexed().transpose(axes))

    @property
    def T(self) -> Self:
        """View with its dimensions in reverse order."""
        return self.transpose()
