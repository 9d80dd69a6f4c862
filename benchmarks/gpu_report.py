"""What a machine with a GPU does: ``python -m benchmarks.gpu_report facts``, and ``read``.

``facts`` asks the GPU, the driver and the libraries; it needs CuPy, nvcomp, kvikio and NumPy.
``read`` reads volumes with gpustore and with others, side by side; ``--device emulated`` does so
without a GPU, measuring nothing. What is missing is said, and what needs it left out. ``wheels``
downloads what both need for a machine without internet.

Every probe runs in a process of its own with its own limit of time, and what it found is in the
JSON file before the next begins.

Exit status: 0 done (also when probes failed: the report says which), 1 the wheels are too large or
cannot be had, or a read was wrong, 3 no GPU answers (then only what the host alone can answer was
asked).
"""

import argparse
import json
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu import read_plan, read_summary, result, wheels
from benchmarks.gpu.findings import MissingError, plain
from benchmarks.gpu.goal import goals
from benchmarks.gpu.plan import HEALTH, PROBES, allowance
from benchmarks.gpu.process import run_probe
from benchmarks.gpu.summary import lines

NO_GPU = 3


def _about(report):
    """GPU, driver and versions, to the top of the report."""

    def fact(probe, name):
        return report["probes"].get(probe, {}).get("facts", {}).get(name)

    report["gpu"] = (fact("device", "description") or {}).get("name")
    report["driver"] = {
        "nvidia_smi": fact("environment", "nvidia_smi"),
        "cuda": fact("driver", "cuda_of_driver"),
    }
    report["versions"] = fact("environment", "versions")


def _save(report, path):
    _about(report)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=1, default=plain) + "\n")
    part.replace(path)


def _chosen(probes, options):
    """Probes in order; the driver is always asked first."""
    only = options.only.split(",") if options.only else []

    def wanted(probe):
        if probe.name == "driver":
            return True
        if only:
            return probe.name in only or probe.module in only
        return probe.quick or not options.quick

    unknown = [n for n in only if n not in {x for p in probes for x in (p.name, p.module)}]
    if unknown:
        raise SystemExit(f"no such probe: {', '.join(unknown)}; see: gpu_report list")
    return [probe for probe in probes if wanted(probe)]


