"""The wheels that a machine with a GPU but without internet needs, downloaded in lots.

CUDA, CuPy and NumPy are expected there. A lot stays under a size, so that each can be carried.
"""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from benchmarks.gpu.findings import MissingError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".wheels"
MIB = 1 << 20

_PLATFORMS = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34")


def _name(requirement):
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


NVCOMP = {"first": ">=6,<7", "nvcomp5": "==5.2.*"}
"""Versions of nvcomp by lot: all majors that gpustore knows."""


def lots(cuda=13):
    """Requirements by lot.

    ``first`` has what gpustore and its tests need, ``second`` whom it is compared with, ``images``
    what decodes images, ``nvcomp5`` the other major version of nvcomp's library, for a folder of
    its own in front of the first's; nvTIFF needs that one.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def of(extra, *names):
        found = [r.partition(";")[0] for r in extras[extra]]
        return [r for r in found if _name(r) in names]

    core = [r for r in project["dependencies"] if _name(r) != "numpy"]
    library = f"nvidia-libnvcomp-cu{cuda}"
    first = [f"nvidia-nvcomp-cu{cuda}{NVCOMP['first']}", f"{library}{NVCOMP['first']}", *core]
    first += [*extras["snappy"], *of("test", "pytest", "hypothesis")]
    first += ["iniconfig", "pluggy", "packaging", "pygments", "sortedcontainers"]
    second = of("test", "tensorstore", "zarr", "zarrs", "pyyaml")
    second += [
        "donfig",
        *of(f"gds{cuda}", f"kvikio-cu{cuda}"),
        f"libkvikio-cu{cuda}",
        "rapids-logger",
    ]
    images = [*of(f"image{cuda}", f"nvidia-nvimgcodec-cu{cuda}"), *extras["image"]]
    images += ["nvidia-nvjpeg" if cuda > 12 else f"nvidia-nvjpeg-cu{cuda}"]
    images += [f"nvidia-nvtiff-cu{cuda}>=0.8"]
    nvcomp5 = [f"{library}{NVCOMP['nvcomp5']}"]
    return {"first": first, "second": second, "images": images, "nvcomp5": nvcomp5}


def download(requirements, folder, python):
    """One wheel for each, none of what they need, for Linux on x86-64."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={python}", f"--dest={folder}"]
    command += [f"--platform=manylinux_{version}_x86_64" for version in _PLATFORMS]
    command += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"pip download: {done.stderr.strip()[-600:]}")


def needed(folder):
    """Names of distributions that the wheels in a folder, and in those below, ask for and lack."""
    asked, there = set(), set()
    for wheel in folder.rglob("*.whl"):
        there.add(_name(wheel.name.partition("-")[0]))
        with zipfile.ZipFile(wheel) as archive:
            inside = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            lines = archive.read(inside).decode().splitlines()
        for line in lines:
            key, _, requirement = line.partition(": ")
            if key == "Requires-Dist" and "extra ==" not in requirement:
                asked.add(_name(requirement))
    return sorted(asked - there)


def carry(folder, cuda, python, limit):
    """Download all lots; print them; 0 if each is under `limit` bytes."""
    sizes = {}
    for lot, requirements in lots(cuda).items():
        download(requirements, folder / lot, python)
        found = sorted((folder / lot).glob("*.whl"))
        sizes[lot] = sum(wheel.stat().st_size for wheel in found)
        print(f"{folder / lot}: {sizes[lot] / MIB:.1f} MiB")
        for wheel in found:
            print(f"  {wheel.stat().st_size / MIB:6.1f} MiB  {wheel.name}")
    print("expected on the machine itself:", ", ".join(needed(folder)))
    for lot in sizes:
        place = f" --target .{lot}" if lot in NVCOMP and lot != "first" else ""
        print(f"there: python -m pip install --no-index --no-deps{place} {folder.name}/{lot}/*.whl")
    large = [lot for lot, nbytes in sizes.items() if nbytes > limit]
    for lot in large:
        print(f"the {lot} lot is larger than {limit / MIB:.0f} MiB")
    return 1 if large else 0
