"""Images for xarray, dask and napari, and files of other writers and readers of OME-Zarr."""

import numpy as np
import pytest

from gpustore import ome

VALUES = np.random.default_rng(0).integers(0, 60000, (2, 8, 64, 64)).astype("uint16")
SCALE = {"c": 1.0, "z": 2.0, "y": 0.5, "x": 0.5}
TRANSLATION = {"c": 0.0, "z": 1.0, "y": 3.0, "x": 4.0}
WINDOW = ome.Window(0, 1000, 0, 65535)
CHANNELS = [ome.Channel("DAPI", "0000FF", WINDOW, True), ome.Channel("GFP", "00FF00", WINDOW, True)]


@pytest.fixture
def image(tmp_path):
    written = ome.write(
        tmp_path / "a.zarr", VALUES, axes="czyx", scale=SCALE, translation=TRANSLATION, units="um",
        channels=CHANNELS, levels=2, name="cells",
    )  # fmt: skip
    written.create_label("nuclei").write((VALUES[0] > 9).astype("uint32"))
    return ome.open(tmp_path / "a.zarr")


def test_xarray_has_coordinates_in_units(image):
    pytest.importorskip("xarray")
    array = image.to_xarray()
    assert array.dims == ("c", "z", "y", "x")
    assert array.name == "cells"
    assert array.coords["c"].values.tolist() == ["DAPI", "GFP"]
    assert array.coords["z"].values.tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert array.coords["z"].attrs == {"units": "micrometer"}
    found = array.sel(c="GFP", z=5, y=slice(4, 6)).compute()
    assert np.array_equal(found, VALUES[1, 2, 2:7])
    coarse = image.to_xarray(1)
    assert coarse.coords["x"].values[:2].tolist() == [4.25, 5.25]


def test_dask_reads_a_level(image):
    pytest.importorskip("dask")
    assert np.array_equal(image.to_dask().compute(), VALUES)
    assert image.to_dask(1, "auto").shape == (2, 8, 32, 32)


def test_layers_of_napari(image):
    pytest.importorskip("dask")
    (levels, about, kind), (labels, about_labels, kind_labels) = image.to_napari()
    assert (kind, kind_labels) == ("image", "labels")
    assert [level.shape for level in levels] == [(2, 8, 64, 64), (2, 8, 32, 32)]
    assert about["scale"] == [2, 0.5, 0.5]
    assert about["translate"] == [1, 3, 4]
    assert about["channel_axis"] == 0
    assert about["name"] == ["DAPI", "GFP"]
    assert about["contrast_limits"] == [[0, 1000]] * 2
    assert about["colormap"][0].tolist() == [[0, 0, 0], [0, 0, 1]]
    assert about["multiscale"] is True
    assert about_labels == {
        "name": "nuclei", "scale": [2, 0.5, 0.5], "translate": [1, 3, 4], "multiscale": True,
    }  # fmt: skip
    assert labels[0].shape == (8, 64, 64)


def check(image, version):
    assert image.version == version
    assert image.axes == ("c", "z", "y", "x")
    assert image.level(0).scale == SCALE
    assert np.array_equal(image.level(0).read().result(), VALUES)


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_files_of_ngff_zarr_are_read(version, tmp_path):
    ngff_zarr = pytest.importorskip("ngff_zarr")
    one = ngff_zarr.to_ngff_image(
        VALUES, dims=list("czyx"), scale=SCALE, translation=TRANSLATION, name="cells",
        axes_units=dict.fromkeys("zyx", "micrometer"),
    )  # fmt: skip
    many = ngff_zarr.to_multiscales(one, scale_factors=[{"z": 1, "y": 2, "x": 2}], chunks=32)
    ngff_zarr.to_ngff_zarr(str(tmp_path / "a.zarr"), many, version=version)
    image = ome.open(tmp_path / "a.zarr")
    check(image, version)
    assert image.units["z"] == "micrometer"
    assert image.level(0).translation == TRANSLATION
    assert image.level(1).translation == {"c": 0, "z": 1, "y": 3.25, "x": 4.25}
    if version == "0.5":
        ngff_zarr.to_ngff_zarr(str(tmp_path / "a.ozx"), many, version=version)
        check(ome.open(tmp_path / "a.ozx"), version)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("version", "zarr_format"), [("0.4", 2), ("0.5", 3)])
