"""``gpustore verify``: damage is found, and named."""

import json
import zipfile

import numpy as np
import pytest
import zarr

import gpustore
from gpustore.cli import verify
from tests.kvstores.http.http_server import HttpServer
from tests.matrix import each


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "g.zarr"
    root = gpustore.open_group(path, create=True).result()
    elements = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    root.create_array("plain", data=elements, chunks=(8, 8), codec="zstd").result()
    root.create_array(
        "sharded", data=elements, chunks=(8, 8), shards=(32, 32), codec="gzip"
    ).result()
    root.create_array("empty", dtype="uint8", shape=(9, 9), chunks=(3, 3)).result()
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_good_groups(gpustore_command, study):
    code, out, err = gpustore_command("verify", study)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        str(study),
        "arrays 3",
        "read 68 of 77 chunks and shards are stored, 16.4 kB decoded",
        "bad none",
    ]
    assert gpustore_command("verify", study / "plain", "--quiet") == (0, "", "")


def test_damage_is_named(gpustore_command, study):
    cut(study / "plain" / "c" / "0" / "3")
    cut(study / "plain" / "c" / "7" / "7")
    shard = study / "sharded" / "c" / "1" / "0"
    content = bytearray(shard.read_bytes())
    content[30:40] = bytes(10)
    shard.write_bytes(content)
    (study / "empty" / "zarr.json").write_text("{")
    code, out, err = gpustore_command("verify", study, "--json")
    assert (code, err) == (1, "")
    facts = json.loads(out)
    assert [(one["array"], one["key"], one["chunks"]) for one in facts["bad"]] == [
        ("empty", "", 0),
        ("plain", "c/0/3", 1),
        ("plain", "c/7/7", 1),
        ("sharded", "c/1/0", 1),
    ]
    assert all(one["reason"] for one in facts["bad"])
    assert (facts["arrays"], facts["values"], facts["nbytes"]) == (2, 68, 16384)
    code, out, err = gpustore_command("verify", study)
    assert (code, err) == (1, "")
    assert "! plain/c/7/7: " in out
    code, out, err = gpustore_command("verify", study, "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith(f"gpustore: error: 4 bad in {study}, the first: empty: ")
    assert err.count("\n") == 1


def test_a_damaged_index_counts_all_chunks_of_a_shard(gpustore_command, study):
    shard = study / "sharded" / "c" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-4] + b"1234")
    code, out, _ = gpustore_command("verify", study / "sharded")
    assert code == 1
    assert "! c/0/0 (16 chunks in it): " in out


@each("nbytes", [1, 300, 2000])
def test_large_chunks_and_shards_are_read_in_parts(gpustore_command, study, monkeypatch, nbytes):
    monkeypatch.setattr(verify, "_BOX_NBYTES", nbytes)
    cut(study / "plain" / "c" / "2" / "2")
    code, out, _ = gpustore_command("verify", study, "--json")
    facts = json.loads(out)
    assert code == 1
    assert [one["key"] for one in facts["bad"]] == ["c/2/2"]
    assert facts["nbytes"] == 2 * 64 * 64 * 2


def test_records_differing_chunks_and_single_values(gpustore_command, tmp_path):
    root = zarr.open_group(str(tmp_path / "h"), mode="w", zarr_format=2)
    dtype = [("a", "<u2"), ("b", "u1")]
    root.create_array("records", shape=(5,), chunks=(2,), dtype=dtype)[:] = np.ones(5, dtype)
    root.create_array("scalar", shape=(), dtype="int8")[...] = 3
    code, out, err = gpustore_command("verify", tmp_path / "h", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["values_possible"] == 4
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 3, 4]]}}
    metadata = {"shape": [9], "data_type": "uint8", "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/r/", "metadata": metadata}
    gpustore.open(spec, create=True).result()[...] = 7
    (tmp_path / "r" / "c" / "1").write_bytes(b"1")
    code, out, _ = gpustore_command("verify", tmp_path / "r", "--json")
    assert code == 1
    assert [one["key"] for one in json.loads(out)["bad"]] == ["c/1"]


def test_where_nothing_is_listed_all_chunks_are_read(gpustore_command, study):
    place = study / "plain"
    files = {f"a/{p.relative_to(place)}": p.read_bytes() for p in place.rglob("*") if p.is_file()}
    del files["a/c/5/5"]
    files["a/c/6/6"] = b"no"
    with HttpServer(files) as server:
        code, out, _ = gpustore_command("verify", f"{server.url}/a")
    assert code == 1
    assert "64 chunks and shards, stored or not: the keys cannot be listed" in out
    assert "! c/6/6: " in out


def test_ctrl_c_says_how_far_it_came(gpustore_command, study, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify._Work, "_finish", interrupt)
    code, out, err = gpustore_command("verify", study)
    assert (code, out) == (130, "")
    assert err == "gpustore: interrupted: 0 B were read, 0 keys of them are bad\n"


def test_progress_goes_beside_the_json(gpustore_command, study):
    code, out, err = gpustore_command("verify", study, "--json", "--progress")
    assert code == 0
    assert json.loads(out)["bad"] == []
    assert err.startswith("verify ")


def test_stored_chunks_that_cannot_be_located_are_bad(gpustore_command, study):
    chunk = study / "plain" / "c" / "0" / "3"
    chunk.unlink()
    chunk.symlink_to(chunk)
    code, out, err = gpustore_command("verify", study, "--json")
    assert (code, err) == (1, "")
    facts = json.loads(out)
    (bad,) = facts["bad"]
    assert (bad["array"], bad["key"], bad["chunks"]) == ("plain", "c/0/3", 1)
    assert bad["reason"]
    assert (facts["values"], facts["nbytes"]) == (68, 16384 - 8 * 8 * 2)


def test_damaged_entries_of_zip_files_are_bad(gpustore_command, tmp_path):
    path = tmp_path / "a.zip"
    folder = tmp_path / "a"
    gpustore.create_array(folder, data=np.arange(1, 5, dtype="u1"), chunks=2).result()
    with zipfile.ZipFile(path, "w") as made:
        for name in ("zarr.json", "c/0", "c/1"):
            made.write(folder / name, name)
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    while content[at + 46 : at + 49] != b"c/1":
        at = content.index(b"PK\x01\x02", at + 4)
    content[at + 10 : at + 12] = b"\x63\x00"  # compression method 99
    path.write_bytes(content)
    code, out, _ = gpustore_command("verify", f"file://{path}|zip:", "--json")
    assert code == 1
    assert [one["key"] for one in json.loads(out)["bad"]] == ["c/1"]
