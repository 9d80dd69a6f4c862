"""The first hour on a machine with a GPU, in three commands of less than five minutes each.

    python -m benchmarks.gpu_report health     # does everything work? exit status 1 if not
    python -m benchmarks.gpu_report limits     # how fast could it be, and with which setting?
    python -m benchmarks.gpu_report reads      # gpustore and others side by side, with that setting

Each writes a JSON file where ``--json`` says, by default ``gpu_<command>.json`` in the folder
``$OUT`` if that is set, else here. ``--device emulated`` runs any of them without a GPU: results
are compared and calls counted, nothing is measured. ``wheels`` downloads what a machine without
internet needs.

Every probe runs in a process of its own with its own limit of time, one after the other, and what
it found is in the file before the next begins.

Exit status: 0 done, 1 something does not work or a result was wrong, or the wheels cannot be had, 3
no GPU answers.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu import read_summary, result, summary, verdict, wheels
from benchmarks.gpu.findings import MissingError, plain
from benchmarks.gpu.goal import goals
from benchmarks.gpu.plan import ALIVE, PROBES, SECONDS, allowance
from benchmarks.gpu.process import run_probe

NO_GPU = 3


def _about(report):
    """GPU, driver and versions, to the top of the report."""

    def fact(probe, name):
        return report["probes"].get(probe, {}).get("facts", {}).get(name)

    report["gpu"] = (fact("engines", "description") or {}).get("name")
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
    unknown = [n for n in only if n not in {x for p in probes for x in (p.name, p.module)}]
    if unknown:
        raise SystemExit(f"no such probe: {', '.join(unknown)}; see: gpu_report list")
    return [p for p in probes if not only or p.name in {*only, "driver"} or p.module in only]


def _ask(report, probes, options, folder):
    """Run probes, write after each; why no GPU answers, if none does."""
    emulated = options.device == "emulated"
    end, gone = time.time() + options.seconds, None

    def run(probe, seconds):
        def so_far(facts):
            report["probes"][probe.name] = {"status": "runs", "facts": facts}
            _save(report, options.json)

        device = options.device if probe.needs_device else "none"
        return run_probe(probe, seconds, folder, device=device, meanwhile=so_far)

    for i, probe in enumerate(probes):
        seconds = allowance(probe, probes[i + 1 :], end - time.time())
        if gone and probe.name != "environment":
            record = {"status": "left out", "reason": gone}
        elif seconds < 3:
            record = {"status": "left out", "reason": "no time left"}
        else:
            record = run(probe, seconds)
        report["probes"][probe.name] = record
        if probe.name == "driver" and not emulated and not record["facts"].get("devices"):
            gone = f"no GPU answers: {record['facts'].get('why', record['status'])}"
        elif record.get("failures") and probe.needs_device:
            found = run_probe(ALIVE, ALIVE.limit, folder / str(i), device=options.device)
            record["device_answers"] = bool(found["facts"].get("answers"))
            if not record["device_answers"]:
                gone = f"the device has stopped answering after {probe.name}"
        taken = record.pop("seconds", 0) if emulated else record.get("seconds", 0)
        _save(report, options.json)
        print(f"{probe.name}: {record['status']}{'' if emulated else f', {taken} s'}", flush=True)
    return gone


def _run(command, options):
    """Ask the probes of a command; the report, and None or why no GPU answers."""
    emulated = options.device == "emulated"
    report = {
        "report": command,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", "-m", "benchmarks.gpu_report", *options.arguments]),
        "emulated": emulated,
        "probes": {},
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gpu-report-", dir=options.folder))
    try:
        if command == "reads":
            report["setting"] = _setting(options.setting, folder)
        gone = _ask(report, _chosen(_probes(command, emulated=emulated), options), options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report, gone


def _probes(command, *, emulated):
    """The probes of a command; those that start programs are told that there is no GPU."""
    names = ("suite", "sanitizer")
    return [
        probe.as_variant("emulated") if emulated and probe.name in names else probe
        for probe in PROBES[command]
    ]


def _setting(path, folder):
    """Give the probes the setting that the report of ``limits`` found best; its text."""
    if not path.exists():
        return None
    facts = json.loads(path.read_text())["probes"].get("sweep", {}).get("facts", {})
    if "best" in facts:
        (folder / "setting.json").write_text(json.dumps(facts["best"]))
    return facts.get("best")


def _conclude(report):
    """Add what the findings come to; the lines of the report, and whether all is well."""
    if report["report"] == "reads":
        tables = result.tables(report)
        report["limits"] = result.limits(report)
        report["goals"] = goals(tables, report["limits"], emulated=report["emulated"])
        report["wrong"] = result.wrong(report)
        return [*read_summary.lines(report, tables)], not report["wrong"]
    report["verdict"] = verdict.rows(report)
    bad = [row for row in report["verdict"] if row["met"] is False]
    return [*summary.lines(report), *verdict.lines(report["verdict"])], not bad


def ask(options):
    """Run one of the three commands; print; write after each probe."""
    report, gone = _run(options.name, options)
    lines, is_well = _conclude(report)
    _save(report, options.json)
    print(*lines, sep="\n")
    print(f"written to {options.json}")
    if gone and gone.startswith("no GPU"):
        print(f"{gone}. What the host alone can answer was asked.", file=sys.stderr)
        return NO_GPU
    return 0 if is_well else 1


def show(options):
    """Print what a file holds, also of a run that was cut short."""
    lines, _ = _conclude(json.loads(options.json.read_text()))
    print(*lines, sep="\n")
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
    """Print the probes of each command and the most that each takes."""
    del options
    for command, probes in PROBES.items():
        for probe in probes:
            print(f"{command:8}{probe.name:32}{probe.limit:4.0f} s")
    return 0


_HELP = {
    "health": "whether engines, kernels, the tests of a GPU and reads work",
    "limits": "rates of copies, decoders and kernels, and the best setting of the device path",
    "reads": "gpustore and others side by side",
}


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="gpu_report", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    here = Path(os.environ.get("OUT") or ".")
    for name, text in _HELP.items():
        part = commands.add_parser(name, help=text)
        part.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
        part.add_argument("--json", type=Path, default=here / f"gpu_{name}.json")
        part.add_argument("--only", default="", help="names of probes, with commas between")
        part.add_argument("--seconds", type=float, default=SECONDS, help=f"for all ({SECONDS})")
        part.add_argument("--folder", type=Path, help="for files that are read (the system's)")
        part.set_defaults(command=ask, name=name)
    part.add_argument(
        "--setting",
        type=Path,
        default=here / "gpu_limits.json",
        help="file that limits has written",
    )
    carried = commands.add_parser("wheels", help="download what to carry, in lots")
    carried.add_argument("folder", type=Path, nargs="?", default=wheels.FOLDER)
    carried.add_argument("--cuda", type=int, choices=(12, 13), default=13)
    carried.add_argument("--python", default="3.12", help="of that machine (3.12)")
    carried.add_argument("--limit-mib", type=float, default=64, help="of a lot (64)")
    carried.set_defaults(command=carry)
    shown = commands.add_parser("show", help="print the JSON file of any command as text")
    shown.add_argument("json", type=Path)
    shown.set_defaults(command=show)
    listed = commands.add_parser("list", help="names of the probes, and their limits of time")
    listed.set_defaults(command=names)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    return options.command(options)


if __name__ == "__main__":
    sys.exit(main())
