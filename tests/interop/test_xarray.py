"""xarray's engine "gpustore", compared with its own engine "zarr" on what xarray writes."""

import asyncio
import random
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
        "text": (("lat",), np.array(["a", "", "ccc", "d", "ü"], object)),
        "fixed": (("lat",), np.array([b"a", b"bb", b"ccc", b"d", b"e"])),
        "complex": (("lon",), np.arange(4) + 1j),
        "step": (("time",), np.arange(6).astype("timedelta64[h]").astype("timedelta64[ns]")),
        "scalar": 5,
    }
    coordinates = {
        "time": np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]").astype("M8[ns]"),
        "lat": np.linspace(0, 1, 5),
        "lon": np.arange(4),
        "place": ("lat", np.array(["v", "w", "x", "y", "z"], object)),
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


@pytest.mark.matrix("costly")
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
    check_encoding(ours, theirs)


def check_encoding(ours, theirs):
    """Check what ``identical`` leaves out."""
    for name, variable in theirs.variables.items():
        assert ours[name].dtype == variable.dtype, name
        assert ours[name].encoding.keys() == variable.encoding.keys(), name
        for key in {"chunks", "preferred_chunks", "shards", "dtype"} & variable.encoding.keys():
            assert ours[name].encoding[key] == variable.encoding[key], (name, key)


VALUES = {
    "numbers": lambda r, shape: r.integers(0, 100, shape).astype(r.choice(["u1", ">i2", "i8"])),
    "floats": lambda r, shape: np.where(r.random(shape) < 0.3, np.nan, r.normal(size=shape)),
    "booleans": lambda r, shape: r.random(shape) < 0.5,
    "complex": lambda r, shape: r.normal(size=shape) * 1j,
    "strings": lambda r, shape: r.choice(["", "a", "日本"], shape),
    "objects": lambda r, shape: r.choice(["", "a", "日本"], shape).astype(object),
    "bytes": lambda r, shape: r.choice([b"", b"a", b"bcd"], shape),
    "times": lambda r, shape: r.choice(np.array(["2000-01-01T03", "NaT"], "M8[s]"), shape),
    "durations": lambda r, shape: r.integers(0, 9, shape).astype("m8[h]").astype("m8[ns]"),
}
PACKED = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1}


def generated(seed, zarr_format):
    """Return a data set that xarray writes, and the encoding of its variables."""
    chosen, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = {dim: chosen.choice([0, 1, 3, 5]) for dim in ("x", "läge", "z z")}
    variables, encoding = {}, {}
    for name in ("a", "b c", "ü", "d.e", "x"):
        dims = ["x"] if name == "x" else chosen.sample(list(sizes), chosen.randint(0, 3))
        shape = tuple(sizes[dim] for dim in dims)
        kind = chosen.choice(list(VALUES))
        variables[name] = (dims, np.asarray(VALUES[kind](numbers, shape)), {"n": [1, {"m": None}]})
        how = encoding[name] = {}
        if kind == "floats" and chosen.random() < 0.5:
            how |= PACKED
        elif kind == "numbers" and chosen.random() < 0.5:
            how["_FillValue"] = 5
        if dims and chosen.random() < 0.7:
            how["chunks"] = tuple(chosen.randint(1, size + 2) for size in shape)
            if zarr_format == 3 and chosen.random() < 0.5:
                how["shards"] = tuple(n * chosen.randint(1, 2) for n in how["chunks"])
        if chosen.random() < 0.3:
            how["compressors"] = None
    return xarray.Dataset(variables, attrs={"title": np.int16(3)}), encoding


@pytest.mark.matrix
@each("zarr_format", [2, 3])
@each("seed", range(4))
def test_generated_data_sets_are_identical(seed, zarr_format, tmp_path):
    made, encoding = generated(seed, zarr_format)
    made.to_zarr(tmp_path / "x.zarr", zarr_format=zarr_format, encoding=encoding)
    for options in ({}, {"mask_and_scale": False}, {"decode_cf": False}, {"chunks": {}}):
        ours, theirs = both(tmp_path / "x.zarr", **options)
        check_encoding(ours, theirs)
        for select in ({}, {"x": slice(None, None, -2)}, {"läge": []}):
            xarray.testing.assert_identical(
                *(one.isel(select, missing_dims="ignore").load() for one in (ours, theirs))
            )


