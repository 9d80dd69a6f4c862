"""Images: metadata of three versions, choice of levels, labels, and errors that name members."""

import copy
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore import ome
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.ome.files import (
    AXES,
    VALUES,
    image_attributes,
    stated,
    write_group,
    write_image,
)

VERSIONS = ["0.4", "0.5", "0.6"]


@pytest.fixture
def context():
    return gpustore.Context()


def opened(attributes, version="0.5"):
    context = gpustore.Context()
    write_group("memory://a/", version, attributes, context)
    return ome.open("memory://a/", context=context)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_image_of_each_version(version, context):
    write_image("memory://a/", version, context)
    image = ome.open("memory://a/", context=context)
    assert (image.version, image.name, image.axes) == (version, "cells", ("c", "z", "y", "x"))
    assert image.units == {"c": None, **dict.fromkeys("zyx", "micrometer")}
    assert image.channels == ("DAPI", "GFP")
    assert image.omero.window("GFP") == ome.Window(10, 100, 0, 65535)
    assert [level.shape for level in image.levels] == [(2, 8, n, n) for n in (32, 16, 8)]
    assert image.levels[2].scale == {"c": 1, "z": 2, "y": 2, "x": 2}
    assert image.levels[2].translation == {"c": 0, "z": 0, "y": 0.75, "x": 0.75}
    assert image.levels[0].chunks == (1, 4, 16, 16)
    assert image.levels[1].store.domain.labels == image.axes
    assert np.array_equal(image.levels[0].read().result(), VALUES)
    assert list(image.labels) == []
    assert f"OME-Zarr {version}, axes c, z, y, x, 3 levels" in repr(image)


def test_group_transformations_come_after_those_of_a_level(context):
    after = [
        {"type": "scale", "scale": [1, 1, 10, 10]},
        {"type": "translation", "translation": [0, 5, 0, 1]},
    ]
    write_image("memory://a/", "0.5", context, coordinateTransformations=after)
    level = ome.open("memory://a/", context=context).level(1)
    assert level.scale == {"c": 1, "z": 2, "y": 10, "x": 10}
    assert level.translation == {"c": 0, "z": 5, "y": 2.5, "x": 3.5}


def test_coordinate_systems_of_06(context):
    rotation = {"type": "rotation", "rotation": [[0, 1], [1, 0]]}
    shift = {"type": "translation", "translation": [0, 1, 2, 3]}
    between = [
        {**shift, "input": {"name": "physical"}, "output": {"name": "stage"}},
        {**rotation, "input": {"name": "stage"}, "output": {"name": "atlas"}},
        {"type": "scale", "scale": [1, 2, 4, 8], "input": "room", "output": "stage"},
        {"type": "identity", "input": {"name": "table"}, "output": {"name": "table"}},
    ]
    systems = [
        {"name": name, "axes": AXES} for name in ("physical", "stage", "atlas", "room", "table")
    ]
    more = {"coordinateSystems": systems, "coordinateTransformations": between}
    write_image("memory://a/", "0.6", context, **more)
    image = ome.open("memory://a/", context=context)
    assert image.coordinate_system == "physical"
    assert image.coordinate_systems == ("physical", "stage", "atlas", "room", "table")
    assert image.transformations[1].json["rotation"] == [[0, 1], [1, 0]]
    assert image.in_system("physical").level(0).scale == image.level(0).scale
    stage = image.in_system("stage")
    assert stage.coordinate_system == "stage"
    assert list(stage.level(0).translation.values()) == [0, 1, 2, 3]
    stage.build_pyramid(method="nearest")
    assert stage.coordinate_system == "stage"
    assert list(stage.level(1).translation.values()) == [0, 1, 2, 3]
    room = image.in_system("room").level(0)  # back along a scale
    assert list(room.scale.values()) == [1, 1, 0.125, 0.0625]
    assert list(room.translation.values()) == [0, 0.5, 0.5, 0.375]
    label = stage.create_label("cells", axes="yx")
    assert label.level(0).translation == {"y": 0, "x": 0}
    assert label.level(1).scale == {"y": 1, "x": 1}
    with pytest.raises(gpustore.UnsupportedError, match=r"stage to atlas.*'rotation'.*resample"):
        image.in_system("atlas")
    with pytest.raises(gpustore.MetadataError, match="no transformation leads from physical to"):
        image.in_system("table")
    with pytest.raises(gpustore.MetadataError, match="no coordinate system 'moon'"):
        image.in_system("moon")


