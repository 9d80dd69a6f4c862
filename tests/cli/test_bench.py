"""``gpustore bench``: counts and advice; no times."""

import json
import re

import numpy as np
import pytest

import gpustore
from gpustore.cli.bench import Measured, advise
from gpustore.cli.loader_speed import stage_advice


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
    assert single["patches"] == grouped["patches"] == 1
    assert single["bytes_returned"] == grouped["bytes_returned"] == 1024
    assert single["chunks"] == facts["different_chunks"]
    assert single["bytes_decoded"] == 1024 * single["chunks"]
    assert facts["advice"][0] == "Patches read: 1, too few for a speed; --seconds reads more."


def test_for_people(gpustore_command, volume):
    path, _ = volume
    code, out, err = gpustore_command("bench", path, "--seconds", 0)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: random patches of 16 x 16 x 16 uint16, read to cpu\n")
    assert "one by one" in out
    assert "32 by read_many" in out
    assert "\nLoader: first batch after " in out
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_a_loader_is_measured(gpustore_command, volume):
    path, _ = volume
    options = "--patch", "8,8,8", "--window", "2 kB", "--seconds", 0, "--json"
    code, out, err = gpustore_command("bench", path, *options)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    loader, stats = facts["loader"], facts["loader"]["stats"]
    assert facts["window"] == 2000
    assert loader["patches"] == stats["patches"] == 8
    assert loader["bytes_returned"] == 8 * 1024
    assert 0 < loader["first_s"] <= loader["seconds"]
    assert stats["decodes_per_chunk"] > 1
    assert re.match(r"A chunk is decoded [\d.]+ times an epoch: window=", facts["advice"][-1])


def test_patches_too_large_for_a_loader(gpustore_command, tmp_path):
    store = gpustore.open(
        f"{tmp_path / 'l'}|zarr3:", create=True, dtype="uint8", shape=[1 << 26], chunks=(1 << 24,)
    )
    store.result()
    code, out, err = gpustore_command(
        "bench", tmp_path / "l", "--patch", 1 << 26, "--seconds", 0, "--group", 1
    )
    assert (code, err) == (0, "")
    assert "- No loader: memory: 4 batches of " in out


@pytest.mark.parametrize("size", ["0", "ten", "3 parsecs"])
def test_windows_are_sizes(gpustore_command, volume, size):
    code, out, err = gpustore_command("bench", volume[0], "--window", size)
    assert (code, out) == (2, "")
    assert "size: expected" in err


def test_groups_are_named(gpustore_command, tmp_path):
    gpustore.open_group(tmp_path / "g", create=True).result()
    code, out, err = gpustore_command("bench", tmp_path / "g")
    assert (code, out) == (1, "")
    assert "is a group: `gpustore tree` lists its arrays" in err


@pytest.mark.parametrize(
    ("stage", "codec", "text"),
    [
        ("storage", "zstd", "Storage limits: 1 MB/s came from it. What helps is a larger --window"),
        ("storage", None, "(`gpustore copy --codec zstd`) or a larger --window"),
        ("decode", "gzip", "of gzip. `gpustore copy --codec zstd` decodes several times as fast"),
        ("decode", "zstd", "Decoding limits: 2 MB/s of zstd. What helps is more cores"),
        ("cut", "zstd", "Cutting limits: one thread copies patches of 2 x 2 x 2 out of windows."),
    ],
)
def test_advice_on_the_stage_that_limits(stage, codec, text):
    store = gpustore.open(
        "memory://bench/|zarr3:",
        create=True,
        dtype="uint8",
        shape=[8, 8, 8],
        codec=codec,
        context=gpustore.Context(),
    ).result()
    decoded = 1_000_000 if codec is None else 2_000_000
    stats = {"limited_by": stage, "read_s": 1.0, "bytes_read": 1_000_000, "bytes_decoded": decoded}
    (sentence,) = stage_advice(store, [2, 2, 2], stats)
    assert text in sentence


def test_patches_that_do_not_fit(gpustore_command, volume, tmp_path):
    path, _ = volume
    gpustore.open(f"{tmp_path}/e|zarr3:", create=True, dtype="int8", shape=[0]).result()
    for url, patch, message in (
        (path, "8,8", "--patch has 2 extents, but the array has 3 dimensions: 16 x 16 x 16"),
        (path, "17", "patches of 17 x 17 x 17 do not fit in 16 x 16 x 16"),
        (path, "8,8,17", "patches of 8 x 8 x 17 do not fit in 16 x 16 x 16"),
        (tmp_path / "e", "1", "the array has no elements, or no dimensions"),
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
        "32 patches in a call of read_many were 2.0 times as fast as one by one."
    )
    assert "takes 20.0 decoded bytes: chunks of 8 x 8 x 8 are large" in sentences[1]
    assert "`gpustore copy --chunks 2,2,2` makes smaller ones." in sentences[1]
    assert "decoded 3.0 times on average, in groups 1.5 times" in sentences[2]
    assert sentences[3] == "10% of the chunks are not stored and cost next to nothing."
    calm = Measured(100, 1.0, 1000, 900, 1000, 100, 0)
    assert advise(store, [8, 8, 8], calm, calm, 100, 32) == [
        text for text in sentences[4:] if "native core" in text
    ]
