"""Loaders as data sets of PyTorch's DataLoader."""

import os
import pickle
from itertools import islice

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches
from gpustore.loader.ranks import check_alike

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, "float64"])
def test_data_types_of_pytorch_are_taken(store, dtype):
    batch = next(iter(loader(store, dtype=dtype)))
    assert str(batch["image"].dtype) == f"torch.{str(dtype).removeprefix('torch.')}"


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


@pytest.mark.parametrize(
    ("method", "persistent"), [("fork", False), ("fork", True), ("spawn", False)]
)
def test_epochs_go_on_in_workers(store, method, persistent):
    whole = loader(store)
    expected = [origins(whole) for _ in range(3)]
    some = loader(store)
    workers = {"num_workers": 2, "multiprocessing_context": method}
    batches = data.DataLoader(some, batch_size=None, persistent_workers=persistent, **workers)
    assert [origins(batches) for _ in range(2)] == expected[:2]
    assert some.epoch == 2
    if method == "spawn":  # It takes seconds to start them.
        return
    next(iter(batches))  # An epoch that is not ended comes again.
    assert origins(batches) == expected[2]
    some.set_epoch(1)
    assert origins(batches) == expected[1]


def test_another_process_has_epochs_of_its_own(store):
    some = loader(store)
    copy = pickle.loads(pickle.dumps(some))
    list(copy)
    process = os.fork()
    if not process:
        list(some)
        os._exit(some.epoch)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == copy.epoch == 1
    assert some.epoch == 0


@pytest.mark.parametrize(
    ("workers", "stop"), [(0, 7), (0, 15), (1, 15), (2, 7), (2, 14), (2, 15), (2, 19)]
)
@pytest.mark.filterwarnings("ignore")
def test_a_stateful_data_loader_goes_on_exactly(store, workers, stop):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"multiprocessing_context": "fork"} if workers else {}

    def begun():
        return stateful(loader(store), batch_size=None, num_workers=workers, **options)

    def forever(batches):
        while True:
            yield from batches

    whole = loader(store)
    expected = [*origins(whole), *origins(whole), *origins(whole)]
    stopped = begun()
    found = origins(islice(forever(stopped), stop))
    again = begun()
    again.load_state_dict(stopped.state_dict())
    assert found + origins(islice(forever(again), 45 - stop)) == expected


def lightning_model(lightning):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)
            self.seen, self.losses = [], []

        def training_step(self, batch, number):
            patches = batch["image"][:, None]
            loss = torch.nn.functional.mse_loss(self.layer(patches), patches)
            self.seen.append(batch["origin"].tolist())
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    torch.manual_seed(0)
    return Model()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_exactly(store, tmp_path, workers):
    lightning = pytest.importorskip("lightning")

    def batches():
        found = loader(store, normalize=(0, 1440))
        if not workers:
            return found
        stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        options = {"num_workers": workers, "multiprocessing_context": "fork"}
        return stateful(found, batch_size=None, **options)

    def fit(checkpoint=None):
        callback = lightning.pytorch.callbacks.ModelCheckpoint(
            dirpath=tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1
        )
        trainer = lightning.Trainer(
            default_root_dir=tmp_path,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=3,
            callbacks=[callback],
        )
        model = lightning_model(lightning)
        trainer.fit(model, batches(), ckpt_path=checkpoint)
        return model

    whole = fit()
    assert len({str(origin) for origin in whole.seen}) == 45  # No epoch is like another.
    for stop in (15, 20):  # Behind the first of three epochs, and in the second.
        again = fit(tmp_path / f"step={stop}.ckpt")
        assert again.seen == whole.seen[stop:]
        assert again.losses == whole.losses[stop:]


def test_ranks_that_make_other_loaders_are_errors(store):
    distributed = torch.distributed
    group = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    distributed.init_process_group("gloo", **group)
    try:
        loader(store, dist="torch")
        same = {"sampler": {"seed": 1}, "global batch": 8}
        check_alike("torch", same, number=9)
        check_alike("auto", same, number=9)
        check_alike((0, 2), {"sampler": {"seed": 2}}, number=9)
        with pytest.raises(gpustore.MismatchError, match=r"ranks differ.*another sampler.*2.*1"):
            check_alike("torch", same | {"sampler": {"seed": 2}}, number=9)
    finally:
        distributed.destroy_process_group()
