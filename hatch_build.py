"""Build hook: compiles the native core (``kernels/host/``) where there is a C++ compiler.

Without a compiler, or with one that fails, it warns once and the package is pure Python. The
environment variable ``GPUSTORE_NATIVE`` changes that: ``require`` makes a failure an error, ``0``
compiles nothing. ``CXX``, ``CXXFLAGS``, ``LDFLAGS`` and, on macOS, ``ARCHFLAGS`` are respected.

The core uses neither Python's headers nor its symbols, so that one wheel serves every Python.
``python hatch_build.py`` compiles the core of a checkout anew, as an editable install does.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
LIBRARY = "gpustore/backends/native/core.native.so"

_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the native core and the sources of the device kernels to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the core: into the package for an editable install, else for the wheel."""
        choice = os.environ.get("GPUSTORE_NATIVE", "")
        if choice not in ("", "0", "require"):
            self.app.abort(f"GPUSTORE_NATIVE: expected 0 or require, got {choice!r}")
        if version == "editable":
            self._try_compile(ROOT / LIBRARY, choice)
            return
        for path in sorted((ROOT / "kernels").iterdir()):
            if path.is_file():
                build_data["force_include"][str(path)] = f"gpustore/backends/kernels/{path.name}"
        self._scratch = tempfile.TemporaryDirectory()
        library = Path(self._scratch.name, Path(LIBRARY).name)
        if self._try_compile(library, choice):
            platform = self.build_config.builder.get_best_matching_tag().rpartition("-")[2]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["force_include"][str(library)] = LIBRARY

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the compiled core, which the wheel contains now."""
        del build_data, artifact_path
        if version != "editable":
            self._scratch.cleanup()

    def _try_compile(self, library: Path, choice: str) -> bool:
        """Return whether `library` was compiled; if it was not, an older one is deleted."""
        if choice != "0":
            try:
                compile_core(library)
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", None) or str(error)
                if choice == "require":
                    self.app.abort(f"The native core was not compiled:\n{output}")
                self.app.display_warning(
                    "gpustore is installed without its native core, as pure Python: "
                    + output.strip().splitlines()[0]
                )
            else:
                return True
        library.unlink(missing_ok=True)
        return False


def compile_core(library: Path, *flags: str) -> None:
    """Compile the core to the shared library `library`, which appears when it is complete.

    Parameters
    ----------
    library : Path
        A process that has loaded an older file of this name keeps that one.
    *flags : str
        Further options of the compiler, behind all others.

    Raises
    ------
    OSError
        If the compiler cannot be started.
    subprocess.CalledProcessError
        If it fails; has its messages as ``stderr``.
    """
    source = ROOT / "kernels/host/core.cpp"
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    given = [shlex.split(os.environ.get(name, "")) for name in ("CXXFLAGS", "LDFLAGS")]
    arches = shlex.split(os.environ.get("ARCHFLAGS", "")) if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".core-") as scratch:
        made = Path(scratch, library.name)
        command = [*compiler, *_FLAGS, *given[0], *arches, str(source), "-o", str(made)]
        subprocess.run([*command, *given[1], *flags], check=True, capture_output=True, text=True)
        made.replace(library)


if __name__ == "__main__":
    try:
        compile_core(ROOT / LIBRARY)
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)
