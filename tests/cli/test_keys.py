"""``gpustore ls``, ``cat`` and ``du`` over folders, archives, databases and servers."""

import json
import os
import sys
import zipfile
from argparse import Namespace

import numpy as np
import pytest

import gpustore
from gpustore.cli import keys
from tests.kvstores.http.http_server import HttpServer
from tests.matrix import each

VALUES = {
    "zarr.json": b'{"a": [1, "\xc3\xa9"]}',
    "c/0/0": b"12345",
    "c/0/1": bytes(300),
    "c/1/0": b"",
}


def of_url(url):
    """Arguments as the parser gives them."""
    return Namespace(url=str(url), recursive=False, json=False, anon=False, endpoint=None)


@pytest.fixture(params=["folder", "zip", "ocdbt", "zip in a database"])
def place(request, tmp_path):
    """URL of a place that holds VALUES."""
    url = {
        "folder": f"{tmp_path}/x/",
        "zip": f"{tmp_path}/x.zip|zip:",
        "ocdbt": f"file://{tmp_path}/x|ocdbt:",
        "zip in a database": f"file://{tmp_path}/x|ocdbt:a/b.zip|zip:",
    }[request.param]
    store = gpustore.KvStore.open(url).result()
    for key, value in VALUES.items():
        store[key] = value
    return url


def test_ls_prints_one_level(gpustore_command, place):
    assert gpustore_command("ls", place) == (0, "c/\nzarr.json\n", "")
    below = f"{place}c/" if not place.endswith("|zip:") else f"{place}c"
    assert gpustore_command("ls", below) == (0, "0/\n1/\n", "")


def test_ls_reads_one_directory(gpustore_command, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"1")
    (tmp_path / "d").write_bytes(b"1")
    walked = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: walked.append(path) or scandir(path))
    monkeypatch.chdir(tmp_path)
    for place in (".", "./", tmp_path, f"{tmp_path}/a/.."):
        walked.clear()
        assert gpustore_command("ls", place) == (0, "a/\nd\n", "")
        assert len(walked) == 1


def test_names_are_bytes_in_a_pipe_and_harmless_on_a_terminal(capfdbinary, tmp_path, monkeypatch):
    for name in (b"\xff", b"a\x1b[31mb"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"1")
    arguments = of_url(tmp_path)
    assert keys.ls(arguments) == 0
    assert capfdbinary.readouterr().out == b"a\x1b[31mb\n\xff\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert keys.ls(arguments) == 0
    assert capfdbinary.readouterr().out == b"a?[31mb\n?\n"
    assert keys.du(arguments) == 0
    out = capfdbinary.readouterr().out
    assert b"a?[31mb" in out
    assert b"\x1b[31m" not in out


def test_ls_prints_all_keys(gpustore_command, place):
    assert gpustore_command("ls", "-r", place) == (0, "\n".join(sorted(VALUES)) + "\n", "")


def test_cat_prints_the_value_as_it_is(capfdbinary, place):
    for key, value in VALUES.items():
        assert keys.cat(of_url(place + key)) == 0
        assert capfdbinary.readouterr().out == value


def test_cat_prints_json_values(gpustore_command, place):
    assert gpustore_command("cat", f"{place}zarr.json|json:/a/1") == (0, '"\xe9"\n', "")


def test_du_counts_keys_and_bytes(gpustore_command, place):
    code, out, _ = gpustore_command("du", "--json", place)
    assert code == 0
    nbytes = len(VALUES["zarr.json"])
    assert json.loads(out) == {
        "keys": 4,
        "bytes": nbytes + 305,
        "children": {
            "c/": {"keys": 3, "bytes": 305},
            "zarr.json": {"keys": 1, "bytes": nbytes},
        },
    }
    _, out, _ = gpustore_command("du", place)
    assert [line.split() for line in out.splitlines()][1:] == [
        ["c/", "3", "305", "B"],
        ["zarr.json", "1", str(nbytes), "B"],
        ["total", "4", str(nbytes + 305), "B"],
    ]


