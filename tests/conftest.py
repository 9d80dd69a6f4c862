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


def pytest_collection_modifyitems(config, items):
    """Leave out what takes minutes, unless it was asked for: ``pytest -m long``."""
    if "long" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
