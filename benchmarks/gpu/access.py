"""What is read of a volume: how large it is and its chunks are, and the boxes of each access."""

from dataclasses import dataclass

import numpy as np

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes, all in elements unless said otherwise.

    Attributes
    ----------
    base : tuple of int
        Shape of what a volume repeats.
    nbytes : int
        Of the whole volume, decoded.
    chunks : dict of str to tuple of int
        Chunk shapes for elements of 2 bytes, by name; of 4 bytes the last one is half.
    shard : tuple of int
        The same, of shards.
    slab : int
        Rows of a slab.
    crop, extent : int
        Edge of the one crop, and of many.
    count : int
        Of these.
    rounds : int
        Reads of each reader that are timed, at most.
    budget_s : float
        Seconds of them together after which no more are begun.
    """

    base: tuple
    nbytes: int
    chunks: dict
    shard: tuple
    slab: int
    crop: int
    extent: int
    count: int
    rounds: int
    budget_s: float

    def shape_of(self, shape, itemsize):
        """A chunk or shard shape for elements of so many bytes."""
        return (*shape[:2], shape[2] * 2 // itemsize)


_CHUNKS = {"64KiB": (16, 32, 64), "1MiB": (32, 128, 128), "16MiB": (64, 256, 512)}

FULL = Scale((64, 1024, 1024), 1024 * MIB, _CHUNKS, (64, 512, 512), 96, 128, 64, 1000, 5, 1.5)
TINY = Scale(
    (8, 32, 64),
    MIB // 8,
    {"64KiB": (2, 8, 16), "1MiB": (4, 16, 16), "16MiB": (8, 16, 32)},
    (8, 16, 64),
    5,
    8,
    4,
    12,
    0,
    0.0,
)
"""For the emulated device; names of chunks are those of what they stand for."""

ACCESSES = {
    "whole": "the whole volume",
    "slab": "rows across all planes and columns",
    "crop": "one crop of 128 x 128 x 128: latency",
    "few": "four chunks: few large streams",
    "crops": "1 000 random crops of 64 x 64 x 64, by one call where there is one",
    "one by one": "the same crops, each by a call of its own",
}


def boxes(access, volume, scale, chunk):
    """What an access reads.

    Returns
    -------
    list of tuple of slice
        One box; or, of ``crops`` and ``one by one``, many of one shape.
    """
    shape = volume.shape
    if access == "whole":
        return [tuple(slice(0, size) for size in shape)]
    if access == "slab":
        first = shape[1] // 3
        return [(slice(0, shape[0]), slice(first, first + scale.slab), slice(0, shape[2]))]
    if access == "crop":
        last = np.subtract(shape, scale.crop)
        starts = np.minimum(last // 3 + 5, last).tolist()
        return [tuple(slice(start, start + scale.crop) for start in starts)]
    if access == "few":
        return [tuple(slice(0, n) for n in (chunk[0], 2 * chunk[1], 2 * chunk[2]))]
    rng = np.random.default_rng(0)
    starts = rng.integers(0, np.subtract(shape, scale.extent) + 1, (scale.count, 3)).tolist()
    return [tuple(slice(a, a + scale.extent) for a in start) for start in starts]