def test_choice_of_a_level(context):
    write_image("memory://a/", "0.5", context)
    image = ome.open("memory://a/", context=context)
    assert [image.level(n).number for n in (0, 2, -1)] == [0, 2, 2]
    for size, number in (
        ({"y": 0.5, "x": 0.5}, 0), ({"y": 0.99}, 0), ({"y": 1, "x": 1}, 1), ({"y": 1, "x": 0.5}, 0),
        ({"x": 100}, 2), ({"x": ome.nm(1000)}, 1), (2, 2), (ome.mm(0.002), 2), ({"c": 1}, 2),
        ({"x": 0.9999999999}, 1),
    ):  # fmt: skip
        assert image.level(pixel_size=size).number == number
    for most, number in ((10**9, 0), ("32 KiB", 0), (32767, 1), ("2 KiB", 2)):
        assert image.level(max_bytes=most).number == number
    with pytest.raises(ValueError, match=r"those of the finest are z 2 µm, y 0.5 µm, x 0.5 µm"):
        image.level(pixel_size=1)
    for wrong, text in (
        ({"x": ome.s(1)}, "x: the unit is micrometer, not second"),
        ({"c": ome.um(1)}, "c: the axis has no unit"),
        ({"x": ome.um(1, 2)}, "x: expected one size"),
        ({"x": 0}, "x: expected a positive size"),
        ({"q": 1}, "no axis 'q'; axes are c, z, y, x"),
        ({}, "no axis is named; axes are c, z, y, x"),
    ):
        with pytest.raises(ValueError, match=text):
            image.level(pixel_size=wrong)
    with pytest.raises(ValueError, match="at most 10 bytes; the smallest, 2, takes 2048"):
        image.level(max_bytes=10)
    with pytest.raises(IndexError, match="level 3: the image has 3"):
        image.level(3)
    for wrong in ({}, {"number": 1, "max_bytes": 3}):
        with pytest.raises(TypeError, match="exactly one"):
            image.level(**wrong)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_labels_are_found_without_a_listing(version, context):
    group = write_image("memory://a/", version, context)
    names = stated(version, labels=["nuclei", "gone"])
    names.get("ome", {}).pop("version", None)  # as ome-zarr writes it
    group.create_group("labels", attributes=names).result()
    image = ome.open("memory://a/", context=context)
    write_image("memory://a/labels/nuclei/", version, context)
    assert list(image.labels) == ["nuclei", "gone"]
    assert image.labels["nuclei"].level(0).shape == (2, 8, 32, 32)
    assert image.labels["nuclei"] is image.labels["nuclei"]
    with pytest.raises(gpustore.NotFoundError, match=r"no label image 'cells'; .* nuclei, gone"):
        image.labels["cells"]
    with pytest.raises(gpustore.NotFoundError, match="gone"):
        image.labels["gone"]
    with pytest.raises(gpustore.MetadataError, match="the group lists label images; open one of"):
        ome.open("memory://a/labels/", context=context)
    assert ome.open("memory://a/labels/nuclei/", context=context).version == version


def test_lists_of_labels_may_be_empty_or_name_one_twice(context):
    image = ome.create("memory://a/", shape=(8, 8), dtype="uint8", axes="yx", context=context)
    image.create_label("n")
    attributes = image.group["labels"].attrs
    for stored, names in (([], []), (["n", "n"], ["n"])):
        attributes.update({"ome": {"version": "0.5", "labels": stored}}).result()
        labels = ome.open("memory://a/", context=context).labels
        assert (list(labels), len(labels)) == (names, len(names))
    attributes.update({"ome": {"version": "0.5", "labels": ["m"]}}).result()
    image.create_label("m")
    assert list(image.labels) == ["m"]


