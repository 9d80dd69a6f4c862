"""What the package imports is what pyproject.toml declares."""

import ast
import functools
import sys
import tomllib
from pathlib import Path

from tests.matrix import each

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Where the module is not called as its distribution is.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "google": "google-auth",
    "cupy": "cupy-cuda13x",
    "nvidia": "nvidia-nvcomp-cu13",
}
DISTRIBUTIONS |= {"kvikio": "kvikio-cu13"}


def names(requirements):
    found = set()
    for requirement in requirements:
        name = requirement
        for end in "[<>=!~; ":
            name = name.partition(end)[0]
        found.add(name.lower().replace("_", "-"))
    return found


@functools.cache
def imported():
    """Distribution -> the first place that imports it, for everything neither ours nor Python's."""
    found = {}
    for path in sorted((ROOT / "gpustore").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            else:
                continue
            for module in modules:
                root = module.partition(".")[0]
                if root == "gpustore" or root in sys.stdlib_module_names:
                    continue
                name = DISTRIBUTIONS.get(root, root.lower().replace("_", "-"))
                found.setdefault(name, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


CORE = names(PROJECT["dependencies"])
EXTRAS = {
    extra: names(requirements) for extra, requirements in PROJECT["optional-dependencies"].items()
}


def test_every_import_is_declared():
    declared = (
        CORE
        | EXTRAS["cli"]
        | EXTRAS["cloud"]
        | EXTRAS["pcodec"]
        | EXTRAS["snappy"]
        | EXTRAS["zfp"]
        | EXTRAS["cuda13"]
        | EXTRAS["gds13"]
        | EXTRAS["dask"]
        | EXTRAS["hdf5"]
        | EXTRAS["tiff"]
        | EXTRAS["xarray"]
        | EXTRAS["zarr"]
        | EXTRAS["torch"]
        | EXTRAS["jax"]
        | EXTRAS["ray"]
    )
    assert {name: place for name, place in imported().items() if name not in declared} == {}


@each("name", sorted(CORE | EXTRAS["cli"] | EXTRAS["cloud"]))
def test_every_dependency_is_used(name):
    assert name in imported()


def test_libraries_of_the_command_line_are_used_there_only():
    for name in EXTRAS["cli"] - CORE:
        assert imported()[name].startswith("gpustore/cli/")


def test_gpu_libraries_are_never_hard_dependencies():
    assert not any(name.startswith(("cupy", "nvidia", "kvikio", "torch")) for name in CORE)
