"""OME-Zarr metadata between 0.4 in Zarr v2 and 0.5 in Zarr v3."""

import json
import re

import numpy as np
import pytest

import gpustore
from gpustore.copying.ome import axes_of, converted, is_ome

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
    assert converted(old, 3, kind) == (new, None)
    assert converted(new, 2, kind) == (old, None)


@pytest.mark.parametrize("attributes", [{}, {"mine": 1}, {"labels": ["a"], "series": [1]}])
@pytest.mark.parametrize("after", [2, 3])
def test_others_stay(attributes, after):
    assert converted(attributes, after) == (attributes, None)
    assert not is_ome(attributes)


@pytest.mark.parametrize(
    ("attributes", "after", "text"),
    [
        ({"multiscales": [{**IMAGE, "version": "0.3"}]}, 3, r"0.3 \(multiscales\).*only 0.4 are"),
        ({"ome": {"version": "0.6", "scene": {}}}, 2, r"0.6 \(scene\).*only 0.5 are"),
        ({"ome": {"version": "0.5", "new": {}}}, 2, r"0.5 \(new\)"),
        ({"ome": 3}, 2, "not as any version has them"),
        ({"ome": {"multiscales": []}}, 2, "not as any version has them"),
        ({"multiscales": 3}, 3, "not as any version has them"),
    ],
)
def test_what_cannot_be_converted_stays_and_is_named(attributes, after, text):
    found, note = converted(attributes, after)
    assert found == attributes
    assert re.search(text, note)


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
    with pytest.warns(gpustore.CopyWarning, match=r"image: OME metadata 0\.3 \(multiscales\)"):
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
