"""Probes run in processes of their own: what hangs or crashes there stops nothing else.

A probe that dies within a step is started again and passes over that step, while there is time.
"""

import argparse
import contextlib
import faulthandler
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.findings import (
    HUNG,
    LOST,
    MISSING,
    Findings,
    HangError,
    MissingError,
    read_lines,
)

ROOT = Path(__file__).parents[2]

PACKAGE = "benchmarks.gpu.probes"

_MAX_STARTS = 12


def _wait(child, seconds, meanwhile):
    """Exit status of the child, or None if it had to be killed."""
    end = time.monotonic() + max(seconds, 1)
    while time.monotonic() < end:
        try:
            return child.wait(min(2, max(end - time.monotonic(), 0.01)))
        except subprocess.TimeoutExpired:
            meanwhile()
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:  # A process inside the driver cannot always be killed.
        pass
    return None


def _reason(status):
    reasons = {None: "time limit, killed", MISSING: "missing", HUNG: "hang", LOST: "context lost"}
    return reasons.get(status, f"exit status {status}")


def _steps(lines):
    return [line["step"] for line in read_lines(lines) if "step" in line]


def _facts(lines):
    return {line["name"]: line["value"] for line in read_lines(lines) if "name" in line}


def run_probe(probe, seconds, folder, *, device="none", package=PACKAGE, meanwhile=None):
    """Run a probe for at most `seconds`; give its facts, and how it failed where it did.

    `device` is ``"cuda"`` or ``"emulated"``, ``"none"`` if it is given none. `folder` is for its
    files; ``status`` is ok, partly, failed or missing. Every two seconds `meanwhile` is given the
    facts so far.
    """
    begin = time.time()
    deadline = begin + seconds
    folder.mkdir(exist_ok=True)
    lines = folder / f"{probe.name.replace(':', '-')}.jsonl"
    errors = lines.with_suffix(".err")
    record = {"status": "ok", "failures": []}
    for _ in range(_MAX_STARTS):
        before = len(_steps(lines))
        command = [sys.executable, "-m", "benchmarks.gpu.process", probe.name, str(lines)]
        command += [str(deadline), f"--package={package}", f"--device={device}"]
        with errors.open("w") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=ROOT,
                start_new_session=True,
            )
            status = _wait(
                child, deadline - time.time(), lambda: meanwhile and meanwhile(_facts(lines))
            )
        said = errors.read_text(errors="replace")[-600:].strip()
        if status == 0:
            break
        if status == MISSING:
            record |= {"status": "missing", "reason": said.splitlines()[-1] if said else ""}
            break
        steps = _steps(lines)
        step = steps[-1] if steps else None
        record["failures"].append({"step": step, "how": _reason(status), "said": said})
        record["status"] = "partly"
        # What fails outside of all steps would fail again.
        if status is None or len(steps) == before or deadline - time.time() < 4:
            break
    facts = _facts(lines)
    if record["status"] == "partly" and not facts:
        record["status"] = "failed"
    return record | {"seconds": round(time.time() - begin, 1), "facts": facts}


def _target(device):
    if device == "none":
        return contextlib.nullcontext()
    module = importlib.import_module(f"benchmarks.gpu.{device}_target")
    return getattr(module, f"{device}_target")()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("lines", type=Path)
    parser.add_argument("deadline", type=float)
    parser.add_argument("--package", default=PACKAGE)
    parser.add_argument("--device", choices=("none", "cuda", "emulated"), default="none")
    options = parser.parse_args()
    findings = Findings(options.lines, options.deadline)
    module, _, variant = options.name.partition(":")
    try:
        probe = importlib.import_module(f"{options.package}.{module}")
        with _target(options.device) as target:
            probe.run(findings, target, variant)
        faulthandler.cancel_dump_traceback_later()
    except (ImportError, MissingError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return MISSING
    except HangError as error:
        # Leave without the destructors: they would wait for the device.
        print(f"hang: {error}", file=sys.stderr, flush=True)
        os._exit(HUNG)
    return 0


if __name__ == "__main__":
    sys.exit(main())
