"""The tests of a GPU, ``pytest -m gpu``; without one, whether some can be collected."""

import re
import subprocess
import sys
import time

from benchmarks.gpu.process import ROOT

_OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
_LINE = re.compile(rf"(\S+::.+?) ({'|'.join(_OUTCOMES)})\b")
_ENDS_S = 5


def command(*, emulated):
    """Of the tests; each prints a line."""
    every = [sys.executable, "-m", "pytest", "-m", "gpu", "-rfEs", "-p", "no:cacheprovider"]
    chosen = ["--collect-only", "-q", "tests/device", "tests/backends/cuda"]
    return [*every, "--color=no", *(chosen if emulated else ["-v", "tests"])]


def outcome(line):
    """The test of a line of ``pytest -v`` and its outcome, None of any other line."""
    found = _LINE.match(line)
    return (found[1], found[2]) if found else None


def run(findings, target, variant):
    del target
    emulated = variant == "emulated"
    child = subprocess.Popen(
        command(emulated=emulated),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    counts, failed, skipped, noted = dict.fromkeys(_OUTCOMES, 0), [], [], 0.0
    collected = 0
    for line in child.stdout:
        collected += "::" in line and not line.startswith(("SKIPPED", "FAILED", "ERROR"))
        found = outcome(line)
        if found:
            counts[found[1]] += 1
            if found[1] in ("FAILED", "ERROR"):
                failed.append(found[0])
        elif line.startswith("SKIPPED"):
            skipped.append(line.strip()[:200])
        if time.monotonic() > noted + 2:
            findings.note("counts", counts)
            findings.note("failed", failed)
            noted = time.monotonic()
        if findings.seconds_left() < _ENDS_S:
            child.kill()
            findings.note("cut_short", "no time left")
            break
    status = child.wait()
    findings.note("counts", {**counts, **({"collected": collected} if emulated else {})})
    findings.note("failed", failed)
    findings.note("passed_over", skipped)
    findings.note("exit_status", status)
