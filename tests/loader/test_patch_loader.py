"""The loader on the host: values, order, ranks, states, memory."""

import gc
import json
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches

SHAPE = (40, 36, 32)


@pytest.fixture(scope="module")
def volume():
    return np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE)


def stored(values, chunks, name="volume"):
    return gpustore.create_array(
        f"memory://loader/{name}-{values.dtype}-{'x'.join(map(str, (*values.shape, *chunks)))}/",
        data=values,
        chunks=chunks,
        overwrite=True,
        context=CONTEXT,
    ).result()


CONTEXT = gpustore.Context()


@pytest.fixture(scope="module")
def store(volume):
    return stored(volume, (8, 8, 8))


def origins(loader):
    return [tuple(one) for batch in loader for one in batch["origin"].tolist()]


def crop(values, origin, shape):
    return values[tuple(slice(o, o + n) for o, n in zip(origin, shape, strict=True))]


@given(
    patch=st.tuples(*[st.integers(1, 20)] * 3),
    chunks=st.tuples(*[st.integers(5, 20)] * 3),
    per_epoch=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    window=st.integers(1, 60_000),
    prefetch=st.integers(0, 2),
    seed=st.integers(0, 5),
)
def test_batches_have_the_values_at_their_origins(
    volume, patch, chunks, per_epoch, batch_size, window, prefetch, seed
):
    sampler = RandomPatches(patch, per_epoch=per_epoch, seed=seed, window=window)
    loader = PatchLoader(
        stored(volume, chunks), sampler=sampler, batch_size=batch_size, prefetch=prefetch
    )
    seen = 0
    for batch in loader:
        assert len(batch["image"]) == len(batch["origin"]) <= batch_size
        for found, origin in zip(batch["image"], batch["origin"].tolist(), strict=True):
            np.testing.assert_array_equal(found, crop(volume, origin, patch))
        seen += len(batch["image"])
    assert seen == per_epoch
    assert loader.epoch == 1