def test_a_zip_archive(tmp_path):
    write_image(tmp_path / "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.ozx", "w") as archive:
        for folder, _, names in os.walk(tmp_path / "a.zarr"):
            for name in names:
                file = os.path.join(folder, name)
                archive.write(file, os.path.relpath(file, tmp_path / "a.zarr"))
    image = ome.open(tmp_path / "a.ozx")
    assert np.array_equal(image.level(0).read().result(), VALUES)


def changed(path, value):
    """Attributes of 0.5 with one member changed, or removed by ``...``."""
    attributes = copy.deepcopy(image_attributes("0.5"))
    *way, last = path
    here = attributes["ome"]
    for step in way:
        here = here[step]
    if value is ...:
        del here[last]
    else:
        here[last] = value
    return attributes


FIRST = ("multiscales", 0)
LEVEL = (*FIRST, "datasets", 1, "coordinateTransformations")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("multiscales",), [], r"ome.multiscales: expected a list that is not empty, got an empty"),
        (("multiscales",), {}, r"ome.multiscales: expected a list that is not empty, got an obj"),
        (FIRST, 3, r"ome.multiscales\[0\]: expected an object, got 3"),
        ((*FIRST, "axes"), ..., r"multiscales\[0\].axes: expected a list .*, it is missing"),
        ((*FIRST, "axes", 1, "name"), ..., r"axes\[1\].name: expected a string, it is missing"),
        ((*FIRST, "axes", 1, "name"), "x", r"axes\[3\].name: 'x' stands twice"),
        ((*FIRST, "axes", 1, "unit"), 5, r"axes\[1\].unit: expected a string, got 5"),
        ((*FIRST, "name"), 5, r"multiscales\[0\].name: expected a string, got 5"),
        ((*FIRST, "datasets"), ..., r"datasets: expected a list that is not empty, it is missing"),
        ((*FIRST, "datasets", 2, "path"), "0", r"datasets\[2\].path: '0' stands twice"),
        ((*FIRST, "datasets", 2, "path"), None, r"datasets\[2\].path: expected a string, got null"),
        (LEVEL, ..., r"datasets\[1\].coordinateTransformations: expected a list .* missing"),
        ((*LEVEL, 0, "scale"), [1, 2], r"\[0\].scale: expected 4 numbers, one for each axis, got"),
        ((*LEVEL, 0, "scale"), [1, 2, 0, 1], r"scale: expected positive numbers"),
        ((*LEVEL, 0, "scale"), [1, 2, "3", 1], r"scale: expected numbers, got '3'"),
        ((*LEVEL, 0, "scale"), [1, 2, True, 1], r"scale: expected numbers, got True"),
        ((*LEVEL, 0, "scale"), [1, 2, 10**400, 1], r"scale: expected finite numbers"),
        ((*LEVEL, 1, "translation"), ..., r"\[1\].translation: expected 4 numbers.*got null"),
        ((*LEVEL, 0), 7, r"coordinateTransformations\[0\]: expected an object with a \"type\""),
        (("version",), 5, r"ome.version: expected '0.5' or '0.6', got 5"),
        (("version",), "0.4", r"ome.version: expected '0.5' or '0.6', got '0.4'"),
        (
            ("omero", "channels", 0, "window", "end"),
            10**400,
            r"window.end: expected a finite number",
        ),
        (
            (*FIRST, "axes"),
            [{"name": str(n)} for n in range(33)],
            r"\.axes: expected at most 32, got 33",
        ),
        (LEVEL, [{"type": "scale", "scale": [1e200] * 4}] * 2, r"too large or too small"),
        (LEVEL, [{"type": "scale", "scale": [1e-200] * 4}] * 2, r"too large or too small"),
        (("omero", "channels"), 1, r"omero.channels: expected a list"),
        (("omero", "channels", 0, "color"), "red", r"channels\[0\].color: expected six hexadec"),
        (("omero", "channels", 0, "window", "end"), "x", r"window.end: expected a number, got 'x'"),
    ],
)
def test_wrong_members_are_named(path, value, text):
    with pytest.raises(gpustore.MetadataError, match=text):
        opened(changed(path, value))


