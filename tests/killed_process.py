"""Processes that die at a counted moment: at, or in the middle of, a call that changes files.

Counted are the calls by which a process, the native core or TensorStore writes, renames, shortens,
or removes files (``killed_process.cpp``). The same number meets the same call wherever one thread
writes, on however slow a machine.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator import host_build

needs_compiler = pytest.mark.skipif(
    host_build.COMPILER is None and not os.environ.get("KERNELS_MUST_RUN"), reason="no g++"
)


def deaths(module, *arguments, kills, most, seed):
    """Run a module whose children die, one after the other; yield the number of each that did.

    Each dies at one of the first `most` moments. The moments follow the arguments, and the module
    calls :func:`in_dying_child` for each.
    """
    moments = random.Random(seed).choices(range(1, most + 1), k=kills)
    with start(module, *arguments, *moments) as process:
        for number in range(kills):
            assert process.stdout.readline() == f"{int(signal.SIGKILL)}\n"
            yield number
            process.stdin.write("go on\n")
            process.stdin.flush()
        process.communicate(timeout=60)
    assert process.returncode == 0


def start(module, *arguments):
    """Start a module that can call :func:`die_at_moment`."""
    content = Path(__file__).with_suffix(".cpp").read_text(encoding="utf-8")
    library = host_build.build("killed_process", content, sanitizer="")
    preloaded = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "LD_PRELOAD": preloaded},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_dying_child(work):
    """Let a child work until it dies; report its death, and wait until somebody has looked."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(1)
    print(os.WTERMSIG(os.waitpid(pid, 0)[1]), flush=True)
    sys.stdin.readline()


def die_at_moment(number):
    """Let this process kill itself at the `number`-th moment from now on."""
    ctypes.CDLL(None).die_at_moment(ctypes.c_long(int(number)))
