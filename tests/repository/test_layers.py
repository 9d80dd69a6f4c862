"""The layers of docs/design/001-architecture.md, read off the syntax trees of all modules."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.matrix import each

PACKAGE = Path(__file__).parents[2] / "gpustore"
PAGE = PACKAGE.parent / "docs" / "design" / "001-architecture.md"

# From the bottom to the top: a room imports from itself and from the rooms before it.
ROOMS = (
    "errors",
    "registry",
    "strict_json",
    "url",
    "runtime",
    "data_types",
    "resources",
    "index_space",
    "metadata",
    "schema",
    "device",
    "planning",
    "codec_chain",
    "codecs",
    "kvstores",
    "sharding",
    "hierarchy",
    "backends",
    "pipelines",
    "explain",
    "drivers",
    "display",
    "front",
    "ocdbt",
    "__init__",
    "interop",
    "sources",
    "transfer",
    "ome",
    "copying",
    "loader",
    "cli",
)

# Third-party modules and the only folders or modules that may import them.
CONFINED = {
    "cupy": "gpustore.backends.cuda",
    "kvikio": "gpustore.backends.cuda.gds",
    "nvidia": ("gpustore.backends.nvcomp", "gpustore.backends.nvimgcodec"),
    "torch": ("gpustore.backends.device.torch_allocator", "gpustore.interop.torch"),
    "jax": "gpustore.interop.jax",
    "ray": "gpustore.interop.ray",
    "importlib": ("gpustore.registry", "gpustore.cli.doctor"),
    "botocore": "gpustore.kvstores.s3.credentials",
    "google": "gpustore.kvstores.gcs.credentials",
    "rich": "gpustore.cli",
    "dask": "gpustore.interop.dask",
    "xarray": ("gpustore.interop.xarray", "gpustore.ome.guests"),
    "zarr": ("gpustore.interop.zarr", "gpustore.interop.iohub"),
    "PIL": ("gpustore.cli", "gpustore.codec_chain.image_chunk"),
    "h5py": "gpustore.sources.hdf5",
    "tifffile": "gpustore.sources.tiff",
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
    functions = ast.FunctionDef | ast.AsyncFunctionDef
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
            if not isinstance(child, ast.expr):  # Most are, and none holds an import.
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


def rooms_of(library):
    """The folders or modules that may import a library."""
    rooms = CONFINED[library]
    return (rooms,) if isinstance(rooms, str) else rooms


def room(module):
    """The folder or module directly below the package that `module` is in."""
    return module.split(".")[1] if "." in module else "__init__"


def ours(imports):
    return [i for i in imports if i.module.split(".")[0] == "gpustore"]


def test_every_module_is_in_a_room():
    assert len(imports_by_module()) > 20
    assert {room(name) for name in imports_by_module()} == set(ROOMS)


def test_the_page_lists_the_rooms_in_order():
    rows = re.findall(r"^\| `([^`]*)` \|", PAGE.read_text(), re.MULTILINE)
    assert [name.rstrip("/") for row in rows for name in row.split()] == list(ROOMS)


def test_design_pages_name_files_that_exist():
    """A name is the end of a path in the repository: `connected_set.py`, `http/client.py`."""
    root = PACKAGE.parent
    folders = [root / name for name in ("benchmarks", "docs", "gpustore", "kernels", "tests")]
    files = [path for folder in folders for path in folder.rglob("*.*")]
    paths = "\n".join(f"/{path.relative_to(root)}" for path in [*root.glob("*.*"), *files])
    for page in PAGE.parent.glob("*.md"):
        for name in re.findall(
            r"`([\w./]+\.(?:py|cuh?|cpp|h|md))`", page.read_text(encoding="utf-8")
        ):
            assert re.search(rf"/{re.escape(name)}$", paths, re.MULTILINE), (page.name, name)


def test_few_modules_lie_outside_of_rooms():
    assert len(list(PACKAGE.glob("*.py"))) <= 8
    assert len(list((PACKAGE / "kvstores").glob("*.py"))) <= 12


def test_imports_only_go_down():
    height = {name: i for i, name in enumerate(ROOMS)}
    wrong = [
        f"{name}:{i.line} imports {i.module}, whose room is above"
        for name, imports in imports_by_module().items()
        for i in ours(imports)
        if height[room(i.module)] > height[room(name)]
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
        and not f"{name}.".startswith(tuple(f"{place}." for place in rooms_of(root)))
    ]
    assert wrong == []


def test_only_the_registry_imports_by_name():
    wrong, names = [], {"__import__", "exec", "eval"}
    for name in imports_by_module():
        path = PACKAGE.parent / (name.replace(".", "/"))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(one in text for one in names) else ():
            if isinstance(node, ast.Name) and node.id in names:
                wrong.append(f"{name}:{node.lineno} uses {node.id}")
    assert wrong == []


GUESTS = [f"gpustore.{room}" for room in ("cli", "copying", "interop", "loader", "ome", "transfer")]


@each("guest", GUESTS)
def test_guests_use_only_public_names(guest):
    # The words of `--codec` are those of `codec=`, read by one parser; texts of commands are those
    # of a notebook; commands open arrays as copies do.
    public = {"gpustore", "gpustore.schema.codec_words", "gpustore.copying.elements"}
    public |= {"gpustore.loader", "gpustore.runtime.cores"}
    # Commands are found by name, as drivers are, and the library that batches are for.
    by_name = ("gpustore.cli", "gpustore.loader")
    public |= {"gpustore.registry"} if guest in by_name else set()
    rooms = [guest, "gpustore.display."]
    # Commands show what is there, whole or not; copies convert attributes of groups alone.
    if guest in ("gpustore.cli", "gpustore.copying"):
        rooms.append("gpustore.ome.")
    if guest in ("gpustore.copying", "gpustore.ome", "gpustore.transfer"):
        rooms += ["gpustore.sources.", "gpustore.transfer."]
    if guest == "gpustore.ome":  # Other libraries are guests.
        public.add("gpustore.interop")
    public |= {name for name in imports_by_module() if name.startswith(tuple(rooms))}
    wrong = [
        f"{name}:{i.line} imports {i.module}"
        for name, imports in imports_by_module().items()
        if name.startswith(guest)
        for i in ours(imports)
        if i.module not in public
    ]
    assert wrong == []


def test_no_module_is_named_after_nothing():
    parts = {part for name in imports_by_module() for part in name.split(".")}
    assert [part for part in parts if FORBIDDEN_NAMES.fullmatch(part)] == []


@each(
    ("source", "expected"),
    [
        ("import gpustore.store", [("gpustore.store", False)]),
        ("from gpustore import store", [("gpustore.store", False)]),
        ("from gpustore.store import TensorStore", [("gpustore.store", False)]),
        ("from . import base", [("gpustore.kvstores.base", False)]),
        ("from ..store import X", [("gpustore.store", False)]),
        ("def f():\n    from gpustore import store", [("gpustore.store", True)]),
        ("if TYPE_CHECKING:\n    import gpustore.store", [("gpustore.store", False)]),
        ("class C:\n    def f(self): import cupy", [("cupy", True)]),
    ],
)
def test_the_import_reader_sees(source, expected):
    modules = {"gpustore", "gpustore.store", "gpustore.kvstores", "gpustore.kvstores.base"}
    found = imports_of(
        ast.parse(source), "gpustore.kvstores.file", is_package=False, modules=modules
    )
    assert [(i.module, i.in_function) for i in found] == expected
