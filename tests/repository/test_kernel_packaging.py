"""Kernels reach the user: seen at once in an editable install, packed or compiled in the wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PRINT_FILL = (
    "import gpustore.device.kernels.source as k; print(k.folder()); print(k.flatten('fill'))"
)
CORE = "gpustore/backends/native/core.native.so"
NO_COMPILER = {"CXX": "/nonexistent/c++"}
FAILING_COMPILER = {"CXX": f"{sys.executable} -c 'raise SystemExit(\"this fails\")'"}

QUICKLY = {"GPUSTORE_NATIVE": "require", "CXXFLAGS": "-O0"}
"""Compiles the core; how well is not asked here."""

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None and not os.environ.get("KERNELS_MUST_RUN"),
    reason="no C++ compiler",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a build needs, so that the tests may edit it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("gpustore", "kernels"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")
        )
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(checkout, target, hook, environment):
    """Call the build backend as pip does, without an isolated environment."""
    code = f"import hatchling.build as b, sys; print(b.{hook}(sys.argv[1]))"
    return subprocess.run(
        [sys.executable, "-c", code, str(target)],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name != "GPUSTORE_NATIVE"}
        | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def build_wheel(checkout, target, *, editable, **environment):
    """Return the path of a wheel and what the build printed as warnings."""
    done = build(checkout, target, "build_editable" if editable else "build_wheel", environment)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.strip().splitlines()[-1], done.stderr


def run_installed(site, folder, program=PRINT_FILL):
    """Return what a program prints that imports gpustore from `site`, standing in `folder`.

    ``-S`` keeps the gpustore under test out; the dependencies are appended after `site`
    (site.addsitedir: .pth files work).
    """
    dependencies = str(Path(np.__file__).parents[1])
    code = (
        f"import site, sys; sys.path.append({str(site)!r}); site.addsitedir({str(site)!r}); "
        f"sys.path.append({dependencies!r}); {program}"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kernel_sources(site, folder):
    """Return the folder of the kernels of an installation, and the source of one."""
    printed, _, source = run_installed(site, folder).partition("\n")
    return Path(printed), source


def unpack(wheel, site):
    """Install a wheel into `site`; return the names of its files."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        return set(archive.namelist())


@pytest.mark.matrix("costly")
def test_an_edited_kernel_is_seen_in_an_editable_install(checkout, tmp_path):
    wheel, _ = build_wheel(checkout, tmp_path, editable=True, GPUSTORE_NATIVE="0")
    site = tmp_path / "site"
    unpack(wheel, site)
    folder, before = kernel_sources(site, tmp_path)
    assert folder == (checkout / "kernels").resolve()
    kernel = checkout / "kernels" / "fill.cu"
    header = checkout / "kernels" / "gs_common.cuh"
    try:
        for path in (kernel, header):
            path.write_text(path.read_text() + f"// edited {path.name}\n")
        _, after = kernel_sources(site, tmp_path)
    finally:
        for path in (kernel, header):
            shutil.copy(ROOT / "kernels" / path.name, path)
    assert "// edited" not in before
    assert "// edited fill.cu" in after
    assert "// edited gs_common.cuh" in after


def check_contents(names):
    """Check that a wheel has the kernels for a GPU and nothing beside the package."""
    packed = {n for n in names if n.startswith("gpustore/backends/kernels/")}
    files = {path.name for path in (ROOT / "kernels").iterdir() if path.is_file()}
    assert packed == {f"gpustore/backends/kernels/{name}" for name in files}
    assert len(files) >= 3
    assert "gpustore/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "kernels/", "benchmarks/")) for name in names)
    assert not any(name.endswith((".cpp", ".h", "hatch_build.py")) for name in names)


