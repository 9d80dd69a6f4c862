"""Random programs of calls, run with gpustore and with TensorStore; see :mod:`machine`."""

import importlib

import pytest

import gpustore
from tests.programs.machine import difference
from tests.tensorstore_process import TensorStoreProcess

KINDS = {"kvstores": 200}
"""Module of each kind of programs, with the number of them that take less than a second."""

LONG = 2000
BATCH = 50  # The pipe to TensorStore's process holds as many.


@pytest.mark.parametrize("kind", KINDS)
def test_programs_do_what_they_do_with_tensorstore(kind):
    compare(kind, range(KINDS[kind]))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_more_programs_do_what_they_do_with_tensorstore(kind):
    compare(kind, range(KINDS[kind], LONG))


def compare(kind, seeds):
    module = importlib.import_module(f"tests.programs.{kind}")
    process = TensorStoreProcess(module.__name__)
    try:
        for start in range(seeds.start, seeds.stop, BATCH):
            compare_batch(module, process, range(start, min(start + BATCH, seeds.stop)))
    finally:
        process.close()


def compare_batch(module, process, seeds):
    """Run a few programs with both libraries at a time."""
    programs = [module.drawn(seed) for seed in seeds]
    process.send(programs)
    ours = [module.outcome(gpustore, program) for program in programs]
    theirs = process.receive(len(programs))
    for seed, program, one, other in zip(seeds, programs, ours, theirs):
        assert other is not None, f"program {seed} ends the process with TensorStore: {program}"
        at = difference(one, other)
        assert at is None, (
            f"program {seed}, step {at}: {program}\nours: {one[at]}\ntheirs: {other[at]}"
        )
