"""``import gpustore`` is light, and works where none of the optional libraries exist.

In subprocesses, because zarr's pytest plugin is loaded into every pytest run.
"""

import json
import subprocess
import sys

import pytest

import gpustore

OPTIONAL = (
    "cupy",
    "nvidia",
    "kvikio",
    "torch",
    "zarr",
    "rich",
    "PIL",
    "botocore",
    "google",
    "tensorstore",
    "pytest",
)

# Measured: 76 with Python 3.11.
MOST_MODULES = 90

# Measured with Python 3.11: 127 of others, besides NumPy's 87 and 244 of gpustore.
MOST_MODULES_OPENED = 140

_BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Block())
"""

_ROUND_TRIP = """
import numpy as np
import gpustore
folder = sys.argv[2]
store = gpustore.open(
    {"driver": "zarr3", "kvstore": {"driver": "file", "path": folder}},
    create=True, dtype="uint16", shape=[5, 7],
).result()
store.write(np.arange(35, dtype="uint16").reshape(5, 7)).result()
again = gpustore.open(folder).result()[1:4, ::2].read().result()
assert (again == np.arange(35).reshape(5, 7)[1:4, ::2]).all()
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_LOADED = """
import json, sys
import gpustore
print(json.dumps(sorted(sys.modules)))
path = f"file://{sys.argv[1]}|zarr3:"
store = gpustore.open(path, create=True, dtype="uint16", shape=[5], codec="zstd").result()
store[...] = 7
assert store.read().result().tolist() == [7] * 5
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Modules after the import, and after a first array was made, written and read."""
    return [
        json.loads(line) for line in run(_LOADED, str(tmp_path_factory.mktemp("a"))).splitlines()
    ]


def roots(modules):
    return {name.split(".")[0] for name in modules}


def test_import_loads_no_optional_library(loaded):
    assert roots(loaded[1]).isdisjoint(OPTIONAL)


def test_import_is_small(loaded):
    assert len(loaded[0]) < MOST_MODULES
    assert "numpy" not in roots(loaded[0])


@pytest.mark.skipif(not gpustore.native_core().in_use, reason="numcodecs encodes and decodes")
def test_a_first_array_loads_what_it_needs(loaded):
    others = [name for name in loaded[1] if not name.startswith(("gpustore", "numpy"))]
    assert len(others) < MOST_MODULES_OPENED
    assert roots(loaded[1]).isdisjoint({"asyncio", "concurrent", "email", "http"})
    drivers = [name for name in loaded[1] if name.startswith("gpustore.drivers.zarr")]
    assert drivers == ["gpustore.drivers.zarr3"]


def test_import_does_not_load_the_command_line(loaded):
    assert not [name for name in loaded[1] if name.startswith("gpustore.cli")]


@pytest.mark.matrix("costly")
def test_reading_and_writing_work_without_optional_libraries(tmp_path):
    run(_BLOCK + _ROUND_TRIP, ",".join(OPTIONAL), str(tmp_path / "array"))


@pytest.mark.matrix("costly")
def test_the_command_line_names_the_extra_when_rich_is_missing(tmp_path):
    code = _BLOCK + "from gpustore.cli.main import main; sys.exit(main(['demo', sys.argv[2]]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "rich,PIL", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'gpustore[cli]'" in done.stderr
