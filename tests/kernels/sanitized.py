"""Run Python with kernels and native core compiled for a sanitizer, which it must preload.

``python -m tests.kernels.sanitized address -q tests/kernels``; or ``thread``, or ``host-thread``
(``host_build.py``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.emulator import host_build

_FORKING = """
import json, os, sys, traceback

setup, pieces, folder = json.load(sys.stdin)
exec(setup)
for number, piece in enumerate(pieces):
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{folder}/{number}.txt", os.O_WRONLY | os.O_CREAT), 2)
        status = 1
        try:
            exec(piece)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def environment(sanitizer):
    """Variables with which Python runs such kernels."""
    return {
        "KERNEL_SANITIZER": sanitizer,
        "LD_PRELOAD": host_build.preload(sanitizer),
        "PYTHONMALLOC": "malloc",  # Python's own allocator has no bounds that a sanitizer knows.
        # Tests ask for more memory than there is, and expect NumPy to say so. To note the thirty
        # callers of each allocation would take a fifth of the time; reports have two of them.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=2",
        # No second of waiting at the end of each process.
        "TSAN_OPTIONS": "halt_on_error=1:allocator_may_return_null=1:die_after_fork=0:"
        "atexit_sleep_ms=0:"
        f"suppressions={Path(__file__).with_name('thread_sanitizer.supp')}",
    }


def run_each(sanitizer, setup, pieces, folder):
    """Run each piece of code behind `setup` in a process of its own, with a sanitizer.

    What takes long, the imports of `setup`, is done once. Returns the exit status of each, which is
    negative after a signal, and what it wrote to standard error, by way of files in `folder`.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKING],
        input=json.dumps([setup, pieces, str(folder)]),
        env=os.environ | environment(sanitizer),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    statuses = [int(line) for line in done.stdout.splitlines()]
    texts = [(folder / f"{number}.txt").read_text() for number in range(len(pieces))]
    return list(zip(statuses, texts, strict=True))


def main():
    sanitizer, *arguments = sys.argv[1:]
    os.environ |= environment(sanitizer)
    # A report goes to the standard error itself, which pytest must not keep for later.
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "--capture=sys", *arguments])


if __name__ == "__main__":
    main()
