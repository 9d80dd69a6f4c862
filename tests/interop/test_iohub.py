"""iohub with gpustore as its Zarr implementation, beside its own."""

import numpy as np
import pytest

import gpustore
from gpustore import ome

VALUES = np.random.default_rng(0).integers(0, 60000, (2, 2, 6, 40, 50)).astype("uint16")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def iohub():
    found = pytest.importorskip("iohub")
    core, guest = pytest.importorskip("iohub.core"), pytest.importorskip("gpustore.interop.iohub")
    # As the entry point does, where gpustore is installed.
    core.register_implementation("gpustore", guest.Implementation)
    return found


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_position_is_written_and_read(iohub, version, tmp_path):
    path = tmp_path / "a.zarr"
    names = ["DAPI", "GFP"]
    with iohub.open_ome_zarr(
        path, layout="fov", mode="w-", channel_names=names, version=version,
        implementation="gpustore",
    ) as written:  # fmt: skip
        array = written.create_image("0", VALUES[:1], chunks=(1, 1, 3, 16, 16))
        array.resize(VALUES.shape)
        array[1] = VALUES[1]
        assert np.array_equal(array[:], VALUES)
        assert np.array_equal(array.oindex[0, 1, :, [0, -3]], VALUES[0, 1][:, [0, -3]])
        assert (array.shape, array.chunks, array.dtype) == (VALUES.shape, (1, 1, 3, 16, 16), "u2")
    for implementation in (None, "gpustore"):
        with iohub.open_ome_zarr(path, mode="r", implementation=implementation) as read:
            assert np.array_equal(read["0"][0, 1, -1], VALUES[0, 1, -1])
            assert read.channel_names == names
            assert np.array_equal(read["0"].dask_array().compute(), VALUES)
    image = ome.open(path)
    assert (image.version, image.channels) == (version, tuple(names))
    assert np.array_equal(image.level(0).read().result(), VALUES)


def test_a_pyramid_in_shards(iohub, tmp_path):
    with iohub.open_ome_zarr(
        tmp_path / "a.zarr", layout="fov", mode="w-", channel_names=["DAPI", "GFP"],
        version="0.5", implementation="gpustore",
    ) as written:  # fmt: skip
        array = written.create_image(
            "0", VALUES, chunks=(1, 1, 3, 8, 8), shards_ratio=(1, 1, 1, 2, 2)
        )
        assert array.shards == (1, 1, 3, 16, 16)
        written.compute_pyramid(levels=2, method="mean")
    image = ome.open(tmp_path / "a.zarr")
    expected = gpustore.downsample(image.level(0).store, [1, 1, 2, 2, 2], "mean").read().result()
    assert np.array_equal(
        image.level(1).read().result(), expected[tuple(map(slice, image.level(1).shape))]
    )


def test_other_stores_of_zarr_python(iohub):
    store = pytest.importorskip("zarr").storage.MemoryStore()
    with iohub.open_ome_zarr(
        store, layout="fov", mode="w-", channel_names=["a", "b"], version="0.5",
        implementation="gpustore",
    ) as written:  # fmt: skip
        written.create_image("0", VALUES)
    with iohub.open_ome_zarr(store, mode="r") as read:
        assert np.array_equal(read["0"][:], VALUES)


def test_what_is_not_there_is_a_missing_key(iohub, tmp_path):
    ome.write(tmp_path / "a.zarr", VALUES, axes="tczyx", levels=1, channels=("a", "b"))
    with iohub.open_ome_zarr(tmp_path / "a.zarr", mode="r", implementation="gpustore") as read:
        with pytest.raises(KeyError):
            read["7"]
        with pytest.raises((gpustore.GpustoreError, ValueError)):
            read["0"][0] = 1
