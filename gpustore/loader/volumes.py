"""Volumes of a loader: what its parameter `arrays` means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gpustore
from gpustore.loader.parameters import listed
from gpustore.loader.volume import Volume

Arrays = gpustore.TensorStore | Mapping[str, gpustore.TensorStore]
"""One volume: a store, or stores by name."""

_RESERVED: Final = {"origin", "volume"}


def volumes_of(
    arrays: Arrays | Sequence[Arrays], patch: tuple[int, ...], *, watches: bool
) -> tuple[list[Volume], bool]:
    """Return the volumes, and whether they were given as a list.

    Raises
    ------
    MismatchError, UnsupportedError, TypeError, ValueError
        If there are none, or arrays do not fit together or are no stores.
    """
    is_list = not isinstance(arrays, (gpustore.TensorStore, Mapping))
    some: list[Any] = listed(arrays, "arrays", "stores or dicts of stores") if is_list else [arrays]
    if not some:
        raise gpustore.MismatchError("arrays: expected at least one volume, got none")
    found = [Volume(_named(one), patch, watches=watches) for one in some]
    _check_alike(found)
    return found, is_list


def _named(arrays: Arrays) -> Mapping[str, gpustore.TensorStore]:
    """Return arrays by name.

    Raises
    ------
    TypeError, ValueError
        If they are no stores, or a name has another meaning in batches.
    """
    if isinstance(arrays, gpustore.TensorStore):
        return {"image": arrays}
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays: expected stores or dicts of stores, got {type(arrays).__name__}")
    for name, store in arrays.items():
        if not isinstance(store, gpustore.TensorStore):
            raise TypeError(
                f"arrays: {name!r} is of {type(store).__name__}; gpustore.open and gpustore.array "
                "make stores"
            )
    wrong = _RESERVED.intersection(arrays)
    if wrong:
        raise ValueError(f"arrays: {', '.join(sorted(wrong))}: batches have another array so named")
    return arrays


def _check_alike(volumes: Sequence[Volume]) -> None:
    """Check that patches of all volumes make one batch."""
    kinds = [
        {one.name: (one.patch_shape, one.dtype.str) for one in volume.arrays} for volume in volumes
    ]
    for number, (volume, kind) in enumerate(zip(volumes, kinds, strict=True)):
        if volume.device != volumes[0].device:
            raise gpustore.MismatchError(
                f"arrays: volume {number} is read to {volume.device}, volume 0 to "
                f"{volumes[0].device}: open them with the same device"
            )
        if kind != kinds[0]:
            raise gpustore.MismatchError(
                f"arrays: volume {number} has patches {kind}, volume 0 has {kinds[0]}"
            )
