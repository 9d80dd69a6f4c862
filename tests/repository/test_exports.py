"""What is public is listed, exists and is documented."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest

import gpustore
from gpustore import registry
from tests.matrix import each

NAMES = sorted(
    module.name
    for module in pkgutil.walk_packages(gpustore.__path__, "gpustore.")
    if not module.name.endswith("__main__")
)
CUDA = [name for name in NAMES if name.startswith("gpustore.backends.cuda")]
# Guests, which import the library after which they are named.
GUESTS = [name for name in NAMES if name.startswith("gpustore.interop.")]
MODULES = ["gpustore", *(name for name in NAMES if name not in {*CUDA, *GUESTS})]


# Only these have names that are meant for others; every other module is private.
PUBLIC = {
    "gpustore",
    "gpustore.index_space",
    "gpustore.loader",
    "gpustore.ocdbt",
    "gpustore.ome",
    "gpustore.schema",
}


def sort_key(name):
    """Constants, then classes, then the rest, each by name: the order of ruff's RUF022."""
    kind = 0 if name.isupper() else 1 if name.lstrip("_")[:1].isupper() else 2
    return kind, name


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_exports_are_sorted_and_exist(name):
    module = importlib.import_module(name)
    exported = module.__all__
    assert list(exported) == sorted(exported, key=sort_key)
    assert len(set(exported)) == len(exported)
    assert [n for n in exported if not hasattr(module, n)] == []


def check_documentation(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert hasattr(module, "__all__") == (name in PUBLIC)
    undocumented = [
        defined
        for defined, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not defined.startswith("_")
        and not inspect.getdoc(value)
    ]
    assert undocumented == []


@each("name", MODULES)
def test_modules_functions_and_classes_are_documented(name):
    check_documentation(name)


@pytest.mark.skipif(not registry.is_installed("cupy"), reason="cupy is not installed")
@each("name", CUDA)
def test_modules_that_import_cupy_are_documented(name):
    check_documentation(name)


@each("name", GUESTS)
def test_guests_are_documented(name):
    if importlib.util.find_spec(name.rpartition(".")[2]) is not None:
        check_documentation(name)


def seen_by_type_checkers():
    """Name -> the imported module and name, or the key of the table of data types."""
    tree = ast.parse(Path(gpustore.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.test, ast.Name)
    )
    found = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        else:
            found[node.targets[0].id] = ast.literal_eval(node.value.slice)
    del found["_DTYPES"]
    return found


def test_public_names_are_those_that_type_checkers_see():
    for name, place in seen_by_type_checkers().items():
        if isinstance(place, str):
            assert getattr(gpustore, name).name == name == place
        else:
            module, original = place
            defined = (
                registry.room(original)
                if module == "gpustore"
                else vars(importlib.import_module(module))[original]
            )
            assert getattr(gpustore, name) is defined
    assert set(seen_by_type_checkers()) == set(gpustore.__all__)


def test_completion_shows_what_is_public():
    names = [name for name in dir(gpustore) if not name.startswith("_")]
    assert names == sorted(gpustore.__all__)
    assert not hasattr(gpustore, "no_such_name")
    assert not hasattr(gpustore, "_no_such_name")


def test_public_names_are_a_subset_of_what_tensorstore_calls_them_or_are_known_additions():
    tensorstore = pytest.importorskip("tensorstore")
    from gpustore import errors

    own = {
        "statistics",
        "Attributes",
        "Explanation",
        "WriteExplanation",
        "Group",
        "Node",
        "open_group",
    }
    own |= {"NativeCore", "copy", "create_array", "native_core", "save", "store_dask", "to_dask"}
    additions = {n for n, v in vars(errors).items() if isinstance(v, type)} | own
    unknown = set(gpustore.__all__) - set(dir(tensorstore)) - additions
    assert unknown == set()


def test_the_package_is_marked_as_typed():
    assert (Path(gpustore.__file__).parent / "py.typed").is_file()