def test_nothing_but_the_package_is_needed(gpustore_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    (tmp_path / "a").write_bytes(b"123")
    assert gpustore_command("ls", tmp_path) == (0, "a\n", "")
    assert gpustore_command("cat", tmp_path / "a") == (0, "123", "")
    table = "name   keys  stored\na         1     3 B\ntotal     1     3 B\n"
    assert gpustore_command("du", tmp_path) == (0, table, "")


def test_du_of_a_value_says_its_size(gpustore_command, place):
    one = {"keys": 1, "bytes": 300}
    code, out, _ = gpustore_command("du", "--json", f"{place}c/0/1")
    assert (code, json.loads(out)) == (0, {**one, "children": {"1": one}})


def test_du_counts_readable_values(gpustore_command, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"123")
    (tmp_path / "dangling").symlink_to("nowhere")
    for number in range(3):
        (tmp_path / f"link{number}").symlink_to("d")
    (tmp_path / "out").symlink_to(tmp_path.parent)
    code, out, err = gpustore_command("du", "--json", tmp_path)
    assert (code, json.loads(out)["bytes"]) == (1, 3)
    assert err.startswith("gpustore: not counted: FAILED_PRECONDITION: local file ")
    assert err.endswith(" (and 3 more)\n")


def test_a_web_server_tells_sizes_and_lists_nothing(gpustore_command, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", "hello" * 100)
        archive.writestr("a/c", os.urandom(300_000))
    with HttpServer({"x.zip": (tmp_path / "x.zip").read_bytes(), "d/e": b"1"}) as server:
        for url in ("d", "d/", "x.zip"):
            code, _, err = gpustore_command("ls", f"{server.url}/{url}")
            assert code == 1
            assert "cannot be listed: http servers do not tell what they have" in err
        assert not server.requests
        code, _, err = gpustore_command("du", f"{server.url}/d/")
        assert code == 1
        assert "cannot be listed: http servers do not tell what they have" in err
        _, out, _ = gpustore_command("du", "--json", f"{server.url}/d/e")
        assert json.loads(out)["bytes"] == 1
        assert gpustore_command("ls", f"{server.url}/x.zip|zip:a") == (0, "b\nc\n", "")
        server.requests.clear()
        _, out, _ = gpustore_command("du", "--json", f"{server.url}/x.zip|zip:")
        assert json.loads(out)["bytes"] == 300_500
        # The directory of the archive says it: nothing else is fetched.
        assert len(server.requests) < 5


def test_an_array_is_its_keys(gpustore_command, tmp_path):
    url = f"{tmp_path}/a.zarr|zarr3:"
    store = gpustore.open(url, create=True, dtype="uint8", shape=[4]).result()
    store[...] = np.arange(4, dtype=np.uint8)
    for name in (url, f"{tmp_path}/a.zarr", f"{tmp_path}/a.zarr/", f"{url}|cast:int8"):
        assert gpustore_command("ls", "-r", name) == (0, "c/0\nzarr.json\n", "")
    _, out, _ = gpustore_command("du", "--json", url)
    assert json.loads(out)["children"]["c/"] == {"keys": 1, "bytes": 4}
    code, _, err = gpustore_command("cat", url)
    assert code == 1
    assert "is an array of zarr3: see `gpustore info`, or name one of its keys" in err


def test_names_next_to_a_directory_are_not_in_it(gpustore_command, tmp_path):
    for name in ("a/x", "ab/y", "a.z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    assert gpustore_command("ls", f"{tmp_path}/a") == (0, "x\n", "")


def test_archives_of_other_writers_are_listed(gpustore_command, tmp_path):
    with zipfile.ZipFile(tmp_path / "x y.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", "hello" * 100)
    assert gpustore_command("ls", f"{tmp_path}/x y.zip|zip") == (0, "a/\n", "")
    _, out, _ = gpustore_command("du", "--json", f"{tmp_path}/x y.zip|zip:")
    assert json.loads(out)["bytes"] == 500


@each(
    ("command", "name", "text"),
    [
        ("ls", "none", "there is nothing at /"),
        ("du", "none/", "there is nothing at /"),
        ("cat", "none", "does not exist"),
        ("ls", "file", "is a value, not a directory: `gpustore cat` prints it; if it is an arch"),
        ("du", "file/", "there is nothing at /"),
        ("cat", "folder/", "is no key of a value"),
        ("cat", "archive.zip|zip:", "`gpustore ls` lists what is in it"),
        ("cat", "folder", "is not a regular file but a directory: `gpustore ls` lists what is in"),
        ("info", "x.json|json:/a", "is a JSON value: `gpustore cat` prints it"),
        ("ls", "file|zip:", "zip"),
        ("ls", "folder/../file", "is a value"),
        ("ls", "file|zib:", 'unsupported URL scheme: "zib"; did you mean "zip"?'),
    ],
)
def test_failures_are_one_line(gpustore_command, tmp_path, command, name, text):
    (tmp_path / "file").write_bytes(b"no archive")
    (tmp_path / "x.json").write_bytes(b'{"a": 1}')
    (tmp_path / "folder").mkdir()
    zipfile.ZipFile(tmp_path / "archive.zip", "w").close()
    code, out, err = gpustore_command(command, f"{tmp_path}/{name}")
    assert (code, out) == (1, "")
    assert err.startswith("gpustore: error: ")
    assert err.count("\n") == 1
    assert text in err


def test_arrays_in_memory_have_no_keys(gpustore_command):
    code, _, err = gpustore_command("ls", "memory://nothing")
    assert code == 1
    assert "there is nothing at memory://nothing" in err


def test_large_values_are_printed_in_parts(capfdbinary, tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "_PART_NBYTES", 7)
    value = bytes(range(100))
    (tmp_path / "v").write_bytes(value)
    assert keys.cat(of_url(f"{tmp_path}/v")) == 0
    assert capfdbinary.readouterr().out == value
