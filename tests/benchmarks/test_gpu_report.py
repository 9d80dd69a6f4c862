"""The command without a GPU, and the list of wheels."""

import ast
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import read_plan, summary, wheels
from benchmarks.gpu.plan import HEALTH, PROBES
from gpustore import registry
from tests import gpu
from tests.backends.cuda.wheels import skip
from tests.kernels import execution, nvrtc

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks/gpu"


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_report", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.matrix("costly")
@pytest.mark.slow
def test_without_a_gpu_the_host_is_asked_and_the_rest_is_said_to_be_left_out(tmp_path):
    if gpu.answers():
        pytest.skip("a GPU answers: the command measures it")
    path = tmp_path / "new" / "facts.json"
    done = command("facts", "--quick", "--json", str(path))
    assert done.returncode == 3
    assert done.stderr.startswith("no GPU answers: ")
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert report["command"] == f"python -m benchmarks.gpu_report facts --quick --json {path}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"])
    assert report["gpu"] is None
    assert report["versions"]["numpy"]
    probes = report["probes"]
    assert [*probes] == [probe.name for probe in PROBES if probe.quick]
    for probe in PROBES:
        if probe.quick:
            assert probes[probe.name]["status"] == ("left out" if probe.needs_gpu else "ok")
    assert len(probes["page_cache"]["facts"]) == 1 + 3 * 5 + 1
    for codec, row in probes["streams"]["facts"].items():
        assert row["wrong"] == [], codec
        assert min(row["ratios"].values()) > 1


@pytest.mark.matrix("costly")
def test_facts_need_none_of_what_gpustore_needs():
    code = "import sys; sys.modules['gpustore'] = None; import benchmarks.gpu_report"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.matrix("costly")
def test_reading_needs_a_gpu_unless_one_is_emulated(tmp_path):
    if gpu.answers():
        pytest.skip("a GPU answers: the command measures it")
    done = command("read", "--only", "driver", "--json", str(tmp_path / "read.json"))
    assert done.returncode == 3
    assert done.stderr.startswith("no GPU answers: ")
    assert done.stderr.endswith("What the host alone can answer was asked.\n")


@pytest.mark.long
def test_all_cells_are_right_on_the_emulated_device_and_nothing_is_timed(tmp_path):
    path = tmp_path / "read.json"
    done = command("read", "--device", "emulated", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert report["emulated"] is True
    assert {record["status"] for record in report["probes"].values()} == {"ok"}
    assert {row["measured"] for row in report["goals"]} == {"emulated: not measured"}
    assert report["wrong"] == []
    text = json.dumps(report["probes"])
    assert [word for word in ('seconds"', 'cpu_s"', '"ms"', 'GBs"') if word in text] == []
    assert re.findall(r"GB/s|\bms\b|\d s\b", done.stdout) == []


def test_an_unknown_probe_is_refused():
    done = command("facts", "--only", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("no such probe: nonsense")


def test_every_probe_has_its_file_and_every_file_its_probe():
    files = {path.stem for path in (GPU / "probes").glob("*.py")} - {"__init__"}
    every = (*PROBES, *read_plan.probes())
    assert files == {probe.module for probe in (*every, HEALTH)}
    done = command("list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [p.name for p in every]


def test_rates_are_a_table_by_count():
    row = {"kind": "smooth_f4", "nbytes": 65536, "ratio": 2, "ms": 1}
    facts = {
        "a": {**row, "count": 1, "GBs": 0.5, "equal": True},
        "b": {**row, "count": 128, "GBs": 20.25, "equal": False},
        "c": {"error": "RuntimeError: no"},
    }
    record = {"status": "ok", "seconds": 1, "facts": facts}
    text = [*summary.lines({"probes": {"decode_rate:zstd": record}})]
    assert text[2].split() == ["1", "128"]
    assert text[3].split() == ["smooth_f4", "64", "KiB", "0.50", "20.25", "WRONG"]
    assert text[4].split() == ["c:", 'error="RuntimeError:', 'no"']


def test_wheels_are_those_of_the_project():
    first, second = wheels.lots(13)["first"], wheels.lots(13)["second"]
    names = {wheels._name(requirement) for requirement in first}
    assert names >= {
        "nvidia-nvcomp-cu13", "nvidia-libnvcomp-cu13", "kvikio-cu13", "libkvikio-cu13",
        "rapids-logger", "numcodecs", "zarr", "google-crc32c", "donfig", "ml-dtypes", "isal",
        "deflate", "zstandard", "msgspec", "pyyaml", "cramjam",
    }  # fmt: skip
    assert [wheels._name(requirement) for requirement in second] == ["tensorstore", "zarrs"]
    assert "kvikio-cu12" in {wheels._name(r) for r in wheels.lots(12)["first"]}
    assert "/.wheels/" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_the_wheels_lack_is_named(tmp_path):
    for name, requirements in (("a_b", ["c.d>=1", "e; extra == 'x'"]), ("c_d", ["A-B", "f[g]"])):
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / f"{name}-1-py3-none-any.whl", "w") as archive:
            lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
            archive.writestr(f"{name}-1.dist-info/METADATA", f"Name: {name}\n{lines}\nText")
    assert wheels.needed(tmp_path) == ["f"]


def test_kernels_compile():
    if nvrtc.library() is None:
        (pytest.fail if execution.MUST_RUN else pytest.skip)("no NVRTC on this machine")
    source = (GPU / "kernels.cu").read_text()
    names = re.findall(r"__global__ void (\w+)", source)
    assert len(names) == 4
    resources, _ = nvrtc.compile_source(source, names, "sm_90", ("--std=c++17",))
    assert len(resources) == len(names)
    for used in resources.values():
        assert used["stack"] == used["spill_stores"] == 0
    launched = " ".join(path.read_text() for path in GPU.rglob("*.py"))
    assert [name for name in names if f'"{name}"' not in launched] == []


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
        if isinstance(node, ast.ImportFrom) and node.module == "nvidia":
            roots |= {alias.name: f"nvidia.{alias.name}" for alias in node.names}
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
    "cupy.cuda.MemoryPointer": ("ptr",),
    "kvikio.CuFile": ("pread", "close"),
    "zarr.Array": ("__getitem__",),
}
USED |= {f"{kind}.{member}" for kind, members in MEMBERS.items() for member in members}


def test_the_gpu_has_what_is_asked_of_it():
    has = set(re.findall(r"    def (\w+)\(self", (GPU / "gpu.py").read_text()))
    for name in ("cuda_target.py", "probes/reads.py", "nvcomp.py"):
        asked = set(re.findall(r"\bgpu\.([a-z]\w*)\(", (GPU / name).read_text()))
        assert asked
        assert asked <= has, name


@pytest.mark.parametrize(
    ("root", "least"), [("cupy", 30), ("kvikio", 6), ("nvidia.nvcomp", 3), ("zarr", 3)]
)
def test_every_name_exists_in_what_is_installed(root, least):
    mine = sorted(name for name in USED if name.startswith(root))
    assert len(mine) >= least
    if not registry.is_installed(root):
        skip(f"{root} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RESOLVE, *mine], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
