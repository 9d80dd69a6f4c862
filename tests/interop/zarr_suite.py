"""Run zarr-python's own test suite with gpustore as its codec pipeline.

``python -m tests.interop.zarr_suite [--without] [--short] [arguments of pytest]``

``ZARR_SDIST`` names the source distribution of the installed release of zarr-python, as a folder or
a file ``.tar.gz``; without it pip downloads it. ``--without`` leaves gpustore out, for comparison,
and ``--short`` runs what says most about a pipeline. The tests need ``pytest-asyncio``, which the
extra ``dev`` has; without ``fsspec`` and ``s3fs`` those of some stores are skipped.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

PIPELINE = "gpustore.interop.zarr.CodecPipeline"

SHORT = (
    "tests/test_array.py",
    "tests/test_indexing.py",
    "tests/test_codecs",
    "tests/test_v2.py",
    "tests/test_sync.py",
    "tests/test_buffer.py",
)
"""What is run in less than a minute on two cores."""

IGNORED = (
    "tests/benchmarks",
    "tests/test_docs.py",  # needs the documentation, which is not in the source distribution
    "tests/test_examples.py",  # installs packages
    "tests/test_regression",  # installs old releases of zarr-python
)

DESELECTED = {
    "tests/test_config.py::test_config_codec_pipeline_class": (
        "asserts that the pipeline of the configuration is zarr-python's own before it sets another"
    ),
}
"""Tests that fail with any other pipeline, and why."""


def main(arguments: list[str]) -> int:
    """Run the suite and return pytest's exit status."""
    flags = {flag for flag in arguments if flag in ("--without", "--short")}
    chosen = [argument for argument in arguments if argument not in flags]
    with tempfile.TemporaryDirectory() as scratch:
        source = sdist(Path(scratch))
        options = [f"--ignore={path}" for path in IGNORED]
        environment = dict(os.environ)
        if "--without" not in flags:
            options += [f"--deselect={test}" for test in DESELECTED]
            environment["ZARR_CODEC_PIPELINE__PATH"] = PIPELINE
            paths = [entry_point(Path(scratch)), str(ROOT), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        tests = SHORT if "--short" in flags else () if chosen else ("tests",)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # zarr-python's own options are those of its benchmarks.
        command += ["-o", "addopts=", "-o", "log_cli_level=ERROR", "-o", "faulthandler_timeout=120"]
        return subprocess.run(
            [*command, *options, *tests, *chosen], cwd=source, env=environment, check=False
        ).returncode


def sdist(scratch: Path) -> Path:
    """Return the folder of the source distribution of the release that is installed."""
    version = importlib.metadata.version("zarr")
    given = os.environ.get("ZARR_SDIST")
    if given is None:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "zarr"]
        subprocess.run([*pip, "-d", str(scratch), f"zarr=={version}"], check=True)
        given = str(scratch / f"zarr-{version}.tar.gz")
    if os.path.isdir(given):
        return Path(given).resolve()
    with tarfile.open(given) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none.
        archive.extractall(scratch)
    return scratch / f"zarr-{version}"


def entry_point(scratch: Path) -> str:
    """Make the entry point of gpustore, as an installation does; return the folder it lies in."""
    folder = scratch / "entry" / "gpustore_suite-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpustore-suite\nVersion: 0\n")
    module, _, name = PIPELINE.rpartition(".")
    (folder / "entry_points.txt").write_text(f"[zarr.codec_pipeline]\ngpustore = {module}:{name}\n")
    return str(folder.parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
