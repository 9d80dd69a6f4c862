"""Copies as xarray opens them, and arrays of xarray, dask and torch as sources."""

import numpy as np
import pytest

import gpustore

VALUES = np.arange(64 * 48, dtype="i4").reshape(64, 48)


def dataset(xarray):
    values = np.arange(30.0).reshape(5, 6)
    values[1, 2] = np.nan
    return xarray.Dataset(
        {
            "t": (("y", "x"), values, {"units": "K"}),
            "packed": (("y", "x"), np.arange(30.0).reshape(5, 6) / 2),
            "name": (("y",), np.array(["a", "bb", "c", "d", "é"])),
        },
        {
            "y": np.arange("2020-01-01", "2020-01-06", dtype="M8[D]").astype("M8[ns]"),
            "x": np.linspace(0, 1, 6),
        },
        {"title": "small"},
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 2), (3, 3)])
def test_xarray_opens_a_copy_as_the_same_data_set(tmp_path, before, after):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    encoding = {
        "packed": {"_FillValue": 3, "scale_factor": 0.5, "dtype": "i2"},
        "t": {"chunks": (2, 6)},
    }
    dataset(xarray).to_zarr(tmp_path / "a", zarr_format=before, encoding=encoding)
    gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=after)
    for engine in ("zarr", "gpustore"):
        opened = [
            xarray.open_dataset(tmp_path / name, engine=engine, chunks=None).load()
            for name in ("a", "b")
        ]
        xarray.testing.assert_identical(*opened)
        assert int(np.isnan(opened[1]["packed"]).sum()) == 1


def test_a_variable_of_xarray(tmp_path):
    xarray = pytest.importorskip("xarray")
    variable = xarray.DataArray(VALUES, dims=("y", "x"), attrs={"units": "K"})
    copied = gpustore.copy(variable, tmp_path / "a")
    assert (copied.domain.labels, dict(copied.attrs)) == (("y", "x"), {"units": "K"})
    np.testing.assert_array_equal(copied.read().result(), VALUES)


def test_blocks_of_dask_are_computed_once(tmp_path):
    array = pytest.importorskip("dask.array")
    computed = []

    def block(values):
        computed.append(values.shape)
        return values

    lazy = array.from_array(VALUES, chunks=(16, 24)).map_blocks(block, dtype="i4", meta=VALUES[:0])
    copied = gpustore.copy(lazy, tmp_path / "a", chunks=(16, 24))
    np.testing.assert_array_equal(copied.read().result(), VALUES)
    assert sum(np.prod(shape) for shape in computed) == VALUES.size


@pytest.mark.parametrize("save", [gpustore.save, lambda url, array: gpustore.copy(array, url)])
def test_tensors_of_torch(tmp_path, save):
    torch = pytest.importorskip("torch")
    copied = save(tmp_path / "a", torch.from_numpy(VALUES))
    assert copied.dtype.name == "int32"
    np.testing.assert_array_equal(copied.read().result(), VALUES)


def test_data_sets_of_h5py(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        one = file.create_dataset("x", data=VALUES, chunks=(16, 16))
        for number, save in enumerate((gpustore.save, lambda url, a: gpustore.copy(a, url))):
            copied = save(tmp_path / str(number), one)
            np.testing.assert_array_equal(copied.read().result(), VALUES)
        assert file["x"][0, 1] == 1  # The file stays open.
