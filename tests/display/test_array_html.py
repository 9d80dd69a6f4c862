"""Stores in a notebook: HTML that is well formed and says what the store is."""

import re
from xml.etree import ElementTree

import numpy as np

import gpustore
from tests.matrix import each


def rows(html):
    """Names and values of the table, after parsing the whole."""
    tree = ElementTree.fromstring(html)
    return {row[0].text: row[1].text for row in tree.iter("tr")}


def test_a_store_shows_shape_chunks_shards_codecs_and_size():
    store = gpustore.open(
        "memory://h/|zarr3:",
        create=True,
        device="cpu",
        dtype="uint16",
        shape=[40, 60],
        chunks=[10, 10],
        shards=[20, 60],
        codec="zstd",
        dims=["y", "x"],
        units=["4nm", None],
    ).result()
    html = store._repr_html_()
    found = rows(html)
    assert found["shape"] == "40 x 60"
    assert found["dimensions"] == "y, x"
    assert found["units"] == "4 nm, -"
    assert found["type"] == "uint16"
    assert found["chunks"] == "10 x 10  (24)"
    assert found["shards"] == "20 x 60  (2)"
    assert "zstd" in found["codecs"]
    assert found["decoded size"] == "4.80 kB"
    assert found["read on"] == "cpu"
    assert "memory://h/|zarr3:" in html
    assert html.count("<svg") == 1
    assert "script" not in html
    assert rows(store[10:20]._repr_html_())["domain"] == '{ "y": [10, 20), "x": [0, 60*) }'


@each("value", [np.float64(3), np.zeros((0, 3)), np.zeros((2, 2, 2, 2, 2))])
def test_arrays_of_any_shape_are_shown(value):
    assert rows(gpustore.array(value)._repr_html_())["type"] == "float64"


def test_text_is_escaped():
    store = gpustore.open(
        "memory://<b>/|zarr3:", create=True, device="cpu", dtype="bool", shape=[3], dims=["<i>"]
    ).result()
    html = store._repr_html_()
    assert not re.search("<b>/|<i>", html)
    assert rows(html)["dimensions"] == "<i>"
