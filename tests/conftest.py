"""Settings that hold for every test."""

import os

import pytest
from hypothesis import settings

# The same examples on every machine; a failure is repeated by running the test again.
settings.register_profile("gpustore", derandomize=True, deadline=None, database=None)
settings.load_profile("gpustore")


@pytest.fixture(autouse=True, scope="session")
def _own_environment():
    """Variables with which a developer tunes gpustore must not change what the tests see."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("GPUSTORE_"):
                patch.delenv(name)
        yield
