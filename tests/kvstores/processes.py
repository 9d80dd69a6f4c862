"""Processes that begin at the same moment."""

import subprocess
import sys

__all__ = ["run_together"]


def run_together(*commands, timeout=200):
    """Run Python with each command once all have said that they are ready; all must succeed."""
    workers = [
        subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for command in commands
    ]
    for worker in workers:
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=timeout)
        assert worker.returncode == 0