def test_the_transformation_of_all_levels_has_numbers_that_a_float_holds():
    attributes = changed((*LEVEL, 0, "scale"), [1e200] * 4)
    image = attributes["ome"]["multiscales"][0]
    image["coordinateTransformations"] = [{"type": "scale", "scale": [1e200] * 4}]
    with pytest.raises(gpustore.MetadataError, match="too large or too small"):
        opened(attributes)


def test_the_window_of_a_channel_that_is_not_there(context):
    write_image("memory://a/", context=context)
    with pytest.raises(ValueError, match="no channels 'RFP'; channels: 'DAPI', 'GFP'"):
        ome.open("memory://a/", context=context).omero.window("RFP")


PLATE = {
    "rows": [{"name": "A"}],
    "columns": [{"name": "1"}],
    "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
    "acquisitions": [{"id": 1, "name": "x"}],
}
STORED = [
    *(image_attributes(version, 2, coordinateTransformations=[]) for version in VERSIONS),
    stated("0.4", plate=PLATE),
    stated("0.5", plate=PLATE),
    stated("0.5", well={"images": [{"path": "0", "acquisition": 1}]}),
    stated("0.5", **{"bioformats2raw.layout": 3}),
    {"ome": {"labels": ["a"]}},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0", "..", "labels", "identity", 10**400, 1e308, 1e-320])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "path", "name", "scale", "labels"]), inner),
    max_leaves=4,
)  # fmt: skip


