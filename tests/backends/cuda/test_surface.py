"""Every name of the libraries of a GPU that the package uses exists in what is installed.

The modules that use them never run here, so this is what notices a name that was taken away or
misspelt. Names are read off the syntax trees; those of objects that only a GPU can make are listed.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpustore import registry
from tests.backends.cuda.wheels import skip

BACKENDS = Path(__file__).parents[3] / "gpustore/backends"
NEVER_RUN = ("cuda/__init__", "cuda/own_pool", "nvcomp/bindings", "cuda/gds")
MODULES = (*NEVER_RUN, "nvcomp/library", "nvimgcodec")

# Class -> what is used of its objects.
MEMBERS = {
    # Stream.ptr is set on each object.
    "cupy.cuda.Stream": ("record", "wait_event", "synchronize", "__enter__", "__exit__"),
    "cupy.cuda.Event": ("done", "synchronize"),
    "cupy.cuda.Device": ("__enter__", "__exit__"),
    "cupy.ndarray": ("data", "strides", "shape", "dtype"),
    "cupy.cuda.MemoryPointer": ("ptr",),
    "cupy.cuda.MemoryPool": ("free_bytes", "free_all_blocks"),
    "cupy.cuda.runtime.PointerAttributes": ("device",),
    "cupy.RawModule": ("get_function",),
    "cupy.RawKernel": ("__call__",),
    "kvikio.CuFile": ("pread", "close"),
    "kvikio.cufile.IOFuture": ("get",),
    "nvidia.nvcomp.Codec": ("decode",),
    "nvidia.nvcomp.BatchArray": ("buffer_sizes",),
    "nvidia.nvimgcodec.BackendKind": ("GPU_ONLY", "HYBRID_CPU_GPU"),
    "nvidia.nvimgcodec.CodeStream": (
        *("num_images", "get_sub_code_stream", "height", "width", "num_channels", "dtype"),
    ),
    "nvidia.nvimgcodec.Decoder": ("decode",),
    "nvidia.nvimgcodec.Image": ("shape", "__cuda_array_interface__"),
}

# Numbers that are written out in backends/cuda.
NUMBERS = {
    "cupy.cuda.runtime.memcpyHostToDevice": 1,
    "cupy.cuda.runtime.memcpyDeviceToHost": 2,
    "cupy.cuda.runtime.memcpyDeviceToDevice": 3,
    "cupy.cuda.runtime.hostAllocPortable": 1,
}

_RESOLVE = """
import importlib, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    parts, value = name.split("."), None
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        break
    try:
        for part in parts[count:]:
            value = getattr(value, part)
        found[name] = value if isinstance(value, int) else "there"
    except AttributeError:
        found[name] = None
print(json.dumps(found))
"""


def names_used(module):
    """Dotted names of other packages in a module of the package."""
    tree = ast.parse((BACKENDS / f"{module}.py").read_text(encoding="utf-8"))
    roots = {"cupy": "cupy", "kvikio": "kvikio"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "nvidia":
            roots |= {alias.name: f"nvidia.{alias.name}" for alias in node.names}

    def dotted(node):
        if isinstance(node, ast.Name):
            return roots.get(node.id)
        if isinstance(node, ast.Attribute):
            base = dotted(node.value)
            return base and f"{base}.{node.attr}"
        return None

    for node in ast.walk(tree):  # runtime = cupy.cuda.runtime
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = dotted(node.value)
            if name:
                roots[node.targets[0].id] = name
    return {name for node in ast.walk(tree) if (name := dotted(node))}


USED = {module: names_used(module) for module in MODULES}


def resolve(root):
    if not registry.is_installed(root):
        skip(f"{root} is not installed")
    names = {name for used in USED.values() for name in used}
    names |= {f"{kind}.{member}" for kind, members in MEMBERS.items() for member in members}
    names |= set(NUMBERS)
    mine = sorted(name for name in names if name.startswith(root))
    command = [sys.executable, "-W", "ignore", "-c", _RESOLVE, json.dumps(mine)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("root", ["cupy", "kvikio", "nvidia.nvcomp", "nvidia.nvimgcodec"])
def test_every_name_exists_in_what_is_installed(root):
    found = resolve(root)
    assert (
        len(found)
        >= {**{"cupy": 30, "kvikio": 4, "nvidia.nvcomp": 4, "nvidia.nvimgcodec": 15}}[root]
    )
    assert [name for name, value in found.items() if value is None] == []


def test_numbers_are_cupys():
    found = resolve("cupy")
    assert {name: found[name] for name in NUMBERS} == NUMBERS


_ANY_TYPE = """
import cupy, ml_dtypes, numpy as np
memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 4096, None, 0), 0)
types = ["<f4", ">f4", "M8[s]", "V5", "S3", [("a", "<u2"), ("b", "u1")]]
for dtype in map(np.dtype, [*types, ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn]):
    array = cupy.ndarray((3, 2), dtype, memptr=memory, order="F")
    assert array.dtype == dtype and array.strides == (dtype.itemsize, 3 * dtype.itemsize)
"""


def test_arrays_over_memory_may_have_any_type():
    if not registry.is_installed("cupy"):
        skip("cupy is not installed")
    command = [sys.executable, "-W", "ignore", "-c", _ANY_TYPE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


_OPEN_DESCRIPTOR = """
import os, sys
from pathlib import Path
import kvikio
fd = os.open(sys.argv[1], os.O_RDONLY)
os.rename(sys.argv[1], sys.argv[1] + ".elsewhere")
file = kvikio.CuFile(Path(f"/proc/self/fd/{fd}"), "r")
assert os.path.samestat(os.fstat(file.fileno()), os.fstat(fd))
before = len(os.listdir("/proc/self/fd"))
file.close()
print(before - len(os.listdir("/proc/self/fd")))
"""


def test_kvikio_opens_the_file_of_a_descriptor(tmp_path):
    """Opening needs no driver. Of each handle the process has at most two more descriptors."""
    if not registry.is_installed("kvikio"):
        skip("kvikio is not installed")
    path = tmp_path / "values"
    path.write_bytes(bytes(8192))
    command = [sys.executable, "-W", "ignore", "-c", _OPEN_DESCRIPTOR, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) in (1, 2)


def test_names_are_found_in_the_modules():
    assert "cupy.cuda.runtime.mallocFromPoolAsync" in USED["cuda/own_pool"]
    assert "nvidia.nvcomp.as_arrays" in USED["nvcomp/bindings"]
    assert "nvidia.nvimgcodec.ColorSpec.GRAY" in USED["nvimgcodec"]
    assert "kvikio.defaults.is_compat_mode_preferred" in USED["cuda/gds"]


def test_modules_that_never_run_here_are_small():
    lines = sum(len((BACKENDS / f"{module}.py").read_text().splitlines()) for module in NEVER_RUN)
    assert lines < 600
