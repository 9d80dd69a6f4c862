"""Compiles kernel families for the host with g++ and launches their instances.

It proves indexing, descriptors, barriers and values of the kernels. It says nothing about speed
or what NVRTC accepts.

``KERNEL_SANITIZER`` in the environment is ``address`` (with undefined behaviour), ``thread``, or
``host-thread``, for which all of a launch is one thread: it sees races with other threads of the
host, and not those in a kernel. The sanitizer's library must then be preloaded (`preload`), because
Python itself is built without.
Libraries are kept in the folder for temporary files under the hash of all that makes them.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from gpustore.device.kernels import instance, source

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
SANITIZER = os.environ.get("KERNEL_SANITIZER", "")
ORDERS = ("forward", "backward", "shuffled")

_FLAGS = ["-std=gnu++17", "-fno-strict-aliasing", "-fvisibility=hidden", "-shared", "-fPIC"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]
SANITIZER_FLAGS = {
    "": ["-Og"],
    "address": ["-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-Og", "-g1", "-fsanitize=thread"],
    "host-thread": ["-Og", "-g1", "-fsanitize=thread"],
}


class LaunchError(Exception):
    """A launch that CUDA promises nothing about: divergent barriers, wrong masks, an empty grid."""


def preload(sanitizer):
    """Path of the library that must be preloaded into Python for a sanitizer."""
    name = "libasan.so" if sanitizer == "address" else "libtsan.so"
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def program(kernels, expressions):
    """A C++ file that runs these instances of a kernel source."""
    parts = ['#include "cuda_on_host.h"', kernels]
    for number, expression in enumerate(expressions):
        parts.append(
            'extern "C" __attribute__((visibility("default"))) int '
            f"launch_{number}(unsigned blocks, unsigned threads, int order, void** arguments, "
            "char* error, unsigned long nbytes) "
            f"{{ return host::launch(&{expression}, blocks, threads, (host::Order)order, "
            "arguments, error, nbytes); }"
            '\nextern "C" __attribute__((visibility("default"))) unsigned '
            f"parameters_{number}(unsigned* sizes) "
            f"{{ return host::parameter_sizes(&{expression}, sizes); }}"
        )
    return "\n".join(parts) + "\n"


@functools.cache
def _compiler_version():
    assert COMPILER is not None, "no g++ on this machine"
    command = [COMPILER, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _kept(name, made_of, compile_to):
    """The library that ``compile_to(path)`` makes, unless one was made of the same before."""
    digest = hashlib.sha256("\0".join([_compiler_version(), *made_of]).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"gpustore-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} is another user's"
    library = folder / f"{name}-{digest}.so"
    if library.exists():
        return library
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Who comes second waits instead of compiling it too.
        if library.exists():
            return library
        with (
            tempfile.TemporaryDirectory(dir=folder) as scratch,
            pytest.MonkeyPatch.context() as patch,
        ):
            # Under a sanitizer's allocator the compiler takes up to twice as long.
            patch.delenv("LD_PRELOAD", raising=False)
            made = Path(scratch) / "made.so"
            compile_to(made)
            made.rename(library)
    return library


def build(name, content, sanitizer=SANITIZER):
    """Compile a C++ text to a shared library, unless it was compiled before."""
    flags = [*_FLAGS, *_WARNINGS, *SANITIZER_FLAGS[sanitizer]]
    if sanitizer == "host-thread":
        flags.append("-DHOST_ONE_THREAD")  # Of kernels alone: both have one native core.

    def compile_to(made):
        file = made.with_name(f"{name}.cpp")
        file.write_text(content, encoding="utf-8")
        command = [COMPILER, *flags, f"-I{HERE}", str(file), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    shim = (HERE / "cuda_on_host.h").read_text(encoding="utf-8")
    return _kept(name, [content, shim, *flags], compile_to)


def build_core():
    """Compile the native core (``kernels/host/``) for the sanitizer, unless it was before."""
    root = HERE.parents[1]
    flags = [*_WARNINGS, *SANITIZER_FLAGS[SANITIZER]]

    def compile_to(made):
        hook = runpy.run_path(str(root / "hatch_build.py"))
        try:
            hook["compile_core"](made, *flags)
        except subprocess.CalledProcessError as error:
            pytest.fail(error.stderr)

    files = [root / "hatch_build.py", *sorted((root / "kernels" / "host").iterdir())]
    given = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "LDFLAGS")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return _kept("core", [*texts, *given, *flags], compile_to)


class HostModule:
    """Instances of one kernel source, compiled; the counterpart of a loaded CUDA module."""

    def __init__(self, name, kernels, expressions, sanitizer=SANITIZER):
        self._numbers = {expression: i for i, expression in enumerate(expressions)}
        self._library = ctypes.CDLL(str(build(name, program(kernels, expressions), sanitizer)))

    def launch(self, expression, blocks, arguments, *, order="forward", threads=None):
        """Run one instance.

        Parameters
        ----------
        arguments : sequence of numpy.generic or ndarray
            In the kernel's order, by value: a scalar, the bytes of an item, a uint64 address.
        order : str
            One of :data:`ORDERS`.
        threads : int, optional
            Of a block; those of the package's kernels if not given.

        Raises
        ------
        LaunchError
            See ``cuda_on_host.h``.
        """
        function, sizes = self._instance(expression)
        values = [np.ascontiguousarray(argument) for argument in arguments]
        found = [value.nbytes for value in values]
        assert found == sizes, f"{expression} takes {sizes} bytes, got {found}"
        addresses = [value.__array_interface__["data"][0] for value in values]
        pointers = (ctypes.c_void_p * len(sizes))(*addresses)
        error = ctypes.create_string_buffer(512)
        failed = function(
            ctypes.c_uint(blocks),
            ctypes.c_uint(threads or instance.THREADS_PER_BLOCK),
            ctypes.c_int(ORDERS.index(order)),
            pointers,
            error,
            ctypes.c_ulong(len(error)),
        )
        if failed:
            raise LaunchError(error.value.decode())

    @functools.cache  # noqa: B019  modules are kept as long as the process
    def _instance(self, expression):
        """The function that launches an instance, and the bytes of its parameters."""
        number = self._numbers[expression]
        sizes = (ctypes.c_uint * 16)()
        count = getattr(self._library, f"parameters_{number}")(sizes)
        return getattr(self._library, f"launch_{number}"), sizes[:count]


@functools.cache
def load(family):
    """All instances of one family of the package."""
    return HostModule(family, source.flatten(family), instance.INSTANCES[family])
