"""``gpustore chunks``: map, totals, histogram."""

import json

import numpy as np
import pytest

import gpustore
from gpustore.cli.chunks import map_lines
from tests.kvstores.http.http_server import HttpServer


@pytest.fixture
def sparse(tmp_path):
    """An array of 2 x 3 x 4 chunks of which five are stored."""
    path = tmp_path / "a.zarr"
    store = gpustore.open(
        f"{path}|zarr3:",
        create=True,
        dtype="uint8",
        shape=[4, 6, 128],
        chunks=(2, 2, 32),
        codec="gzip",
        dims=["z", "y", "x"],
    ).result()
    store[0:2, 0:2] = 1
    noise = np.random.default_rng(0).integers(0, 255, (2, 2, 32), "uint8")
    store[2:4, 2:4, 32:64] = noise
    return path, store


def test_for_people(gpustore_command, sparse):
    path, _ = sparse
    code, out, err = gpustore_command("chunks", path)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert "  grid     2 x 3 x 4 chunks of 2 x 2 x 32" in lines
    assert any(line.startswith("  stored   5 of 24, ") for line in lines)
    assert "  missing  19, read as the fill value" in lines
    begin = lines.index("y down, x across; a character is 2 chunks")
    assert lines[begin + 2 : begin + 5] == ["0  ++++", "1  ·+··", "2  ····"]
    assert "stored size of a chunk" in lines


def test_index_draws_a_part(gpustore_command, sparse):
    path, _ = sparse
    _, out, _ = gpustore_command("chunks", path, "-i", "0,:3,1:-1")
    assert "y down, x across; one chunk each\n" in out
    assert "\n0  ░░░░\n1  ····\n" in out
    code, _, err = gpustore_command("chunks", path, "-i", "9")
    assert (code, err) == (
        1,
        "gpustore: error: index 9 is outside dimension 0, which has 4 elements\n",
    )


def test_for_programs(gpustore_command, sparse):
    path, store = sparse
    (path / "c" / "0" / "9").mkdir()
    (path / "c" / "0" / "9" / "0").write_bytes(b"old")
    code, out, _ = gpustore_command("chunks", path, "--json")
    assert code == 0
    facts = json.loads(out)
    sizes = {key: len(store.kvstore[key]) for key in facts["stored"]}
    assert facts["grid"] == [2, 3, 4]
    assert (facts["values_possible"], facts["values_stored"]) == (24, 5)
    assert facts["stored"] == sizes
    assert list(sizes) == ["c/0/0/0", "c/0/0/1", "c/0/0/2", "c/0/0/3", "c/1/1/1"]
    assert sum(one["values"] for one in facts["histogram"]) == 5
    assert facts["others"] == ["c/0/9/0"]


def test_shards_and_one_dimension(gpustore_command, tmp_path):
    path = tmp_path / "s.zarr"
    store = gpustore.open(
        f"{path}|zarr3:", create=True, dtype="uint8", shape=[800], chunks=(2,), shards=(8,)
    ).result()
    store[80:88] = 1
    _, out, _ = gpustore_command("chunks", path)
    assert "100 shards of 8" in out
    assert "one shard each\n" in out
    assert f"\n 0  {'·' * 10}█{'·' * 65}\n76  {'·' * 24}\n" in out


def test_rows_and_columns_are_binned():
    nbytes = {(row, column): 10 for row in range(4) for column in range(4)} | {(9, 9): 1}
    touched = range(10), range(10)
    assert map_lines(nbytes, touched, (2, 2)) == ["██···", "██···", "·····", "·····", "····+"]
    assert map_lines(nbytes, touched, (10, 10)) == ["+"]
    assert map_lines({(): 5}, (), (1, 1)) == ["█"]


def test_a_web_server_does_not_tell(gpustore_command, sparse):
    path, _ = sparse
    files = {f"a/{p.relative_to(path)}": p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with HttpServer(files) as server:
        code, _, err = gpustore_command("chunks", f"{server.url}/a")
    assert code == 1
    assert "http servers do not tell what they have; `gpustore verify` reads the chunks" in err


def test_a_group_has_no_chunks(gpustore_command, tmp_path):
    gpustore.open_group(tmp_path / "g", create=True).result()
    code, _, err = gpustore_command("chunks", tmp_path / "g")
    assert code == 1
    assert "is a group: `gpustore tree` lists its arrays" in err


def test_chunks_of_n5_are_known_by_their_keys(gpustore_command, tmp_path):
    metadata = {"dimensions": [4, 6], "blockSize": [2, 2], "dataType": "int8"}
    spec = {"driver": "n5", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    spec["metadata"]["compression"] = {"type": "raw"}
    store = gpustore.open(spec, create=True).result()
    store[:2, 2:4] = 1
    _, out, _ = gpustore_command("chunks", tmp_path / "a", "--json")
    assert json.loads(out)["stored"] == {"0/1": 16}
    code, out, _ = gpustore_command("verify", tmp_path / "a")
    assert (code, "1 of 6 chunks" in out) == (0, True)


def test_chunks_of_images_are_none_that_keys_tell(gpustore_command, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("L", (4, 4)).save(tmp_path / "a.png")
    code, _, err = gpustore_command("chunks", tmp_path / "a.png")
    expected = "chunks of Zarr and N5 are known by their keys, those of png not"
    assert (code, err) == (1, f"gpustore: error: {expected}\n")
