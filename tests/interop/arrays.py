"""Real images as arrays of any data type: an MRI time series and a stained tissue section.

`example4d.nii.gz` is part of nibabel's tests. `ihc.png` shows colonic glands and was made at the
Center for Microscopy And Molecular Imaging; it is part of scikit-image's data
(skimage.data.immunohistochemistry), which knows of no copyright restrictions.
"""

import functools
import importlib.util
from pathlib import Path

import ml_dtypes
import nibabel
import numpy as np
from PIL import Image

CHUNKS = {
    "voxel": (),
    "row": (64,),
    "slice": (40, 24),
    "ihc": (64, 48, 3),
    "mri": (13, 11, 4, 2),
    "blocks": (13, 11, 2, 2, 1),
    "mri whole": (70, 50, 24, 1),
    "ihc whole": (200, 512, 2),
}
"""Chunk shapes of the arrays: crops of rank 0 to 5, and the two whole images.

None of them divides its array, so there are edge chunks everywhere.
"""

NUMBERS = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The types of numbers that every library has."""

EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        *("int2", "int4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16"),
    )
}
"""The types of numbers that TensorStore adds."""

RECORDS = {
    "record": np.dtype([("x", "<i2"), ("y", ">f4"), ("z", "S3"), ("b", "?"), ("c", ">c8")]),
    "subarrays": np.dtype([("x", "<u2", (2, 3)), ("y", ">f4", (5,))]),
    "struct": np.dtype([("x", "i2"), ("y", "f4"), ("b", "?"), ("c", "c8")]),
}
"""The first two are of Zarr v2, with a byte order for each field, the last is of Zarr v3."""

STRINGS = {"S5": np.dtype("S5"), "V3": np.dtype("V3")}

DTYPES = NUMBERS | EXTENDED | RECORDS | STRINGS


def _inside(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / path


@functools.cache
def _intensities(source: str) -> np.ndarray:
    """The stored samples of an image as int64."""
    if source.startswith("ihc") or source in ("slice", "row"):
        with Image.open(Path(__file__).parent / "ihc.png") as image:
            whole = np.asarray(image)
    else:
        image = nibabel.load(_inside("nibabel", "tests/data/example4d.nii.gz"))
        whole = np.asarray(image.dataobj)
    samples = {
        "voxel": np.s_[60, 40, 10, 1],
        "row": np.s_[200, :230, 0],
        "slice": np.s_[200:296, 100:180, 2],
        "ihc": np.s_[200:296, 100:180],
        "mri": np.s_[50:74, 30:50, 8:15],
        "blocks": np.s_[50:74, 30:50, 8:14],
    }
    crop = whole[samples.get(source, ...)].astype(np.int64)
    return crop.reshape(24, 20, 3, 2, 2) if source == "blocks" else crop


@functools.cache
def make_array(source: str, dtype: str) -> np.ndarray:
    """An image converted to a data type so that its whole range of bit patterns is used.

    Integers wrap, floating-point types of several bytes get fractions and the values that compare
    oddly: NaN, both zeros and infinities; of one byte, any bits. Read-only, native byte order
    except in records.
    """
    samples = _intensities(source)
    array = _converted(np.atleast_1d(samples), DTYPES[dtype]).reshape(samples.shape)
    array.setflags(write=False)
    return array


def _converted(samples: np.ndarray, target: np.dtype) -> np.ndarray:
    if target.names is not None:
        array = np.empty(samples.shape, target)
        for i, name in enumerate(target.names):
            base, shape = target[name].base, target[name].shape
            items = np.add.outer(samples + i, np.arange(np.prod(shape, dtype=int)).reshape(shape))
            array[name] = _converted(items, base)
        return array
    if target in (EXTENDED["int2"], EXTENDED["int4"]):
        bits = ml_dtypes.iinfo(target).bits
        return (samples % 2**bits - 2 ** (bits - 1)).astype(target)
    if target.kind == "S":
        return samples.astype(target)
    if target.kind == "V" and target.type is np.void:
        low = samples.astype("<u4").reshape(*samples.shape, 1).view("u1")[..., : target.itemsize]
        return np.ascontiguousarray(low).view(target)[..., 0]
    if target.kind == "b":
        return samples > np.median(samples) - 1
    if target.kind in "iu":
        factor = {1: 1, 2: 37, 4: 1_000_003, 8: 0x0123456789ABCDEF}[target.itemsize]
        return (samples.astype(np.uint64) * np.uint64(factor)).astype(target)
    if target.itemsize == 1:
        mask = 0x0F if target == EXTENDED["float4_e2m1fn"] else 0xFF
        return (samples & mask).astype(np.uint8).view(target)
    real = np.array((samples - 300) / 7, order="C")
    oddities = real.reshape(-1)[3::11]
    oddities[:] = np.resize([np.nan, -0.0, np.inf, 0.0, -np.inf], oddities.shape)
    if target.kind != "c":
        return real.astype(target)
    array = np.empty(real.shape, target)
    array.real, array.imag = real, np.negative(real)
    return array


def fields_of(dtype: str) -> tuple[str, ...]:
    """The names of the fields, each of which is opened for itself; one "" for all other types."""
    return DTYPES[dtype].names or ("",)


def shown(array: np.ndarray, field: str) -> np.ndarray:
    """A field as gpustore and TensorStore show it: in native byte order, strings as bytes."""
    values = np.array(array[field] if field else array, order="C")
    if values.dtype.type in (np.void, np.bytes_):
        # A view would turn rank 0 into rank 1 without the extra dimension.
        return values.reshape(*values.shape, 1).view(f"{values.dtype.kind}1")
    return values.astype(values.dtype.newbyteorder("="))
