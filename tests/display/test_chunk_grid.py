"""Pictures of chunk grids: well-formed SVG that shows the boundaries there are."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import gpustore
from gpustore.cli.value_grid import ValueGrid
from gpustore.display.chunk_grid import Axis, axes_of, lengths, picture
from tests.matrix import each

SVG = "{http://www.w3.org/2000/svg}"


def created(shape, **properties):
    return gpustore.open(
        "memory://g/|zarr3:", create=True, device="cpu", dtype="uint8", shape=shape, **properties
    ).result()


def labels(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boundaries(axis):
    return list(axis.chunks), list(axis.shards)


def test_boundaries_of_chunks_and_shards():
    axes = axes_of(created([10, 7], chunks=[2, 3], shards=[4, 6], dims=["y", None]))
    assert [axis.text for axis in axes] == ["y 10", "7"]
    assert [boundaries(axis) for axis in axes] == [([2, 4, 6, 8], [4, 8]), ([3, 6], [6])]


def test_boundaries_of_a_part_are_those_of_the_array():
    part = created([10, 7], chunks=[4, 3])[3:9].T
    assert [boundaries(axis) for axis in axes_of(part)] == [([3, 6], []), ([1, 5], [])]


def test_boundaries_of_chunks_that_differ():
    grid = {"kind": "inline", "chunk_shapes": [3, [[2, 2], 3]]}
    metadata = {
        "shape": [5, 6],
        "data_type": "uint8",
        "chunk_grid": {"name": "rectilinear", "configuration": grid},
    }
    spec = {"driver": "zarr3", "kvstore": "memory://r/", "metadata": metadata}
    axes = axes_of(gpustore.open(spec, create=True, device="cpu").result())
    assert [boundaries(axis) for axis in axes] == [([3], []), ([2, 4], [])]


def test_a_great_many_chunks_that_differ_are_drawn():
    count = 10**12
    metadata = {
        "shape": [count, 6],
        "data_type": "uint8",
        "chunk_grid": {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[[1, count - 2], 2, 9], [6]]},
        },
    }
    spec = {"driver": "zarr3", "kvstore": "memory://many/", "metadata": metadata}
    store = gpustore.open(spec, create=True, device="cpu").result()
    many, one = axes_of(store)
    assert (len(many.chunks), many.chunks[-1], list(one.chunks)) == (count - 2, count - 2, [])
    assert len(store._repr_html_()) < 100_000
    grid = ValueGrid.of(store)
    assert grid.counts == (count - 1, 1)
    assert grid.box((count - 2, 0)) == (range(count - 2, count), range(6))
    assert grid.touched(0, range(count - 3, count)) == range(count - 3, count - 1)


@each("rank", range(1, 9))
def test_every_rank_is_a_picture_with_all_extents(rank):
    axes = [Axis(f"d{n}", 10 + n, range(4, 10 + n, 4), [8]) for n in range(rank)]
    svg = picture(axes)
    extents = [text for text in labels(svg) if text != "\N{MULTIPLICATION SIGN}"]
    assert sorted(extents) == sorted(axis.text for axis in axes)
    assert "script" not in svg
    assert ElementTree.fromstring(svg).get("stroke") == "currentColor"


def test_what_is_drawn_is_inside():
    axes = [Axis("", 10**12, range(1, 10**12), ()), Axis("a" * 20, 1, ()), Axis("x", 50, [25])]
    svg = picture(axes)
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    corners = re.findall(r"M(-?[\d.]+) (-?[\d.]+)", svg)
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in corners)
    assert len(svg) < 10_000


def test_nothing_is_drawn_of_nothing():
    assert picture([]) == picture([Axis("", 0, ())]) == ""


def test_ratios_are_kept_as_far_as_they_can_be_seen():
    assert lengths([50, 100], 100) == [50, 100]
    assert lengths([1, 10**9], 100)[0] == pytest.approx(21.2, abs=0.1)


def test_labels_are_escaped():
    svg = picture([Axis("<script>&", 3, ())])
    assert labels(svg) == ["<script>& 3"]


def test_a_numpy_array_has_a_picture_without_chunks():
    [axis] = axes_of(gpustore.array(np.zeros(5)))
    assert boundaries(axis) == ([], [])
