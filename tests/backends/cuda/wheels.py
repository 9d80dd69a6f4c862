"""The libraries of a GPU as they are installed, or as wheels in a folder; neither needs a GPU.

``GPU_WHEELS`` in the environment is a folder with wheels of nvcomp, unpacked or not: other versions
than the one that is installed. ``SURFACE_MUST_RUN=1`` turns skipping for lack of them into failing.
"""

import importlib.util
import os
import re
import zipfile
from pathlib import Path

import pytest


def skip(reason):
    if os.environ.get("SURFACE_MUST_RUN") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def installed_nvcomp():
    """Folder of the installed package, or None."""
    try:
        found = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        return None
    return None if found is None or found.origin is None else Path(found.origin).parent


def nvcomp_headers(major):
    """The headers of a version of nvcomp, by name; skips the test if they are nowhere."""
    for found in _installed_headers(), *_headers_of_wheels():
        version = re.search(r"NVCOMP_VER_MAJOR (\d+)", found.get("version.h", ""))
        if version and int(version[1]) == major:
            return found
    return skip(f"no headers of nvcomp {major}: install nvidia-nvcomp-cu13, or set GPU_WHEELS")


def _installed_headers():
    folder = installed_nvcomp()
    if folder is None:
        return {}
    return {path.name: path.read_text() for path in (folder / "include/nvcomp").glob("*.h")}


def _headers_of_wheels():
    for wheel in Path(os.environ.get("GPU_WHEELS", os.devnull)).glob("nvidia_libnvcomp*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            yield {
                name.rpartition("/")[2]: archive.read(name).decode()
                for name in archive.namelist()
                if re.search(r"include/nvcomp/\w+\.h$", name)
            }
