"""Elements of new arrays that come from other arrays, region by region: :func:`fill`."""

from __future__ import annotations

from typing import Final

import gpustore
from gpustore.copying.array import ArrayCopy
from gpustore.copying.new_array import Target
from gpustore.sources.base import Source
from gpustore.transfer.regions import transfer

_MEMORY_NBYTES: Final = 256 << 20


def fill(store: gpustore.TensorStore, source: Source) -> None:
    """Write all elements of a source to a new array and wait until they are there.

    Raises
    ------
    GpustoreError
        The errors of reading and writing; some chunks may be stored then.
    """
    copy = ArrayCopy(source, Target("", {}, {}), "", _MEMORY_NBYTES)
    transfer(source, store, copy.plan(store), advance=lambda nbytes: None, stopped=lambda: False)
