"""Data sets of HDF5 files as h5py writes them."""

import base64
import struct

import numpy as np
import pytest

import gpustore
from gpustore.sources.files import open_file

h5py = pytest.importorskip("h5py")

VALUES = np.arange(4 * 6 * 5, dtype=">i4").reshape(4, 6, 5)
pytestmark = pytest.mark.filterwarnings("error::gpustore.CopyWarning")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        one = file.create_dataset("g/x", data=VALUES, chunks=(2, 3, 5), fillvalue=7)
        one.attrs.update(
            {"units": "K", "range": np.arange(2), "scale": np.float32(0.5), "name": b"n"}
        )
        file["g/time"] = np.arange(4.0)
        file["g/time"].make_scale()
        one.dims[0].attach_scale(file["g/time"])
        one.dims[2].label = "x"
        file.create_dataset("text", data=["a", "ö", ""], dtype=h5py.string_dtype())
        file.create_dataset("letters", data=np.array([b"ab", b"c"]))
        file.create_dataset("flags", data=[True, False])
        file.create_dataset("single", data=3.5)
        file.create_dataset("lists", (2,), dtype=h5py.vlen_dtype("i4"))
        file.create_dataset("nothing", data=h5py.Empty("f4"))
    return str(path)


def whole(source):
    return source.read(tuple(slice(0, n) for n in source.shape))


def test_elements_and_properties(path):
    source = open_file(f"{path}::/g/x")
    np.testing.assert_array_equal(whole(source), VALUES)
    part = slice(1, 3), slice(2, 6), slice(0, 1)
    np.testing.assert_array_equal(source.read(part), VALUES[part])
    assert (source.dtype, source.chunks, source.fill_value) == (VALUES.dtype, (2, 3, 5), 7)
    assert source.dims == ("time", "", "x")
    assert source.attributes == {"units": "K", "range": [0, 1], "scale": 0.5, "name": "n"}
    source.close()


def test_a_scale_names_its_own_dimension(path):
    source = open_file(f"{path}::g/time")
    assert (source.dims, source.attributes) == (("time",), {})
    source.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", ["a", "ö", ""]),
        ("letters", ["ab", "c"]),
        ("flags", [True, False]),
        ("single", 3.5),
    ],
)
def test_kinds_of_elements(path, tmp_path, name, expected):
    copied = gpustore.copy(f"{path}::{name}", tmp_path / "b.zarr")
    assert copied.read().result().tolist() == expected


def test_what_has_no_copy(path):
    with pytest.raises(gpustore.UnsupportedError, match="/lists are arrays of any length"):
        open_file(f"{path}::lists")
    with pytest.raises(gpustore.UnsupportedError, match="/nothing has no elements"):
        open_file(f"{path}::nothing")


def test_data_sets_are_named(path, tmp_path):
    with pytest.raises(gpustore.CopyError, match="is to be copied by data sets") as info:
        open_file(path)
    assert f'name one as in "{path}::/flags"; there is /flags, /g/time' in str(info.value)
    with pytest.raises(gpustore.CopyError, match="there is /g/time, /g/x"):
        open_file(f"{path}::g")
    with pytest.raises(gpustore.NotFoundError, match='no data set "h"'):
        open_file(f"{path}::h")
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["a/b"] = VALUES
    only = open_file(str(tmp_path / "one.h5"))
    np.testing.assert_array_equal(whole(only), VALUES)
    only.close()


def test_attributes_without_json_form_are_named(path):
    with h5py.File(path, "a") as file:
        file["flags"].attrs["place"] = file["text"].ref
    with pytest.warns(gpustore.CopyWarning, match='attribute "place" has no JSON form'):
        open_file(f"{path}::flags").close()


def test_a_damaged_file_is_an_error(path):
    with open(path, "r+b") as file:
        file.truncate(600)
    with pytest.raises(gpustore.StoreIOError, match="cannot be opened"):
        open_file(f"{path}::flags")


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1"])
def test_missing_values_of_netcdf_stay_missing(tmp_path, dtype):
    fill = np.array([99], dtype)
    with h5py.File(tmp_path / "a.nc", "w") as file:
        one = file.create_dataset("x", data=np.array([1, 99], dtype), fillvalue=fill[0])
        one.attrs["_FillValue"] = fill
        file["x"].dims[0].label = "time"
    encoded = base64.b64encode(struct.pack("<d", 99)).decode() if fill.dtype.kind == "f" else 99
    copied = gpustore.copy(f"{tmp_path}/a.nc::x", tmp_path / "b.zarr")
    assert dict(copied.attrs) == {"_FillValue": encoded}
    other = gpustore.copy(f"{tmp_path}/a.nc::x", tmp_path / "c.zarr", zarr_format=2)
    assert dict(other.attrs) == {"_ARRAY_DIMENSIONS": ["time"]}
    assert other.fill_value == 99


@pytest.mark.parametrize("value", ["none", [1.0, 2.0], None], ids=repr)
def test_what_is_no_missing_value(tmp_path, value):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["x"] = np.arange(2.0)
        if value is not None:
            file["x"].attrs["_FillValue"] = value
    assert dict(gpustore.copy(f"{tmp_path}/a.nc::x", tmp_path / "b.zarr").attrs) == {}


def test_text_that_is_not_utf8_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=[b"a", b"\xff"], dtype=h5py.string_dtype())
    with pytest.raises(gpustore.CopyError, match=r"a\.h5::/x has text that is not UTF-8.*0xff"):
        gpustore.copy(f"{tmp_path}/a.h5::x", tmp_path / "b.zarr")


def test_what_is_no_data_set_is_named(path, tmp_path):
    with h5py.File(path, "a") as file:
        file["kind"] = np.dtype("f4")
        for value in (file, file["g"], file["kind"], file["flags"].astype("i2")):
            with pytest.raises(gpustore.CopyError, match="is no data set of h5py"):
                gpustore.copy(value, tmp_path / "b.zarr")
    with pytest.raises(gpustore.CopyError, match=r'a\.h5: "/kind" is a data type.*name one as'):
        open_file(f"{path}::/kind")