@pytest.mark.parametrize("edge", ["reflect", "fill"])
@given(patch=st.tuples(*[st.integers(1, 45)] * 3), seed=st.integers(0, 3))
def test_patches_beyond_the_volume_are_those_of_a_padded_one(volume, store, edge, patch, seed):
    before = [n // 2 for n in patch]
    mode = {"reflect": {"mode": "reflect"}, "fill": {"mode": "constant"}}[edge]
    padded = np.pad(volume, [(b, n) for b, n in zip(before, patch, strict=True)], **mode)
    loader = PatchLoader(
        store, sampler=RandomPatches(patch, per_epoch=8, seed=seed, edge=edge), batch_size=4
    )
    for batch in loader:
        for found, origin in zip(batch["image"], batch["origin"].tolist(), strict=True):
            where = [o + b for o, b in zip(origin, before, strict=True)]
            np.testing.assert_array_equal(found, crop(padded, where, patch))


@pytest.mark.matrix("costly")
def test_all_origins_are_equally_likely():
    store = gpustore.array(np.zeros((9, 8), "uint8"))
    sampler = RandomPatches((3, 2), per_epoch=101, seed=2, window=20)
    loader = PatchLoader(store, sampler=sampler, batch_size=50)
    counts = np.zeros((7, 7), int)
    for _ in range(97):
        for origin in origins(loader):
            counts[origin] += 1
    expected = 97 * 101 / 49
    chi = ((counts - expected) ** 2 / expected).sum()
    assert chi < 82  # 48 degrees of freedom: more in one of a thousand


def test_weights_are_the_probability_of_centres():
    weights = np.array([[0, 1], [3, 0], [0, 0]])
    store = gpustore.array(np.zeros((24, 16), "uint8"))
    sampler = RandomPatches((4, 4), per_epoch=400, weights=weights, edge="fill", window=100)
    loader = PatchLoader(store, sampler=sampler, batch_size=40)
    counts = np.zeros((3, 2), int)
    for _ in range(10):
        for y, x in origins(loader):
            counts[(y + 2) // 8, (x + 2) // 8] += 1
    assert (counts[weights == 0] == 0).all()
    assert counts.sum() == 4000
    assert abs(counts[1, 0] - 3000) < 5 * (4000 * 3 / 16) ** 0.5


def test_order_does_not_depend_on_ranks_prefetch_or_memory(store):
    def loader(batch_size, **options):
        sampler = RandomPatches((9, 8, 7), per_epoch=96, seed=1, window=20_000)
        return PatchLoader(store, sampler=sampler, batch_size=batch_size, **options)

    expected = origins(loader(8))
    assert origins(loader(8, prefetch=0, memory="120 kB")) == expected
    ranks = [[b["origin"].tolist() for b in loader(2, dist=(rank, 4))] for rank in range(4)]
    together = [tuple(o) for batches in zip(*ranks, strict=True) for b in batches for o in b]
    assert together == expected


def test_ranks_have_equally_many_batches_and_all_patches(store):
    for per_epoch, drop_last in ((23, False), (23, True), (24, False)):
        sampler = RandomPatches((8, 8, 8), per_epoch=per_epoch)
        found = [
            [*PatchLoader(store, sampler=sampler, batch_size=2, dist=(r, 3), drop_last=drop_last)]
            for r in range(3)
        ]
        assert len({len(one) for one in found}) == 1
        count = sum(len(b["image"]) for one in found for b in one)
        assert count == (18 if drop_last else per_epoch)


def test_a_state_goes_on_exactly_with_other_ranks(store):
    def loader(batch_size, **options):
        sampler = RandomPatches((8, 8, 8), per_epoch=40, seed=4, window=30_000)
        return PatchLoader(store, sampler=sampler, batch_size=batch_size, **options)

    whole = loader(4)
    first, second = origins(whole), origins(whole)
    stopped = loader(4)
    stopped.set_epoch(1)
    for number, _ in enumerate(stopped):
        if number == 3:
            break
    state = json.loads(json.dumps(stopped.state_dict()))
    assert (state["epoch"], state["position"]) == (1, 4)
    ranks = []
    for rank in range(2):
        again = loader(2, dist=(rank, 2))
        again.load_state_dict(state)
        again.set_epoch(again.epoch)
        ranks.append([batch["origin"].tolist() for batch in again])
    together = [tuple(o) for batches in zip(*ranks, strict=True) for b in batches for o in b]
    assert together == second[16:]
    assert first != second
    stopped.set_epoch(0)
    assert origins(stopped) == first


def test_an_epoch_ends_with_its_last_batch(store):
    def loader():
        sampler = RandomPatches((8, 8, 8), per_epoch=20, seed=4)
        return PatchLoader(store, sampler=sampler, batch_size=5)

    whole = loader()
    expected = origins(whole), origins(whole)
    some = loader()
    found = []
    for _ in range(2):  # As a program does that knows the number of batches.
        batches = iter(some)
        found.append([tuple(o) for _ in range(4) for o in next(batches)["origin"].tolist()])
    assert tuple(found) == expected
    assert (some.epoch, some.state_dict()["position"]) == (2, 0)
    assert next(batches, None) is None
    assert some.epoch == 2


@pytest.mark.parametrize("edge", ["shift", "fill"])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3), (3, 2)])
def test_states_go_on_between_any_numbers_of_ranks(store, before, after, edge):
    def loaders(world):
        sampler = RandomPatches((8, 8, 8), per_epoch=71, seed=4, window=30_000, edge=edge)
        return [
            PatchLoader(store, sampler=sampler, batch_size=12 // world, dist=(rank, world))
            for rank in range(world)
        ]

    def together(some):
        return [
            [o for batch in batches for o in batch["origin"].tolist()]
            for batches in zip(*some, strict=True)
        ]

    whole = together(loaders(1))
    stopped = loaders(before)
    iterators = [iter(one) for one in stopped]
    begun = [[next(one) for _ in range(2)] for one in iterators]
    states = [one.state_dict() for one in stopped]
    assert all(state == states[0] for state in states)
    resumed = loaders(after)
    for one in resumed:
        one.load_state_dict(states[-1])
    assert together(begun) + together(resumed) == whole


def test_weights_that_no_centre_can_have_are_an_error():
    weights = np.zeros((8, 8))
    weights[0, 0] = 1
    store = gpustore.array(np.zeros((8, 8)))
    sampler = RandomPatches((4, 4), per_epoch=1, weights=weights)
    with pytest.raises(ValueError, match="no patch has its centre where a weight is not 0"):
        PatchLoader(store, sampler=sampler, batch_size=1)


def test_a_state_of_other_data_says_what_changed(volume, store):
    def loader(some=store, seed=4, batch_size=4):
        return PatchLoader(
            some, sampler=RandomPatches((8, 8, 8), per_epoch=40, seed=seed), batch_size=batch_size
        )

    state = loader().state_dict()
    assert (state["epoch"], state["position"], state["seed"]) == (0, 0, 4)
    for other, what in (
        (loader(seed=5), "seed: 4, now 5"),
        (loader(batch_size=5), "global batch: 4, now 5"),
        (loader(stored(volume[:32], (8, 8, 8))), "arrays 0 arrays image shape: "),
        (loader({"x": store}), "arrays 0 arrays x: None, now {"),
    ):
        with pytest.raises(gpustore.ConflictError, match=f"another {what}"):
            other.load_state_dict(state)
    with pytest.raises(gpustore.ConflictError, match="version 0"):
        loader().load_state_dict({**state, "version": 0})


def test_paired_arrays_stay_paired(volume):
    channels = np.stack([volume, volume + 1])
    half = volume[::2, ::2, ::2].astype("uint8")
    arrays = {
        "label": stored(volume, (7, 16, 9)),
        "image": stored(channels, (1, 8, 8, 8)),
        "half": stored(half, (5, 5, 5)),
    }
    loader = PatchLoader(
        arrays,
        sampler=RandomPatches((8, 6, 4), per_epoch=30, window=20_000),
        batch_size=7,
        dtype={"half": "float32"},
        normalize={"image": (0, 65535)},
    )
    for batch in loader:
        assert batch["image"].dtype == batch["half"].dtype == np.float32
        for i, origin in enumerate(batch["origin"].tolist()):
            assert not any(o % 2 for o in origin)
            expected = crop(volume, origin, (8, 6, 4))
            np.testing.assert_array_equal(batch["label"][i], expected)
            np.testing.assert_allclose(batch["image"][i, 0], expected / 65535, rtol=1e-6)
            np.testing.assert_allclose(batch["image"][i, 1], (expected + 1) / 65535, rtol=1e-6)
            np.testing.assert_array_equal(batch["half"][i], expected[::2, ::2, ::2].astype("uint8"))


def test_volumes_of_several_sizes_have_patches_by_their_sizes(volume):
    volumes = [stored(volume, (8, 8, 8)), stored(volume[:20, :20, :20], (8, 8, 8))]
    loader = PatchLoader(
        [{"image": one} for one in volumes],
        sampler=RandomPatches((8, 8, 8), per_epoch=600, window=9_000),
        batch_size=50,
    )
    numbers = np.concatenate([batch["volume"] for batch in loader])
    share = 13**3 / (13**3 + 33 * 29 * 25)
    assert abs((numbers == 1).mean() - share) < 2 / 600 * len(volumes)


def test_grids_cover_the_volume(store):
    loader = PatchLoader(
        store, sampler=GridPatches((9, 10, 11), overlap=(2, 0, 3), window=12_000), batch_size=8
    )
    covered = np.zeros(SHAPE, int)
    for batch in loader:
        for origin in batch["origin"].tolist():
            crop(covered, origin, (9, 10, 11))[...] += 1
    assert covered.min() == 1
    assert loader.stats()["patches"] == 6 * 4 * 4


def test_chunks_are_decoded_about_once_an_epoch(store):
    sampler = RandomPatches((8, 8, 8), per_epoch=2000, window=40 * 36 * 32 * 2 // 4)
    loader = PatchLoader(store, sampler=sampler, batch_size=100)
    for _ in loader:
        pass
    assert loader.stats()["chunks_decoded"] <= 1.6 * 5 * 5 * 4
    assert loader.stats()["batches"] == 20


def test_ranks_decode_about_their_part_of_a_window():
    store = gpustore.create_array(
        "memory://loader/ranks/", data=np.ones((24,) * 3, "uint8"), chunks=(4,) * 3, overwrite=True
    ).result()
    sampler = RandomPatches((4,) * 3, per_epoch=864, window=24**3 // 2, seed=3)
    decoded = []
    for rank in range(4):
        loader = PatchLoader(store, sampler=sampler, batch_size=4, dist=(rank, 4))
        for _ in loader:
            pass
        decoded.append(loader.stats()["chunks_decoded"] / 6**3)
    # Ranks that read all windows would decode 1.17 each; parts of windows overlap by a patch.
    assert sum(decoded) < 2.2
    assert max(decoded) < 0.65


def test_nothing_is_left_behind_by_a_break_an_error_or_a_drop(store):
    def running():
        return [one for one in threading.enumerate() if one.name == "gpustore-loader"]

    sampler = RandomPatches((8, 8, 8), per_epoch=200)
    loader = PatchLoader(store, sampler=sampler, batch_size=2)
    for _ in loader:
        break
    gc.collect()
    assert running() == []

    def fail(batch):
        raise ZeroDivisionError

    failing = PatchLoader(store, sampler=sampler, batch_size=2, transform=fail)
    with pytest.raises(ZeroDivisionError):
        next(iter(failing))
    gc.collect()
    assert running() == []
    batches = iter(loader)
    next(batches)
    del batches
    gc.collect()
    assert running() == []


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"sampler": RandomPatches((41, 1, 1), per_epoch=1)}, gpustore.MismatchError, "smaller"),
        ({"sampler": RandomPatches((1,) * 4, per_epoch=1)}, gpustore.MismatchError, "dimensions"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"batch_size": 2.5}, TypeError, "batch_size: expected a whole number"),
        ({"transform": 3}, TypeError, "transform"),
        ({"dtype": {"imgae": "float32"}}, ValueError, "no array is named 'imgae'; there are 'im"),
        ({"normalize": {"": (0, 1)}}, ValueError, "normalize: no array"),
        ({"to": "tensorflow"}, ValueError, "to: expected"),
        ({"memory": "1 kB"}, gpustore.LimitError, "memory"),
        ({"memory": "ten"}, ValueError, "memory"),
        ({"dist": (3, 3)}, ValueError, "rank 3 of 3"),
        ({"dist": "mpi"}, ValueError, "dist"),
        ({"dist": "torch"}, ValueError, "not initialised"),
        ({"dist": (0, 7)}, ValueError, "some ranks have none"),
        ({"batch_size": 9, "drop_last": True}, ValueError, "no batch"),
        ({"dist": 3}, TypeError, r"dist: expected \(rank, world\), got 3"),
        ({"dist": (0, 1, 2)}, ValueError, r"dist: expected \(rank, world\), got \(0, 1, 2\)"),
        ({"dist": (0.5, 2)}, TypeError, "dist: expected a whole number, got 0.5"),
        ({"sampler": (8, 8, 8)}, TypeError, "sampler: expected RandomPatches or GridPatches"),
        ({"memory": None}, TypeError, "memory: expected bytes, .* got None"),
        ({"layout": 3}, TypeError, "layout: expected names .* got 3"),
        ({"normalize": 255}, TypeError, r"normalize: expected \(low, high\), got 255"),
        ({"normalize": (1, 1)}, ValueError, "low < high"),
        ({"normalize": (0, 1), "dtype": "uint8"}, ValueError, "no fractions"),
    ],
)
def test_parameters_without_meaning_are_errors_at_once(store, change, error, text):
    options = {"sampler": RandomPatches((8, 8, 8), per_epoch=8), "batch_size": 1} | change
    with pytest.raises(error, match=text):
        PatchLoader(store, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": ()},
        {"shape": 2},
        {"shape": (0, 1)},
        {"shape": (1.5, 1)},
        {"per_epoch": 0},
        {"per_epoch": 1.5},
        {"seed": -1},
        {"seed": 2**64},
        {"edge": "wrap"},
        {"window": 0},
        {"weights": [[0, 0]]},
        {"weights": [[-1, 2]]},
        {"weights": [[np.nan, 1]]},
        {"weights": [[np.inf, 1]]},
        {"weights": np.ones((0, 3))},
        {"weights": []},
        {"weights": [1.0]},
        {"weights": "foreground"},
    ],
)
def test_samplers_without_meaning_are_errors_at_once(options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        RandomPatches(**{"shape": (2, 2), "per_epoch": 1, **options})


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        (np.zeros((8, 8)), TypeError, "expected stores or dicts of stores, got ndarray"),
        ({"image": np.zeros((8, 8))}, TypeError, "'image' is of ndarray"),
        (["memory://a"], TypeError, "got str"),
        (None, TypeError, "arrays: expected stores or dicts of stores, got None"),
        ([], gpustore.MismatchError, "at least one volume"),
        ({}, gpustore.MismatchError, "at least one array"),
        ({"origin": gpustore.array(np.zeros((8, 8)))}, ValueError, "origin"),
        (
            {"a": gpustore.array(np.zeros((8, 8))), "b": gpustore.array(np.zeros((8, 12)))},
            gpustore.MismatchError,
            "neither is a multiple",
        ),
        (
            [gpustore.array(np.zeros((8, 8))), gpustore.array(np.zeros((8, 8), "uint8"))],
            gpustore.MismatchError,
            "volume 1",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_errors_at_once(arrays, error, text):
    with pytest.raises(error, match=text):
        PatchLoader(arrays, sampler=RandomPatches((2, 2), per_epoch=1), batch_size=1)


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"fingerprint": None},
        {"epoch": -1},
        {"position": "3"},
        {"position": -1},
        {"worker": 3},
    ],
)
def test_what_is_no_state_is_an_error(store, change):
    loader = PatchLoader(store, sampler=RandomPatches((8, 8, 8), per_epoch=8), batch_size=4)
    state = None if change is None else loader.state_dict() | change
    if change == {"fingerprint": None}:
        del state["fingerprint"]
    with pytest.raises((TypeError, ValueError), match=r"state|epoch|position|worker"):
        loader.load_state_dict(state)
    assert len(origins(loader)) == 8


