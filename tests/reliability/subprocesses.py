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


def run_together(workers):
    """Let running workers begin at the same time, and wait for all of them; each must succeed."""
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            _, err = worker.communicate(timeout=3000)
            assert worker.returncode == 0, err
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
