"""Arrays of other libraries, and objects that behave like them, as sources."""

import numpy as np
import pytest
import zarr

import gpustore
from gpustore.sources.array_like import of_object

VALUES = np.arange(4 * 6, dtype="i4").reshape(4, 6)
PART = (slice(1, 3), slice(2, 6))


class Lazy:
    """An array that records which regions it was asked for."""

    def __init__(self, values, **properties):
        self.values, self.asked = values, []
        self.shape, self.dtype = values.shape, values.dtype
        vars(self).update(properties)

    def __getitem__(self, region):
        self.asked.append(region)
        return self.values[region]


class Exporting:
    """An object that only offers one protocol."""

    def __init__(self, **protocols):
        vars(self).update(protocols)


class Dlpack:
    def __dlpack__(self, **keywords):
        return VALUES.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return VALUES.__dlpack_device__()


def sources(tmp_path):
    stored = zarr.create_array(tmp_path / "z", data=VALUES, chunks=(2, 3))
    return {
        "numpy": VALUES,
        "lists": VALUES.tolist(),
        "lazy": Lazy(VALUES),
        "interface": Exporting(__array_interface__=VALUES.__array_interface__),
        "dlpack": Dlpack(),
        "zarr": stored,
        "store": gpustore.array(VALUES).translate_to[10, -3],
    }


@pytest.mark.parametrize("kind", ["numpy", "lists", "lazy", "interface", "dlpack", "zarr", "store"])
def test_regions_are_those_of_the_array(tmp_path, kind):
    source = of_object(sources(tmp_path)[kind])
    assert source.shape == VALUES.shape
    part = source.read(PART)
    if isinstance(part, gpustore.Future):
        part = part.result()
    np.testing.assert_array_equal(part, VALUES[PART])


@pytest.mark.parametrize("kind", ["numpy", "lists", "interface", "dlpack", "zarr", "store"])
def test_all_of_them_are_saved(tmp_path, kind):
    saved = gpustore.save(f"{tmp_path}/s", sources(tmp_path)[kind])
    np.testing.assert_array_equal(saved.read().result(), VALUES)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((2, 3), (2, 3)),
        (((2, 2), (1, 3, 2)), (2, 3)),  # dask
        (None, None),
        ("auto", None),
    ],
)
def test_chunks(chunks, expected):
    assert of_object(Lazy(VALUES, chunks=chunks)).chunks == expected


def test_names_and_attributes_of_xarray_and_zarr(tmp_path):
    named = of_object(Lazy(VALUES, dims=("y", "x"), attrs={"units": "K", "n": np.int8(1)}))
    assert (named.dims, named.attributes) == (("y", "x"), {"units": "K", "n": 1})
    stored = zarr.create_array(
        tmp_path / "z", data=VALUES, dimension_names=("a", "b"), attributes={"u": [1]}
    )
    source = of_object(stored)
    assert (source.dims, source.attributes) == (("a", "b"), {"u": [1]})
    with pytest.warns(gpustore.CopyWarning, match='attribute "o" has no JSON form'):
        of_object(Lazy(VALUES, attrs={"o": object()}))


class Torch:
    """What torch's dtype is to NumPy: unknown."""

    shape, dtype = VALUES.shape, "torch.int32"

    def __getitem__(self, region):
        return VALUES[region]


def test_a_data_type_that_numpy_does_not_know_is_that_of_elements():
    assert of_object(Torch()).dtype == VALUES.dtype


def copy(url, array, **properties):
    return gpustore.copy(array, url, **properties)


@pytest.mark.parametrize("save", [gpustore.save, copy])
def test_arrays_are_read_in_regions_of_whole_chunks(tmp_path, save):
    values = np.arange(64 * 48, dtype="u2").reshape(64, 48)
    lazy = Lazy(values)
    store = save(tmp_path / "a.zarr", lazy, chunks=(8, 16), shards=(16, 48))
    np.testing.assert_array_equal(store.read().result(), values)
    covered = np.zeros(values.shape, int)
    for region in lazy.asked:
        covered[region] += 1
        assert all(part.start % n == 0 for part, n in zip(region, (16, 48), strict=True))
    assert (covered == 1).all()


def test_regions_are_bounded_by_memory(tmp_path):
    lazy = Lazy(np.zeros((4096, 512), "u1"))
    gpustore.copy(lazy, tmp_path / "a.zarr", chunks=(64, 64), memory=1 << 18)
    assert max(values.nbytes for values in map(lazy.values.__getitem__, lazy.asked)) <= 1 << 17


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("save", [gpustore.save, copy])
def test_masked_elements_are_refused(tmp_path, save, lazy):
    whole = np.ma.masked_array(VALUES, mask=False)
    np.testing.assert_array_equal(save(f"{tmp_path}/a", whole).read().result(), VALUES)
    masked = np.ma.masked_equal(VALUES, 7)
    with pytest.raises(TypeError, match=r"\.filled\(value\)"):
        save(f"{tmp_path}/b", Lazy(masked) if lazy else masked)