@pytest.mark.matrix("costly")
@each("options", [{"mask_and_scale": False}, {"decode_times": False}, {"drop_variables": ["t2m"]}])
@each("zarr_format", [2, 3])
def test_options_of_decoding(options, zarr_format, tmp_path):
    ours, theirs = both(written(tmp_path / "x.zarr", zarr_format), **options)
    xarray.testing.assert_identical(ours.load(), theirs.load())


@pytest.mark.matrix("costly")
@each("zarr_format", [2, 3])
def test_what_is_written_again_is_encoded_alike(zarr_format, tmp_path):
    path = written(tmp_path / "x.zarr", zarr_format)
    xarray.open_dataset(path, engine="gpustore").to_zarr(
        tmp_path / "y.zarr", zarr_format=zarr_format
    )
    first, second = (gpustore.open(tmp_path / n / "t2m").result() for n in ("x.zarr", "y.zarr"))
    assert first.spec().to_json()["metadata"] == second.spec().to_json()["metadata"]
    np.testing.assert_array_equal(first, second)
    again = xarray.open_dataset(tmp_path / "y.zarr", engine="zarr").load()
    assert again.equals(xarray.open_dataset(path, engine="zarr").load())


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    opened = xarray.open_dataset(written(tmp_path / "x.zarr", 3), engine="gpustore")
    before = gpustore.statistics["chunks_planned"]
    view = opened.t2m[2:4, :3]
    assert gpustore.statistics["chunks_planned"] == before
    view.load()
    assert gpustore.statistics["chunks_planned"] == before + 2  # With "place".


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
    for options in ({}, {"group": "/"}, {"group": "a/"}, {"group": "/a/b"}):
        ours, theirs = (
            xarray.open_groups(tmp_path / "x.zarr", engine=name, **options)
            for name in ("gpustore", "zarr")
        )
        assert ours.keys() == theirs.keys()


@pytest.mark.matrix("costly")
@each("zarr_format", [2, 3])
def test_groups_are_opened_by_the_consolidated_metadata_of_the_root(zarr_format, tmp_path):
    for group, consolidated in (("a/b", False), (None, True)):
        dataset().to_zarr(
            tmp_path / "x.zarr",
            group=group,
            zarr_format=zarr_format,
            consolidated=consolidated,
            mode="a",
        )
    document = tmp_path / "x.zarr/a/b/t2m" / (".zarray" if zarr_format == 2 else "zarr.json")
    document.rename(tmp_path / "elsewhere")
    ours, theirs = both(tmp_path / "x.zarr", group="a/b", consolidated=True)
    document.parent.joinpath(document.name).write_bytes((tmp_path / "elsewhere").read_bytes())
    xarray.testing.assert_identical(ours.load(), theirs.load())
    with pytest.raises(gpustore.MismatchError, match="No consolidated metadata"):
        both(tmp_path / "x.zarr/a", group="b", consolidated=True)
    with pytest.raises(gpustore.NotFoundError, match="nothing"):
        both(tmp_path / "x.zarr", group="a/nothing")
    with pytest.raises(gpustore.MismatchError, match="is an array"):
        both(tmp_path / "x.zarr", group="a/b/t2m")


def test_a_data_set_is_loaded_in_an_event_loop(tmp_path):
    opened = xarray.open_dataset(written(tmp_path / "x.zarr", 3), engine="gpustore")
    for select in SELECTIONS.values():
        found = asyncio.run(select(opened).load_async())
        xarray.testing.assert_identical(found, select(opened).compute())


def test_groups_and_stores_of_zarr_python_are_places(tmp_path):
    import zarr

    path = written(tmp_path / "x.zarr", 3)
    expected = xarray.open_dataset(path, engine="zarr").load()
    for place in (gpustore.open_group(path).result(), zarr.storage.LocalStore(path)):
        opened = xarray.open_dataset(place, engine="gpustore")
        xarray.testing.assert_identical(opened.load(), expected)


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
    group = gpustore.open_group(path).result()
    group.create_array("area", data=np.arange(5.0), dims=["lat"]).result()
    group.attrs["coordinates"] = "area"
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
