"""The oracle process, shared by the tests of this folder."""

import pytest

import gpustore
from tests.index_space.parity import outcome
from tests.tensorstore_process import TensorStoreProcess


@pytest.fixture(scope="session")
def oracle():
    oracle = TensorStoreProcess("tests.index_space.parity")
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def same(oracle):
    """Assert that a program has the same outcome in both libraries; return it."""

    def check(program):
        expected = oracle.ask(program)
        if expected is not None:
            assert outcome(gpustore, program) == expected
        return expected

    return check
