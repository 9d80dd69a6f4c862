"""Checks of OME-Zarr groups: the verdicts of the published schemas, and what is stored."""

import copy
import importlib.util
import json
import random
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore import ome
from gpustore.ome.rules import fits
from gpustore.ome.schemas import rule_of
from tests.ome.files import image_attributes, stated, write_group, write_image

VERSIONS = ["0.4", "0.5", "0.6"]
LABEL = {
    "colors": [{"label-value": 1, "rgba": [1, 2, 3, 4]}],
    "properties": [{"label-value": 1, "size": 2}],
    "source": {"image": "../../"},
}
PLATE = {
    "name": "screen", "field_count": 3, "rows": [{"name": "A"}, {"name": "B"}],
    "columns": [{"name": "1"}], "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
    "acquisitions": [{"id": 0, "name": "x", "starttime": 3, "maximumfieldcount": 2}],
}  # fmt: skip
WELL = {"images": [{"path": "0", "acquisition": 1}, {"path": "1"}]}
TRANSFORMATIONS = [
    {"type": "identity"},
    {"type": "mapAxis", "mapAxis": [1, 0]},
    {"type": "projectAxis", "droppedInputs": [1]},
    {"type": "scale", "scale": [1, 2]},
    {"type": "translation", "translation": [1]},
    {"type": "affine", "affine": [[1, 2], [3, 4]]},
    {"type": "affine", "path": "a"},
    {"type": "rotation", "rotation": [[1, 0], [0, 1]]},
    {"type": "rotation", "path": "r"},
    {"type": "bijection", "forward": {"type": "identity"}, "inverse": {"type": "identity"}},
    {"type": "sequence", "transformations": [{"type": "identity"}]},
    {
        "type": "byDimension",
        "transformations": [
            {"transformation": {"type": "identity"}, "inputAxes": [0], "outputAxes": [1]}
        ],
    },
    {"type": "displacements", "path": "d", "interpolation": "linear"},
    {"type": "coordinates", "path": "c"},
]
KINDS = {
    "image": lambda version: image_attributes(version),
    "label": lambda version: stated(version, **{"image-label": LABEL}),
    "plate": lambda version: stated(version, plate=PLATE),
    "well": lambda version: stated(version, well=WELL),
    "bf2raw": lambda version: stated(version, **{"bioformats2raw.layout": 3}),
    "ome": lambda version: stated(version, series=["0", "1"]),
}
VALUES = [
    *(None, True, False, 0, 1, -1, 2.0, 2.5, 7, "", "a", "A/1", "..", "__x", "space", "time"),
    *("array", "scale", "translation", "identity", "sequence", [], [1], [1, 2], [1, 2, 3, 4]),
    *([[1, 0], [0, 1]], {}, {"name": "q"}, {"path": "0"}, 3, "0.4", "0.5", "0.6", "0.6rc0"),
    *({"type": "scale", "scale": [1, 2, 3, 4]}, {"type": "translation", "translation": [1, 2]}),
    *TRANSFORMATIONS,
]
MEMBERS = [
    *("type", "name", "unit", "path", "scale", "version", "window", "color", "label", "active"),
    *("rgba", "input", "output", "longName", "discrete", "field_count", "translation"),
    "coordinateTransformations",
]


def places(document, way=()):
    """Yield the way to each value inside a document."""
    if way:
        yield way
    inside = []
    if isinstance(document, dict):
        inside = list(document.items())
    elif isinstance(document, list):
        inside = list(enumerate(document))
    for name, value in inside:
        yield from places(value, (*way, name))


