"""``gpustore bench``: counts and advice; no times."""

import json

import numpy as np
import pytest

import gpustore
from gpustore.cli.bench import Measured, advise


@pytest.fixture
def volume(tmp_path):
    path = tmp_path / "a.zarr"
    data = np.arange(16 * 16 * 16, dtype="uint16").reshape(16, 16, 16)
    store = gpustore.open(
        f"{path}|zarr3:", create=True, data=data, chunks=(8, 8, 8), codec="zstd"
    ).result()
    return path, store


def test_for_programs(gpustore_command, volume):
    path, _ = volume
    code, out, err = gpustore_command(
        "bench", path, "--patch", "8,8,8", "--seconds", 0, "--json", "--group", 4
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["patch"] == [8, 8, 8]
    assert facts["device"] == "cpu"
    single, grouped = facts["single"], facts["grouped"]
    assert single["crops"] == grouped["crops"] == 1
    assert single["bytes_returned"] == grouped["bytes_returned"] == 1024
    assert single["chunks"] == facts["different_chunks"]
    assert single["bytes_decoded"] == 1024 * single["chunks"]
    assert facts["advice"][0] == "Crops read: 1, too few for a speed; --seconds reads more."


def test_for_people(gpustore_command, volume):
    path, _ = volume
    code, out, err = gpustore_command("bench", path, "--seconds", 0)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: 1 crops of 16 x 16 x 16 uint16, read to cpu\n")
    assert "one by one" in out
    assert "32 by read_many" in out


def test_patches_that_do_not_fit(gpustore_command, volume, tmp_path):
    path, _ = volume
    gpustore.open(f"{tmp_path}/e|zarr3:", create=True, dtype="int8", shape=[0]).result()
    for url, patch, message in (
        (path, "8,8", "--patch has 2 extents, but the array has 3 dimensions: 16 x 16 x 16"),
        (path, "8,8,17", "crops of 8 x 8 x 17 do not fit in 16 x 16 x 16"),
        (tmp_path / "e", "1", "the array has no elements to crop"),
    ):
        code, out, err = gpustore_command("bench", url, "--patch", patch)
        assert (code, out) == (1, "")
        assert message in err


def test_advice(volume):
    _, store = volume
    single = Measured(100, 1.0, 1000, 9000, 40_000, 300, 30)
    grouped = Measured(100, 0.5, 1000, 9000, 20_000, 150, 15)
    sentences = advise(store, [4, 4, 4], single, grouped, 100, 32)
    assert sentences[0] == (
        "32 crops in one call of read_many were 2.0 times as fast as one by one."
    )
    assert "takes 20.0 decoded bytes: chunks of 8 x 8 x 8 are large" in sentences[1]
    assert "`gpustore copy --chunks 2,2,2` makes smaller ones." in sentences[1]
    assert "decoded 3.0 times on average, in groups 1.5 times" in sentences[2]
    assert sentences[3] == "10% of the chunks are not stored and cost next to nothing."
    calm = Measured(100, 1.0, 1000, 900, 1000, 100, 0)
    assert advise(store, [8, 8, 8], calm, calm, 100, 32) == [
        text for text in sentences[4:] if "native core" in text
    ]
