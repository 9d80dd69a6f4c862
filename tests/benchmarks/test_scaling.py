"""The benchmark of the time per chunk: its table and its plot."""

from xml.etree import ElementTree

import pytest

from benchmarks import scaling


def test_a_plot_has_a_line_for_each_library_and_storage():
    found = [
        ("files", 10, {"gpustore": 20.0, "tensorstore": 25.0}),
        ("files", 100, {"gpustore": 8.0, "tensorstore": 10.0}),
        ("shards", 10, {"gpustore": 21.0, "tensorstore": 23.0}),
        ("shards", 100, {"gpustore": 1.7, "tensorstore": 5.5}),
    ]
    drawing = ElementTree.fromstring(scaling.plot(found))
    names = [one.text for one in drawing.findall("{*}text")]
    assert len(drawing.findall("{*}polyline")) == 4
    assert {"gpustore, files", "tensorstore, shards", "10", "100", "1 us", "100 us"} <= {*names}


def test_rows_are_printed_and_drawn(monkeypatch, tmp_path, capsys):
    pytest.importorskip("tensorstore")
    monkeypatch.setattr(scaling, "ROUNDS_S", 0)
    monkeypatch.setattr(scaling, "MOST_FILES", 50)  # Two names for each of them.
    scaling.main(["--most", "100", "--plot", str(tmp_path / "plot.svg")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| files", "10"],
        ["| files", "100"],
        ["| shards", "10"],
        ["| shards", "100"],
    ]
    ElementTree.parse(tmp_path / "plot.svg")
