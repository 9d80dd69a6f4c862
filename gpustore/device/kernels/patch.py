"""Launches that cut patches out of arrays: all of a batch, converted and normalised, in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.kernels.descriptor import (
    ITEMS_PER_TILE,
    MAX_ITEMS,
    KernelLaunch,
    division,
    first_tiles,
    patch_dtype,
)
from gpustore.device.kernels.instance import rank_for
from gpustore.errors import LimitError

Integers = NDArray[np.int64]

_COPIED: Final = 0
_KINDS: Final = {"u": 1, "b": 1, "i": 2}
_FLOATS: Final = {"float16": 3, "bfloat16": 4, "float32": 5, "float64": 6}
_BOOL: Final = 7


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of one array in device memory, and where they go.

    Attributes
    ----------
    src : integers, shape (n,)
        Address at which the element of index zero of the array is, or would be.
    src_stride, dst_stride : sequence of int, length rank
        Bytes between neighbours.
    first : integers, shape (n, rank)
        Index of the first element of each patch.
    size, shape : sequence of int, length rank
        Elements of the array, and of a patch.
    dst : integers, shape (n,)
        Address of the first element of each patch. Destinations do not overlap.
    src_dtype, dst_dtype : numpy.dtype
        Types for which :func:`can_cut` is true, in native byte order.
    fill : bytes or None
        Element for indices outside of the array; None mirrors them at its ends.
    offset, scale : float or None
        If given, an element becomes ``(x - offset) * scale`` in float64 before it is converted.
    """

    src: Integers
    src_stride: Sequence[int]
    first: Integers
    size: Sequence[int]
    shape: Sequence[int]
    dst: Integers
    dst_stride: Sequence[int]
    src_dtype: np.dtype[Any]
    dst_dtype: np.dtype[Any]
    fill: bytes | None = None
    offset: float | None = None
    scale: float | None = None


def can_cut(src_dtype: np.dtype[Any], dst_dtype: np.dtype[Any], *, is_scaled: bool) -> bool:
    """Whether :func:`patch_launches` converts between these types.

    Any type stays as it is; integers and bool become numbers of any type, floats floats.

    >>> can_cut(np.dtype("u2"), np.dtype("f2"), is_scaled=True)
    True
    >>> can_cut(np.dtype("f4"), np.dtype("i4"), is_scaled=False)
    False
    """
    return _kinds(src_dtype, dst_dtype, is_scaled=is_scaled) is not None


def _kinds(
    source: np.dtype[Any], target: np.dtype[Any], *, is_scaled: bool
) -> tuple[int, int] | None:
    """Return how the kernel reads and writes elements; None if it does not convert them."""
    if source == target and not is_scaled:
        return _COPIED, _COPIED
    found = _FLOATS.get(target.name)
    of_integer = _KINDS.get(source.kind) if source.isbuiltin == 1 else None
    of_source = of_integer or _FLOATS.get(source.name)
    if of_source is None:
        return None
    if found is None and of_integer and not is_scaled and target.isbuiltin == 1:
        found = _BOOL if target.kind == "b" else _KINDS.get(target.kind)
    return None if found is None else (of_source, found)


def patch_launches(batch: Sequence[Patches]) -> list[KernelLaunch]:
    """Return the launch that cuts patches, of any number of arrays; none if there are none.

    Raises
    ------
    LimitError
        If a patch has 2**31 elements or more, or too many dimensions.
    ValueError
        If no kernel converts between the types.
    """
    batch = [one for one in batch if len(one.dst)]
    if not batch:
        return []
    rank = rank_for("cut_patches", max(len(one.shape) for one in batch))
    tables, tiles = [], []
    fills: list[bytes] = []
    for one in batch:
        items = int(np.prod([float(n) for n in one.shape]))
        if items > MAX_ITEMS:
            raise LimitError(f"A patch of {items} elements, at most {MAX_ITEMS} are possible")
        kinds = _kinds(one.src_dtype, one.dst_dtype, is_scaled=one.scale is not None)
        if kinds is None:
            raise ValueError(f"no kernel cuts patches of {one.src_dtype} as {one.dst_dtype}")
        table = np.zeros(len(one.dst), patch_dtype(rank))
        table["src"], table["dst"], table["items"] = one.src, one.dst, items
        table["source"], table["target"] = kinds
        table["offset"], table["scale"] = one.offset or 0, one.scale or 0
        table["src_nbytes"], table["dst_nbytes"] = one.src_dtype.itemsize, one.dst_dtype.itemsize
        table["fill"], table["is_mirrored"] = sum(map(len, fills)), one.fill is None
        fill = one.fill or b""
        fills.append(fill + bytes(-len(fill) % 8))
        _write_dims(table["dim"], one)
        tables.append(table)
        tiles.append(np.full(len(table), -(-items // ITEMS_PER_TILE)))
    joined = np.concatenate(tables)
    joined["first_tile"], blocks = first_tiles(np.concatenate(tiles))
    words = np.frombuffer(b"".join([*fills, bytes(8)]), np.int64)
    return [KernelLaunch("cast", f"gs::cut_patches<{rank}>", blocks, joined, (), words)]


def _write_dims(dims: NDArray[np.void], patches: Patches) -> None:
    """Write the dimensions of some patches; their neighbours in dst vary fastest."""
    dims["extent"] = dims["size"] = 1
    used = len(patches.shape)
    order = np.argsort(-np.abs(np.asarray(patches.dst_stride, np.int64)), kind="stable")
    extent = np.asarray(patches.shape, np.int64)[order]
    last = dims[:, dims.shape[1] - used :]
    last["extent"] = extent
    last["magic"], last["shift"] = division(extent)
    last["src_stride"] = np.asarray(patches.src_stride, np.int64)[order]
    last["dst_stride"] = np.asarray(patches.dst_stride, np.int64)[order]
    last["first"] = patches.first[:, order]
    last["size"] = np.asarray(patches.size, np.int64)[order]
