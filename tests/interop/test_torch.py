"""PyTorch: tensors of reads and for writes, and data sets for its DataLoader."""

import doctest
import pickle
import shutil

import ml_dtypes
import numpy as np
import pytest

import gpustore
from tests.matrix import each

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from gpustore.interop.torch import ArrayDataset, conversion  # noqa: E402

VALUES = np.arange(20 * 6, dtype="int32").reshape(20, 6)
SAME = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


def elements(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.arange(6 * dtype.itemsize, dtype="uint8").view(dtype).reshape(2, 3)


@each("name", SAME)
def test_data_types_are_exact_both_ways_and_no_bytes_are_copied(name):
    values = elements(name) if name != "bool" else np.array([[True, False, True]])
    store = gpustore.array(values)
    tensor = store.read(to="torch").result()
    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.shape == values.shape
    bits = tensor.view(torch.uint8).numpy()
    np.testing.assert_array_equal(bits, values.view("u1"))
    target = gpustore.array(np.zeros_like(values))
    target.write(tensor).result()
    np.testing.assert_array_equal(target.read().result().view("u1"), values.view("u1"))
    out = torch.empty_like(tensor)
    assert store.read(out=out).result() is out
    assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8))


def test_the_memory_of_the_read_is_that_of_the_tensor():
    for name in ("float32", "bfloat16"):
        array = elements(name)
        assert conversion(gpustore.dtype(name))(array).data_ptr() == array.ctypes.data


class OfDevice:
    """An array that has of CuPy's face what is used, in host memory."""

    def __init__(self, array):
        self.array = array
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__

    def view(self, dtype):
        return OfDevice(self.array.view(dtype))


@each("name", SAME)
def test_arrays_of_a_device_are_handed_over_by_dlpack(name):
    values = elements(name) if name != "bool" else np.array([[True, False, True]])
    tensor = conversion(gpustore.dtype(name))(OfDevice(values))
    assert (str(tensor.dtype), tensor.data_ptr()) == (f"torch.{name}", values.ctypes.data)


@each(
    ("dtype", "advice"),
    [
        ("int4", r'cast\(store, "int8"\)'),
        ("uint4", r'cast\(store, "int8"\)'),
        ("float8_e3m4", r'cast\(store, "float32"\)'),
        ("ustring", "read it as NumPy"),
        ("datetime64[s]", "int64"),
        ("U3", "read it as NumPy"),
    ],
)
def test_data_types_that_pytorch_lacks_are_errors_with_a_way_out(dtype, advice):
    store = gpustore.open("memory://x/|zarr3:", create=True, dtype=dtype, shape=[2]).result()
    with pytest.raises(gpustore.UnsupportedError, match=advice):
        store.read(to="torch")
    with pytest.raises(gpustore.UnsupportedError, match=advice):
        ArrayDataset(store)


def test_a_release_without_unsigned_integers_is_told_of_wider_ones(monkeypatch):
    monkeypatch.delattr(torch, "uint16")
    with pytest.raises(gpustore.UnsupportedError, match=r'cast\(store, "int32"\)'):
        conversion.__wrapped__(gpustore.dtype("uint16"))


def test_tensors_are_saved_and_wrapped(tmp_path):
    for name in ("int16", "bfloat16", "float8_e5m2"):
        values = elements(name)
        tensor = gpustore.array(values).read(to="torch").result()
        for store in (gpustore.array(tensor), gpustore.save(tmp_path / f"{name}.zarr", tensor)):
            assert store.dtype.name == name
            np.testing.assert_array_equal(store.read().result().view("u1"), values.view("u1"))


def test_reads_of_a_batch_and_crops_are_tensors():
    store = gpustore.array(VALUES)
    with gpustore.Batch() as batch:
        rows = [store[i].read(batch=batch, to="torch") for i in (3, 1)]
    assert [row.result().tolist() for row in rows] == VALUES[[3, 1]].tolist()
    crops = store.read_many([[1, 0]], [2, 6], to="torch").result()
    assert crops.tolist() == [VALUES[1:3].tolist()]
    assert store.read(to="torch", order="F").result().stride() == (1, 20)


def test_tensors_that_are_no_plain_memory_are_refused(tmp_path):
    store = gpustore.array(np.zeros(3, "f4"))
    with pytest.raises(TypeError, match="require"):
        store.write(torch.zeros(3, requires_grad=True))
    with pytest.raises(TypeError, match="safe"):
        store.write(torch.zeros(3, dtype=torch.float64))


@pytest.fixture
def stored(tmp_path):
    return gpustore.save(tmp_path / "x.zarr", VALUES, chunks=(4, 3))