def test_weights_may_be_a_store():
    weights = gpustore.array(np.array([[0, 1], [0, 0]], "uint8"))
    sampler = RandomPatches((2, 2), per_epoch=20, weights=weights, edge="fill")
    store = gpustore.array(np.zeros((8, 8)))
    for y, x in origins(PatchLoader(store, sampler=sampler, batch_size=5)):
        assert y + 1 < 4 <= x + 1


def test_ranks_come_from_the_environment(store, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = RandomPatches((8, 8, 8), per_epoch=8)
    found = origins(PatchLoader(store, sampler=sampler, batch_size=2, dist="auto"))
    assert found == origins(PatchLoader(store, sampler=sampler, batch_size=2, dist=(1, 2)))
    assert found == origins(PatchLoader(store, sampler=sampler, batch_size=2, dist=lambda: (1, 2)))


@pytest.mark.matrix("costly")
def test_windows_that_do_not_fit_together_are_read_one_behind_the_other():
    # As many batches as would make a chain of iterators overflow the stack.
    store = gpustore.array(np.arange(64, dtype="uint8"))
    sampler = RandomPatches((1,), per_epoch=4000, window=32)
    loader = PatchLoader(store, sampler=sampler, batch_size=1, memory=45, prefetch=0)
    assert all(batch["image"][0, 0] == batch["origin"][0, 0] for batch in loader)


@given(seed=st.integers(0, 200), extent=st.integers(3, 9), size=st.integers(1, 12))
def test_one_patch_beyond_the_volume_is_mirrored(seed, extent, size):
    values = np.arange(extent)
    sampler = RandomPatches((size,), per_epoch=1, seed=seed, edge="reflect")
    (batch,) = PatchLoader(gpustore.array(values), sampler=sampler, batch_size=1)
    padded = np.pad(values, size, mode="reflect")
    first = int(batch["origin"][0, 0]) + size
    np.testing.assert_array_equal(batch["image"][0], padded[first : first + size])


def test_iterations_end_on_their_own(store):
    loader = PatchLoader(store, sampler=RandomPatches((8, 8, 8), per_epoch=40), batch_size=4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    begun = next(second)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)
    assert len([begun, *second]) == 10
    third = iter(loader)
    next(third)
    loader.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(third)


def test_an_iteration_does_not_go_on_in_a_forked_process(store):
    loader = PatchLoader(store, sampler=RandomPatches((8, 8, 8), per_epoch=40), batch_size=4)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except gpustore.ForkError:
            os._exit(0 if len([*loader]) == 10 else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_loaders_are_pickled_for_any_library(tmp_path, volume):
    store = gpustore.save(str(tmp_path), volume, chunks=(8, 8, 8))
    loader = PatchLoader(store, sampler=RandomPatches((8, 8, 8), per_epoch=8), batch_size=4)
    assert origins(pickle.loads(pickle.dumps(loader))) == origins(loader)


def test_batches_do_not_keep_windows(store):
    loader = PatchLoader(
        store, sampler=RandomPatches((4, 4, 4), per_epoch=8, window=9000), batch_size=1, prefetch=0
    )
    assert all(batch["image"].nbytes == 128 and batch["image"].base is None for batch in loader)


def test_weights_may_change_later():
    weights = np.ones((2, 2))
    sampler = RandomPatches((2, 2), per_epoch=9, weights=weights)
    weights[:] = 0
    store = gpustore.array(np.zeros((8, 8)))
    assert len(origins(PatchLoader(store, sampler=sampler, batch_size=3))) == 9


def test_samplers_are_equal_where_their_orders_are():
    one, same, other = (
        RandomPatches((2, 2), per_epoch=9, weights=weights)
        for weights in (np.eye(2), 2 * np.eye(2), np.ones((2, 2)))
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != RandomPatches((2, 2), per_epoch=9)


def test_empty_volumes_are_refused():
    store = gpustore.array(np.zeros((0, 4)))
    sampler = RandomPatches((2, 2), per_epoch=1, edge="fill")
    with pytest.raises(gpustore.MismatchError, match="is empty"):
        PatchLoader(store, sampler=sampler, batch_size=1)


@pytest.mark.parametrize("overlap", [0.25, (0.5, 0.5), -1, (1, 2, 3), 4])
def test_overlaps_without_meaning_are_errors_at_once(overlap):
    with pytest.raises((TypeError, ValueError), match="overlap: expected"):
        GridPatches((4, 4), overlap=overlap)
    assert GridPatches((4, 4), overlap=np.int64(2)).overlap == (2, 2)


def test_states_tell_apart_arrays_whose_patches_are_others():
    wide, narrow = stored(np.zeros((64, 64)), (16, 16)), stored(np.zeros((32, 32)), (16, 16))
    wider = stored(np.zeros((128, 128)), (16, 16))

    def loader(arrays):
        return PatchLoader(arrays, sampler=RandomPatches((16, 16), per_epoch=9), batch_size=3)

    state = loader({"chunks": wide, "label": narrow}).state_dict()
    for arrays in {"label": narrow, "chunks": wide}, {"chunks": wider, "label": narrow}:
        with pytest.raises(gpustore.ConflictError, match="another arrays"):
            loader(arrays).load_state_dict(state)


def test_a_batch_that_a_transform_fails_on_comes_again(store):
    failing = []

    def transform(batch):
        if len(failing) == 9:
            failing.append(batch["origin"])
            raise ArithmeticError
        failing.append(None)
        return batch

    loader = PatchLoader(
        store, sampler=RandomPatches((8, 8, 8), per_epoch=40), batch_size=4, transform=transform
    )
    with pytest.raises(ArithmeticError):
        list(loader)
    loader.load_state_dict(loader.state_dict())
    (last,) = loader
    np.testing.assert_array_equal(last["origin"], failing[9])
    assert loader.epoch == 1


def test_another_epoch_ends_an_iteration(store):
    loader = PatchLoader(store, sampler=RandomPatches((8, 8, 8), per_epoch=40), batch_size=4)
    batches = iter(loader)
    next(batches)
    loader.set_epoch(5)
    with pytest.raises(RuntimeError, match="was closed"):
        next(batches)
    assert loader.state_dict()["epoch"] == 5
    assert loader.state_dict()["position"] == 0


def test_weights_with_huge_sums_are_probabilities():
    store = gpustore.array(np.zeros((8, 8)))
    sampler = RandomPatches((2, 2), per_epoch=400, weights=[[1e308, 1e308]])
    with np.errstate(all="raise"):
        found = origins(PatchLoader(store, sampler=sampler, batch_size=400))
    assert 100 < sum(x < 3 for _, x in found) < 300


def test_centres_lie_in_cells_of_whole_elements():
    # 25 * (14 / 50) is 7.000000000000001 in float64.
    weights = np.zeros(50)
    weights[25] = 1
    store = gpustore.array(np.zeros(14))
    sampler = RandomPatches((1,), per_epoch=3, weights=weights)
    assert set(origins(PatchLoader(store, sampler=sampler, batch_size=3))) == {(7,)}


def test_another_thread_may_close_a_loader_that_makes_a_batch(store):
    making, closed, errors = threading.Event(), threading.Event(), []

    class Waiting(RandomPatches):
        def order(self, volumes):
            found = super().order(volumes)
            windows = found.windows

            def waiting(epoch, first):
                making.set()
                assert closed.wait(60)
                return windows(epoch, first)

            found.windows = waiting
            return found

    def use():
        with pytest.raises(RuntimeError, match="was closed") as error:
            list(loader)
        errors.append(error)

    sampler = Waiting((8, 8, 8), per_epoch=8)
    loader = PatchLoader(store, sampler=sampler, batch_size=4, prefetch=0)
    thread = threading.Thread(target=use)
    thread.start()
    assert making.wait(60)
    loader.close()
    closed.set()
    thread.join()
    assert errors


def test_each_rank_has_patches_of_all_places():
    store = gpustore.array(np.zeros(64))
    sampler = RandomPatches((1,), per_epoch=32)
    loader = PatchLoader(store, sampler=sampler, batch_size=4, dist=(0, 4))
    quarters = [np.array(origins(loader)).mean() // 16 for _ in range(40)]
    assert np.bincount(np.array(quarters, int), minlength=4).min() >= 3
