"""OME-Zarr metadata of one version as those of another."""

import json
import zipfile

import numpy as np
import pytest

import gpustore
from gpustore import ome
from gpustore.ome.conversion import axes_of, converted, is_ome
from tests.ome.files import VALUES, image_attributes, stated, write_group, write_image

VERSIONS = ["0.4", "0.5", "0.6"]
AXES = [{"name": name, "type": "space", "unit": "micrometer"} for name in ("z", "y", "x")]
LEVELS = [
    {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [n, n, n]}]}
    for path, n in (("0", 1.0), ("1", 2.0))
]
IMAGE = {"name": "nuclei", "axes": AXES, "datasets": LEVELS}
OMERO = {"channels": [{"color": "FFFFFF", "window": {"start": 0, "end": 1, "min": 0, "max": 1}}]}
PLATE = {"columns": [{"name": "1"}], "rows": [{"name": "A"}], "wells": [{"path": "A/1"}]}

# Attributes of 0.4, and what 0.5 has below "ome".
PAIRS = {
    "image": ({"multiscales": [{**IMAGE, "version": "0.4"}]}, {"multiscales": [IMAGE]}),
    "with channels": (
        {"multiscales": [{**IMAGE, "version": "0.4"}], "omero": {**OMERO, "version": "0.4"}},
        {"multiscales": [IMAGE], "omero": OMERO},
    ),
    "labels": ({"labels": ["cells"]}, {"labels": ["cells"]}),
    "label": (
        {"image-label": {"version": "0.4", "source": {"image": "../../"}}},
        {"image-label": {"source": {"image": "../../"}}},
    ),
    "plate": ({"plate": {**PLATE, "version": "0.4"}}, {"plate": PLATE}),
    "well": ({"well": {"version": "0.4", "images": []}}, {"well": {"images": []}}),
    "bioformats2raw": ({"bioformats2raw.layout": 3}, {"bioformats2raw.layout": 3}),
    "OME": ({"series": ["0", "1"]}, {"series": ["0", "1"]}),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_both_ways(kind):
    old, new = PAIRS[kind]
    old, new = {**old, "mine": [1]}, {"mine": [1], "ome": {"version": "0.5", **new}}
    assert converted(old, "0.5", ".zattrs: ", kind) == (new, [])
    assert converted(new, "0.4", "zarr.json: ", kind) == (old, [])
    assert converted(new, "0.5", "zarr.json: ", kind) == (new, [])


@pytest.mark.parametrize("attributes", [{}, {"mine": 1}, {"labels": ["a"], "series": [1]}])
@pytest.mark.parametrize("after", VERSIONS)
def test_others_stay(attributes, after):
    assert converted(attributes, after, "zarr.json: ") == (attributes, [])
    assert not is_ome(attributes)


@pytest.mark.parametrize("before", VERSIONS)
@pytest.mark.parametrize("after", VERSIONS)
def test_images_of_all_versions(before, after):
    found, notes = converted(image_attributes(before), after, "zarr.json: ")
    assert (found, notes) == (image_attributes(after), [])


def test_members_that_no_version_describes_go_along():
    image = {**IMAGE, "type": "gaussian", "metadata": {"method": "a"}}
    image["datasets"] = [{**one, "mine": 1} for one in LEVELS]
    attributes = {"ome": {"version": "0.5", "multiscales": [image], "omero": OMERO, "new": {}}}
    new, notes = converted(attributes, "0.6", "zarr.json: ")
    assert notes == []
    assert new["ome"]["multiscales"][0]["metadata"] == {"method": "a"}
    assert [one["mine"] for one in new["ome"]["multiscales"][0]["datasets"]] == [1, 1]
    back, notes = converted(new, "0.5", "zarr.json: ")
    assert (back, notes) == (attributes, [])
    _, notes = converted(new, "0.4", "zarr.json: ")
    assert notes == ["zarr.json: ome.new stays as it is: OME-Zarr 0.4 has no such member"]


def test_a_transformation_of_all_levels_becomes_part_of_each():
    outer = [
        {"type": "scale", "scale": [10, 2, 2]},
        {"type": "translation", "translation": [5] * 3},
    ]
    attributes = {"ome": {"version": "0.5", "multiscales": [
        {**IMAGE, "coordinateTransformations": outer}]}}  # fmt: skip
    new, _ = converted(attributes, "0.6", "zarr.json: ")
    [image] = new["ome"]["multiscales"]
    assert "coordinateTransformations" not in image
    [step] = image["datasets"][1]["coordinateTransformations"]
    assert step["transformations"] == [
        {"type": "scale", "scale": [20, 4, 4]}, {"type": "translation", "translation": [5, 5, 5]}
    ]  # fmt: skip
    assert (step["input"], step["output"]) == ({"path": "1"}, {"name": "physical"})


def test_coordinate_systems_that_are_lost_are_named():
    attributes = image_attributes("0.6")
    image = attributes["ome"]["multiscales"][0]
    image["coordinateSystems"].append({**image["coordinateSystems"][0], "name": "stage"})
    image["coordinateTransformations"] = [
        {"type": "identity", "input": {"name": "physical"}, "output": {"name": "stage"}}
    ]
    found, [note] = converted(attributes, "0.5", "zarr.json: ")
    assert found == image_attributes("0.5")
    assert note == (
        "zarr.json: ome.multiscales[0]: coordinate system 'stage' and the transformations between "
        "systems are left out: OME-Zarr 0.5 has one system, 'physical' is kept"
    )


def reordered():
    """An image of 0.6 whose channels are the last axis, which no version before has."""
    attributes = image_attributes("0.6")
    system = attributes["ome"]["multiscales"][0]["coordinateSystems"][0]
    system["axes"] = [*system["axes"][1:], system["axes"][0]]
    return attributes


@pytest.mark.parametrize(
    ("attributes", "after", "text"),
    [
        (
            {"multiscales": [{**IMAGE, "version": "0.3"}]},
            "0.5",
            r"multiscales.version: '0.3'",
        ),
        ({"ome": 3}, "0.4", "zarr.json: ome: expected an object, got 3"),
        ({"ome": {"version": "0.5", "multiscales": []}}, "0.4", "ome.multiscales: expected a list"),
        ({"ome": {"version": "0.5", "omero": []}}, "0.4", "ome.omero: expected an object"),
        ({"multiscales": 3}, "0.5", "multiscales: expected an object, got 3"),
        (
            {"ome": {"version": "0.5", "multiscales": [{**IMAGE, "axes": AXES[:2]}]}},
            "0.6",
            r"zarr.json: ome.multiscales\[0\].datasets\[0\].coordinateTransformations\[0\].scale: "
            "expected 2 numbers",
        ),
        (reordered(), "0.5", r"multiscales\[0\]: OME-Zarr 0.5 has axes of time, then channels"),
        (
            {"ome": {"version": "0.6", "well": {"images": [{"path": "a.b"}]}}},
            "0.5",
            r"ome.well.images\[0\].path: expected a name.*0.5 cannot express what 0.6 does",
        ),
    ],
)
def test_what_cannot_be_converted_is_an_error(attributes, after, text):
    with pytest.raises((gpustore.MetadataError, gpustore.UnsupportedError), match=text):
        converted(attributes, after, "zarr.json: ")


@pytest.mark.parametrize("damaged", [{"multiscales": [{}]}, {"multiscales": 3}, {"ome": []}])
def test_axes_of_damaged_metadata_are_unknown(damaged):
    assert axes_of(damaged) == {}


def make_image(path, zarr_format, order="zyx"):
    """An image of two levels, in a folder beside a table that is none."""
    root = gpustore.open_group(path, create=True, zarr_format=zarr_format).result()
    old, new = PAIRS["with channels"]
    attributes = old if zarr_format == 2 else {"ome": {"version": "0.5", **new}}
    image = root.create_group("image", attributes=attributes).result()
    values = np.arange(4 * 32 * 32, dtype="u2").reshape(4, 32, 32)
    dims = {} if zarr_format == 2 else {"dims": tuple(order)}
    for level, data in (("0", values), ("1", values[::2, ::2, ::2])):
        image.create_array(level, data=data, chunks=(2, 16, 16), **dims).result()
    image.create_array("labels/cells/0", data=values, chunks=(2, 16, 16)).result()
    return values


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_an_image_is_one_in_the_other_format(tmp_path, before, after):
    values = make_image(tmp_path / "a", before)
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=after)["image"]
    old, new = PAIRS["with channels"]
    assert dict(copied.attrs) == (old if after == 2 else {"ome": {"version": "0.5", **new}})
    np.testing.assert_array_equal(copied["0"].read().result(), values)
    if after == 3:
        assert copied["1"].domain.labels == ("z", "y", "x")
    else:
        assert copied["1"].attrs["_ARRAY_DIMENSIONS"] == ["z", "y", "x"]
        document = json.loads((tmp_path / "b" / "image" / "1" / ".zarray").read_text())
        assert (document["dimension_separator"], document["fill_value"]) == ("/", 0)


