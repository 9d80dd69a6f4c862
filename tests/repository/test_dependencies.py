"""What the package imports is what pyproject.toml declares."""

import functools
import sys
import tomllib
from pathlib import Path

from tests.matrix import each
from tests.repository.test_layers import imports_by_module

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
    """Distribution, of all neither ours nor Python's -> first module and line that import it."""
    found = {}
    for module, imports in imports_by_module().items():
        for one in imports:
            root = one.module.partition(".")[0]
            if root == "gpustore" or root in sys.stdlib_module_names:
                continue
            name = DISTRIBUTIONS.get(root, root.lower().replace("_", "-"))
            found.setdefault(name, f"{module}:{one.line}")
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
        assert imported()[name].startswith("gpustore.cli.")


def test_gpu_libraries_are_never_hard_dependencies():
    assert not any(name.startswith(("cupy", "nvidia", "kvikio", "torch")) for name in CORE)