@pytest.mark.matrix("costly")
@needs_compiler
def test_the_wheel_brings_its_kernels_and_the_compiled_core(checkout, tmp_path):
    wheel, warnings = build_wheel(checkout, tmp_path, editable=False, **QUICKLY)
    assert warnings == ""
    # One wheel for all versions of Python on this kind of machine.
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}.whl")
    site = tmp_path / "site"
    names = unpack(wheel, site)
    check_contents(names)
    assert {name for name in names if name.endswith(".so")} == {CORE}
    (facts,) = (site / name for name in names if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in facts.read_text()
    assert not (checkout / CORE).exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder, source = kernel_sources(site, elsewhere)
    assert folder == (site / "gpustore" / "backends" / "kernels").resolve()
    assert "fill_strided" in source
    told = "import gpustore; print(gpustore.__file__); print(gpustore.native_core())"
    file, core = run_installed(site, elsewhere, told).splitlines()
    assert Path(file) == site / "gpustore" / "__init__.py"
    assert core.startswith("NativeCore(in_use=True, reason=None, decoders=('raw', ")


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(
    ("environment", "warning"),
    [
        (NO_COMPILER, "No such file or directory: '/nonexistent/c++'"),
        (FAILING_COMPILER, "this fails"),
        ({"GPUSTORE_NATIVE": "0"}, None),
    ],
    ids=["none", "failing", "off"],
)
def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(
    checkout, tmp_path, environment, warning
):
    wheel, warnings = build_wheel(checkout, tmp_path, editable=False, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    if warning is None:
        assert warnings == ""
    else:
        (line,) = warnings.splitlines()
        assert line.startswith("gpustore is installed without its native core, as pure Python: ")
        assert warning in line
    site = tmp_path / "site"
    names = unpack(wheel, site)
    check_contents(names)
    assert not any(name.endswith(".so") for name in names)
    told = "import gpustore; print(gpustore.native_core())"
    assert "not compiled at installation" in run_installed(site, tmp_path, told)


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("compiler", [NO_COMPILER, FAILING_COMPILER], ids=["none", "failing"])
def test_a_build_can_require_the_core(checkout, tmp_path, compiler):
    environment = {**compiler, "GPUSTORE_NATIVE": "require"}
    done = build(checkout, tmp_path, "build_wheel", environment)
    assert done.returncode == 1
    assert done.stderr.startswith("The native core was not compiled:\n")
    assert list(tmp_path.iterdir()) == []


def test_a_build_refuses_another_word(checkout, tmp_path):
    done = build(checkout, tmp_path, "build_wheel", {"GPUSTORE_NATIVE": "yes"})
    assert done.returncode == 1
    assert done.stderr == "GPUSTORE_NATIVE: expected 0 or require, got 'yes'\n"


@pytest.mark.matrix("costly")
@needs_compiler
def test_an_editable_install_compiles_the_core_into_the_package(checkout, tmp_path):
    told = "import gpustore; print(gpustore.native_core().in_use)"
    try:
        wheel, _ = build_wheel(checkout, tmp_path, editable=True, **QUICKLY)
        site = tmp_path / "site"
        assert not any(name.endswith(".so") for name in unpack(wheel, site))
        assert run_installed(site, tmp_path, told) == "True\n"
        pure, _ = build_wheel(checkout, tmp_path, editable=False, GPUSTORE_NATIVE="0")
        assert not any(name.endswith(".so") for name in zipfile.ZipFile(pure).namelist())
        # What is there is not the core of these sources any more.
        build_wheel(checkout, tmp_path, editable=True, **NO_COMPILER)
        assert run_installed(site, tmp_path, told) == "False\n"
    finally:
        (checkout / CORE).unlink(missing_ok=True)


@pytest.mark.matrix("costly")
def test_the_source_distribution_can_be_built_again(checkout, tmp_path):
    (checkout / CORE).touch()
    try:
        done = build(checkout, tmp_path, "build_sdist", {})
        assert done.returncode == 0, done.stderr
    finally:
        (checkout / CORE).unlink()
    with tarfile.open(tmp_path / done.stdout.strip().splitlines()[-1]) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none.
        archive.extractall(tmp_path)
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "kernels/host/core.cpp", "kernels/fill.cu"} <= names
    assert not any(name.endswith(".so") for name in names)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    _, warnings = build_wheel(unpacked, tmp_path, editable=False, **NO_COMPILER)
    assert len(warnings.splitlines()) == 1