def test_what_is_not_converted_is_warned_about(tmp_path):
    attributes = {"multiscales": [{**IMAGE, "version": "0.3"}]}
    root = gpustore.open_group(tmp_path / "a", create=True, zarr_format=2).result()
    root.create_group("image", attributes=attributes).result()
    with pytest.warns(gpustore.CopyWarning, match=r"image/.zattrs: multiscales.version: '0\.3'"):
        copied = gpustore.copy(tmp_path / "a", tmp_path / "b", zarr_format=3)
    assert dict(copied["image"].attrs) == attributes


def test_chunks_are_those_of_the_last_dimensions(tmp_path):
    make_image(tmp_path / "a", 3)
    copied = gpustore.copy(tmp_path / "a", tmp_path / "b", chunks=(8, 8), shards=(16, 32))
    for path in ("image/0", "image/1", "image/labels/cells/0"):
        assert (copied[path].chunks, copied[path].shards) == ((2, 8, 8), (2, 16, 32))


def test_chunks_of_other_groups_are_those_of_all_dimensions(tmp_path):
    root = gpustore.open_group(tmp_path / "a", create=True).result()
    root.create_array("x", data=np.zeros((4, 4, 4))).result()
    with pytest.raises(gpustore.CopyError, match="x: `chunks` has 2 extents"):
        gpustore.copy(root, tmp_path / "b", chunks=(2, 2))


