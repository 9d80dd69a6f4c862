"""What hangs or dies in one probe costs that step, and nothing else."""

import time

import pytest

from benchmarks.gpu.findings import Findings, HangError, read_lines
from benchmarks.gpu.plan import PROBES, SECONDS, Probe, allowance
from benchmarks.gpu.process import run_probe

HERE = "tests.benchmarks.gpu.probes"


def run(name, seconds, folder, **options):
    probe = Probe(name, seconds, 1, needs_device=False)
    return run_probe(probe, seconds, folder, package=HERE, **options)


@pytest.mark.matrix("costly")
def test_steps_that_crash_or_hang_are_passed_over(tmp_path):
    record = run("crashing:x", 20, tmp_path)
    assert record["facts"] == {"started": "x", "answer": 1}
    assert record["status"] == "partly"
    assert [failure["step"] for failure in record["failures"]] == ["crash", "hang"]
    assert record["failures"][0]["how"] == "exit status -6"
    assert "Timeout" in record["failures"][1]["said"]


@pytest.mark.matrix("costly")
def test_a_probe_is_killed_at_its_limit_and_keeps_what_it_found(tmp_path):
    seen = []
    record = run("stuck", 2, tmp_path, meanwhile=seen.append)  # Left alone it never ends.
    assert record["facts"] == {"first": 1}
    assert seen[-1] == record["facts"]
    assert [failure["how"] for failure in record["failures"]] == ["time limit, killed"]


@pytest.mark.matrix("costly")
def test_what_fails_outside_of_steps_is_not_tried_for_ever(tmp_path):
    record = run("failing", 20, tmp_path)
    assert record["facts"] == {"one": 1}
    assert [failure["how"] for failure in record["failures"]] == ["exit status 1"] * 2
    assert record["failures"][0]["said"].endswith("RuntimeError: outside of all steps")


@pytest.mark.matrix("costly")
def test_what_is_not_installed_is_said(tmp_path):
    record = run("lacking", 20, tmp_path)
    assert record["status"] == "missing"
    assert "no_such_package_anywhere" in record["reason"]
    assert record["failures"] == []


def test_errors_are_facts_and_hangs_end_the_probe(tmp_path):
    findings = Findings(tmp_path / "lines", time.time() + 9, guarded=False)
    assert findings.begin("one")
    assert not Findings(findings.path, 0, guarded=False).begin("one")
    found = findings.attempt("bad", lambda: 1 / 0)
    assert found == {"error": "ZeroDivisionError: division by zero"}

    def hang():
        raise HangError("8 s")

    with pytest.raises(HangError):
        findings.attempt("late", hang)
    with findings.path.open("a") as file:
        file.write('{"name": "cut o')
    assert read_lines(findings.path)[1:] == [
        {"name": "bad", "value": found},
        {"name": "late", "value": {"hang": "8 s"}},
    ]


@pytest.mark.parametrize("command", PROBES)
def test_all_probes_together_keep_the_limit_and_each_gets_time(command):
    assert SECONDS < 300
    probes, left = PROBES[command], SECONDS
    for i, probe in enumerate(probes):
        given = allowance(probe, probes[i + 1 :], left)
        assert (3 if probe.elastic else probe.kept) <= given <= probe.limit, probe.name
        assert given <= left
        # What is usual, but an elastic probe always takes all.
        left -= given if probe.elastic else min(given, probe.kept)
    assert left >= 0
