"""Orders of the dimensions of patches in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore.loader.parameters import listed
from gpustore.loader.volume import PairedArray

_UNLABELLED: Final = "tczyx"
"""Names of the last dimensions of stores without labels: the order of OME-Zarr."""

_CHANNEL: Final = "c"


@dataclass(frozen=True)
class Layout:
    """Order of the dimensions of the patches of one array, behind that of the batch.

    Attributes
    ----------
    patch : tuple of int
        Shape of a patch in the order of the store.
    dims : tuple of int or None
        Dimension of the store for each one of a patch in a batch; None for a new one of length 1.
        Dimensions of the store that are not there have a single element.
    """

    patch: tuple[int, ...]
    dims: tuple[int | None, ...]

    @classmethod
    def of(cls, array: PairedArray, layout: Any) -> Layout:
        """Return the layout of an array, from the parameter of the loader.

        Raises
        ------
        MismatchError
            If the array lacks a dimension, or the layout one of the array, or has one twice.
        """
        if isinstance(layout, Mapping):
            layout = layout.get(array.name)
        patch = array.patch_shape
        if layout is None:
            return cls(patch, tuple(range(len(patch))))
        names = _names(array.store)
        given = listed(layout, "layout", "names or numbers of dimensions")
        dims = [_dimension(array, one, names, layout) for one in given]
        used = [d for d in dims if d is not None]
        left = [d for d, n in enumerate(patch) if d not in used and n > 1]
        if left or len(set(used)) < len(used):
            wrong = "a dimension twice" if not left else f"no {', '.join(names[d] for d in left)}"
            raise gpustore.MismatchError(
                f"layout: {layout!r} of array {array.name!r} has {wrong}; its patches have "
                f"{_shown(array, names)}"
            )
        return cls(patch, tuple(dims))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a patch in a batch."""
        return tuple(1 if d is None else self.patch[d] for d in self.dims)

    def patches(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return a view of a batch in the order of the store: shape ``(n, *patch)``."""
        order = [d for d in self.dims if d is not None]
        new = tuple(1 + i for i, d in enumerate(self.dims) if d is None)
        left = tuple(1 + d for d in range(len(self.patch)) if d not in order)
        some = batch.squeeze(new).transpose(0, *(1 + i for i in np.argsort(order)))
        return np.expand_dims(some, left)


def _names(store: gpustore.TensorStore) -> tuple[str, ...]:
    """Return a name for each dimension, that of its number where there is no other."""
    labels = tuple(store.domain.labels)
    if not any(labels) and len(labels) <= len(_UNLABELLED):
        labels = tuple(_UNLABELLED[len(_UNLABELLED) - len(labels) :])
    return tuple(label or str(d) for d, label in enumerate(labels))


def _dimension(array: PairedArray, one: Any, names: tuple[str, ...], layout: Any) -> int | None:
    """Return the number of the dimension that a layout names, None for a new one."""
    if one is None:
        return None
    if isinstance(one, str):
        found = [d for d, name in enumerate(names) if name.lower() == one.lower()]
        if found:
            return found[0]
        if one.lower() == _CHANNEL:
            return None
    elif not isinstance(one, bool) and isinstance(one, (int, np.integer)) and 0 <= one < len(names):
        return int(one)
    raise gpustore.MismatchError(
        f"layout: {layout!r} of array {array.name!r} has a dimension {one!r}; its patches have "
        f"{_shown(array, names)}"
    )


def _shown(array: PairedArray, names: Sequence[str]) -> str:
    """Return names and sizes of the dimensions of a patch."""
    shown = ", ".join(f"{name}: {n}" for name, n in zip(names, array.patch_shape, strict=True))
    if any(array.store.domain.labels):
        return shown
    return f"{shown} (the store has no labels: numbers name its dimensions too)"
