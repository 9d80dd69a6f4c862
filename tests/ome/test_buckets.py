"""Images, labels and plates in buckets of S3 and Google Cloud Storage."""

import numpy as np
import pytest

import gpustore
from gpustore import ome
from tests.kvstores.gcs.gcs_server import GcsServer
from tests.kvstores.s3.moto_server import make_bucket, moto
from tests.kvstores.s3.s3_server import S3Server

VALUES = np.random.default_rng(0).integers(0, 4000, (2, 4, 40, 70)).astype("uint16")
ABOUT = {"axes": "czyx", "scale": (2, 0.5, 0.5), "units": "um", "channels": ["DAPI", "GFP"]}


@pytest.fixture(scope="module")
def servers():
    with moto() as endpoint, S3Server() as s3, GcsServer() as gcs:
        make_bucket(endpoint)
        yield {"moto": endpoint, "s3": s3.url, "gcs": gcs.url}


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.matrix("costly")), "s3", "gcs"])
def bucket(request, servers, monkeypatch):
    """URL of a bucket."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "KEY",
        "AWS_SECRET_ACCESS_KEY": "SECRET",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": servers[request.param],
        "STORAGE_EMULATOR_HOST": servers["gcs"],
    }.items():
        monkeypatch.setenv(name, value)
    return "gs://bucket" if request.param == "gcs" else "s3://bucket"


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_an_image_with_labels_in_a_bucket(version, bucket, gpustore_command):
    url = f"{bucket}/{version}/cells.zarr"
    about = {**ABOUT, "shape": VALUES.shape, "dtype": "uint16", "version": version}
    image = ome.create(url, **about, chunks=(1, 4, 16, 32))
    image.write(VALUES)
    image.build_pyramid(levels=3)
    labels = image.create_label("nuclei")
    labels.write((VALUES[0] > 2000).astype("uint32"))
    labels.build_pyramid()
    found = ome.open(url)
    assert (found.version, found.channels, list(found.labels)) == (
        *(version, ("DAPI", "GFP"), ["nuclei"]),
    )
    half = gpustore.downsample(gpustore.array(VALUES), [1, 1, 2, 2], "mean").read().result()
    assert np.array_equal(found.level(0).read().result(), VALUES)
    assert np.array_equal(found.level(pixel_size={"y": 1}).read().result(), half)
    part = found.level(1).sel(c="GFP", z=ome.um(2, 6)).read().result()
    assert np.array_equal(part, half[1, 1:3])
    own = ome.open(f"{url}/labels/nuclei/")
    assert np.array_equal(own.level(0).read().result(), VALUES[0] > 2000)
    assert len(own.levels) == len(found.levels) == 3
    assert ome.validate(url) == []
    code, out, err = gpustore_command("info", url)
    assert (code, err) == (0, "")
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert {f"image OME-Zarr {version}, axes czyx, 3 levels", "labels nuclei"} <= lines
    with pytest.raises(gpustore.AlreadyExistsError):
        ome.create(url, **about)
    ome.write(url, VALUES[:1], **{**ABOUT, "channels": ["DAPI"]}, levels=1, overwrite=True)
    assert not ome.open(url).labels
    with pytest.raises(gpustore.NotFoundError, match="labels/nuclei"):
        ome.open(f"{url}/labels/nuclei")


def test_a_plate_in_a_bucket(bucket, gpustore_command):
    url = f"{bucket}/screen.zarr"
    plate = ome.create_plate(url, rows="AB", columns=["01", "02"], name="screen")
    paths = ["A/01/0", "A/01/1", "B/02/0"]
    about = {**ABOUT, "shape": VALUES.shape, "dtype": "uint16"}
    for number, field in enumerate(plate.create_images(paths, **about)):
        field.write(VALUES + np.uint16(number))
    fields = ome.open(url).fields
    for number, (path, field) in enumerate(fields.items()):
        assert path == paths[number]
        assert np.array_equal(field.level(0).read().result(), VALUES + np.uint16(number))
    assert len(ome.open(f"{url}/A/01").fields) == 2
    assert ome.open(f"{url}/B/02/0").channels == ("DAPI", "GFP")
    assert ome.validate(url) == []
    code, out, err = gpustore_command("info", url)
    assert (code, err) == (0, "")
    assert "OME-Zarr 0.5" in out
    with pytest.raises(gpustore.NotFoundError, match="A/02"):
        ome.open(f"{url}/A/02")
