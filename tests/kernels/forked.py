"""Runs tests of kernels for several numbers of mutants, each in a process forked from this one.

This process has imported the packages that take long to import, with their sanitizer if it has one.
A line of standard input is a JSON list: a folder, numbers, arguments of pytest. A fork of this
process collects the tests once, which are then run in a fork of that one for each number, as
``KERNEL_MUTANT`` in its environment. Each prints to a file in the folder, ``NUMBER.txt``.
The answer is a line with the exit statuses, which are negative after a signal; of none if the tests
cannot be collected, as ``pytest.txt`` in the folder tells.
"""

import json
import os
import resource
import sys
from pathlib import Path

import hypothesis
import numcodecs
import numpy as np
import pytest

from gpustore.device.kernels import launch
from tests import snappy
from tests.emulator import device

IMPORTED = (device, hypothesis, launch, np, numcodecs, snappy)
MAX_CPU_S = 60
"""Seconds of the processor after which a run has hung."""


class _Forks:
    """Plugin of pytest that runs what was collected once for each number."""

    def __init__(self, folder, numbers):
        self._folder = folder
        self._numbers = numbers
        self.statuses = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self):
        for number in self._numbers:
            _flush()
            child = os.fork()
            if not child:
                resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
                os.environ["KERNEL_MUTANT"] = str(number)
                _print_to(self._folder / f"{number}.txt")
                self.statuses = None
                return None  # Pytest goes on, and runs them.
            self.statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return True


def _print_to(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _flush():
    sys.stdout.flush()
    sys.stderr.flush()


def _run(answer, folder, numbers, arguments):
    _print_to(folder / "pytest.txt")
    forks = _Forks(folder, numbers)
    status = pytest.main(arguments, plugins=[forks])
    _flush()
    if forks.statuses is None:  # The fork of a number.
        os._exit(status)
    os.write(answer, json.dumps(forks.statuses).encode() + b"\n")


def main():
    for line in sys.stdin:
        folder, numbers, arguments = json.loads(line)
        child = os.fork()
        if not child:
            try:
                _run(os.dup(1), Path(folder), numbers, arguments)
                os._exit(0)
            finally:
                os._exit(pytest.ExitCode.INTERNAL_ERROR)
        if os.waitpid(child, 0)[1]:
            print("[]", flush=True)


if __name__ == "__main__":
    main()
