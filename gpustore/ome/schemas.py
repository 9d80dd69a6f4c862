"""Rules for the attributes of OME-Zarr, by version and kind of group.

Source: the JSON schemas published with OME-NGFF 0.4, 0.5 and 0.6, whose verdicts these rules share.
"""

from __future__ import annotations

from typing import Any, Final

from gpustore.ome.rules import (
    Problem,
    Rule,
    all_of,
    anything,
    boolean,
    counted,
    equal,
    exactly_one,
    fits,
    integer,
    list_of,
    number,
    object_of,
    text,
)

_VERSIONS: Final = {"0.4": ("0.4",), "0.5": ("0.5",), "0.6": ("0.6", "0.6rc0")}
_KNOWN_TYPES: Final = ("space", "time", "channel")
_WORD: Final = "^[A-Za-z0-9]+$"
_NUMBERS: Final = list_of(number(), least=2)


def _axis(value: Any, where: str, found: list[Problem]) -> None:
    """Axis of 0.4 and 0.5: a name and, if there is one, a type."""
    object_of(("name",), name=text(), type=text())(value, where, found)


_SPACE: Final = object_of(name=text(), type=equal("space"), unit=text())
_AXES: Final = all_of(
    list_of(_axis, least=2, most=5, unique=True), counted("axes of space", _SPACE, 2, 3)
)

_SCALE: Final = object_of(("type", "scale"), type=equal("scale"), scale=_NUMBERS)
_TRANSLATION: Final = object_of(
    ("type", "translation"), type=equal("translation"), translation=_NUMBERS
)
_STEPS: Final = all_of(
    list_of(exactly_one("a scale or a translation", _SCALE, _TRANSLATION), least=1),
    counted("scale", object_of(type=equal("scale"), scale=_NUMBERS), 1, 1),
)

_AXIS_06: Final = object_of(
    ("name",),
    name=text(least=1),
    longName=text(),
    type=text(),
    discrete=boolean,
    unit=text(),
)


def _axes_06(value: Any, where: str, found: list[Problem]) -> None:
    list_of(_AXIS_06, least=1, most=5, unique=True)(value, where, found)
    if isinstance(value, list):
        of = {
            kind: sum(fits(object_of(("type",), type=equal(kind)), axis) for axis in value)
            for kind in ("space", "array")
        }
        if (2 <= of["space"] <= 3) == (of["array"] >= 2):
            found.append(
                Problem(
                    where,
                    "expected either 2 or 3 axes of space or 2 or more of array, found "
                    f"{of['space']} and {of['array']}",
                )
            )


_ENDS: Final = {"name": text(), "path": text()}
_SCALE_06: Final = object_of(("scale",), type=equal("scale"), scale=list_of(number(positive=True)))
_TRANSLATION_06: Final = object_of(
    ("translation",), type=equal("translation"), translation=list_of(number())
)
_IDENTITY_06: Final = object_of(type=equal("identity"))
_BETWEEN: Final = object_of(
    ("input", "output"),
    input=object_of(("path",), **_ENDS),
    output=object_of(("name",), **_ENDS),
    name=text(),
)
_SEQUENCE_06: Final = object_of(
    ("type", "transformations"),
    type=equal("sequence"),
    transformations=list_of(
        exactly_one("a scale or a translation", _SCALE_06, _TRANSLATION_06), least=2, most=2
    ),
)
_STEPS_06: Final = list_of(
    exactly_one(
        "an identity, a scale, or a sequence of a scale and a translation, with input.path and "
        "output.name",
        all_of(_SCALE_06, _BETWEEN),
        all_of(_IDENTITY_06, _BETWEEN),
        all_of(_SEQUENCE_06, _BETWEEN),
    ),
    least=1,
    most=1,
    unique=True,
)

_INDEX: Final = integer(0, 4)
_MATRIX: Final = list_of(list_of(number()))


def _transformation(value: Any, where: str, found: list[Problem]) -> None:
    """Any transformation of 0.6."""
    object_of(("type",), name=text(), type=text())(value, where, found)
    exactly_one("a transformation that the specification has", *_TRANSFORMATIONS)(
        value, where, found
    )


def _square(value: Any, where: str, found: list[Problem]) -> None:
    size = len(value) if isinstance(value, list) else 0
    row = list_of(number(), least=size, most=size)
    list_of(row, least=2, most=5)(value, where, found)


def _or_path(name: str, rule: Rule) -> Rule:
    """A member, or the path of an array with it; not both."""
    return exactly_one(
        f"path or {name}", object_of(("path",), path=text()), object_of((name,), **{name: rule})
    )


def _projection(value: Any, where: str, found: list[Problem]) -> None:
    indices = list_of(_INDEX, least=1, most=3, unique=True)
    object_of(type=equal("projectAxis"), droppedInputs=indices, createdOutputs=indices)(
        value, where, found
    )
    if not isinstance(value, dict) or not {"droppedInputs", "createdOutputs"} & value.keys():
        found.append(Problem(where, "expected droppedInputs or createdOutputs"))


