"""The command without a GPU, and the list of wheels."""

import ast
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.gpu import summary, verdict, wheels
from benchmarks.gpu.emulated_target import emulated_target
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.plan import ALIVE, CODECS, PROBES
from benchmarks.gpu.probes import kernels, reads, suite, sweep
from benchmarks.gpu.setting import Setting, settings
from gpustore import registry
from gpustore.backends.nvcomp import abi
from gpustore.device.kernels import instance
from tests import gpu
from tests.backends.cuda.wheels import skip
from tests.kernels.execution import needs_compiler

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"


def command(*arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_report", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("name", ["health", "limits", "reads"])
def test_without_a_gpu_the_host_is_asked_and_the_rest_is_left_out(tmp_path, name):
    if gpu.answers():
        pytest.skip("a GPU answers: the command measures it")
    path = tmp_path / "new" / f"gpu_{name}.json"
    done = command(name, environment={"OUT": str(path.parent)})
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("no GPU answers: ")
    assert done.stderr.endswith("What the host alone can answer was asked.\n")
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert report["command"] == f"python -m benchmarks.gpu_report {name}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"])
    assert report["gpu"] is None
    assert report["versions"]["numpy"]
    found = {probe: record["status"] for probe, record in report["probes"].items()}
    wanted = {probe.name: "left out" for probe in PROBES[name]}
    assert found == wanted | {"driver": "ok", "environment": "ok"}


MEASURED = ('seconds"', 'cpu_s"', '"ms"', 'GBs"', '"share"')


def check_nothing_is_timed(printed, report):
    text = json.dumps(report["probes"])
    assert [word for word in MEASURED if word in text] == []
    assert re.findall(r"GB/s|\bms\b|\d s\b", printed) == []


SHORT = {
    "health": "environment,engines,arrays,sanitizer:emulated",
    "limits": "engines,copies,decode_rate,kernels,sweep",
    "reads": "copies,reads:labels_u4-zstd",
}
"""Probes of each command that are tried when not all are."""


def check_emulated(name, done, report, probes):
    assert done.returncode == 0, done.stdout + done.stderr
    assert report["emulated"] is True
    statuses = {probe: report["probes"][probe]["status"] for probe in probes}
    assert statuses.pop("sanitizer:emulated", "missing") == "missing"
    assert {*statuses.values()} == {"ok"}
    check_nothing_is_timed(done.stdout, report)
    if name == "health":
        met = {row["what"]: row["met"] for row in report["verdict"]}
        assert met["small arrays are read and written"] is met["retries"] is True
    if name == "limits":
        assert {row["what"]: row["met"] for row in report["verdict"]}["results"] is True
    if name == "reads":
        assert report["wrong"] == []


@pytest.mark.matrix("costly")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param("health", marks=pytest.mark.matrix("costly", long=False)), "limits", "reads"],
)
def test_commands_run_on_the_emulated_device_and_time_nothing(tmp_path, name):
    path = tmp_path / "report.json"
    done = command(name, "--device", "emulated", "--json", str(path), "--only", SHORT[name])
    report = json.loads(path.read_text())
    check_emulated(name, done, report, report["probes"])


@pytest.mark.long
def test_whole_health_runs_on_the_emulated_device(tmp_path):
    path = tmp_path / "report.json"
    done = command("health", "--device", "emulated", "--json", str(path))
    report = json.loads(path.read_text())
    check_emulated("health", done, report, [p for p in report["probes"] if p[:5] != "suite"])
    assert report["probes"]["suite:emulated"]["facts"]["counts"]["collected"] > 100