def write_all(url, version, context):
    """A folder of an image with labels, a plate and a collection."""
    write_group(url, version, {"mine": 1}, context)
    write_image(f"{url}i/", version, context)
    cells = {"colors": [{"label-value": 1, "rgba": [1, 2, 3, 4]}], "source": {"image": "../../"}}
    described = stated(version, **{"image-label": cells})
    attributes = image_attributes(version, 1)
    if version == "0.4":
        attributes |= described
    else:
        attributes["ome"] |= described["ome"]
    label = write_group(f"{url}i/labels/cells/", version, attributes, context)
    label.create_array("0", data=(VALUES > 9).astype("uint8"), dims=list("czyx")).result()
    write_group(f"{url}i/labels/", version, stated(version, labels=["cells"]), context)
    plate = ome.create_plate(f"{url}p/", rows="AB", columns="12", version=version, context=context)
    plate.create_image("B/2/0", shape=(8, 8), dtype="uint8", axes="yx")
    write_group(f"{url}b/", version, stated(version, **{"bioformats2raw.layout": 3}), context)
    write_group(f"{url}b/OME/", version, stated(version, series=["x"]), context)
    write_image(f"{url}b/x/", version, context)


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("before", VERSIONS)
@pytest.mark.parametrize("after", VERSIONS)
def test_a_copy_is_of_the_version_asked(before, after):
    context = gpustore.Context()
    write_all("memory://a/", before, context)
    copied = gpustore.copy("memory://a/", "memory://b/", ome_version=after, context=context)
    assert (copied.zarr_format, dict(copied.attrs)) == (2 if after == "0.4" else 3, {"mine": 1})
    image = ome.open("memory://b/i/", context=context)
    assert image.version == after
    assert dict(image.group.attrs) == image_attributes(after)
    assert np.array_equal(image.level(1).read().result(), VALUES[:, :, ::2, ::2])
    label = image.labels["cells"]
    assert np.array_equal(label.level(0).read().result(), VALUES > 9)
    plate = ome.open("memory://b/p/", context=context)
    assert label.version == plate.fields["B/2/0"].version == after
    assert ome.open("memory://b/b/", context=context).images.paths == ("x",)
    if before != after:
        for one in ("i", "p", "b"):
            assert ome.validate(f"memory://b/{one}/", context=context) == []


def test_versions_that_do_not_fit_are_refused(tmp_path):
    write_image(str(tmp_path / "a"), "0.5")
    for options, text in (
        ({"ome_version": "0.3"}, "`ome_version`: expected 0.4, 0.5 or 0.6, got '0.3'"),
        ({"ome_version": "0.6", "zarr_format": 2}, "0.6 is stored as Zarr v3: leave out `zarr_f"),
    ):
        with pytest.raises(gpustore.CopyError, match=text):
            gpustore.copy(tmp_path / "a", tmp_path / "b", **options)
    with pytest.raises(gpustore.CopyError, match="for groups, but the source is an array"):
        gpustore.copy(tmp_path / "a" / "0", tmp_path / "b", ome_version="0.6")
    with pytest.raises(gpustore.CopyError, match="contradicts the target's URL"):
        gpustore.copy(tmp_path / "a", f"file://{tmp_path}/b/|zarr2:", ome_version="0.6")
    write_group(str(tmp_path / "c"), "0.5", {"mine": 1})
    with pytest.raises(gpustore.CopyError, match="no metadata of OME-Zarr"):
        gpustore.copy(tmp_path / "c", tmp_path / "b", ome_version="0.6")
    write_group(str(tmp_path / "d"), "0.6", reordered())
    with pytest.raises(gpustore.CopyError, match=r"json: ome.multiscales\[0\]: OME-Zarr 0.5 has"):
        gpustore.copy(tmp_path / "d", tmp_path / "b", ome_version="0.5")
    assert not (tmp_path / "b").exists()


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_copy_whose_name_ends_in_ozx_is_an_archive(version, tmp_path, gpustore_command):
    image = ome.write(tmp_path / "a.zarr", np.ones((40, 60), "uint16"), axes="yx", levels=2)
    image.create_label("cells").write(np.ones((40, 60), "uint32"))
    gpustore.copy(tmp_path / "a.zarr", tmp_path / "b.ozx", ome_version=version)
    code, _, err = gpustore_command(
        "copy", tmp_path / "a.zarr", tmp_path / "c.ozx", "--ome-version", version
    )
    assert (code, err) == (0, "")
    for name in "bc":
        assert zipfile.is_zipfile(tmp_path / f"{name}.ozx")
        found = ome.open(tmp_path / f"{name}.ozx")
        assert (found.version, len(found.levels), list(found.labels)) == (version, 2, ["cells"])
        assert (found.level(1).read().result() == 1).all()