def mutated(document, rng):
    """A document with up to three members removed, doubled, added or replaced."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        inside = list(places(document))
        if not inside:
            break
        *way, last = rng.choice(inside)
        owner = document
        for step in way:
            owner = owner[step]
        kind = rng.random()
        if kind < 0.2:
            del owner[last]
        elif kind < 0.35 and isinstance(owner, list):
            owner.insert(last, copy.deepcopy(rng.choice(owner)))
        elif kind < 0.5 and isinstance(owner[last], dict):
            owner[last][rng.choice(MEMBERS)] = copy.deepcopy(rng.choice(VALUES))
        else:
            owner[last] = copy.deepcopy(rng.choice(VALUES))
    return document


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_are_those_of_the_published_schemas(kind):
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    draft = pytest.importorskip("referencing.jsonschema").DRAFT202012
    found = importlib.util.find_spec("ngff_zarr")
    if found is None:
        pytest.skip("ngff-zarr, which has the schemas, is not installed")
    folder = Path(found.origin).parent / "spec"
    schemas, resources = {}, []
    for version in VERSIONS:
        for path in sorted((folder / version / "schemas").glob("*.schema")):
            schema = json.loads(path.read_text(encoding="utf-8"))
            schemas[version, path.stem] = schema
            if version != "0.4":
                resource = referencing.Resource.from_contents(schema, default_specification=draft)
                resources.append((schema["$id"], resource))
    registry = referencing.Registry().with_resources(resources)
    rng = random.Random(kind)
    counts = {True: 0, False: 0}
    for number in range(1500 if kind == "image" else 300):
        version = rng.choice(VERSIONS)
        document = KINDS[kind](version)
        if (version, kind) == ("0.6", "image") and rng.random() < 0.6:
            one = {**rng.choice(TRANSFORMATIONS), "input": {"name": "a"}, "output": {"name": "b"}}
            document["ome"]["multiscales"][0]["coordinateTransformations"] = [one]
        if number % 10:
            document = mutated(document, rng)
        validator = jsonschema.Draft202012Validator(schemas[version, kind], registry=registry)
        expected = validator.is_valid(document)
        assert fits(rule_of(kind, version), document) == expected, json.dumps(document)
        counts[expected] += 1
    assert min(counts.values()) > 20


@pytest.fixture
def context():
    return gpustore.Context()


def found(url, context):
    return [(problem.text, problem.is_of_schema) for problem in ome.validate(url, context=context)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_created_has_no_problem(version, context):
    options = {"dtype": "uint8", "version": version, "context": context}
    image = ome.create("memory://i/", shape=(2, 64, 64), axes="cyx", channels=("a", "b"),
                       levels=2, **options)  # fmt: skip
    image.create_label("cells", colors={1: (1, 2, 3, 4)})
    plate = ome.create_plate(
        "memory://p/", rows="AB", columns="1", version=version, context=context
    )
    plate.create_image("B/1/0", shape=(8, 8), dtype="uint8", axes="yx")
    assert found("memory://i/", context) == found("memory://p/", context) == []
    assert ome.validate(image.group) == []


def test_problems_name_the_member(context):
    attributes = image_attributes("0.5")
    image = attributes["ome"]["multiscales"][0]
    image["axes"][1]["name"] = 3
    image["datasets"][0]["coordinateTransformations"][0]["scale"] = "no"
    write_group("memory://a/", "0.5", attributes, context)
    problems = ome.validate("memory://a/", context=context)
    assert [problem.is_of_schema for problem in problems] == [True] * len(problems)
    first, *_, last = map(str, problems)
    assert first.startswith("memory://a/|zarr3:: ome.multiscales[0].datasets[0].coordinateTransf")
    assert "multiscales[0].axes[1].name: expected a string, found 3" in "\n".join(
        map(str, problems)
    )
    assert "expected 2 to 3 axes of space, found" in last or "axes" in last


def test_members_that_are_not_stored_or_do_not_fit(context):
    group = write_image("memory://a/", context=context)
    group.delete("1").result()
    group.delete("2").result()
    group.create_array("2", shape=(2, 8, 99, 8), dtype="float32", dims=list("czyx")).result()
    group.create_group("labels", attributes=stated("0.5", labels=["gone"])).result()
    texts = [text for text, is_of_schema in found("memory://a/", context) if not is_of_schema]
    assert len(texts) == 4 + 1  # level 0 of this image has no names of dimensions
    assert "expected dimension_names ['c', 'z', 'y', 'x']" in texts[0]
    assert "1" in texts[1]
    assert "level 2: expected uint16 as in level 0, found float32" in texts[2]
    assert "level 2: expected no more elements along any axis than in level 0" in texts[3]
    assert "gone" in texts[4]


def test_plates_whose_indices_and_wells_do_not_fit(context):
    plate = copy.deepcopy(PLATE)
    plate["wells"].append({"path": "B/1", "rowIndex": 5, "columnIndex": 0})
    write_group("memory://p/", "0.5", stated("0.5", plate=plate), context)
    write_group("memory://p/A/1/", "0.5", stated("0.5", well=WELL), context)
    texts = "\n".join(text for text, _ in found("memory://p/", context))
    assert "plate.wells[1]: the path is 'B/1', the indices say rowIndex 5, columnIndex 0" in texts
    assert "B/1" in texts
    assert texts.count("A/1/0") == 1


def test_what_is_nothing_of_ome_zarr(context):
    write_group("memory://n/", "0.5", {"mine": 1}, context)
    [(text, _)] = found("memory://n/", context)
    assert text == "expected an image, a plate, a well or a collection"
    write_group("memory://v/", "0.5", {"ome": {"version": "9", "multiscales": []}}, context)
    [(text, is_of_schema)] = found("memory://v/", context)
    assert (is_of_schema, "'9' is not read" in text) == (True, True)
    with pytest.raises(gpustore.NotFoundError):
        ome.validate("memory://nowhere/", context=context)


def test_label_images_hold_integers(context):
    image = ome.create("memory://l/", shape=(8, 8), dtype="uint8", axes="yx", context=context)
    label = image.create_label("cells")
    label.group.delete("0").result()
    label.group.create_array("0", data=np.zeros((8, 8), "float32"), dims=["y", "x"]).result()
    texts = [text for text, _ in found("memory://l/", context)]
    assert texts == ["expected integers, found float32"]