@pytest.mark.filterwarnings("ignore:Array is unsupported by ZarrsCodecPipeline:UserWarning")
@pytest.mark.long
def test_all_volumes_are_read_on_the_emulated_device(tmp_path):
    """In one process: what all readers import takes longer than what they read."""
    report = {"report": "reads", "emulated": True, "probes": {}}
    for probe in PROBES["reads"]:
        if probe.module == "reads":
            lines = tmp_path / f"{probe.variant}.jsonl"
            found = Findings(lines, time.time() + 200, guarded=False)
            with emulated_target() as target:
                reads.run(found, target, probe.variant)
            report["probes"][probe.name] = {"status": "ok", "facts": found.known}
    printed, _ = gpu_report._conclude(report)
    assert report["wrong"] == []
    assert "left out" not in {fact for p in report["probes"].values() for fact in p["facts"]}
    assert {row["measured"] for row in report["goals"]} == {"emulated: not measured"}
    check_nothing_is_timed("\n".join(printed), report)


def test_the_reads_take_the_setting_that_was_found_best(tmp_path):
    found = {"submission_nbytes": 1 << 27, "buffers": 2, "threads": 5}
    report = {"probes": {"sweep": {"facts": {"best": found}}}}
    (tmp_path / "limits.json").write_text(json.dumps(report))
    assert gpu_report._setting(tmp_path / "limits.json", tmp_path) == found
    assert Setting.read(tmp_path) == Setting(1 << 27, 2, 5)
    assert gpu_report._setting(tmp_path / "none.json", tmp_path) is None


APPLIED = """
import pathlib, sys
from benchmarks.gpu import stored
from benchmarks.gpu.access import TINY
from benchmarks.gpu.dataset import load
from benchmarks.gpu.format import Format
from benchmarks.gpu.recording_device import opened
from benchmarks.gpu.setting import Setting
from benchmarks.null_device import NullDevice
import gpustore

folder, array_format = pathlib.Path(sys.argv[1]), Format("zstd", 3, "1MiB")
stored.write(folder / "array", array_format, load("camera_u2", TINY, folder), TINY)
for setting in (Setting(), Setting(1 << 14, 2, 3)):
    setting.apply()
    device = NullDevice()
    with opened(device) as name:
        spec = array_format.spec(folder / "array")
        gpustore.open(spec, context=setting.context(), device=name).result().read().result()
    print(device.counts["download"])
"""