_FIELD: Final = {"path": text(), "interpolation": text(words=("nearest", "linear", "cubic"))}
_TRANSFORMATIONS: Final[tuple[Rule, ...]] = (
    _IDENTITY_06,
    object_of(
        ("mapAxis",), type=equal("mapAxis"), mapAxis=list_of(_INDEX, least=2, most=5, unique=True)
    ),
    _projection,
    _SCALE_06,
    _TRANSLATION_06,
    all_of(object_of(type=equal("affine")), _or_path("affine", _MATRIX)),
    all_of(object_of(type=equal("rotation")), _or_path("rotation", _square)),
    object_of(
        ("forward", "inverse"),
        type=equal("bijection"),
        forward=lambda value, where, found: _transformation(value, where, found),
        inverse=lambda value, where, found: _transformation(value, where, found),
    ),
    object_of(
        ("transformations",),
        type=equal("sequence"),
        transformations=list_of(lambda value, where, found: _transformation(value, where, found)),
    ),
    object_of(
        ("transformations",),
        type=equal("byDimension"),
        transformations=list_of(
            object_of(
                ("transformation", "inputAxes", "outputAxes"),
                transformation=lambda value, where, found: _transformation(value, where, found),
                inputAxes=list_of(number()),
                outputAxes=list_of(number()),
            )
        ),
    ),
    object_of(("path",), type=equal("displacements"), **_FIELD),
    object_of(("path",), type=equal("coordinates"), **_FIELD),
)
_NAMED: Final = object_of(("name",), name=text())


def _omero(version: str) -> Rule:
    channel = object_of(
        ("window", "color") if version == "0.4" else (),
        window=object_of(
            ("start", "min", "end", "max"),
            start=number(), min=number(), end=number(), max=number(),
        ),
        label=text(), family=text(), color=text(), active=boolean,
    )  # fmt: skip
    return object_of(("channels",), channels=list_of(channel))


def _image(version: str) -> Rule:
    steps = _STEPS_06 if version == "0.6" else _STEPS
    datasets = list_of(
        object_of(
            ("path", "coordinateTransformations"), path=text(), coordinateTransformations=steps
        ),
        least=1,
    )
    if version == "0.6":
        system = object_of(("name", "axes"), name=text(least=1), axes=_axes_06)
        between = all_of(
            _transformation, object_of(("input", "output"), input=_NAMED, output=_NAMED)
        )
        one = object_of(
            ("datasets", "coordinateSystems"),
            name=text(),
            datasets=datasets,
            coordinateSystems=list_of(system, least=1),
            coordinateTransformations=list_of(between, least=1),
        )
    else:
        one = object_of(
            ("datasets", "axes"),
            name=text(),
            datasets=datasets,
            axes=_AXES,
            coordinateTransformations=_STEPS,
            version=text(words=("0.4",)) if version == "0.4" else anything,
        )
    return object_of(
        ("multiscales",),
        multiscales=list_of(one, least=1, unique=True),
        omero=_omero(version),
    )


def _label(version: str) -> Rule:
    color = object_of(
        ("label-value",),
        label_value=number(),
        rgba=list_of(integer(0, 255), least=4, most=4),
    )
    return object_of(
        () if version == "0.4" else ("image-label",),
        image_label=object_of(
            colors=list_of(color, least=1, unique=True),
            properties=list_of(
                object_of(("label-value",), label_value=integer()), least=1, unique=True
            ),
            source=object_of(image=text()),
            version=text(words=("0.4",)) if version == "0.4" else anything,
        ),
    )


def _plate(version: str) -> Rule:
    names = list_of(object_of(("name",), name=text(pattern=_WORD)), least=1, unique=True)
    acquisition = object_of(
        ("id",), id=integer(0), maximumfieldcount=integer(1), name=text(), description=text(),
        starttime=integer(0), endtime=integer(0),
    )  # fmt: skip
    well = object_of(
        ("path", "rowIndex", "columnIndex"),
        path=text(pattern="^[A-Za-z0-9]+/[A-Za-z0-9]+$"),
        rowIndex=integer(0),
        columnIndex=integer(0),
    )
    return object_of(
        () if version == "0.4" else ("plate",),
        plate=object_of(
            ("columns", "rows", "wells"),
            acquisitions=list_of(acquisition),
            field_count=integer(1),
            name=text(),
            columns=names,
            rows=names,
            wells=list_of(well, least=1, unique=True),
            version=text(words=("0.4",)) if version == "0.4" else anything,
        ),
    )


def _well(version: str) -> Rule:
    path = text(pattern=_WORD)
    if version == "0.6":
        path = text(least=1, pattern="^[A-Za-z0-9_.-]+$", but=r"^\.+$|^__")
    field = object_of(("path",), path=path, acquisition=integer())
    return object_of(
        () if version == "0.4" else ("well",),
        well=object_of(
            ("images",),
            images=list_of(field, least=1, unique=True),
            version=text(words=("0.4",)) if version == "0.4" else anything,
        ),
    )


def _container(version: str) -> Rule:
    name = "bioformats2raw.layout"
    return object_of(() if version == "0.4" else (name,), bioformats2raw_layout=equal(3))


def _series(version: str) -> Rule:
    return object_of(() if version == "0.4" else ("series",), series=list_of(text()))


_RULES: Final = {
    "image": _image,
    "label": _label,
    "plate": _plate,
    "well": _well,
    "bf2raw": _container,
    "ome": _series,
}


KINDS: Final = {
    "multiscales": "image",
    "image-label": "label",
    "plate": "plate",
    "well": "well",
    "bioformats2raw.layout": "bf2raw",
    "series": "ome",
}
"""Schema by the member that a group has it for."""


def rule_of(kind: str, version: str) -> Rule:
    """Return the rule for the attributes of a group.

    Parameters
    ----------
    kind : {"image", "label", "plate", "well", "bf2raw", "ome"}
        Name of the schema.
    version : {"0.4", "0.5", "0.6"}
    """
    members = _RULES[kind](version)
    if version == "0.4":
        return members
    stated = object_of(("version",), version=text(words=_VERSIONS[version]))
    return object_of(("ome",), ome=all_of(members, stated))
