"""Orders of dimensions in batches."""

import itertools

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches

VALUES = np.arange(2 * 9 * 8 * 7).reshape(2, 9, 8, 7).astype("uint16")


def batches(layout, store, patch=(4, 3, 2), **options):
    sampler = RandomPatches(patch, per_epoch=6, edge="fill")
    return [*PatchLoader(store, sampler=sampler, batch_size=4, layout=layout, **options)]


PLAIN = gpustore.array(VALUES)
NAMED = PLAIN.label["c", "z", "y", "x"]


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("store", [PLAIN, NAMED])
def test_every_order_of_dimensions_is_a_transpose(store):
    expected = batches(None, store)
    for order in itertools.permutations(range(4)):
        for layout in (order, "".join("czyx"[d] for d in order), ["CZYX"[d] for d in order]):
            found = batches(layout, store, dtype="float32")
            for one, plain in zip(found, expected, strict=True):
                image = plain["image"].transpose(0, *(1 + d for d in order))
                assert one["image"].dtype == np.float32
                assert one["image"].flags.c_contiguous
                np.testing.assert_array_equal(one["image"], image)
                np.testing.assert_array_equal(one["origin"], plain["origin"])


def test_a_channel_dimension_is_added_and_single_elements_are_left_out():
    volume = gpustore.array(VALUES[0])
    expected = batches(None, volume)
    frames = gpustore.array(VALUES[None, :1])
    for store, layout in (
        (volume, "czyx"),
        (volume, (None, 0, 1, 2)),
        (volume, {"image": "CZYX"}),
        (frames, "czyx"),
        (frames, (1, 2, 3, 4)),
    ):
        for one, plain in zip(batches(layout, store), expected, strict=True):
            np.testing.assert_array_equal(one["image"], plain["image"][:, None])
    (last, *_), (plain, *_) = batches("zyxc", volume), expected
    np.testing.assert_array_equal(last["image"], plain["image"][..., None])


def test_arrays_have_layouts_of_their_own():
    sampler = RandomPatches((4, 3, 2), per_epoch=4)
    arrays = {"image": PLAIN, "label": gpustore.array(VALUES[0])}
    loader = PatchLoader(arrays, sampler=sampler, batch_size=2, layout={"image": "zyxc"})
    for batch in loader:
        assert batch["image"].shape == (2, 4, 3, 2, 2)
        np.testing.assert_array_equal(batch["image"][..., 0], batch["label"])


@pytest.mark.parametrize(
    ("store", "layout", "text"),
    [
        (PLAIN, "czy", "has no x"),
        (PLAIN, "cczyx", "twice"),
        (PLAIN, "tczyx", "a dimension 't'; .* no labels"),
        (NAMED, "czyw", "a dimension 'w'; its patches have c: 2, z: 4, y: 3, x: 2$"),
        (PLAIN, (0, 1, 2, 4), "a dimension 4"),
        (PLAIN, (0, 1, 2, -1), "a dimension -1"),
    ],
)
def test_layouts_that_are_none_of_the_array_are_errors(store, layout, text):
    with pytest.raises(gpustore.MismatchError, match=text):
        batches(layout, store)
