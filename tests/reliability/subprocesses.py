"""Starts ``worker.py``."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def start(*arguments):
    """A running worker with pipes to its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.worker", *map(str, arguments)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments, timeout=200):
    """What a worker printed; it must succeed."""
    with start(*arguments) as worker:
        try:
            out, err = worker.communicate(timeout=timeout)
        finally:
            worker.kill()
    assert worker.returncode == 0, err
    return out
