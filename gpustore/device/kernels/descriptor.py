"""Descriptors that kernels read: their layout, magic numbers for divisions, and their launches.

The NumPy dtypes here and the structs in ``kernels/`` describe the same bytes;
:func:`gpustore.device.kernels.source.flatten` ends each compile with static asserts made from
:func:`layouts`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError

ITEMS_PER_TILE = 1024
"""Items that one thread block handles, in kernels that go item by item."""

MAX_ITEMS = 2**31 - 1
"""Most items of one run, the range of :func:`division`."""

DIM = np.dtype(
    [
        ("extent", np.uint32),
        ("magic", np.uint32),
        ("shift", np.uint32),
        ("indexed", np.uint32),
        ("src_stride", np.int64),
        ("dst_stride", np.int64),
    ]
)
"""Layout of ``gs::Dim``; strides in bytes."""

BYTE_RANGE = np.dtype(
    [
        ("src", np.uint64),
        ("dst", np.uint64),
        ("nbytes", np.uint64),
        ("first_tile", np.uint32),
        ("reserved", np.uint32),
    ]
)
"""Layout of ``gs::ByteRange``."""

SHUFFLED_BLOCK = np.dtype(
    [
        ("src", np.uint64),
        ("dst", np.uint64),
        ("elements", np.uint64),
        ("typesize", np.uint32),
        ("first_tile", np.uint32),
    ]
)
"""Layout of ``gs::ShuffledBlock``."""

REGIONS = 8
"""Most regions of scratch memory that ``gs::Regions`` has."""

REGION = np.dtype([("address", np.uint64), ("pitch", np.uint64)])
"""Layout of ``gs::Region``."""

NUMBER_FORMAT = np.dtype(
    [("kind", np.uint32), ("bits", np.uint32), ("mantissa", np.uint32), ("bias", np.int32)]
)
"""Layout of ``gs::NumberFormat``."""

VALUE_STEP = np.dtype(
    [
        ("from", NUMBER_FORMAT),
        ("to", NUMBER_FORMAT),
        ("kind", np.uint32),
        ("rounding", np.uint32),
        ("beyond", np.uint32),
        ("map_length", np.uint32),
        ("word", np.uint64),
        ("scale", np.uint64),
        ("offset", np.uint64),
    ]
)
"""Layout of ``gs::ValueStep``."""

VALUE_RUN = np.dtype(
    [
        ("src", np.uint64),
        ("dst", np.uint64),
        ("elements", np.uint64),
        ("first_tile", np.uint32),
        ("result", np.uint32),
    ]
)
"""Layout of ``gs::ValueRun``."""

PATCH_DIM = np.dtype(
    [
        ("extent", np.uint32),
        ("magic", np.uint32),
        ("shift", np.uint32),
        ("reserved", np.uint32),
        ("src_stride", np.int64),
        ("dst_stride", np.int64),
        ("first", np.int64),
        ("size", np.int64),
    ]
)
"""Layout of ``gs::PatchDim``; strides in bytes."""


@functools.cache
def patch_dtype(rank: int) -> np.dtype[np.void]:
    """Return the layout of ``gs::Patch<rank>``, one patch.

    >>> patch_dtype(4).itemsize
    256
    """
    return np.dtype(
        [
            ("src", np.uint64),
            ("dst", np.uint64),
            ("offset", np.float64),
            ("scale", np.float64),
            ("items", np.uint32),
            ("first_tile", np.uint32),
            ("source", np.uint32),
            ("target", np.uint32),
            ("src_nbytes", np.uint32),
            ("dst_nbytes", np.uint32),
            ("fill", np.uint32),
            ("is_mirrored", np.uint32),
            ("dim", PATCH_DIM, (rank,)),
        ]
    )


BLOCK_DIM = np.dtype(
    [
        ("cells", np.uint32),
        ("magic", np.uint32),
        ("shift", np.uint32),
        ("factor", np.uint32),
        ("factor_magic", np.uint32),
        ("factor_shift", np.uint32),
        ("size", np.int64),
        ("first", np.int64),
        ("step", np.int64),
        ("src_stride", np.int64),
        ("dst_stride", np.int64),
    ]
)
"""Layout of ``gs::BlockDim``; strides in bytes."""

BLOCK_TABLE = np.dtype(
    [
        ("src", np.uint64),
        ("dst", np.uint64),
        ("cells", np.uint32),
        ("first_tile", np.uint32),
        ("elements", np.uint32),
        ("type", np.uint32),
        ("nbytes", np.uint32),
        ("bits", np.uint32),
        ("method", np.uint32),
        ("src_swapped", np.uint32),
        ("dst_swapped", np.uint32),
        ("rank", np.uint32),
        ("dim", BLOCK_DIM, (33,)),
    ]
)
"""Layout of ``gs::BlockTable``."""


@functools.cache
def run_dtype(rank: int) -> np.dtype[np.void]:
    """Return the layout of ``gs::Run<rank>``, one run of items.

    >>> run_dtype(2).itemsize
    96
    """
    return np.dtype(
        [
            ("src", np.uint64),
            ("dst", np.uint64),
            ("items", np.uint32),
            ("first_tile", np.uint32),
            ("row", np.uint32),
            ("reserved", np.uint32),
            ("dim", DIM, (rank,)),
        ]
    )


BOX_DIM = np.dtype(
    [
        ("first", np.int64),
        ("step", np.int64),
        ("extent", np.int64),
        ("chunk", np.int64),
        ("cell", np.int64),
        ("key_step", np.int64),
        ("inner_step", np.int64),
        ("src_stride", np.int64),
        ("dst_stride", np.int64),
        ("cells", np.uint32),
        ("ratio", np.uint32),
    ]
)
"""Layout of ``gs::BoxDim``; strides in bytes."""


@functools.cache
def box_dtype(rank: int) -> np.dtype[np.void]:
    """Return the layout of ``gs::Box<rank>``, one box of chunks.

    >>> box_dtype(2).itemsize
    184
    """
    return np.dtype(
        [
            ("src", np.int64),
            ("dst", np.uint64),
            ("tiles", np.uint32),
            ("side", np.uint32),
            ("dim", BOX_DIM, (rank,)),
        ]
    )


def layouts() -> dict[str, np.dtype[np.void]]:
    """Return the dtype of each struct of ``kernels/`` that the host writes, by C++ name."""
    return {
        "Dim": DIM,
        "Run<3>": run_dtype(3),
        "BoxDim": BOX_DIM,
        "Box<3>": box_dtype(3),
        "ByteRange": BYTE_RANGE,
        "ShuffledBlock": SHUFFLED_BLOCK,
        "Region": REGION,
        "NumberFormat": NUMBER_FORMAT,
        "ValueStep": VALUE_STEP,
        "ValueRun": VALUE_RUN,
        "PatchDim": PATCH_DIM,
        "Patch<3>": patch_dtype(3),
        "BlockDim": BLOCK_DIM,
        "BlockTable": BLOCK_TABLE,
    }


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Launch of a kernel instance for any number of descriptors.

    Attributes
    ----------
    family, expression : str
        Entry of :data:`gpustore.device.kernels.instance.INSTANCES`.
    blocks : int
        Number of thread blocks.
    table : ndarray
        Descriptors in host memory, to be uploaded to a multiple of 16 bytes. Their address and
        their number (uint32) are the first two arguments of the kernel.
    arguments : tuple of numpy.generic or ndarray
        Further arguments, passed by value.
    offsets : ndarray of int64, optional
        Second table, to be uploaded to a multiple of 8 bytes; its address is the last argument.
    length : int, optional
        Number of descriptors, if `table` is their bytes.
    """

    family: str
    expression: str
    blocks: int
    table: NDArray[Any]
    arguments: tuple[np.generic | NDArray[np.uint8], ...] = ()
    offsets: NDArray[np.int64] | None = None
    length: int | None = None


