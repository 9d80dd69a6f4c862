"""Loaders as data sets of PyTorch's DataLoader."""

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    values = np.arange(40 * 36, dtype="int32").reshape(40, 36)
    return gpustore.save(str(tmp_path_factory.mktemp("torch") / "a.zarr"), values, chunks=(8, 8))


def loader(store, **options):
    sampler = RandomPatches((8, 8), per_epoch=60, seed=2, window=3000)
    return PatchLoader(store, sampler=sampler, batch_size=4, to="torch", **options)


def origins(batches):
    return [np.asarray(batch["origin"]).tolist() for batch in batches]


def test_batches_are_tensors_of_the_elements(store):
    for batch in loader(store, normalize=(0, 1440)):
        assert batch["image"].dtype == torch.float32
        first = batch["origin"] @ [36, 1]
        np.testing.assert_allclose(batch["image"][:, 0, 0], first / 1440, rtol=1e-6)


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_a_data_loader_gives_the_same_batches(store, method):
    expected = origins(loader(store))
    workers = {} if method is None else {"num_workers": 2, "multiprocessing_context": method}
    with np.errstate(all="raise"):
        found = data.DataLoader(loader(store), batch_size=None, **workers)
        batches = list(found)
    assert origins(batches) == expected
    assert all(isinstance(batch["image"], torch.Tensor) for batch in batches)


def test_a_state_goes_on_behind_a_data_loader(store):
    whole = origins(loader(store))
    first = loader(store)
    batches = iter(data.DataLoader(first, batch_size=None))
    begun = [next(batches) for _ in range(3)]
    assert origins(begun) == whole[:3]
    again = loader(store)
    again.load_state_dict(first.state_dict())
    assert origins(data.DataLoader(again, batch_size=None)) == whole[3:]


def test_a_state_goes_on_in_two_workers(store):
    whole = origins(loader(store))
    again = loader(store)
    again.load_state_dict({**loader(store).state_dict(), "position": 5})
    found = data.DataLoader(again, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert origins(found) == whole[5:]
