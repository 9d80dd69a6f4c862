"""Runs pytest once for each line of standard input, in a process forked from this one.

This process has imported the packages that take long to import, with their sanitizer if it has one.
A line is a JSON list: variables of the environment, the file for all that is printed, the arguments
of pytest. The answer is a line with the exit status, which is negative after a signal.
"""

import json
import os
import resource
import sys

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


def _run(variables, printed, arguments):
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    os.environ |= variables
    file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    status = pytest.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main():
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                _run(*json.loads(line))
            finally:
                os._exit(pytest.ExitCode.INTERNAL_ERROR)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
