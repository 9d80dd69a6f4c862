"""Lets the kernels under test be others: ``KERNEL_FOLDER`` holds changed copies of them."""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from gpustore.device.kernels import source


@pytest.hookimpl(trylast=True)
def pytest_configure():
    if os.environ.get("KERNEL_FOLDER"):
        # That a changed kernel fails is all that is asked: no simpler example is looked for.
        settings.register_profile("changed", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("changed")


def pytest_collection_modifyitems(config, items):
    """Of changed kernels the quick tests run first: one that fails is enough.

    A tenth of a property's examples takes less than that of a matrix, all of them take longer.
    """
    if os.environ.get("KERNEL_FOLDER"):
        is_tenth = config.option.matrix == "0"
        kinds = ("axes", "hypothesis") if is_tenth else ("hypothesis", "callspec")
        items.sort(key=lambda item: [hasattr(item.obj, k) or hasattr(item, k) for k in kinds])


@pytest.fixture(autouse=True, scope="session")
def _changed_kernels():
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get("KERNEL_FOLDER"):
            patch.setattr(source, "folder", lambda: Path(folder))
        yield