def test_files_of_ome_zarr_are_read(version, zarr_format, tmp_path):
    writer = pytest.importorskip("ome_zarr.writer")
    zarr = pytest.importorskip("zarr")
    format_ = {2: "FormatV04", 3: "FormatV05"}[zarr_format]
    of = getattr(pytest.importorskip("ome_zarr.format"), format_)()
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format)
    steps = [{"type": "scale", "scale": list(SCALE.values())}]
    writer.write_image(VALUES, group, axes="czyx", fmt=of, scaler=None,
                       coordinate_transformations=[steps])  # fmt: skip
    labels = (VALUES[0] > 30000).astype("uint8")
    writer.write_labels(labels, group, name="cells", axes="zyx", fmt=of)
    image = ome.open(tmp_path / "a.zarr")
    assert np.array_equal(image.level(0).read().result(), VALUES)
    assert np.array_equal(image.labels["cells"].level(0).read().result(), labels)
    plate = zarr.open_group(tmp_path / "p.zarr", mode="w", zarr_format=zarr_format)
    writer.write_plate_metadata(plate, ["A", "B"], ["1", "2"], ["A/1", "B/2"], fmt=of)
    well = plate.require_group("B").require_group("2")
    writer.write_well_metadata(well, ["0"], fmt=of)
    writer.write_image(VALUES, well.require_group("0"), axes="czyx", fmt=of)
    fields = ome.open(tmp_path / "p.zarr").wells["B/2"].fields
    assert np.array_equal(fields[0].level(0).read().result(), VALUES)


@pytest.mark.parametrize(("version", "zarr_format"), [("0.4", 2), ("0.5", 3)])
def test_files_of_bioio_are_read(version, zarr_format, tmp_path):
    writers = pytest.importorskip("bioio_ome_zarr.writers")
    writer = writers.OMEZarrWriter(
        store=str(tmp_path / "a.zarr"), level_shapes=[(2, 8, 64, 64)], dtype="uint16",
        zarr_format=zarr_format, axes_names=list("czyx"), physical_pixel_size=list(SCALE.values()),
        axes_types=["channel", "space", "space", "space"],
        axes_units=[None, "micrometer", "micrometer", "micrometer"],
    )  # fmt: skip
    writer.write_full_volume(VALUES)
    check(ome.open(tmp_path / "a.zarr"), version)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_other_readers_open_what_is_written(version, tmp_path):
    ngff_zarr = pytest.importorskip("ngff_zarr")
    path = tmp_path / "a.zarr"
    image = ome.write(path, VALUES, axes="czyx", scale=SCALE, translation=TRANSLATION, units="um",
                      channels=CHANNELS, levels=2, name="cells", version=version)  # fmt: skip
    image.create_label("nuclei", colors={1: (255, 0, 0, 255)})
    many = ngff_zarr.from_ngff_zarr(str(path), validate=True, version=version)
    one = many.images[0]
    assert np.array_equal(np.asarray(one.data), VALUES)
    assert (one.scale, one.translation) == (SCALE, TRANSLATION)
    assert many.images[1].translation == {"c": 0, "z": 1, "y": 3.25, "x": 4.25}
    plate = ome.create_plate(tmp_path / "p.zarr", rows="AB", columns=range(1, 3), version=version)
    plate.create_image("B/2/0", shape=(8, 8), dtype="uint8", axes="yx")
    assert ngff_zarr.from_hcs_zarr(str(tmp_path / "p.zarr"), validate=True) is not None
    if version == "0.6":
        return  # ome-zarr-models 1.7 does not know it.
    models, zarr = pytest.importorskip("ome_zarr_models"), pytest.importorskip("zarr")
    for place, kind in (
        ("a.zarr", "Image"), ("a.zarr/labels", "Labels"), ("a.zarr/labels/nuclei", "ImageLabel"),
        ("p.zarr", "HCS"), ("p.zarr/B/2", "Well"), ("p.zarr/B/2/0", "Image"),
    ):  # fmt: skip
        found = models.open_ome_zarr(zarr.open_group(tmp_path / place, mode="r"))
        assert type(found).__name__ == kind
    io, reader = pytest.importorskip("ome_zarr.io"), pytest.importorskip("ome_zarr.reader")
    node = next(iter(reader.Reader(io.parse_url(str(path)))()))
    assert np.array_equal(np.asarray(node.data[0]), VALUES)
    assert node.metadata["channel_names"] == ["DAPI", "GFP"]