def places(value, place=()):
    """Paths of all members of a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in members:
        yield (*place, name)
        if isinstance(one, dict | list):
            yield from places(one, (*place, name))


@given(data=st.data(), stored=st.sampled_from(STORED), value=JSON)
def test_any_member_of_any_type_is_a_typed_error(data, stored, value):
    attributes = copy.deepcopy(stored)
    *way, last = data.draw(st.sampled_from(list(places(attributes))))
    here = attributes
    for step in way:
        here = here[step]
    here[last] = value
    try:
        found = opened(attributes)
        if isinstance(found, ome.Image):
            list(found.labels)
        for one in getattr(found, "wells", {}).values():
            list(one.fields)
    except (
        gpustore.MetadataError,
        gpustore.UnsupportedError,
        gpustore.NotFoundError,
        gpustore.InvalidKeyError,
    ):
        pass


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("version",), "0.9", r"ome.version: '0.9' is not read, only 0.4, 0.5 and 0.6 are"),
        ((*LEVEL, 0, "type"), "affine", r"\[0\]: a transformation of type 'affine' is not applied"),
    ],
)
def test_unsupported_members_are_named(path, value, text):
    with pytest.raises(gpustore.UnsupportedError, match=text):
        opened(changed(path, value))


def test_wrong_levels_of_06_are_named():
    attributes = image_attributes("0.6")
    datasets = attributes["ome"]["multiscales"][0]["datasets"]
    step = datasets[1]["coordinateTransformations"][0]
    step["output"] = {"name": "moon"}
    with pytest.raises(gpustore.MetadataError, match=r"no coordinate system 'moon'"):
        opened(attributes, "0.6")
    attributes["ome"]["multiscales"][0]["coordinateSystems"].append({"name": "moon", "axes": AXES})
    with pytest.raises(gpustore.MetadataError, match="expected 'physical' as before, got 'moon'"):
        opened(attributes, "0.6")
    step["output"] = {"name": "physical"}
    datasets[1]["coordinateTransformations"] = [step, step]
    with pytest.raises(gpustore.MetadataError, match="expected 1 transformation, got 2"):
        opened(attributes, "0.6")
    nested = {"type": "identity"}
    for _ in range(20):
        nested = {"type": "sequence", "transformations": [nested]}
    datasets[1]["coordinateTransformations"] = [{**nested, "output": {"name": "physical"}}]
    with pytest.raises(gpustore.MetadataError, match="more than 16 sequences inside each other"):
        opened(attributes, "0.6")


def test_what_is_no_image_says_what_it_is(context):
    write_group("memory://a/", "0.5", {"mine": 1}, context)
    with pytest.raises(gpustore.MetadataError, match=r"multiscales, plate, well .* found 'mine'"):
        ome.open("memory://a/", context=context)
    with pytest.raises(gpustore.NotFoundError):
        ome.open("memory://b/", context=context)


def test_arrays_that_do_not_fit_the_axes(context):
    group = write_image("memory://a/", "0.5", context)
    group.delete("1").result()
    group.create_array("1", shape=(4, 4), dtype="uint8").result()
    group.delete("2").result()
    image = ome.open("memory://a/", context=context)
    with pytest.raises(gpustore.MetadataError, match=r"1.*: level 1: .* 2 dimensions"):
        image.level(1).store  # noqa: B018
    with pytest.raises(gpustore.NotFoundError, match="2"):
        image.level(2).store  # noqa: B018
    group.create_group("2").result()
    image = ome.open("memory://a/", context=context)
    with pytest.raises(gpustore.MetadataError, match=r"2.*: level 2: expected an array"):
        image.level(2).store  # noqa: B018


@pytest.mark.parametrize("path", ["../x", "a/../..", ".", "/", "a\\..\\b"])
def test_a_path_out_of_the_group_is_refused(path):
    text = r"ome.multiscales\[0\].datasets\[0\].path: expected a path below the group, got '"
    with pytest.raises(gpustore.MetadataError, match=text):
        opened(changed((*FIRST, "datasets", 0, "path"), path))


def test_a_level_that_is_not_there_names_the_member(context):
    attributes = changed((*FIRST, "datasets", 1, "path"), "gone")
    write_group("memory://a/", "0.5", attributes, context)
    image = ome.open("memory://a/", context=context)
    text = r"memory://a/\|zarr3:: multiscales\[0\].datasets\[1\].path: .*a/gone/zarr.json"
    with pytest.raises(gpustore.NotFoundError, match=text):
        _ = image.level(1).shape


@pytest.mark.parametrize("names", [["a", ".."], [3], ["."]])
def test_wrong_names_of_labels_are_named(names, context):
    write_image("memory://a/", context=context)
    write_group("memory://a/labels/", "0.5", stated("0.5", labels=names), context)
    text = rf"labels: ome.labels\[{len(names) - 1}\]: expected a "
    with pytest.raises(gpustore.MetadataError, match=text):
        list(ome.open("memory://a/", context=context).labels)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_server_that_denies_what_is_not_there(version, tmp_path):
    """So does S3 for those who may not list: a key that is missing is Forbidden."""
    write_image(str(tmp_path / "a"), version)
    plate = ome.create_plate(tmp_path / "p", rows="A", columns="1", version=version)
    plate.create_image("A/1/0", shape=(8, 8), dtype="uint8", axes="yx", name="cells")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    with HttpServer({str(one.relative_to(tmp_path)): one.read_bytes() for one in files}) as server:

        def deny(server, connection, request):
            if request.path.lstrip("/") in server.values:
                return server.serve(connection, request)
            connection.sendall(head(403, [("Content-Length", "0")]))
            return True

        server.faults = [Fault(deny)]
        for url in (f"{server.url}/a", f"{server.url}/a/"):
            image = ome.open(url)
            assert image.version == version
            assert list(image.labels) == []
            assert np.array_equal(image.level(2).read().result(), VALUES[:, :, ::4, ::4])
        plate = ome.open(f"{server.url}/p")
        assert [one.name for one in plate.fields.values()] == ["cells"]
        with pytest.raises(gpustore.StoreIOError, match="Forbidden") as info:
            ome.open(f"{server.url}/none")
        assert "nothing" in str(info.value)


@pytest.mark.parametrize("kept", [0, 100, -30])
def test_an_archive_that_was_cut_is_named_as_one(kept, tmp_path):
    ome.write(tmp_path / "a.ozx", VALUES, axes="czyx")
    whole = (tmp_path / "a.ozx").read_bytes()
    (tmp_path / "a.ozx").write_bytes(whole[:kept])
    with pytest.raises(gpustore.GpustoreError, match=r"a\.ozx.*ZIP") as info:
        ome.open(tmp_path / "a.ozx")
    assert not isinstance(info.value, gpustore.NotFoundError)
    with pytest.raises(gpustore.NotFoundError, match=r"none\.ozx"):
        ome.open(tmp_path / "none.ozx")
