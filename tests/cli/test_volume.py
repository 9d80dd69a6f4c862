"""The demo's volume: the same for the same seed, and microscopy-like."""

import numpy as np
import pytest

from gpustore.cli import volume

SHAPE = (20, 96, 120)


def make(seed, shape=SHAPE):
    return volume.make_volume(shape, seed, advance=lambda nbytes: None)


def test_the_same_seed_gives_the_same_volume_on_any_number_of_threads(monkeypatch):
    many = make(3)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    assert np.array_equal(make(3), many)


def test_another_seed_gives_another_volume():
    assert not np.array_equal(make(3), make(4))


def test_slabs_differ():
    made = make(0)
    assert not np.array_equal(made[: volume.SLAB], made[volume.SLAB : 2 * volume.SLAB])


def test_neighbouring_seeds_share_no_slab():
    # Slab 1 of seed 0 must not be drawn as slab 0 of seed 1 is.
    first, second = make(0), make(1)
    assert not np.array_equal(first[volume.SLAB : 2 * volume.SLAB], second[: volume.SLAB])


def test_values_are_photon_counts_with_bright_spots():
    made = make(0)
    assert made.dtype == np.uint16
    background = np.median(made)
    assert 5 < background < 60
    assert made.max() > 5 * background


def test_background_is_poisson():
    # Where no source reaches, mean and variance agree.
    made = make(0, (8, 400, 400))
    blocks = made.reshape(8, 20, 20, 20, 20).transpose(1, 3, 0, 2, 4).reshape(400, -1)
    dimmest = blocks[np.argsort(blocks.mean(axis=1))[:20]].astype(float)
    assert dimmest.var() / dimmest.mean() == pytest.approx(1, abs=0.05)


def test_progress_adds_up_to_the_size():
    seen = []
    made = volume.make_volume(SHAPE, 0, advance=seen.append)
    assert sum(seen) == made.nbytes
    assert len(seen) == 3


@pytest.mark.parametrize("megabytes", [1, 3, 10, 200, 5000])
def test_shape_has_about_the_size_asked_for(megabytes):
    shape = volume.volume_shape(megabytes * 1_000_000)
    assert 2 * np.prod(shape) == pytest.approx(megabytes * 1_000_000, rel=0.05)
    assert shape[1] == shape[2] > shape[0]
