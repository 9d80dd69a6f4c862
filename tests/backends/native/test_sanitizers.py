"""Sanitizers see the native core: mistakes that are planted in it are reported."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator import host_build
from tests.kernels import sanitized
from tests.kernels.execution import needs_compiler

pytestmark = [pytest.mark.long, needs_compiler]

ROOT = Path(__file__).parents[3]
DECODE = re.compile(r"bool decode\(const u8\* encoded, i64 size, u8\* out\) const \{")
PLANTED = {
    "address": {
        "before": (
            "[[maybe_unused]] const u8 planted = *(volatile const u8*)(encoded - 1);",
            "heap-buffer-overflow",
        ),
        "shift": (
            "[[maybe_unused]] volatile int planted = 1 << (size + 64);",
            "runtime error: shift exponent",
        ),
        "none": ("", None),
    },
    "thread": {
        "race": (
            "static volatile long planted; for (int i = 0; i < 10000; i++) planted = planted + 1;",
            "data race",
        ),
    },
}
"""By sanitizer and name: what is planted and what is reported of it."""

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import gpustore
from gpustore.backends.native import library
library.PATH = Path(sys.argv[1])
store = gpustore.open(
    f"file://{sys.argv[2]}/|zarr3:", create=True, dtype="uint16", shape=[128, 128, 128],
    chunk_layout=gpustore.ChunkLayout(chunk_shape=[16, 16, 16]),
    codec=gpustore.CodecSpec({"driver": "zarr3", "codecs": [{"name": "blosc"}]}),
).result()
store[...] = np.arange(128, dtype="uint16")
for _ in range(5):
    assert int(store.read().result().sum()) == 128 * 128 * 127 * 64
assert library.library() is not None
"""


@pytest.mark.parametrize("sanitizer", PLANTED)
def test_a_planted_mistake_is_reported(tmp_path, sanitizer):
    core = _core_with(PLANTED[sanitizer], sanitizer, tmp_path)
    for name, (_, report) in PLANTED[sanitizer].items():
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(core), str(tmp_path / f"{name}.zarr")],
            env={**os.environ, **sanitized.environment(sanitizer), "PLANTED": name},
            capture_output=True,
            text=True,
            timeout=250,
        )
        if report is None:
            assert (done.returncode, done.stderr) == (0, "")
        else:
            assert done.returncode != 0
            assert report in done.stderr


def _core_with(planted, sanitizer, folder):
    """Compile a core of which ``PLANTED`` in the environment chooses the mistake."""
    shutil.copytree(ROOT / "kernels" / "host", folder / "kernels" / "host")
    shutil.copy(ROOT / "hatch_build.py", folder)
    header = folder / "kernels" / "host" / "decode.h"
    mistakes = " ".join(
        f"if (*which == '{name[0]}') {{ {code} }}" for name, (code, _) in planted.items()
    )
    body = f'static const char* const which = getenv("PLANTED"); {mistakes}'
    text, count = DECODE.subn(lambda found: f"{found[0]} {body}", header.read_text())
    assert count == 1
    header.write_text(f"#include <cstdlib>\n{text}")
    core = folder / "core.native.so"
    compile_core = runpy.run_path(str(folder / "hatch_build.py"))["compile_core"]
    compile_core(core, *host_build.SANITIZER_FLAGS[sanitizer], "-O0")
    return core
