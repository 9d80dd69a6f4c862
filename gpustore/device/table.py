"""What steps on a device are given besides values: tables to read, and places for results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.device.protocol import Argument

_PART_ALIGNMENT: Final = 16
"""Tables and results begin at multiples of this."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that will be in device memory: an argument of a kernel, as its address."""

    offset: int


@dataclass(frozen=True, slots=True)
class Result:
    """Device memory that a step fills and the host gets: an argument too, as its address."""

    offset: int
    nbytes: int


class TableLaunch(Protocol):
    """A launch whose first arguments are the address and the length of a table of descriptors.

    Attributes
    ----------
    family, expression, blocks
        As for :meth:`gpustore.device.command_list.CommandList.launch`.
    table : ndarray, shape (n,)
        Its address and n, a uint32, are the first two arguments.
    arguments : tuple
        Those behind them.
    offsets : ndarray of int64, optional
        A second table: its address is the last argument.
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


def aligned(offset: int) -> int:
    """Where a table or result may begin at or behind an offset."""
    return -(-offset // _PART_ALIGNMENT) * _PART_ALIGNMENT
