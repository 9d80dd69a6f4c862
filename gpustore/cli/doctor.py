"""``gpustore doctor``: what of gpustore works on this machine, and what to install for the rest.

Nothing is judged by its presence alone: a small array is written and read back, in host memory and
on the GPU if there is one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import warnings
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import gpustore
from gpustore.cli.options import add_json_option
from gpustore.cli.screen import Screen
from gpustore.runtime.cores import cores

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


State = Literal["ok", "absent", "bad"]

_EXTRAS = {
    "cli": (("rich", "pillow"), "tables, bars and pictures in the terminal"),
    "cloud": (("botocore", "google-auth"), "credentials that are not in the environment"),
    "snappy": (("cramjam",), "the codec snappy"),
    "zfp": (("zfpy",), "the codec zfpy"),
    "pcodec": (("pcodec",), "the codec pcodec"),
    "tiff": (("tifffile", "imagecodecs"), "copies of TIFF files"),
    "hdf5": (("h5py",), "copies of HDF5 files"),
    "xarray": (("xarray",), 'open_dataset(engine="gpustore")'),
    "dask": (("dask",), "to_dask and store_dask"),
    "zarr": (("zarr",), "zarr-python with gpustore's codecs"),
    "torch": (("torch",), 'read(to="torch")'),
    "jax": (("jax",), 'read(to="jax")'),
    "ray": (("ray",), "data sets of Ray"),
}
"""Distributions that each extra of the package installs, and what they are for."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Tries reads and writes in host memory and on the GPU, and says in plain "
        "sentences what is missing: driver, CuPy, nvcomp, kvikio, nvImageCodec, native core, "
        "optional packages."
    )
    add_json_option(command)
    command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    state : {"ok", "absent", "bad"}
    text : str
        What was found.
    remedy : str
        What to do; empty if nothing needs to be done.
    is_extra : bool
        Whether it is an extra of the package, which not everybody needs.
    """

    name: str
    state: State
    text: str
    remedy: str = ""
    is_extra: bool = False


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code, which is 0 whatever is found."""
    findings = list(examine())
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return 0
    screen = Screen()
    screen.line(
        f"gpustore {gpustore.__version__} on Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {cores()} CPU cores",
        style="bold",
    )
    marks = {"ok": ("✓", "green"), "absent": ("-", "dim"), "bad": ("!", "red")}
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, style = marks[finding.state]
        shown = finding.remedy and not finding.is_extra
        lines = [finding.text] + ([f"→ {finding.remedy}"] if shown else [])
        screen.entry((f"{mark} ", style), f"{finding.name:<{width}}  ", lines)
    absent = [one.name for one in findings if one.is_extra and one.state == "absent"]
    if absent:
        screen.line(f"Extras are installed so: python -m pip install 'gpustore[{absent[0]}]'")
    return 0


def examine() -> Iterator[Finding]:
    """Look at everything, one thing after the other."""
    yield _host()
    yield _native_core()
    yield _packages()
    yield from _gpu()
    for extra in _EXTRAS:
        yield _extra(extra)


