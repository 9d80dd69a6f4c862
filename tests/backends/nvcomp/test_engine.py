"""The engines of nvcomp are loaded independently, and the reason is told if it is not the best.

The packages are stand-ins: a C library with the functions of nvcomp that answer nothing, compiled
here, and a Python package without contents.
"""

import re
import subprocess
import sys
import types

import pytest

from gpustore.backends import nvcomp
from gpustore.backends.nvcomp import bindings, library
from gpustore.backends.nvcomp.abi import NO_NVCOMP, prototypes
from tests.emulator import host_build
from tests.kernels.execution import needs_compiler

PACKAGE = types.ModuleType("nvidia.nvcomp")


@pytest.fixture
def engine(monkeypatch):
    """Load the engine anew, with these packages."""

    def load(*, c, package):
        monkeypatch.setattr(library, "libnvcomp", c)
        for name in ("nvidia", "nvidia.nvcomp"):
            monkeypatch.setitem(sys.modules, name, None)
        if package is not None:
            parent = types.ModuleType("nvidia")
            parent.nvcomp = package
            monkeypatch.setitem(sys.modules, "nvidia", parent)
            monkeypatch.setitem(sys.modules, "nvidia.nvcomp", package)
        nvcomp.engine.cache_clear()
        return nvcomp.engine()

    yield load
    nvcomp.engine.cache_clear()


def compiled(folder, version):
    """Package with a shared library that says that it is this version of nvcomp."""
    names = {name for major in (5, 6) for name in prototypes(major)}
    lines = [f"int {name}() {{ return 0; }}" for name in sorted(names)]
    lines += [f"int nvcompGetProperties(unsigned *found) {{ *found = {version}; return 0; }}"]
    (folder / "lib64").mkdir()
    source = folder / "stand_in.cpp"
    source.write_text('extern "C" {\n' + "\n".join(lines) + "\n}\n")
    target = folder / "lib64" / "libnvcomp.so.9"
    command = [host_build.COMPILER, "-shared", "-fPIC", "-o", target, source]
    subprocess.run([str(part) for part in command], check=True, timeout=100)
    return types.SimpleNamespace(__file__=str(folder / "__init__.py"))


@needs_compiler
@pytest.mark.parametrize("package", [None, PACKAGE], ids=["alone", "with the package"])
def test_the_c_library_needs_no_python_package(engine, tmp_path, package):
    found, shortcoming = engine(c=compiled(tmp_path, 6012), package=package)
    assert isinstance(found, library.Library)
    assert (found.name, shortcoming) == ("nvcomp 6.0, C library", None)
    assert found.codec("zstd").name == "zstd"


@needs_compiler
def test_a_library_of_an_unknown_version_leaves_the_package(engine, tmp_path):
    found, shortcoming = engine(c=compiled(tmp_path, 7000), package=PACKAGE)
    assert isinstance(found, bindings.Bindings)
    assert shortcoming == (
        "nvcomp 7.0, C library: only versions [5, 6] are known; "
        "nvcomp's Python package decodes, and waits for each call"
    )


def test_without_the_c_library_the_package_is_used_and_told(engine):
    found, shortcoming = engine(c=None, package=PACKAGE)
    assert isinstance(found, bindings.Bindings)
    assert shortcoming.startswith(f"{NO_NVCOMP}; nvcomp's Python package decodes")


def test_a_folder_without_a_library_is_named(engine, tmp_path):
    package = types.SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    found, shortcoming = engine(c=package, package=PACKAGE)
    assert isinstance(found, bindings.Bindings)
    assert re.match(r"nvcomp: no libnvcomp.so in .*lib64; install", shortcoming)


def test_without_both_the_reasons_of_both_are_told(engine):
    found, shortcoming = engine(c=None, package=None)
    assert found is None
    assert shortcoming.startswith(f"{NO_NVCOMP}; nvcomp's Python package cannot be used: ")
