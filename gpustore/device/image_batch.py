"""Batches of images that the library of a device decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images of one format, decoded from files in host memory into device memory.

    Elements are uint8, rows from top to bottom, channels innermost.

    Attributes
    ----------
    format : str
        One of :data:`gpustore.device.image_decoders.FORMATS`.
    encoded : sequence of buffer, length n
        The files; they must not change until an event behind the call has passed.
    shapes : sequence of tuple of int, length n
        Height, width and channels of each image; all have as many channels, 1 (gray) or 3 (RGB).
    page : int
        Number of the image in its file.
    dst : ndarray of uint64, shape (n,)
        Address for the elements of each image. Destinations do not overlap.
    result : int
        Address of n int32, a multiple of 4: 0 is written for each image that is decoded.
    """

    format: str
    encoded: Sequence[Buffer]
    shapes: Sequence[tuple[int, int, int]]
    page: int
    dst: NDArray[np.uint64]
    result: int

    def __len__(self) -> int:
        return len(self.encoded)
