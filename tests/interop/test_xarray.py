"""xarray's engine "gpustore", compared with its own engine "zarr" on what xarray writes."""

import warnings

import numpy as np
import pytest

import gpustore
from tests.emulator.device import EmulatedArray
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated, on_host

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("zarr")

pytestmark = pytest.mark.filterwarnings("ignore")


def dataset():
    """All kinds of variables: scaled, masked, strings of both kinds, times, scalars."""
    random = np.random.default_rng(0)
    kelvin = random.normal(280, 10, (6, 5, 4)).astype("f4")
    variables = {
        "t2m": (("time", "lat", "lon"), kelvin, {"units": "K"}),
        "mask": (("lat", "lon"), random.random((5, 4)) > 0.5),
        "name": (("lat",), np.array(["a", "bb", "ccc", "d", "e"])),
        "fixed": (("lat",), np.array([b"a", b"bb", b"ccc", b"d", b"e"])),
        "complex": (("lon",), np.arange(4) + 1j),
        "step": (("time",), np.arange(6).astype("timedelta64[h]").astype("timedelta64[ns]")),
        "scalar": 5,
    }
    coordinates = {
        "time": np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]").astype("M8[ns]"),
        "lat": np.linspace(0, 1, 5),
        "lon": np.arange(4),
    }
    made = xarray.Dataset(variables, coordinates, {"title": "x"})
    made["t2m"][0, 0, 0] = np.nan
    return made


def written(path, zarr_format, *, consolidated=True):
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -9999}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset().to_zarr(
            path,
            zarr_format=zarr_format,
            consolidated=consolidated,
            encoding={"t2m": {**packed, "chunks": (2, 3, 4)}},
        )
    return path


def both(path, **options):
    """Return the data set as both engines open it."""
    return [xarray.open_dataset(path, engine=name, **options) for name in ("gpustore", "zarr")]


SELECTIONS = {
    "all": lambda d: d,
    "slices": lambda d: d.isel(time=slice(1, 5, 2), lat=slice(None, None, -1)),
    "outer": lambda d: d.isel(time=[3, 1], lat=[0, -1]),
    "integer": lambda d: d.isel(time=-1, lon=0),
    "vectorised": lambda d: d.isel(
        time=xarray.DataArray([0, 1, 2], dims="p"), lat=xarray.DataArray([0, 4, 2], dims="p")
    ),
    "labels": lambda d: d.sel(time=slice("2020-01-02", "2020-01-04")),
}


@each("zarr_format", [2, 3])
@each("consolidated", [True, False])
@each("selection", SELECTIONS)
def test_data_sets_are_identical_to_those_of_the_engine_zarr(
    zarr_format, consolidated, selection, tmp_path
):
    path = written(tmp_path / "x.zarr", zarr_format, consolidated=consolidated)
    ours, theirs = both(path)
    select = SELECTIONS[selection]
    xarray.testing.assert_identical(select(ours).load(), select(theirs).load())
    for name in theirs.variables:
        assert ours[name].dtype == theirs[name].dtype
        assert ours[name].encoding["chunks"] == theirs[name].encoding["chunks"]


@each("options", [{"mask_and_scale": False}, {"decode_times": False}, {"drop_variables": ["t2m"]}])
@each("zarr_format", [2, 3])
def test_options_of_decoding(options, zarr_format, tmp_path):
    ours, theirs = both(written(tmp_path / "x.zarr", zarr_format), **options)
    xarray.testing.assert_identical(ours.load(), theirs.load())


@each("zarr_format", [2, 3])
def test_what_is_written_again_is_encoded_alike(zarr_format, tmp_path):
    path = written(tmp_path / "x.zarr", zarr_format)
    xarray.open_dataset(path, engine="gpustore").to_zarr(
        tmp_path / "y.zarr", zarr_format=zarr_format
    )
    first, second = (gpustore.open(tmp_path / n / "t2m").result() for n in ("x.zarr", "y.zarr"))
    assert first.spec().to_json()["metadata"] == second.spec().to_json()["metadata"]
    np.testing.assert_array_equal(first, second)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    opened = xarray.open_dataset(written(tmp_path / "x.zarr", 3), engine="gpustore")
    before = gpustore.statistics["chunks_planned"]
    view = opened.t2m[2:4, :3]
    assert gpustore.statistics["chunks_planned"] == before
    view.load()
    assert gpustore.statistics["chunks_planned"] == before + 1


def test_trees(tmp_path):
    whole = dataset()
    tree = xarray.DataTree.from_dict(
        {"/": whole[["scalar"]], "/a": whole[["mask"]], "/a/b": whole[["complex"]]}
    )
    tree.to_zarr(tmp_path / "x.zarr")
    ours, theirs = (
        xarray.open_datatree(tmp_path / "x.zarr", engine=name) for name in ("gpustore", "zarr")
    )
    xarray.testing.assert_identical(ours.load(), theirs.load())
    group = xarray.open_dataset(tmp_path / "x.zarr", engine="gpustore", group="a/b")
    assert set(group.data_vars) == {"complex"}


def test_arrays_without_names_of_dimensions_are_named(tmp_path):
    for zarr_format, text in ((2, "_ARRAY_DIMENSIONS"), (3, "dimension_names")):
        group = gpustore.open_group(
            tmp_path / f"{zarr_format}", create=True, zarr_format=zarr_format
        ).result()
        group.create_array("a", data=[1, 2]).result()
        group.create_array("b", data=[1, 2], dims=["x"]).result()
        with pytest.raises(gpustore.MetadataError, match=f"{text}.*drop_variables='a'"):
            xarray.open_dataset(tmp_path / f"{zarr_format}", engine="gpustore")
        opened = xarray.open_dataset(
            tmp_path / f"{zarr_format}", engine="gpustore", drop_variables="a"
        )
        assert opened.b.dims == ("x",)


@needs_compiler
def test_data_variables_are_read_to_a_device_and_coordinates_stay_on_the_host(tmp_path):
    path = written(tmp_path / "x.zarr", 3)
    host = xarray.open_dataset(path, engine="gpustore", mask_and_scale=False)
    with emulated() as device:
        options = {"backend_kwargs": {"device": device.name}, "mask_and_scale": False}
        opened = xarray.open_dataset(path, engine="gpustore", cache=False, **options)
        on_device = {
            name
            for name, variable in opened.variables.items()
            if isinstance(variable.data, EmulatedArray)
        }
        assert on_device == {"t2m", "mask", "complex"}
        for select in (SELECTIONS["all"], SELECTIONS["outer"], SELECTIONS["slices"]):
            found = select(opened)["t2m"].data
            np.testing.assert_array_equal(on_host(device, found), select(host)["t2m"].values)
        del opened, found
