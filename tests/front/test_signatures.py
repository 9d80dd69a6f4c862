"""Every name, parameter and default of TensorStore's Python interface is one of gpustore's."""

import ast
import inspect
from pathlib import Path

import tensorstore as ts

import gpustore
from tests.matrix import each

LAYERS = [gpustore.array([1]), gpustore.array([2])]

CALLS = {
    "ChunkLayout": gpustore.ChunkLayout,
    "ChunkLayout.Grid": gpustore.ChunkLayout.Grid,
    "ChunkLayout.Grid.update": gpustore.ChunkLayout.Grid().update,
    "ChunkLayout.update": gpustore.ChunkLayout().update,
    "Dim": gpustore.Dim,
    "IndexDomain": gpustore.IndexDomain,
    "IndexTransform": gpustore.IndexTransform,
    "OutputIndexMap": lambda **keywords: gpustore.OutputIndexMap(
        **(
            dict.fromkeys(keywords, 0)
            if "input_dimension" in keywords
            else {"index_array": [1]} | keywords
        )
    ),
    "Schema": gpustore.Schema,
    "Schema.update": gpustore.Schema().update,
    "Spec.update": gpustore.Spec({"driver": "zarr3"}).update,
    "concat": lambda **keywords: gpustore.concat(LAYERS, **{"axis": 0, **keywords}),
    "dtype": gpustore.dtype,
    "open": lambda **keywords: gpustore.open({"driver": "zarr3"}, **keywords),
    "overlay": lambda **keywords: gpustore.overlay(LAYERS, **keywords),
    "stack": lambda **keywords: gpustore.stack(LAYERS, **keywords),
}
"""Calls of what takes ``**keywords``."""


def definitions(body, path):
    """Yield the functions of a module or class, with the names of what they are in."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from definitions(node.body, [*path, node.name])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join([*path, node.name]), node


def tensorstore_functions():
    folder = Path(ts.__file__).parent
    for file, path in (("__init__.pyi", []), ("ocdbt.pyi", ["ocdbt"])):
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        yield from definitions(tree.body, path)


def is_property(node):
    return any(
        "property" in text or "setter" in text for text in map(ast.unparse, node.decorator_list)
    )


FUNCTIONS = [
    (name, node)
    for name, node in tensorstore_functions()
    if not is_property(node) and (name.endswith(("__init__", "__new__")) or not name.endswith("__"))
]


def ours(name):
    found = gpustore
    for part in name.removesuffix(".__init__").removesuffix(".__new__").split("."):
        found = getattr(found, part)
    return found


def keywords_of(node):
    """Return the parameters that may be given by name, with the source of their defaults."""
    named = [one.arg for one in node.args.args]
    defaults = dict(zip(reversed(named), reversed(node.args.defaults)))
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    only = {one.arg: default for one, default in pairs}
    every = {name: defaults.get(name) for name in named} | only
    return {
        name: None if default is None else ast.unparse(default)
        for name, default in every.items()
        if name != "self" and not name.startswith("arg")
    }


def is_taken(call, keyword):
    """Whether a call complains of the value, which is of no legal type, or not at all."""
    try:
        call(**{keyword: object()})
    except (TypeError, ValueError, AttributeError) as error:
        return "unexpected" not in str(error)
    return True


@each(("name", "node"), FUNCTIONS)
def test_every_keyword_is_taken(name, node):
    parameters = inspect.signature(ours(name)).parameters
    for keyword, default in keywords_of(node).items():
        if keyword in parameters:
            mine = parameters[keyword]
            assert mine.kind is not mine.POSITIONAL_ONLY
            if default in ("None", "False", "True"):
                assert repr(mine.default) == default
        else:
            call = CALLS[name.removesuffix(".__init__").removesuffix(".__new__")]
            assert is_taken(call, keyword), keyword
            assert not is_taken(call, f"no_{keyword}")


@each(("name", "node"), FUNCTIONS)
def test_arguments_without_a_name_have_the_same_order(name, node):
    parameters = inspect.signature(ours(name)).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    mine = [one.name for one in parameters.values() if one.kind in kinds and one.name != "self"]
    theirs = [one.arg for one in node.args.args if one.arg != "self"]
    if not any(one.kind is one.VAR_POSITIONAL for one in parameters.values()):
        assert len(theirs) <= len(mine)
        shared = [one for one in mine if one in theirs]
        assert shared == [one for one in theirs if one in mine]


def names(thing, path, seen):
    """Yield the public names in a module or class of TensorStore."""
    for name in dir(thing):
        if name.startswith("_") or name == "annotations":
            continue
        yield ".".join([*path, name])
        value = getattr(thing, name)
        if (inspect.isclass(value) or inspect.ismodule(value)) and value not in seen:
            yield from names(value, [*path, name], [*seen, value])


def test_every_public_name_exists():
    missing = []
    for name in names(ts, [], [ts]):
        try:
            ours(name)
        except AttributeError:
            missing.append(name)
    assert missing == [
        *("OutputIndexMethod.name", "OutputIndexMethod.value"),  # Only its members have them.
        "ocdbt.DistributedCoordinatorServer.port",  # Its constructor is refused.
    ]
    assert gpustore.OutputIndexMethod.array.name == "array"
    assert gpustore.OutputIndexMethod.array.value == ts.OutputIndexMethod.array.value
