"""Images for xarray, dask and napari, and files of other writers and readers of OME-Zarr."""

import inspect

import numpy as np
import pytest

import gpustore
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


@pytest.mark.matrix("costly")
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


def test_arrays_of_dask_are_written(tmp_path):
    array = pytest.importorskip("dask.array")
    lazy = array.from_array(VALUES, chunks=(1, 3, 50, 20)) + 1
    image = ome.write(tmp_path / "a.zarr", lazy, axes="czyx", levels=3, chunks=(1, 8, 32, 32))
    assert np.array_equal(image.level(0).read().result(), VALUES + 1)
    half = gpustore.downsample(gpustore.array(VALUES + 1), [1, 2, 2, 2], "mean")
    assert np.array_equal(image.level(1).read().result(), half.read().result())


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_tensors_of_torch_are_written(dtype, tmp_path):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy((VALUES >> 8).astype("uint8")).to(getattr(torch, dtype))
    image = ome.write(tmp_path / "a.zarr", tensor, axes="czyx", scale=(2, 0.5, 0.5), units="um")
    assert image.level(0).dtype.name == dtype
    assert np.array_equal(image.level(0).read().result(), VALUES >> 8)


def check(image, version):
    assert image.version == version
    assert image.axes == ("c", "z", "y", "x")
    assert image.level(0).scale == SCALE
    assert np.array_equal(image.level(0).read().result(), VALUES)


@pytest.mark.filterwarnings("ignore")
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
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_plates_and_channels_of_ngff_zarr_are_read(version, tmp_path):
    ngff_zarr = pytest.importorskip("ngff_zarr")
    one = ngff_zarr.to_ngff_image(VALUES, dims=list("czyx"), scale=SCALE, translation=TRANSLATION)
    many = ngff_zarr.to_multiscales(one, scale_factors=[], chunks=32)
    window = ngff_zarr.OmeroWindow(min=0, max=65535, start=0, end=1000)
    colors = ("DAPI", "0000FF"), ("GFP", "00FF00")
    many.metadata.omero = ngff_zarr.Omero(
        [ngff_zarr.OmeroChannel(color, window, label) for label, color in colors]
    )
    about = ngff_zarr.Plate(
        columns=[ngff_zarr.PlateColumn("1"), ngff_zarr.PlateColumn("2")],
        rows=[ngff_zarr.PlateRow("A"), ngff_zarr.PlateRow("B")],
        wells=[ngff_zarr.PlateWell("B/2", 1, 1)], version=version, name="screen",
        acquisitions=[ngff_zarr.PlateAcquisition(0, name="first")],
    )  # fmt: skip
    path = str(tmp_path / "p.zarr")
    ngff_zarr.to_hcs_zarr(ngff_zarr.HCSPlate(path, about), path)
    for field in range(2):
        ngff_zarr.write_hcs_well_image(path, many, about, "B", "2", field, version=version)
    plate = ome.open(path)
    assert (plate.version, plate.name, plate.rows, plate.columns) == (
        version, "screen", ("A", "B"), ("1", "2"),
    )  # fmt: skip
    assert plate.acquisitions[0].name == "first"
    assert list(plate.fields) == ["B/2/0", "B/2/1"]
    for image in plate.fields.values():
        check(image, version)
        assert image.level(0).translation == TRANSLATION
        assert image.omero.channels == tuple(CHANNELS)
    assert not [one for one in ome.validate(path) if one.is_of_schema]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("version", "zarr_format"), [("0.4", 2), ("0.5", 3)])
