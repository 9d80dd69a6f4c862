"""OME-Zarr metadata that commands show."""

import pytest

from gpustore.cli.ome import find_image
from tests.matrix import each

AXES = [{"name": "c"}, {"name": "y", "unit": "micrometer"}, {"name": "x", "unit": "parsec"}]
SCALE = {"type": "scale", "scale": [1, 0.5, 2]}
DATASETS = [
    {"path": "0", "coordinateTransformations": [SCALE]},
    {"path": "1", "coordinateTransformations": [SCALE, {"type": "translation"}, SCALE]},
]


def test_version_4_stands_among_the_attributes():
    image = find_image({"multiscales": [{"version": "0.4", "axes": AXES, "datasets": DATASETS}]})
    assert str(image) == "OME-Zarr 0.4, axes cyx, 2 levels"
    assert image.scale_text("0") == "y 0.5 µm, x 2 parsec"
    assert image.levels["1"] == (1, 0.25, 4)


def test_version_6_has_coordinate_systems_and_sequences():
    one = {"type": "sequence", "transformations": [SCALE, {"type": "translation"}]}
    multiscale = {
        "coordinateSystems": [{"name": "physical", "axes": AXES}],
        "datasets": [{"path": "a/b", "coordinateTransformations": [one]}],
        "coordinateTransformations": [SCALE],
    }
    image = find_image({"ome": {"version": "0.6", "multiscales": [multiscale]}})
    assert str(image) == "OME-Zarr 0.6, axes cyx, 1 level"
    assert image.levels == {"a/b": (1, 0.25, 4)}


def test_other_transformations_leave_the_scale_open():
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "affine", "affine": []}]}]
    image = find_image({"multiscales": [{"axes": AXES, "datasets": datasets}]})
    assert image.scale_text("0") == "unknown"


@each(
    "attributes",
    [
        {},
        {"multiscales": []},
        {"multiscales": 3},
        {"multiscales": [{"axes": ["y"], "datasets": DATASETS}]},
        {
            "multiscales": [
                {"axes": AXES, "datasets": [{"path": "0", "coordinateTransformations": 1}]}
            ]
        },
        {"multiscales": [{"axes": AXES, "datasets": []}]},
        {"ome": {"multiscales": [{"coordinateSystems": {}}]}},
    ],
)
def test_other_forms_are_no_image(attributes):
    assert find_image(attributes) is None


def test_a_scale_of_another_rank_is_unknown():
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1]}]}]
    image = find_image({"multiscales": [{"axes": AXES, "datasets": datasets}]})
    assert image.levels == {"0": None}
    with pytest.raises(KeyError):
        image.scale_text("1")
