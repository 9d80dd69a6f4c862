"""Reads of small arrays under NVIDIA's sanitizer, if that is installed."""

import re
import shutil
import subprocess
import sys

from benchmarks.gpu.findings import MissingError
from benchmarks.gpu.process import ROOT

_TOOLS = ("memcheck", "racecheck")


def run(findings, target, variant):
    del target
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if variant == "emulated":
        raise MissingError("the emulated device has checks of its own")
    if program is None:
        raise MissingError("compute-sanitizer is not installed")
    for tool in _TOOLS:
        seconds = findings.seconds_left() / (2 if tool == _TOOLS[0] else 1) - 3
        if seconds < 8 or not findings.begin(tool, seconds + 2):
            continue
        lines = findings.path.with_name(f"{tool}.jsonl")
        command = [program, "--tool", tool, "--error-exitcode", "77", sys.executable, "-m"]
        command += ["benchmarks.gpu.process", "arrays:few", str(lines)]
        command += [str(findings.deadline), "--device=cuda"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            findings.note(tool, {"cut_short": f"{seconds:.0f} s"})
            continue
        said = done.stdout + done.stderr
        errors = re.search(r"ERROR SUMMARY: (\d+) error", said)
        hazards = re.search(r"RACECHECK SUMMARY: (\d+) hazard", said)
        found = errors or hazards
        row = {"exit_status": done.returncode, "errors": int(found[1]) if found else None}
        findings.note(tool, row if row["errors"] == 0 else row | {"said": said[-1500:]})