def _ask(report, probes, options, *, emulated=False):
    """Run probes, write after each; why no GPU answers, if none does."""
    end = time.time() + (options.seconds or (85 if options.quick else 540))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    folder, gone = Path(tempfile.mkdtemp(prefix="gpu-report-", dir=options.folder)), None

    def run(probe, seconds):
        def so_far(facts):
            report["probes"][probe.name] = {"status": "runs", "facts": facts}
            _save(report, options.json)

        return run_probe(probe, seconds, folder, quick=options.quick, meanwhile=so_far)

    try:
        for i, probe in enumerate(probes):
            seconds = allowance(probe, probes[i + 1 :], end - time.time(), quick=options.quick)
            if gone and probe.needs_gpu:
                record = {"status": "left out", "reason": gone}
            elif seconds < 3:
                record = {"status": "left out", "reason": "no time left"}
            else:
                record = run(probe, seconds)
            report["probes"][probe.name] = record
            if probe.name == "driver" and not record["facts"].get("devices"):
                gone = f"no GPU answers: {record['facts'].get('why', record['status'])}"
            elif record.get("failures") and probe.needs_gpu:
                health = run_probe(HEALTH, HEALTH.limit, folder / str(i))
                record["device_answers"] = bool(health["facts"].get("answers"))
                if not record["device_answers"]:
                    gone = f"the device has stopped answering after {probe.name}"
            taken = record.pop("seconds", 0) if emulated else record.get("seconds", 0)
            _save(report, options.json)
            print(
                f"{probe.name}: {record['status']}{'' if emulated else f', {taken} s'}", flush=True
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return gone


def _report(kind, options, **more):
    return {
        "report": kind,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", "-m", "benchmarks.gpu_report", *options.arguments]),
        "quick": options.quick,
        **more,
        "probes": {},
    }


def _has_gpu(report, gone):
    if report["probes"]["driver"]["facts"].get("devices"):
        return True
    print(f"{gone}. What the host alone can answer was asked.", file=sys.stderr)
    return False


def facts(options):
    """Ask all probes; print; write after each."""
    report = _report("facts", options)
    gone = _ask(report, _chosen(PROBES, options), options)
    print(*lines(report), sep="\n")
    print(f"written to {options.json}")
    return 0 if _has_gpu(report, gone) else NO_GPU


def read(options):
    """Read with gpustore and with others; print; write after each cell."""
    emulated = options.device == "emulated"
    report = _report("read", options, emulated=emulated)
    # Of the facts those that the table needs: what is there, and the limits.
    before = [p for p in PROBES if p.name in ("driver", "environment", "device", "copies")]
    probes = [*([] if emulated else before), *read_plan.probes(emulated=emulated)]
    gone = _ask(report, _chosen(probes, options), options, emulated=emulated)
    if not emulated and not _has_gpu(report, gone):
        return NO_GPU
    tables = _conclude(report)
    _save(report, options.json)
    print(*read_summary.lines(report, tables), sep="\n")
    print(f"written to {options.json}")
    failed = [name for name, record in report["probes"].items() if record["status"] != "ok"]
    return 1 if report["wrong"] or (emulated and failed) else 0


def _conclude(report):
    """Add limits, goals and what was wrong; the tables."""
    tables = result.tables(report)
    report["limits"] = result.limits(report)
    report["goals"] = goals(tables, report["limits"], emulated=report["emulated"])
    report["wrong"] = result.wrong(report)
    return tables


def show(options):
    """Print what a file holds, also of a run that was cut short."""
    report = json.loads(options.json.read_text())
    if report["report"] == "facts":
        print(*lines(report), sep="\n")
    else:
        tables = _conclude(report)
        print(*read_summary.lines(report, tables), sep="\n")
    return 0


def carry(options):
    """Download the wheels."""
    try:
        limit = options.limit_mib * wheels.MIB
        return wheels.carry(options.folder, options.cuda, options.python, limit)
    except MissingError as error:
        print(error, file=sys.stderr)
        return 1


def names(options):
    """Print the probes of both parts and the most that each takes."""
    del options
    for probe in (*PROBES, *read_plan.probes()):
        print(f"{probe.name:32}{probe.limit:4.0f} s{'' if probe.needs_gpu else '  (no GPU)'}")
    return 0


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="gpu_report", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = commands.add_parser("facts", help="ask the GPU, the driver and the libraries")
    compared = commands.add_parser("read", help="read with gpustore and others, side by side")
    compared.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    for part, command in ((asked, facts), (compared, read)):
        part.add_argument("--json", type=Path, default=Path(f"gpu_{command.__name__}.json"))
        part.add_argument("--only", default="", help="names of probes, with commas between")
        part.add_argument("--quick", action="store_true", help="under 90 s, the most telling")
        part.add_argument("--seconds", type=float, help="for everything (540; with --quick 85)")
        part.add_argument("--folder", type=Path, help="for files that are read (the system's)")
        part.set_defaults(command=command)
    carried = commands.add_parser("wheels", help="download what to carry, in two lots")
    carried.add_argument("folder", type=Path, nargs="?", default=wheels.FOLDER)
    carried.add_argument("--cuda", type=int, choices=(12, 13), default=13)
    carried.add_argument("--python", default="3.12", help="of that machine (3.12)")
    carried.add_argument("--limit-mib", type=float, default=64, help="of a lot (64)")
    carried.set_defaults(command=carry)
    shown = commands.add_parser("show", help="print the JSON file of either part as text")
    shown.add_argument("json", type=Path)
    shown.set_defaults(command=show)
    listed = commands.add_parser("list", help="names of the probes, and their limits of time")
    listed.set_defaults(command=names)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    return options.command(options)


if __name__ == "__main__":
    sys.exit(main())
