"""Simulation of a volume of a fluorescence microscope, the same for the same seed.

1. Positions, sizes and brightness of cells and spots are drawn once for the whole volume.
2. The volume is cut into slabs of :data:`SLAB` slices, whatever the number of threads.
3. Each slab sums the Gaussians that reach into it, in their order, into the expected photon count.
4. Each slab draws Poisson noise around that with its own generator, seeded by (seed, slab).

The values depend on shape and seed only, not on the schedule of the threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpustore.runtime.cores import cores

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


SLAB = 8
"""Number of slices drawn by one generator."""

_BACKGROUND = 12.0
_BRIGHTEST = 60_000.0
_REACH = 3.5  # standard deviations beyond which a Gaussian is cut off


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Light sources: centre and standard deviation in voxels, peak in expected photons.

    Attributes
    ----------
    centre, sigma : ndarray of float64, shape (n, 3), order zyx
    peak : ndarray of float64, shape (n,)
    """

    centre: npt.NDArray[np.float64]
    sigma: npt.NDArray[np.float64]
    peak: npt.NDArray[np.float64]


def volume_shape(nbytes: int) -> tuple[int, int, int]:
    """Return the shape zyx of a uint16 volume of about `nbytes`, ten times as wide as deep.

    >>> volume_shape(200_000_000)
    (100, 1000, 1000)
    """
    depth = max(1, round((nbytes / 2 / 100) ** (1 / 3)))
    side = max(1, round((nbytes / 2 / depth) ** 0.5))
    return depth, side, side


def make_volume(
    shape: tuple[int, int, int], seed: int, *, advance: Callable[[int], None]
) -> npt.NDArray[np.uint16]:
    """Return simulated photon counts in C order.

    Parameters
    ----------
    shape : tuple of int
        Extents zyx.
    seed : int
        Not negative.
    advance : callable
        Called with the number of bytes just finished.

    Returns
    -------
    ndarray of uint16, shape `shape`
    """
    volume = np.empty(shape, np.uint16)
    sources = _draw_sources(shape, seed)
    pool = ThreadPoolExecutor(min(8, cores()))
    try:
        work = {
            pool.submit(_fill_slab, volume, begin, sources, seed): begin
            for begin in range(0, shape[0], SLAB)
        }
        for done in as_completed(work):
            done.result()
            advance(volume[work[done] : work[done] + SLAB].nbytes)
    finally:
        pool.shutdown(cancel_futures=True)
    return volume


def _draw_sources(shape: tuple[int, int, int], seed: int) -> Gaussians:
    """Dim, wide cells, and bright spots gathered in them."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    extent = np.array(shape, np.float64)
    ncells = max(2, round(extent.prod() / 1.2e6))
    nspots = 30 * ncells
    cell_centre = rng.uniform(0, extent, (ncells, 3))
    cell_sigma = rng.uniform((5, 18, 18), (10, 40, 40), (ncells, 3))
    cell_peak = rng.uniform(10, 50, ncells)
    home = rng.integers(0, ncells, nspots)
    spot_centre = rng.normal(cell_centre[home], cell_sigma[home])
    spot_sigma = rng.uniform((0.8, 1.2, 1.2), (1.6, 3.0, 3.0), (nspots, 3))
    spot_peak = rng.lognormal(4.5, 0.8, nspots)
    return Gaussians(
        np.concatenate([cell_centre, spot_centre]),
        np.concatenate([cell_sigma, spot_sigma]),
        np.concatenate([cell_peak, spot_peak]),
    )


def _fill_slab(volume: npt.NDArray[np.uint16], begin: int, sources: Gaussians, seed: int) -> None:
    slab = volume[begin : begin + SLAB]
    expected = np.full(slab.shape, _BACKGROUND, np.float64)
    low = np.array([begin, 0, 0])
    high = low + slab.shape
    first = np.maximum(np.ceil(sources.centre - _REACH * sources.sigma), low).astype(np.int64)
    last = np.minimum(np.floor(sources.centre + _REACH * sources.sigma), high - 1).astype(np.int64)
    for n in np.flatnonzero((first <= last).all(axis=1)):
        profiles = []
        for axis in range(3):
            place = np.arange(first[n, axis], last[n, axis] + 1)
            distance = (place - sources.centre[n, axis]) / sources.sigma[n, axis]
            profiles.append(np.exp(-0.5 * distance**2))
        z, y, x = (slice(a, b + 1) for a, b in zip(first[n] - low, last[n] - low, strict=True))
        plane = np.multiply.outer(profiles[1], profiles[2])
        for k, weight in zip(range(z.start, z.stop), profiles[0], strict=True):
            expected[k, y, x] += sources.peak[n] * weight * plane
    # Fast generator; a spawn key makes slab 1 of seed 0 differ from slab 0 of seed 1.
    noise = np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(begin // SLAB,)))
    np.minimum(expected, _BRIGHTEST, out=expected)
    slab[...] = np.random.Generator(noise).poisson(expected)
