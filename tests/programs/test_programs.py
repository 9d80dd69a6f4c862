"""Random programs of calls, run with gpustore and with TensorStore; see :mod:`machine`.

Programs of which TensorStore's process dies are passed over.
"""

import pytest

import gpustore
from tests.matrix import share
from tests.programs import kinds
from tests.programs.machine import difference
from tests.tensorstore_process import TensorStoreProcess

SHORT = 200
LONG = 2000

ATTEMPTS = 3
"""Times that TensorStore runs a program: its transactions end a little later than their Futures."""

BATCH = 50  # The pipe to TensorStore's process holds as many.


@pytest.fixture(scope="module")
def process():
    process = TensorStoreProcess(kinds.__name__)
    yield process
    process.close()


@pytest.mark.parametrize("kind", kinds.DRAWN)
def test_programs_do_what_they_do_with_tensorstore(kind, process):
    compare(kind, process, range(share(SHORT)))


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds.DRAWN)
def test_more_programs_do_what_they_do_with_tensorstore(kind, process):
    compare(kind, process, range(SHORT, LONG))


def compare(kind, process, seeds):
    for start in range(seeds.start, seeds.stop, BATCH):
        batch = range(start, min(start + BATCH, seeds.stop))
        programs = [kinds.drawn(kind, seed) for seed in batch]
        ours, theirs = run_both(process, programs)
        for seed, program, one, other in zip(batch, programs, ours, theirs, strict=True):
            check(process, seed, program, one, other)


def run_both(process, programs):
    """Run a few programs with both libraries at a time."""
    theirs = []
    process.send(programs)
    ours = [kinds.outcome(gpustore, program) for program in programs]
    while len(theirs := theirs + process.receive(len(programs) - len(theirs))) < len(programs):
        process.send(programs[len(theirs) :])
    return ours, theirs


def check(process, seed, program, ours, theirs):
    for _ in range(ATTEMPTS):
        at = None if theirs is None else difference(ours, theirs)
        if at is None:
            return
        theirs = process.ask(program)
    raise AssertionError(
        f"program {seed}, step {at}: {program}\nours: {ours[at]}\ntheirs: {theirs[at]}"
    )
