"""Groups in a notebook and in a terminal."""

from xml.etree import ElementTree

import pytest

import gpustore
from gpustore.display import group_html, group_info
from tests.kvstores.http.http_server import HttpServer


@pytest.fixture
def group():
    root = gpustore.open_group("memory://gh/|zarr3:", create=True, attributes={"a": 1}).result()
    root.create_array("scans/ct", dtype="uint8", shape=[4, 6]).result()
    root.create_group("<empty>").result()
    return root


def texts(html):
    return " ".join("".join(ElementTree.fromstring(html).itertext()).split())


def test_members_are_a_tree(group):
    html = group._repr_html_()
    assert html.count("<details open") == 1
    assert "script" not in html
    shown = texts(html)
    for text in ("memory://gh/|zarr3:", "Zarr v3", "attributesa", "<empty>/", "ct (4, 6) uint8"):
        assert text in shown


def test_many_members_are_cut(group, monkeypatch):
    monkeypatch.setattr(group_html, "_MOST", 2)
    shown = texts(group._repr_html_())
    assert "ct" not in shown
    assert "and more: print(group.tree()) shows all" in shown


def test_members_that_cannot_be_listed_and_unreadable_ones(tmp_path):
    root = gpustore.open_group(f"file://{tmp_path}/|zarr3:", create=True).result()
    root.create_group("bad").result()
    (tmp_path / "bad/zarr.json").write_text("{")
    assert "bad unreadable: " in texts(root._repr_html_())
    document = (tmp_path / "zarr.json").read_bytes()
    with HttpServer({"zarr.json": document}) as server:
        there = gpustore.open_group(f"{server.url}/|zarr3:").result()
        assert "does not support listing" in texts(there._repr_html_())


def test_info_is_cut_to_a_screen(group, monkeypatch):
    assert [*map(str.split, repr(group.info).split("\n"))][1:4] == [
        ["format", "Zarr", "v3", "group"],
        ["attributes", "a:", "1"],
        ["below", "it", "1", "array,", "2", "groups"],
    ]
    assert repr(group.info).endswith("└── ct (4, 6) uint8")
    monkeypatch.setattr(group_info, "_LINES", 2)
    assert repr(group.info).endswith("... 2 more: print(group.tree()) shows all")