def test_files_of_ome_zarr_are_read(version, zarr_format, tmp_path):
    writer = pytest.importorskip("ome_zarr.writer")
    zarr = pytest.importorskip("zarr")
    format_ = {2: "FormatV04", 3: "FormatV05"}[zarr_format]
    of = getattr(pytest.importorskip("ome_zarr.format"), format_)()
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format)
    axes = [{"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    shift = {"type": "translation", "translation": list(TRANSLATION.values())}
    factors = (1, 1, 1, 1), (1, 1, 2, 2)
    steps = [
        [{"type": "scale", "scale": [a * b for a, b in zip(SCALE.values(), by)]}, shift]
        for by in factors
    ]
    window = {"start": 0, "end": 1000, "min": 0, "max": 65535}
    omero = [
        {"label": label, "color": color, "window": window, "active": True}
        for label, color in (("DAPI", "0000FF"), ("GFP", "00FF00"))
    ]
    # Newer releases take the units apart, and do not look at those of the axes.
    units = {}
    if "axes_units" in inspect.signature(writer.write_multiscale).parameters:
        units["axes_units"] = dict.fromkeys("zyx", "micrometer")
    writer.write_multiscale(
        [VALUES, VALUES[:, :, ::2, ::2]], group, axes=axes, fmt=of, name="cells", **units,
        coordinate_transformations=steps, metadata={"omero": {"channels": omero}},
    )  # fmt: skip
    labels = (VALUES[0] > 30000).astype("uint8")
    writer.write_labels(labels, group, name="cells", axes="zyx", fmt=of)
    image = ome.open(tmp_path / "a.zarr")
    check(image, version)
    assert (image.name, image.units["x"]) == ("cells", "micrometer")
    assert image.level(1).scale == {"c": 1, "z": 2, "y": 1, "x": 1}
    assert image.level(1).translation == TRANSLATION
    assert np.array_equal(image.level(1).read().result(), VALUES[:, :, ::2, ::2])
    assert image.omero.channels == tuple(CHANNELS)
    assert np.array_equal(image.labels["cells"].level(0).read().result(), labels)
    plate = zarr.open_group(tmp_path / "p.zarr", mode="w", zarr_format=zarr_format)
    writer.write_plate_metadata(plate, ["A", "B"], ["1", "2"], ["A/1", "B/2"], fmt=of)
    well = plate.require_group("B").require_group("2")
    writer.write_well_metadata(well, ["0"], fmt=of)
    writer.write_image(VALUES, well.require_group("0"), axes="czyx", fmt=of)
    fields = ome.open(tmp_path / "p.zarr").wells["B/2"].fields
    assert np.array_equal(fields[0].level(0).read().result(), VALUES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_images_of_ome_zarr_are_read(version, tmp_path):
    """Those of its classes, which write 0.6, too."""
    classes = pytest.importorskip("ome_zarr.classes.image")
    if version == "0.6":
        pytest.importorskip("ome_zarr_models.v06")  # ome-zarr writes what that knows.
    described = {"axes": "zyx", "name": "cells", "scale": {axis: SCALE[axis] for axis in "zyx"}}
    described |= {"axes_units": dict.fromkeys("zyx", "micrometer")}
    labels = (VALUES[0] > 30000).astype("uint8")
    labels = classes.OMEZarrLabels(
        classes.OMEZarrImage(labels, **{**described, "name": "nuclei"}), [{"z": 1, "y": 2, "x": 2}]
    )
    many = classes.OMEZarrMultiscale(
        classes.OMEZarrImage(VALUES[1], **described), [{"z": 1, "y": 2, "x": 2}], labels=labels
    )
    many.to_ome_zarr(str(tmp_path / "a.zarr"), version=version)
    image = ome.open(tmp_path / "a.zarr")
    assert (image.version, image.axes, image.name) == (version, ("z", "y", "x"), "cells")
    assert set(image.units.values()) == {"micrometer"}
    assert image.level(0).scale == described["scale"]
    assert image.level(1).scale == {"z": 2, "y": 1, "x": 1}
    assert np.array_equal(image.level(0).read().result(), VALUES[1])
    assert np.array_equal(image.level(1).read().result(), np.asarray(many.images[1].data))
    found = image.labels["nuclei"].level(0).read().result()
    assert np.array_equal(found, VALUES[0] > 30000)
    assert not [one for one in ome.validate(tmp_path / "a.zarr") if one.is_of_schema]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("version", "zarr_format"), [("0.4", 2), ("0.5", 3)])
def test_files_of_bioio_are_read(version, zarr_format, tmp_path):
    writers = pytest.importorskip("bioio_ome_zarr.writers")
    writer = writers.OMEZarrWriter(
        store=str(tmp_path / "a.zarr"), level_shapes=[(2, 8, 64, 64), (2, 8, 32, 32)],
        dtype="uint16", image_name="cells",
        channels=[writers.Channel(label="DAPI", color="0000FF",
                                  window={"start": 0, "end": 1000, "min": 0, "max": 65535}),
                  writers.Channel(label="GFP", color="00FF00",
                                  window={"start": 0, "end": 1000, "min": 0, "max": 65535})],
        root_transform={"type": "translation", "translation": list(TRANSLATION.values())},
        zarr_format=zarr_format, axes_names=list("czyx"), physical_pixel_size=list(SCALE.values()),
        axes_types=["channel", "space", "space", "space"],
        axes_units=[None, "micrometer", "micrometer", "micrometer"],
    )  # fmt: skip
    writer.write_full_volume(VALUES)
    image = ome.open(tmp_path / "a.zarr")
    check(image, version)
    assert (image.name, image.units["z"], image.units["c"]) == ("cells", "micrometer", None)
    assert image.level(1).scale == {"c": 1, "z": 2, "y": 1, "x": 1}
    assert image.level(1).shape == (2, 8, 32, 32)
    assert image.level(0).translation == TRANSLATION
    assert image.omero.channels == tuple(CHANNELS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ["0.4", "0.5", "0.6"])
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_other_readers_open_what_is_written(made, version, tmp_path):
    """As it is written, and as a copy of another version."""
    ngff_zarr = pytest.importorskip("ngff_zarr")
    first = tmp_path if made == version else tmp_path / "first"
    gpustore.open_group(first, create=True, zarr_format=2 if made == "0.4" else 3).result()
    image = ome.write(first / "a.zarr", VALUES, axes="czyx", scale=SCALE, translation=TRANSLATION,
                      units="um", channels=CHANNELS, levels=2, name="cells",
                      version=made)  # fmt: skip
    image.create_label("nuclei", colors={1: (255, 0, 0, 255)})
    plate = ome.create_plate(first / "p.zarr", rows="AB", columns=range(1, 3), version=made)
    plate.create_image("B/2/0", shape=(8, 8), dtype="uint8", axes="yx")
    if first != tmp_path:
        for name in "a.zarr", "p.zarr":
            gpustore.copy(first / name, tmp_path / name, ome_version=version)
    path = tmp_path / "a.zarr"
    many = ngff_zarr.from_ngff_zarr(str(path), validate=True, version=version)
    one = many.images[0]
    assert np.array_equal(np.asarray(one.data), VALUES)
    assert (one.scale, one.translation) == (SCALE, TRANSLATION)
    assert many.images[1].translation == {"c": 0, "z": 1, "y": 3.25, "x": 4.25}
    assert many.metadata.omero.channels[1].label == "GFP"
    assert ngff_zarr.from_hcs_zarr(str(tmp_path / "p.zarr"), validate=True) is not None
    models, zarr = pytest.importorskip("ome_zarr_models"), pytest.importorskip("zarr")
    if version == "0.6":
        pytest.importorskip("ome_zarr_models.v06")
    for place, kind in (
        ("a.zarr", "Image"), ("a.zarr/labels", "Labels"), ("a.zarr/labels/nuclei", "ImageLabel"),
        ("p.zarr", "HCS"), ("p.zarr/B/2", "Well"), ("p.zarr/B/2/0", "Image"),
    ):  # fmt: skip
        group = zarr.open_group(tmp_path / place, mode="r")
        found = models.open_ome_zarr(group, version=version)
        assert type(found).__name__ == kind
    if version == "0.6":
        classes = pytest.importorskip("ome_zarr.classes.image")
        many = classes.OMEZarrMultiscale.from_ome_zarr(str(path))
        assert np.array_equal(np.asarray(many.images[0].data), VALUES)
        assert (many.images[1].scale, many.images[1].axes_units["z"]) == (
            {"c": 1, "z": 2, "y": 1, "x": 1}, "micrometer"
        )  # fmt: skip
        assert list(many.labels) == ["nuclei"]
        return  # The reader of ome-zarr does not know it.
    io, reader = pytest.importorskip("ome_zarr.io"), pytest.importorskip("ome_zarr.reader")
    node = next(iter(reader.Reader(io.parse_url(str(path)))()))
    assert np.array_equal(np.asarray(node.data[0]), VALUES)
    assert node.metadata["channel_names"] == ["DAPI", "GFP"]
