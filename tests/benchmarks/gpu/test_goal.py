"""Goals and tables from reports of known numbers."""

import copy
import json
import re

from benchmarks import gpu_report
from benchmarks.gpu import goal, read_summary, result

MIB = 1 << 20


def row(seconds, cpu_s=1.0, **more):
    found = {"nbytes": 1000 * MIB, "boxes": 1, "equal": True}
    return found | {"seconds": seconds, "cpu_s": cpu_s} | more


def report():
    ours = {"launches": 9, "copies": 8, "waits": 7, "host_fallbacks": 0}
    zstd, raw = "zarr3-zstd-1MiB", "zarr3-raw-1MiB"
    facts = {
        zstd: {"nbytes": 1000 * MIB, "encoded_nbytes": 500 * MIB, "ratio": 2.0, "files": 1000},
        f"{zstd} / whole / gpustore / 0": row(9.0, device_nbytes=1500 * MIB, **ours),
        f"{zstd} / whole / gpustore / 1": row(0.2, 0.1, **ours),
        f"{zstd} / whole / gpustore / 2": row(0.1, 0.1, **ours),
        f"{zstd} / whole / gpustore / 3": row(0.3, 0.1, **ours),
        f"{zstd} / whole / tensorstore + copy / 0": row(3.0, 2.0),
        f"{zstd} / whole / tensorstore overlapped / 0": row(2.5, 1.5),
        f"{zstd} / whole / tensorstore overlapped / 1": row(1.0, 1.5),
        f"{zstd} / whole / zarrs + copy / 0": {"error": "ValueError: no"},
        f"{zstd} / few / gpustore / 0": row(1.2),
        f"{zstd} / few / gpustore host + copy / 0": row(1.0),
        f"{zstd} / crops / gpustore / 0": row(0.5, boxes=1000),
        f"{zstd} / one by one / gpustore / 0": row(5.0),
        f"{zstd} / stages / gpustore / 0": {
            "decompress": {"calls": 3, "nbytes": 1000 * MIB, "ms": 10.0},
            "copy": {"calls": 3, "nbytes": 0, "ms": 1.0},
            "place": {"calls": 3, "nbytes": 0, "ms": 1.0},
        },
        f"{zstd} / decode / nvcomp / 0": row(0.0099),
    }
    plain = {
        raw: {"nbytes": 1000 * MIB, "encoded_nbytes": 1000 * MIB, "ratio": 1.0, "files": 1000},
        f"{raw} / whole / gpustore / 0": row(0.02),
    }
    copies = {
        "to_device_pinned_1024KiB": {"queued_GBs": 40.0},
        "to_device_pinned_65536KiB": {"queued_GBs": 55.0},
        "within_device_1024KiB": {"GBs": 5000.0},
        "within_device_2097152KiB": {"GBs": 2000.0},
    }
    return {
        "emulated": False,
        "probes": {
            "copies": {"status": "ok", "facts": copies},
            "reads:camera_u2-zstd": {"status": "ok", "facts": facts},
            "reads:camera_u2-raw": {"status": "ok", "facts": plain},
        },
    }


def of(found):
    lines = goal.goals(result.tables(found), result.limits(found))
    return {line["goal"].partition(":")[0]: line for line in lines}


def test_the_median_of_timed_rounds_counts_and_the_first_only_alone():
    zstd, _ = result.tables(report())
    whole = zstd["cells"]["whole"]
    assert (whole["gpustore"]["seconds"], whole["gpustore"]["best_s"]) == (0.2, 0.1)
    assert whole["gpustore"]["rounds"] == 3
    assert whole["gpustore"]["device_nbytes"] == 1500 * MIB
    assert whole["tensorstore + copy"]["seconds"] == 3.0
    assert whole["zarrs + copy"] == {"error": "ValueError: no"}
    assert result.wrong(report()) == ["camera_u2 zarr3-zstd-1MiB / whole / zarrs + copy"]


def test_goals_are_told_met_from_missed():
    found = of(report())
    assert {name: line["met"] for name, line in found.items()} == {
        "fetch": True, "decode": True, "unshuffle and scatter": False, "whole reads": True,
        "few streams": False, "read_many of 1 000 crops": True,
    }  # fmt: skip
    assert found["fetch"]["measured"] == "52.4 of 55.0 GB/s: 95%"
    assert found["whole reads"]["measured"] == (
        "5.0 times tensorstore overlapped, 7% of its CPU seconds"
    )
    assert found["read_many of 1 000 crops"]["measured"] == "10.0 times, 2000 crops/s"
    assert found["few streams"]["where"] == "camera_u2 zarr3-zstd-1MiB"


def test_each_goal_needs_its_own_numbers():
    changes = {
        "fetch": ("raw", "whole / gpustore / 0", "seconds", 0.022),
        "decode": ("zstd", "decode / nvcomp / 0", "seconds", 0.0096),
        "whole reads": ("zstd", "whole / gpustore / 1", "cpu_s", 0.9),
    }
    for name, (codec, place, key, value) in changes.items():
        found, fact = copy.deepcopy(report()), f"zarr3-{codec}-1MiB / {place}"
        facts = found["probes"][f"reads:camera_u2-{codec}"]["facts"]
        facts[fact][key] = value
        if key == "cpu_s":
            for number in (2, 3):
                facts[f"{fact[:-1]}{number}"][key] = value
        assert of(found)[name]["met"] is False, name


def test_what_was_wrong_is_not_measured():
    found = report()
    found["probes"]["reads:camera_u2-zstd"]["facts"]["zarr3-zstd-1MiB / whole / gpustore / 2"][
        "equal"
    ] = False
    line = of(found)["whole reads"]
    assert (line["met"], line["measured"]) == (None, "not measured")


def test_text_holds_ratios_counts_and_reasons():
    found = report()
    tables, limits = result.tables(found), result.limits(found)
    found |= {"limits": limits, "goals": goal.goals(tables, limits)}
    text = "\n".join(read_summary.lines(found, tables))
    assert re.search(r"gpustore +5\.24 +10\.49 +200\.00 +0\.10 +1\.00 +1500  9 launches, 8 c", text)
    assert re.search(r"tensorstore overlapped +1\.05 .* 5\.00$", text, re.MULTILINE)
    assert "zarrs + copy            error: ValueError: no" in text
    assert "1000.00 MiB, ratio 2.00" in text
    assert "NOT MET" in text


def test_emulated_says_so_and_has_no_numbers():
    found = report() | {"emulated": True}
    for line in goal.goals(result.tables(found), result.limits(found), emulated=True):
        assert (line["measured"], line["met"]) == ("emulated: not measured", None)


def test_a_file_is_shown_whose_run_was_cut_short(tmp_path, capsys):
    path = tmp_path / "read.json"
    found = report() | {"report": "reads"}
    found["probes"]["reads:camera_u2-gzip"] = {"status": "runs", "facts": {}}
    path.write_text(json.dumps(found))
    assert gpu_report.main(["show", str(path)]) == 0
    text = capsys.readouterr().out
    assert "95%  met" in text
    assert "limit: within_device_GBs: 2000.0" in text
