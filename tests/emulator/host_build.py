"""Compiles a kernel family for the host with g++ and launches its instances.

It proves indexing, descriptors and values of the kernels. It says nothing about speed, alignment
or what NVRTC accepts.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

from gpustore.backends import _kernels

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")

# -O1 compiles twice as fast as -O2 and the data are small.
_FLAGS = ["-std=gnu++17", "-O1", "-fno-strict-aliasing", "-fvisibility=hidden", "-shared", "-fPIC"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]


class HostModule:
    """All instances of one family, compiled; the counterpart of a loaded CUDA module."""

    def __init__(self, family, build_folder):
        self.expressions = _kernels.INSTANCES[family]
        text = build_folder / f"{family}.cpp"
        library = build_folder / f"{family}.so"
        text.write_text(self._text(family), encoding="utf-8")
        command = [COMPILER, *_FLAGS, *_WARNINGS, f"-I{HERE}", str(text), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))

    def _text(self, family):
        parts = ['#include "cuda_on_host.h"', _kernels.source(family)]
        parts += [
            f'extern "C" __attribute__((visibility("default"))) void launch_{number}('
            "unsigned blocks, unsigned threads, bool backwards, void** arguments) "
            f"{{ host::launch(&{expression}, blocks, threads, backwards, arguments); }}"
            for number, expression in enumerate(self.expressions)
        ]
        return "\n".join(parts)

    def launch(self, expression, blocks, arguments, *, backwards=False):
        """Run one instance; `arguments` are ctypes values or arrays, in the kernel's order."""
        function = getattr(self._library, f"launch_{self.expressions.index(expression)}")
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in arguments)
        )
        function(
            ctypes.c_uint(blocks),
            ctypes.c_uint(_kernels.THREADS_PER_BLOCK),
            ctypes.c_bool(backwards),
            pointers,
        )