def test_samples_are_the_parts_along_an_axis(stored):
    for axis in (0, 1, -1):
        dataset = ArrayDataset(stored, axis)
        expected = np.moveaxis(VALUES, axis, 0)
        assert len(dataset) == len(expected)
        assert [one.tolist() for one in dataset] == expected.tolist()
        found = dataset.__getitems__([2, -1, 2])
        assert [one.tolist() for one in found] == expected[[2, -1, 2]].tolist()
    view = stored[8:, ::2].oindex[[9, 12, 10]]
    assert [one.tolist() for one in ArrayDataset(view)] == VALUES[[9, 12, 10], ::2].tolist()


def test_a_batch_is_one_read(stored):
    dataset = ArrayDataset(stored)
    before = gpustore.statistics.snapshot()
    dataset.__getitems__([0, 1, 2, 3, 1])
    after = gpustore.statistics.snapshot()
    assert after["reads"] - before.get("reads", 0) == 1
    assert after["key_reads"] - before.get("key_reads", 0) == 2


def test_stores_and_transforms_of_a_sample(stored):
    labels = gpustore.array(np.arange(20))
    dataset = ArrayDataset({"image": stored, "label": labels}, transform=lambda one: (one, 5))
    sample, five = dataset[-2]
    assert (sample["image"].tolist(), int(sample["label"]), five) == (VALUES[18].tolist(), 18, 5)
    (first,) = DataLoader(dataset, batch_size=20)
    assert first[0]["image"].tolist() == VALUES.tolist()


def test_wrong_arguments_are_errors(stored):
    with pytest.raises(gpustore.OutOfBoundsError, match="20 samples"):
        ArrayDataset(stored)[20]
    with pytest.raises(ValueError, match=r"axis 2: .* \(20, 6\)"):
        ArrayDataset(stored, 2)
    with pytest.raises(ValueError, match=r"different size along axis 0: \{'a': 20, 'b': 6\}"):
        ArrayDataset({"a": stored, "b": stored.T})
    with pytest.raises(ValueError, match="at least one"):
        ArrayDataset({})
    for wrong in (VALUES, "x.zarr", None):
        with pytest.raises(TypeError, match=r"^stores: expected a gpustore\.TensorStore, got "):
            ArrayDataset(wrong)
    with pytest.raises(TypeError, match=r"^stores\['a'\]: expected a gpustore"):
        ArrayDataset({"a": VALUES})


def counted(sample):
    """Return a sample and the reads that this process has begun."""
    return sample, gpustore.statistics["reads"]


@each("method", ["fork", "forkserver", "spawn"])
def test_workers_of_a_data_loader(stored, method):
    dataset = ArrayDataset(stored, transform=counted)
    dataset[0]  # A forked worker goes on with a store that was in use.
    gpustore.statistics.reset()
    loader = DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context=method)
    batches = list(loader)
    assert [one for rows, _ in batches for one in rows.tolist()] == VALUES.tolist()
    # The worker has read each batch as one.
    assert [reads.unique().tolist() for _, reads in batches] == [[1], [2], [3], [4]]


def test_forked_workers_have_stores_in_memory_and_tell_of_damaged_chunks(stored):
    options = {"batch_size": 5, "num_workers": 1, "multiprocessing_context": "fork"}
    labels = gpustore.array(np.arange(20))
    dataset = ArrayDataset({"image": stored, "label": labels})
    assert [one["label"].tolist()[0] for one in DataLoader(dataset, **options)] == [0, 5, 10, 15]
    damaged = stored.kvstore / "c/2/1"
    damaged.write("", b"x").result()
    with pytest.raises(gpustore.CorruptChunkError, match="c/2/1"):
        list(DataLoader(dataset, **options))


def test_a_pickle_is_small_and_opens_the_store_at_the_first_read(stored, tmp_path):
    text = pickle.dumps(ArrayDataset(stored))
    assert len(text) < 2000
    assert pickle.loads(text)[3].tolist() == VALUES[3].tolist()
    again = pickle.dumps(ArrayDataset(stored[1:]))
    shutil.rmtree(tmp_path / "x.zarr")
    elsewhere = pickle.loads(again)
    assert len(elsewhere) == 19
    with pytest.raises(gpustore.NotFoundError, match=r"x\.zarr"):
        elsewhere[0]


def test_an_array_that_changed_since_is_an_error(stored, tmp_path):
    text = pickle.dumps(ArrayDataset(stored))
    gpustore.save(tmp_path / "x.zarr", VALUES + 1, chunks=(4, 5), overwrite=True)
    with pytest.raises(gpustore.MismatchError, match=r"x\.zarr.* has changed"):
        pickle.loads(text)[0]


def test_a_store_in_memory_stays_in_its_process():
    with pytest.raises(gpustore.UnsupportedError, match="store it in files first"):
        pickle.dumps(ArrayDataset(gpustore.array(VALUES)))


def test_examples():
    assert doctest.testmod(gpustore.interop.torch) == (0, 3)
