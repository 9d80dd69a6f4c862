"""The layers of docs/design/001-architecture.md, read off the syntax trees of all modules."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "gpustore"
PAGE = PACKAGE.parent / "docs" / "design" / "001-architecture.md"

# Longest prefix wins; a module that matches none fails the test and gets its place here.
LAYERS = {
    "gpustore.front": 7,
    "gpustore.explain": 5,
    "gpustore.device": 3,
    "gpustore.planning": 3,
    "gpustore.sharding": 3,
    "gpustore.codec_chain": 3,
    "gpustore.hierarchy": 3,
    "gpustore.data_types": 0,
    "gpustore.runtime": 0,
    "gpustore.strict_json": 0,
    "gpustore.errors": 0,
    "gpustore.registry": 0,
    "gpustore.url": 0,
    "gpustore.resources": 0,
    "gpustore.index_space": 1,
    "gpustore.metadata": 2,
    "gpustore.schema": 2,
    "gpustore.kvstores": 3,
    "gpustore.ocdbt": 3,
    "gpustore.codecs": 3,
    "gpustore.pipelines.rectilinear_grid": 3,
    "gpustore.backends": 4,
    "gpustore.pipelines": 5,
    "gpustore.drivers": 6,
    "gpustore": 7,
    "gpustore.cli": 8,
}

# Third-party modules and the only folders or modules that may import them.
CONFINED = {
    "cupy": "gpustore.backends.cuda",
    "kvikio": "gpustore.backends.cuda.gds",
    "nvidia": "gpustore.backends.nvcomp",
    "importlib": "gpustore.registry",
    "obstore": "gpustore.kvstores.buckets.obstore",
    "rich": "gpustore.cli",
    "PIL": "gpustore.cli",
}

FORBIDDEN_NAMES = re.compile(r"_?(utils?|helpers?|common|managers?|misc)\b")


class Import(NamedTuple):
    module: str
    line: int
    in_function: bool


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree, name, *, is_package, modules):
    """Every import of a module, `from a import b` resolved to the module a.b if there is one."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    found = []

    def visit(node, in_function):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if is_package else name.split(".")[:-1]
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                target = deeper if deeper in modules else base
                found.append(Import(target, node.lineno, in_function))
        for child in ast.iter_child_nodes(node):
            visit(child, in_function or isinstance(node, functions))

    visit(tree, False)
    return found


@functools.cache
def imports_by_module():
    """Module -> what it imports."""
    paths = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        name: imports_of(
            ast.parse(path.read_text(encoding="utf-8")),
            name,
            is_package=path.name == "__init__.py",
            modules=paths,
        )
        for name, path in paths.items()
    }


def layer(module):
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in LAYERS and (prefix != "gpustore" or module == "gpustore"):
            return LAYERS[prefix]
    return None


def ours(imports):
    return [i for i in imports if i.module.split(".")[0] == "gpustore"]


def test_every_module_has_a_layer():
    assert len(imports_by_module()) > 20
    assert [name for name in imports_by_module() if layer(name) is None] == []


def test_the_page_says_in_which_layer_each_module_is():
    rows = re.findall(r"^\| (\d) [^|]*\| `([^`]*)`", PAGE.read_text(), re.MULTILINE)
    told = {name.rstrip("/"): int(layer) for layer, names in rows for name in names.split()}
    assert told.pop("__init__") == LAYERS["gpustore"]
    assert told == {name[9:]: layer for name, layer in LAYERS.items() if name != "gpustore"}


def test_imports_only_go_down():
    wrong = [
        f"{name}:{i.line} (layer {layer(name)}) imports {i.module} (layer {layer(i.module)})"
        for name, imports in imports_by_module().items()
        for i in ours(imports)
        if (layer(i.module) or 0) > (layer(name) or 0)
    ]
    assert wrong == []


def test_imports_have_no_cycle():
    graph = {}
    for name, imports in imports_by_module().items():
        # A package's own __init__ gathers its modules; they may not import it back.
        graph[name] = {i.module for i in ours(imports) if i.module in imports_by_module()} - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_own_modules_are_not_imported_inside_functions():
    wrong = [
        f"{name}:{i.line} imports {i.module} inside a function"
        for name, imports in imports_by_module().items()
        for i in ours(imports)
        if i.in_function
    ]
    assert wrong == []


def test_foreign_libraries_stay_in_their_rooms():
    wrong = [
        f"{name}:{i.line} imports {i.module}, which only {CONFINED[root]} may"
        for name, imports in imports_by_module().items()
        for i in imports
        if (root := i.module.split(".")[0]) in CONFINED
        and not f"{name}.".startswith(f"{CONFINED[root]}.")
    ]
    assert wrong == []


def test_only_the_registry_imports_by_name():
    wrong = []
    for name in imports_by_module():
        path = PACKAGE.parent / (name.replace(".", "/"))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and node.id in {"__import__", "exec", "eval"}:
                wrong.append(f"{name}:{node.lineno} uses {node.id}")
    assert wrong == []


def test_the_command_line_uses_only_public_names():
    public = {"gpustore"} | {
        name for name in imports_by_module() if name.startswith("gpustore.cli")
    }
    wrong = [
        f"{name}:{i.line} imports {i.module}"
        for name, imports in imports_by_module().items()
        if name.startswith("gpustore.cli")
        for i in ours(imports)
        if i.module not in public
    ]
    assert wrong == []


def test_no_module_is_named_after_nothing():
    parts = {part for name in imports_by_module() for part in name.split(".")}
    assert [part for part in parts if FORBIDDEN_NAMES.fullmatch(part)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import gpustore.front.store", [("gpustore.front.store", False)]),
        ("from gpustore import store", [("gpustore.front.store", False)]),
        ("from gpustore.front.store import TensorStore", [("gpustore.front.store", False)]),
        ("from . import base", [("gpustore.kvstores.base", False)]),
        ("from ..store import X", [("gpustore.front.store", False)]),
        ("def f():\n    from gpustore import store", [("gpustore.front.store", True)]),
        ("if TYPE_CHECKING:\n    import gpustore.front.store", [("gpustore.front.store", False)]),
        ("class C:\n    def f(self): import cupy", [("cupy", True)]),
    ],
)
def test_the_import_reader_sees(source, expected):
    modules = {"gpustore", "gpustore.front.store", "gpustore.kvstores", "gpustore.kvstores.base"}
    found = imports_of(
        ast.parse(source), "gpustore.kvstores.file", is_package=False, modules=modules
    )
    assert [(i.module, i.in_function) for i in found] == expected
