"""Kernel files reach the user: seen at once in an editable install, packed in the wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINT_FILL = (
    "import gpustore.device.kernels.source as k; print(k.folder()); print(k.flatten('fill'))"
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a build needs, so that the tests may edit it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("gpustore", "kernels"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build_wheel(checkout, target, *, editable):
    """Call the build backend as pip does, without an isolated environment."""
    hook = "build_editable" if editable else "build_wheel"
    code = f"import hatchling.build as b, sys; print(b.{hook}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.strip().splitlines()[-1]


def run_installed(site, folder, *, flags=("-S",)):
    """Import gpustore from `site` (site.addsitedir: .pth files work), standing in `folder`.

    ``-S`` keeps the gpustore under test out; the dependencies are appended after `site`.
    """
    dependencies = sysconfig.get_path("purelib")
    code = (
        f"import site, sys; sys.path.append({str(site)!r}); site.addsitedir({str(site)!r}); "
        f"sys.path.append({dependencies!r}); {PRINT_FILL}"
    )
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    folder_line, _, source = done.stdout.partition("\n")
    return Path(folder_line), source


def test_an_edited_kernel_is_seen_in_an_editable_install(checkout, tmp_path):
    wheel = build_wheel(checkout, tmp_path, editable=True)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    folder, before = run_installed(site, tmp_path)
    assert folder == (checkout / "kernels").resolve()
    kernel = checkout / "kernels" / "fill.cu"
    header = checkout / "kernels" / "gs_common.cuh"
    try:
        for path in (kernel, header):
            path.write_text(path.read_text() + f"// edited {path.name}\n")
        _, after = run_installed(site, tmp_path)
    finally:
        for path in (kernel, header):
            shutil.copy(ROOT / "kernels" / path.name, path)
    assert "// edited" not in before
    assert "// edited fill.cu" in after
    assert "// edited gs_common.cuh" in after


def test_the_wheel_brings_its_kernels(checkout, tmp_path):
    wheel = build_wheel(checkout, tmp_path, editable=False)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    packed = {n for n in names if n.startswith("gpustore/backends/kernels/")}
    files = {f"gpustore/backends/kernels/{path.name}" for path in (ROOT / "kernels").iterdir()}
    assert packed == files
    assert len(files) >= 3
    assert "gpustore/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "kernels/", "benchmarks/")) for name in names)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder, source = run_installed(site, elsewhere)
    assert folder == (site / "gpustore" / "backends" / "kernels").resolve()
    assert "fill_strided" in source
