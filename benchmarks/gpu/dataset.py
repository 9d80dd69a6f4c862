"""Volumes as instruments, models and annotators make them; the same for the same name and scale.

A volume is its base, repeated along the first dimension. No chunk is deeper than the base, so the
repetition changes no chunk's ratio, and what a read must give is known without keeping it all.
"""

import concurrent.futures
import os
from dataclasses import dataclass

import numpy as np

from gpustore.cli.volume import make_volume


def _planes(shape, dtype, draw):
    """Fill plane by plane on all processors; each has a generator of its own."""
    volume = np.empty(shape, dtype)

    def fill(z):
        volume[z] = draw(z, np.random.default_rng([7, z]))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(fill, z) for z in range(shape[0])]:
            done.result()
    return volume


def _camera(shape):
    """Photon counts of cells and spots under a fluorescence microscope."""
    return make_volume(shape, 0, advance=lambda nbytes: None)


def _weather(shape):
    """Temperatures in kelvin, of which measuring leaves 12 bits of mantissa."""
    row = np.arange(shape[1], dtype=np.float32)[:, None]
    column = np.arange(shape[2], dtype=np.float32)

    def draw(z, rng):
        field = (
            275 + 11 * np.sin(row / 87 + np.sin(column / 133)) + 6 * np.cos(column / 211 + z / 9)
        )
        field += 0.3 * rng.standard_normal((shape[1], shape[2]), np.float32)
        bits = field.astype("<f4").view("<u4")
        return ((bits + np.uint32(1 << 10)) & np.uint32(0xFFFFF800)).view("<f4")

    return _planes(shape, "<f4", draw)


def _labels(shape):
    """Numbers of cells with ragged edges, nothing between them."""
    ids = np.random.default_rng(5).integers(1, 1 << 20, 1 << 16, dtype=np.uint32)
    row = np.arange(shape[1])[:, None]
    column = np.arange(shape[2])

    def draw(z, rng):
        ragged = rng.integers(0, 4, (shape[1], 1))
        cell = z // 7 * 8191 + row // 23 * 131 + (column + ragged) // 29
        between = (row % 23 < 4) | ((column + ragged) % 29 < 5)
        return np.where(between, 0, ids[cell % ids.size])

    return _planes(shape, "<u4", draw)


_MADE = {"camera_u2": _camera, "weather_f4": _weather, "labels_u4": _labels}

DATASETS = tuple(_MADE)
"""Names end in the type of the elements."""


@dataclass(frozen=True, slots=True)
class Volume:
    """An array of three dimensions.

    Attributes
    ----------
    name : str
    base : ndarray, shape (planes, rows, columns)
    repeats : int
    """

    name: str
    base: np.ndarray
    repeats: int

    @property
    def shape(self):
        return (len(self.base) * self.repeats, *self.base.shape[1:])

    @property
    def nbytes(self):
        return self.base.nbytes * self.repeats

    def is_whole(self, box):
        return all((s.start, s.stop) == (0, size) for s, size in zip(box, self.shape))

    def part(self, box):
        """What a read of a box must give; of the whole the base alone, which repeats."""
        if self.is_whole(box):
            return self.base
        planes = np.arange(box[0].start, box[0].stop) % len(self.base)
        return self.base[:, box[1], box[2]][planes]


def load(name, scale, folder):
    """The volume; its base is made once and then kept in a file in `folder`."""
    path = folder / f"{name}.npy"
    if not path.exists():
        part = folder / f"{name}.part.npy"
        np.save(part, _MADE[name](scale.base))
        part.rename(path)  # Whoever is killed leaves no half of it.
    base = np.load(path)
    return Volume(name, base, max(1, scale.nbytes // base.nbytes))
