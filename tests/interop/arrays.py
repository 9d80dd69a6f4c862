"""Real images as arrays of any data type: an MRI time series and a stained tissue section.

Both files come with packages the tests need anyway, so nothing is downloaded: `example4d.nii.gz`
is part of nibabel's tests, `ihc.png` of scikit-image's installed data.
"""

import functools
import importlib.util
from pathlib import Path

import ml_dtypes
import nibabel
import numpy as np
from PIL import Image

SOURCES = ("mri", "mri whole", "ihc", "ihc whole", "voxel")
"""Names of the arrays: a crop and the whole of each image, and a single voxel of rank 0."""

CHUNKS = {
    "mri": (13, 11, 4, 2),
    "mri whole": (70, 50, 24, 1),
    "ihc": (64, 48, 3),
    "ihc whole": (200, 512, 2),
    "voxel": (),
}
"""Chunk shapes. None of them divides its array, so there are edge chunks everywhere."""

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint64"),
        *("float16", "float32", "float64", "complex64"),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def _inside(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / path


@functools.cache
def _intensities(source: str) -> np.ndarray:
    """The stored samples of an image as int64."""
    if source.startswith("ihc"):
        with Image.open(_inside("skimage", "data/ihc.png")) as image:
            whole, crop = np.asarray(image), np.s_[200:296, 100:180]
    else:
        image = nibabel.load(_inside("nibabel", "tests/data/example4d.nii.gz"))
        whole, crop = np.asarray(image.dataobj), np.s_[50:74, 30:50, 8:15]
    if source == "voxel":
        return whole[60, 40, 10, 1].astype(np.int64)
    return (whole if source.endswith("whole") else whole[crop]).astype(np.int64)


@functools.cache
def make_array(source: str, dtype: str) -> np.ndarray:
    """An image converted to a data type so that its whole range of bit patterns is used.

    Integers wrap, floating-point types get fractions and the values that compare oddly: NaN, both
    zeros and infinities. Read-only, native byte order.
    """
    samples, target = np.atleast_1d(_intensities(source)), DTYPES[dtype]
    if target.kind == "b":
        array = samples > np.median(samples) - 1
    elif target.kind in "iu":
        factor = {1: 1, 2: 37, 4: 1_000_003, 8: 0x0123456789ABCDEF}[target.itemsize]
        array = (samples.astype(np.uint64) * np.uint64(factor)).astype(target)
    else:
        real = np.array((samples - 300) / 7, order="C")
        oddities = real.reshape(-1)[3::11]
        oddities[:] = np.resize([np.nan, -0.0, np.inf, 0.0, -np.inf], oddities.shape)
        if target.kind == "c":
            array = np.empty(real.shape, target)
            array.real, array.imag = real, np.negative(real)
        else:
            array = real.astype(target)
    array = array.reshape(() if source == "voxel" else samples.shape)
    array.setflags(write=False)
    return array
