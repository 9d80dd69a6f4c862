"""The table of a run's results, with the ratios that are wanted."""

import json

import pytest

from benchmarks import table


@pytest.mark.parametrize(
    ("operation", "rest", "expected"),
    [
        ("full_read", "zarr2-raw-4KiB", 1.5),
        ("full_read", "zarr2-blosc-16KiB", 1.5),
        ("full_read", "zarr3-zstd-16KiB", 1.2),
        ("full_read", "zarr3-gzip-16KiB", None),
        ("full_read", "zarr3-raw-64KiB", 2.0),
        ("full_read", "zarr2-blosc-64KiB", 1.8),
        ("full_read", "zarr3-blosc-64KiB-sharded", 1.5),
        ("full_read", "zarr3-gzip-64KiB-sharded", 1.3),
        ("full_read", "zarr2-raw-1024KiB-F", 1.3),
        ("full_read", "zarr3-gzip-8192KiB", 1.1),
        ("retained_full_read", "zarr2-blosc-64KiB", 1.0),
        ("retained_full_read", "zarr2-blosc-1024KiB", None),
        ("crop_reads", "zarr3-zstd-64KiB-sharded", 1.2),
        ("plane_reads", "step4-zarr2-raw-64KiB", 1.5),
        ("open_again", "zarr2-raw-1024KiB", 1.2),
        ("open_never_seen", "zarr2-raw-1024KiB", 0.9),
        ("create_anew", "fsync-zarr2-blosc-64KiB", 0.9),
        ("filters", "delta-read", None),
    ],
)
def test_goals(operation, rest, expected):
    assert table.goal(operation, rest) == expected


def written(path, medians):
    rows = [{"name": name, "stats": {"median": median}} for name, median in medians.items()]
    path.write_text(json.dumps({"benchmarks": rows}))
    return str(path)


def test_a_table_has_ratios_goals_and_means(tmp_path, capsys):
    path = written(
        tmp_path / "result.json",
        {
            "test_full_read[gpustore-zarr2-raw-4KiB]": 0.010,
            "test_full_read[tensorstore-zarr2-raw-4KiB]": 0.020,
            "test_full_read[zarr-zarr2-raw-4KiB]": 0.080,
            "test_full_read[gpustore-zarr2-raw-64KiB]": 0.010,
            "test_full_read[tensorstore-zarr2-raw-64KiB]": 0.005,
            "test_plan": 1.0,
        },
    )
    table.main(path)
    assert capsys.readouterr().out.splitlines() == [
        "| operation | format | tensorstore | zarr | ours, ms | goal for tensorstore |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| full_read | zarr2-raw-4KiB | 2.00 | 8.00 | 10.00 | 1.5 |",
        "| full_read | zarr2-raw-64KiB | 0.50 |  | 10.00 | 2.0 (below) |",
        "| full_read | geometric mean | 1.00 | 8.00 |  |  |",
    ]


def test_a_table_without_goals_lacks_their_column(tmp_path, capsys):
    path = written(
        tmp_path / "result.json",
        {"test_members[gpustore-zarr2]": 0.010, "test_members[zarr-zarr2]": 0.020},
    )
    table.main(path)
    assert capsys.readouterr().out.splitlines()[0] == "| operation | format | zarr | ours, ms |"
