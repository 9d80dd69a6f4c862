"""Names of dimensions, fill values and attributes of copies between the formats."""

import base64
import json
import struct

import numpy as np
import pytest

import gpustore

VALUES = np.arange(6.0).reshape(2, 3)


def document(path):
    name = ".zarray" if (path / ".zarray").exists() else "zarr.json"
    return json.loads((path / name).read_text())


def encoded(fill):
    return base64.b64encode(struct.pack("<d", fill)).decode()


def make(path, zarr_format, **properties):
    return gpustore.save(path, VALUES, zarr_format=zarr_format, **properties)


def test_names_go_to_zarr3(tmp_path):
    make(tmp_path / "a", 2, dims=("y", "x"), attributes={"units": "K"}, fill_value=np.nan)
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=3)
    assert copied.domain.labels == ("y", "x")
    assert dict(copied.attrs) == {"units": "K", "_FillValue": encoded(np.nan)}
    np.testing.assert_array_equal(copied.read().result(), VALUES)


def test_names_go_to_zarr2(tmp_path):
    make(tmp_path / "a", 3, dims=("y", "x"), attributes={"units": "K"})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert dict(copied.attrs) == {"units": "K", "_ARRAY_DIMENSIONS": ["y", "x"]}
    assert document(tmp_path / "b")["fill_value"] is None  # xarray masks no element.
    np.testing.assert_array_equal(copied.read().result(), VALUES)


@pytest.mark.parametrize("dtype", ["f4", "i2", "u1"])
def test_a_masked_value_is_the_fill_value_of_zarr2(tmp_path, dtype):
    values = VALUES.astype(dtype)
    fill = encoded(3) if dtype == "f4" else 3
    gpustore.save(tmp_path / "a", values, dims=("y", "x"), attributes={"_FillValue": fill})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert dict(copied.attrs) == {"_ARRAY_DIMENSIONS": ["y", "x"]}
    assert copied.fill_value == 3
    np.testing.assert_array_equal(copied.read().result(), values)
    again = gpustore.copy(tmp_path / "b", tmp_path / "c", zarr_format=3)
    assert dict(again.attrs) == {"_FillValue": fill}
    np.testing.assert_array_equal(again.read().result(), values)


@pytest.mark.parametrize("names", [["y"], ["y", "y"], ["y", 3], "yx", None, ["", "x"]], ids=repr)
def test_what_are_no_names_stays_an_attribute(tmp_path, names):
    make(tmp_path / "a", 2, attributes={"_ARRAY_DIMENSIONS": names})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=3)
    assert dict(copied.attrs) == {"_ARRAY_DIMENSIONS": names}
    assert copied.domain.labels == ("", "")


@pytest.mark.parametrize("fill", ["x", 3, [1], "AA=="])
def test_a_damaged_masked_value_stays_an_attribute(tmp_path, fill):
    make(tmp_path / "a", 3, dims=("y", "x"), attributes={"_FillValue": fill})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert copied.attrs["_FillValue"] == fill


def test_some_names_only_are_lost_and_named(tmp_path):
    make(tmp_path / "a", 3, dims=("y", None))
    with pytest.warns(gpustore.CopyWarning, match="names of all dimensions or none"):
        copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert dict(copied.attrs) == {}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chosen_names_replace_those_of_the_source(tmp_path, zarr_format):
    make(tmp_path / "a", 2, dims=("y", "x"), attributes={"n": 1})
    copied = gpustore.copy(
        tmp_path / "a", tmp_path / "b", zarr_format=zarr_format, dims=("row", "column")
    )
    if zarr_format == 3:
        assert copied.domain.labels == ("row", "column")
        assert "_ARRAY_DIMENSIONS" not in copied.attrs
    else:
        assert copied.attrs["_ARRAY_DIMENSIONS"] == ["row", "column"]
    assert copied.attrs["n"] == 1


@pytest.mark.parametrize(("dtype", "fill"), [("u1", 300), ("u1", -1), ("i2", 0.5), ("i8", 10**30)])
def test_a_masked_value_outside_the_type_stays_an_attribute(tmp_path, dtype, fill):
    values = VALUES.astype(dtype)
    gpustore.save(tmp_path / "a", values, dims=("y", "x"), attributes={"_FillValue": fill})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert copied.attrs["_FillValue"] == fill
    assert document(tmp_path / "b")["fill_value"] is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr2_gets_names_of_all_dimensions_or_none(tmp_path, zarr_format):
    make(tmp_path / "a", zarr_format, dims=("y", "x"))
    with pytest.warns(gpustore.CopyWarning, match="names of all dimensions or none"):
        copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2, dims=("y", None))
    assert dict(copied.attrs) == {}


def test_scalars_have_no_names_but_a_list_of_them(tmp_path):
    gpustore.save(tmp_path / "a", np.float64(5), attributes={"_FillValue": encoded(3)})
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=2)
    assert dict(copied.attrs) == {"_ARRAY_DIMENSIONS": []}
    assert (copied.read().result(), copied.fill_value) == (5, 3)
    again = gpustore.copy(tmp_path / "b", tmp_path / "c", zarr_format=3)
    assert dict(again.attrs) == {"_FillValue": encoded(3)}
    assert again.read().result() == 5


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_of_numpy_are_json(tmp_path, zarr_format):
    given = {"a": np.arange(2), "b": {"c": np.float32(0.5)}}
    copied = gpustore.copy(VALUES, tmp_path / "a", zarr_format=zarr_format, attributes=given)
    assert dict(copied.attrs) == {"a": [0, 1], "b": {"c": 0.5}}
    with pytest.raises(TypeError, match="'object' does not support conversion to JSON"):
        gpustore.copy(VALUES, tmp_path / "b", zarr_format=zarr_format, attributes={"a": object()})


def test_no_element_of_a_named_array_of_another_library_is_masked_in_v2(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([0, 1, 2], "i4")
    copied = gpustore.copy(f"{tmp_path}/a.h5::/x", tmp_path / "b", zarr_format=2, dims=("t",))
    assert document(tmp_path / "b")["fill_value"] is None
    assert copied.read().result().tolist() == [0, 1, 2]
    gpustore.copy(f"{tmp_path}/a.h5::/x", tmp_path / "c", zarr_format=2)
    assert document(tmp_path / "c")["fill_value"] == 0  # Without names xarray does not open it.
