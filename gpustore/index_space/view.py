"""What everything that is indexed through a transform has: stores and specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpustore.index_space.accessor import Accessor

if TYPE_CHECKING:
    from typing import Self

    from gpustore.index_space.transform import IndexTransform


class IndexedView:
    """A base class; the class itself says which transform, and what another transform gives."""

    __slots__ = ()

    def _indexed(self) -> IndexTransform:
        """The transform from its domain."""
        raise NotImplementedError

    def _through(self, transform: IndexTransform) -> Self:
        """The same, seen through a transform made of :meth:`_indexed`."""
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
        """Indexing where index arrays apply one by one."""
        return self._accessor("oindex")

    @property
    def vindex(self) -> Accessor[Self]:
        """Indexing where index arrays apply together and come first."""
        return self._accessor("vindex")

    @property
    def translate_to(self) -> Accessor[Self]:
        """``x.translate_to[origin]``: moves the domain there."""
        return self._accessor("translate_to")

    @property
    def translate_by(self) -> Accessor[Self]:
        """``x.translate_by[offset]``: moves the domain by that much."""
        return self._accessor("translate_by")

    @property
    def translate_backward_by(self) -> Accessor[Self]:
        """``x.translate_backward_by[offset]``: moves the domain back by that much."""
        return self._accessor("translate_backward_by")

    @property
    def label(self) -> Accessor[Self]:
        """``x.label["a", "b"]``: names the dimensions."""
        return self._accessor("label")

    @property
    def mark_bounds_implicit(self) -> Accessor[Self]:
        """``x.mark_bounds_implicit[lower:upper]``: changes what can be resized."""
        return self._accessor("mark_bounds_implicit")

    def transpose(self, axes: Any = None) -> Self:
        """Its dimensions in another order, reversed by default."""
        return self._through(self._indexed().transpose(axes))

    @property
    def T(self) -> Self:
        """Its dimensions in reverse order."""
        return self.transpose()
