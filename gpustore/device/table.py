"""Tables that steps on a device read, and memory for their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.device.protocol import Argument

PART_ALIGNMENT: Final = 16
"""Alignment of tables and results in device memory, in bytes."""


@dataclass(frozen=True, slots=True)
class Table:
    """Table that is uploaded to device memory; a kernel's argument for its address.

    Attributes
    ----------
    offset : int
        First byte in the memory of all tables of a command list.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Result:
    """Device memory that a step fills and the host downloads; an argument for its address.

    Attributes
    ----------
    offset, nbytes : int
        First byte in the memory of all results of a command list, and number of bytes.
    """

    offset: int
    nbytes: int


class TableLaunch(Protocol):
    """Launch whose first arguments are the address and the length of a table of descriptors.

    Attributes
    ----------
    family, expression : str
        Kernel instance, an entry of :data:`gpustore.device.kernels.instance.INSTANCES`.
    blocks : int
        Number of thread blocks.
    table : ndarray, shape (n,)
        Descriptors in host memory; their address on the device and n, a uint32, are the first two
        arguments.
    arguments : tuple
        Further arguments, passed by value.
    offsets : ndarray of int64, optional
        Second table in host memory; its address on the device is the last argument.
    length : int, optional
        n, if `table` is the bytes of the descriptors.
    """

    @property
    def family(self) -> str: ...

    @property
    def expression(self) -> str: ...

    @property
    def blocks(self) -> int: ...

    @property
    def table(self) -> NDArray[Any]: ...

    @property
    def arguments(self) -> tuple[Argument, ...]: ...

    @property
    def offsets(self) -> NDArray[np.int64] | None: ...

    @property
    def length(self) -> int | None: ...


def aligned(offset: int) -> int:
    """Return the first offset, not before `offset`, at which a table or result may begin."""
    return -(-offset // PART_ALIGNMENT) * PART_ALIGNMENT