@pytest.mark.matrix("costly")
def test_a_setting_changes_gpustore(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", APPLIED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    own, small = map(int, done.stdout.split())
    assert own == 1
    assert small >= 8


def test_settings_begin_with_gpustores_own():
    assert settings()[0] == Setting()
    assert len({*settings()}) == len(settings()) >= 24


def test_the_fastest_over_all_formats_is_best():
    first, second = settings()[:2]
    rows = [
        (setting, array_format, {"right": True, "seconds": seconds})
        for setting, taken in ((first, (1.0, 4.0)), (second, (1.5, 2.0)))
        for array_format, seconds in zip(sweep.FORMATS, taken)
    ]
    assert sweep.best(rows) == second
    rows[-1][2]["right"] = False
    assert sweep.best(rows) == first
    assert sweep.best([]) is None


def test_lines_of_tests_are_counted():
    line = "tests/a.py::test_b[x y] PASSED                     [ 1%]"
    assert suite.outcome("tests/a.py::test_b[x] FAILED [ 1%]") == (
        "tests/a.py::test_b[x]",
        "FAILED",
    )
    assert suite.outcome(line) == ("tests/a.py::test_b[x y]", "PASSED")
    assert suite.outcome("tests/a.py::test_b SKIPPED (no GPU) [1%]")[1] == "SKIPPED"
    assert suite.outcome("FAILED tests/a.py::test_b - assert 0") is None
    assert suite.outcome("collected 3 items") is None


def health(**more):
    counters = ("retries", "host_fallbacks", "few_stream_reads", "missing_decoder_reads")
    right = {"right": True, "written": True, **dict.fromkeys((*counters, "host_encodings"), 0)}
    counts = {"PASSED": 9, "FAILED": 0, "ERROR": 0, "SKIPPED": 1}
    facts = {
        "engines": {
            "engine": "nvcomp 6.0",
            "shortcoming": None,
            **{codec: {"right": True} for codec in CODECS},
        },
        "arrays": {"zarr2-raw-1MiB": right, "zarr2-zstd-1MiB": right},
        "suite": {"counts": counts, "failed": [], "exit_status": 0},
        "sanitizer": {"memcheck": {"exit_status": 0, "errors": 0}},
    }
    probes = {
        name: {"status": "ok", "facts": found | more.get(name, {})} for name, found in facts.items()
    }
    return {"report": "health", "emulated": False, "probes": probes}


@pytest.mark.parametrize(
    ("probe", "facts", "what"),
    [
        ("engines", {"shortcoming": "no nvcomp"}, "self-test of the decoder"),
        ("engines", {"zstd": {"error": "no"}}, "streams of each codec are decoded"),
        ("engines", {"zstd": {"missing": "no"}}, "streams of each codec are decoded"),
        ("arrays", {"zarr2-zstd-1MiB": {"right": False}}, "small arrays are read and written"),
        (
            "arrays",
            {"zarr2-zstd-1MiB": {"right": True, "written": False}},
            "small arrays are read and written",
        ),
        ("arrays", {"zarr2-raw-1MiB": {"right": True, "retries": 2}}, "retries"),
        ("suite", {"failed": ["tests/a.py::test_b"]}, "pytest -m gpu"),
        ("suite", {"cut_short": "no time left"}, "pytest -m gpu"),
        ("sanitizer", {"racecheck": {"exit_status": 77, "errors": 3}}, "compute-sanitizer"),
        ("sanitizer", {"racecheck": {"exit_status": 1, "errors": None}}, "compute-sanitizer"),
    ],
)
def test_what_does_not_work_is_said(probe, facts, what):
    assert not [row for row in verdict.rows(health()) if row["met"] is False]
    rows = verdict.rows(health(**{probe: facts}))
    assert [row["what"] for row in rows if row["met"] is False] == [what]
    assert [line for line in verdict.lines(rows) if line.endswith("NOT OK")]


def test_wrong_results_and_shares_of_the_copy_rate_are_told():
    facts = {"copy": {"launches": 1, "share": 0.914}, "lz4": {"equal": False}}
    report = {"report": "limits", "emulated": False, "probes": {"kernels": {"facts": facts}}}
    rows = verdict.rows(report)
    assert [(row["what"], row["found"], row["met"]) for row in rows[:2]] == [
        ("results", "kernels: lz4", False),
        ("kernel copy", "91% of the device's copy rate", None),
    ]


@needs_compiler
def test_every_kernel_is_measured_alone():
    with emulated_target() as target:
        chunks = kernels.Chunks(target)
        launched = set()

        class Device:
            def __getattr__(self, name):
                return getattr(target.device, name)

            def kernel(self, family, expression):
                launched.add(family)
                return target.device.kernel(family, expression)

        chunks.device = Device()
        for _, record, _ in kernels.kernels(chunks):
            commands = chunks.commands()
            record(commands)
            commands.release()
        chunks.device = target.device
        chunks.close()
    assert launched | {"lz", *kernels.FEW_BYTES} == {*instance.INSTANCES}


def test_an_unknown_probe_is_refused():
    done = command("limits", "--only", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("no such probe: nonsense")


def test_every_probe_has_its_file_and_every_file_its_probe():
    files = {path.stem for path in (GPU / "probes").glob("*.py")} - {"__init__"}
    every = [probe for probes in PROBES.values() for probe in probes]
    assert files == {probe.module for probe in (*every, ALIVE)}
    done = command("list")
    assert [line.split()[1] for line in done.stdout.splitlines()] == [p.name for p in every]


def test_rates_are_a_table_by_count():
    row = {"kind": "smooth_f4", "nbytes": 65536, "ratio": 2, "ms": 1}
    facts = {
        "a": {**row, "count": 1, "GBs": 0.5, "equal": True},
        "b": {**row, "count": 128, "GBs": 20.25, "equal": False},
        "c": {"error": "RuntimeError: no"},
    }
    record = {"status": "ok", "seconds": 1, "facts": facts}
    text = [*summary.lines({"probes": {"decode_rate:zstd": record}})]
    assert text[1] == "  1 of 2 points right"
    assert text[3].split() == ["1", "128"]
    assert text[4].split() == ["smooth_f4", "64", "KiB", "0.50", "20.25", "WRONG"]
    assert text[5].split() == ["c:", 'error="RuntimeError:', 'no"']


def test_wheels_are_those_of_the_project():
    lots = wheels.lots(13)
    names = {lot: {wheels._name(one) for one in found} for lot, found in lots.items()}
    assert names["first"] >= {
        "nvidia-nvcomp-cu13", "nvidia-libnvcomp-cu13", "numcodecs", "google-crc32c", "ml-dtypes",
        "isal", "zstandard", "cramjam", "deflate", "pytest", "hypothesis",
    }  # fmt: skip
    assert names["second"] >= {"tensorstore", "zarrs", "zarr", "donfig", "kvikio-cu13"}
    assert names["nvcomp5"] == {"nvidia-libnvcomp-cu13"}
    assert names["images"] == {
        *("nvidia-nvimgcodec-cu13", "nvidia-nvjpeg", "nvidia-nvtiff-cu13", "pillow"),
    }
    assert "nvidia-nvjpeg-cu12" in {wheels._name(r) for r in wheels.lots(12)["images"]}
    assert {int(version.strip(">=")[0]) for version in wheels.NVCOMP.values()} == {*abi.ROWS}
    assert "kvikio-cu12" in {wheels._name(r) for r in wheels.lots(12)["second"]}
    assert "/.wheels/" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_the_wheels_lack_is_named(tmp_path):
    for name, requirements in (("a_b", ["c.d>=1", "e; extra == 'x'"]), ("c_d", ["A-B", "f[g]"])):
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / f"{name}-1-py3-none-any.whl", "w") as archive:
            lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
            archive.writestr(f"{name}-1.dist-info/METADATA", f"Name: {name}\n{lines}\nText")
    assert wheels.needed(tmp_path) == ["f"]


RESOLVE = """
import importlib, sys
for name in sys.argv[1:]:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
            break
        except ImportError:
            continue
    for part in parts[count:]:
        if not hasattr(value, part):
            print(name)
            break
        value = getattr(value, part)
"""


def names_used(path, roots):
    """Dotted names of other packages in a file, and of what is assigned from them."""
    tree = ast.parse(path.read_text())
    roots = {root: root for root in roots}

    def dotted(node):
        if isinstance(node, ast.Name):
            return roots.get(node.id)
        base = dotted(node.value) if isinstance(node, ast.Attribute) else None
        return base and f"{base}.{node.attr}"

    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = dotted(node.value)
            if name:
                roots[node.targets[0].id] = name
    return {name for node in nodes if (name := dotted(node))}


USED = set().union(
    *(names_used(path, ("cupy", "kvikio", "zarr")) for path in sorted(GPU.rglob("*.py")))
)


MEMBERS = {
    "cupy.ndarray": ("set", "data", "nbytes", "shape", "dtype"),
    "cupy.cuda.Stream": ("record", "synchronize"),
    "zarr.Array": ("__getitem__",),
}
USED |= {f"{kind}.{member}" for kind, members in MEMBERS.items() for member in members}


def test_targets_have_the_same_operations_but_for_those_that_are_measured():
    def names(path):
        return set(re.findall(r"    def ([a-z]\w*)\(self", (GPU / path).read_text()))

    cuda, emulated = names("cuda_target.py"), names("emulated_target.py")
    assert emulated <= cuda
    clock = {"start", "mark", "milliseconds"}
    assert cuda - emulated - clock == {"copy_within", "pageable_seconds", "used_nbytes"}


@pytest.mark.parametrize(("root", "least"), [("cupy", 15), ("kvikio", 4), ("zarr", 3)])
def test_every_name_exists_in_what_is_installed(root, least):
    mine = sorted(name for name in USED if name.startswith(root))
    assert len(mine) >= least
    if not registry.is_installed(root):
        skip(f"{root} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RESOLVE, *mine], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