def division(extent: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return magic numbers and shifts by which kernels divide by `extent`.

    ``(magic, shift)`` are such that ``(a * magic >> 32) >> shift == a // extent`` for all
    ``0 <= a < 2**31``; ``(0, 0)`` for an extent of 1, by which kernels do not divide.

    Parameters
    ----------
    extent : ndarray of int64
        Each between 1 and 2**31 - 1.

    Source: Granlund and Montgomery, Division by invariant integers using multiplication, 1994,
    theorem 4.2 with N = 31.

    >>> magic, shift = division(np.array([7]))
    >>> int((1_000_000 * magic[0] >> 32) >> shift[0]) == 1_000_000 // 7
    True
    """
    divides = extent > 1
    # The exponent of extent - 1 is its number of bits, exactly: it is far below 2**53.
    bits: NDArray[Any] = np.frexp((extent - 1).astype(np.float64))[1]
    shift = np.where(divides, bits - 1, 0).astype(np.int64)
    magic = np.where(divides, -(-(1 << (32 + shift)) // extent), 0)
    return magic, shift


def first_tiles(tiles: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the column ``first_tile`` of descriptors, and the number of thread blocks.

    Parameters
    ----------
    tiles : ndarray of int64, shape (n,)
        Number of tiles of each descriptor.

    Raises
    ------
    LimitError
        If one launch cannot have so many blocks.
    """
    ends = np.cumsum(tiles)
    blocks = int(ends[-1])
    if blocks > MAX_ITEMS:
        raise LimitError(f"A launch of {blocks} blocks, at most {MAX_ITEMS} are possible")
    return ends - tiles, blocks