def _host() -> Finding:
    """Write and read back an array in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gpustore-doctor-") as folder:
        try:
            _round_trip(Path(folder), "cpu")
        except (gpustore.GpustoreError, OSError, ImportError) as error:
            return Finding("host", "bad", f"An array could not be written and read: {error}")
    return Finding("host", "ok", "An array was written and read back in host memory.")


def _native_core() -> Finding:
    core = gpustore.native_core()
    if core.in_use:
        return Finding("native core", "ok", f"In use; it decodes {', '.join(core.decoders)}.")
    if os.environ.get("GPUSTORE_NATIVE") == "0":
        return Finding("native core", "absent", "Turned off by GPUSTORE_NATIVE=0.")
    return Finding(
        "native core",
        "bad",
        f"Not in use, so that local files are read more slowly: {core.reason}.",
        "install a C++ compiler (g++ or clang), then install gpustore again with "
        "GPUSTORE_NATIVE=require, which shows why it cannot be compiled",
    )


def _packages() -> Finding:
    names = "numpy", "numcodecs", "ml_dtypes", "zstandard", "isal", "deflate", "google-crc32c"
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        command = f"python -m pip install {' '.join(missing)}"
        return Finding("packages", "bad", f"Not installed: {', '.join(missing)}.", command)
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding("packages", "ok", f"{text}.")


def _gpu() -> Iterator[Finding]:
    """Look at the driver and the libraries of a GPU, and try a read there."""
    driver = _driver_version()
    if driver is None:
        yield Finding("GPU", "absent", "There is no NVIDIA driver: everything runs on the CPU.")
        return
    yield Finding("driver", "ok", f"NVIDIA's driver is there{', version ' * bool(driver)}{driver}.")
    for library, without in _LIBRARIES.items():
        found = _found(library)
        yield Finding(library, "ok", f"{found}.") if found else Finding(library, *without)
    if _found("cupy"):
        yield from _device()


_LIBRARIES: dict[str, tuple[State, str, str]] = {
    "cupy": (
        "bad",
        "Not installed, so that the GPU cannot be used.",
        "python -m pip install 'gpustore[cuda13]' (a driver of CUDA 12: [cuda12])",
    ),
    "nvcomp": (
        "bad",
        "Not installed, so that the CPU decodes most codecs.",
        "python -m pip install 'gpustore[cuda13]' (a driver of CUDA 12: [cuda12])",
    ),
    "kvikio": (
        "absent",
        "Not installed: files go through host memory on their way to the GPU.",
        "python -m pip install 'gpustore[gds13]' (a driver of CUDA 12: [gds12])",
    ),
    "nvImageCodec": (
        "absent",
        "Not installed: the CPU decodes JPEG and TIFF images for the GPU.",
        "python -m pip install 'gpustore[image13]' (a driver of CUDA 12: [image12])",
    ),
}


def _device() -> Iterator[Finding]:
    """Write and read back an array on the GPU."""
    with (
        tempfile.TemporaryDirectory(prefix="gpustore-doctor-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", gpustore.DeviceWarning)  # The findings say it.
        try:
            store = _round_trip(Path(folder), "cuda")
            explanation = store.explain().to_json()
            has_images = _found("nvImageCodec") and _version("pillow")
            images = list(_images(Path(folder), "cuda")) if has_images else []
        except (gpustore.GpustoreError, OSError, ImportError, RuntimeError) as error:
            yield Finding("GPU", "bad", f"It cannot be used: {error}")
            return
    yield Finding("GPU", "ok", f"An array was written and read back on {store.device}.")
    if explanation["library"]:
        yield Finding("decoders", "ok", f"{explanation['library']} decodes on the GPU.")
    if explanation["shortcoming"]:
        yield Finding("decoders", "bad", f"{explanation['shortcoming']}.")
    yield from images
    if explanation["direct_reason"]:
        yield Finding("direct reads", "absent", f"Not in use: {explanation['direct_reason']}.")


def _round_trip(folder: Path, device: str) -> gpustore.TensorStore:
    """Write an array compressed with zstd, copy it and read the copy; return its store.

    The array is encoded from host memory, the copy from the memory of the device.
    """
    elements = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    read: Any = elements
    for name in "ab":
        store = gpustore.open(
            f"{folder / name}|zarr3:",
            create=True,
            device=device,
            dtype="uint16",
            shape=[64, 64],
            chunks=(32, 32),
            codec="zstd",
        ).result()
        store.write(read).result()
        read = store.read().result()
    written = gpustore.open(folder / "b", device="cpu").result().read().result()
    if not np.array_equal(written, elements):
        raise gpustore.DeviceError("what was read is not what was written")
    return store


def _images(folder: Path, device: str) -> Iterator[Finding]:
    """Read an image of each format that a library decodes on a device."""
    from PIL import Image

    for name, options in (("jpeg", {}), ("tiff", {"compression": "tiff_adobe_deflate"})):
        path = folder / f"image.{name}"
        Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(path, name, **options)
        store = gpustore.open(path, device=device).result()
        store.read().result()
        explanation = store.explain().to_json()
        if explanation["shortcoming"]:
            yield Finding("images", "bad", f"{explanation['shortcoming']}.")
        else:
            text = f"{explanation['library']} decodes {name} on the GPU."
            yield Finding("images", "ok", text)


def _extra(name: str) -> Finding:
    """Look at the distributions of an extra."""
    distributions, purpose = _EXTRAS[name]
    versions = {one: _version(one) for one in distributions}
    if all(versions.values()):
        text = ", ".join(f"{one} {version}" for one, version in versions.items())
        return Finding(name, "ok", f"{text}, for {purpose}.", is_extra=True)
    missing = ", ".join(one for one, version in versions.items() if version is None)
    remedy = f"python -m pip install 'gpustore[{name}]'"
    text = f"{missing} not installed, for {purpose}."
    return Finding(name, "absent", text, remedy, is_extra=True)


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver, "" if it is not known; None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))) else None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found[1] if found else ""


def _found(library: str) -> str | None:
    """Return name and version of a library of CUDA, whichever of its distributions is installed."""
    names = {
        "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "nvcomp": ("nvidia-nvcomp-cu13", "nvidia-nvcomp-cu12"),
        "kvikio": ("kvikio-cu13", "kvikio-cu12", "kvikio"),
        "nvImageCodec": ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12"),
    }[library]
    return next((f"{name} {version}" for name in names if (version := _version(name))), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


COMMANDS = {"doctor": add_options}
