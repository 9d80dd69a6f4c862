"""Lets the kernels under test be others: ``KERNEL_FOLDER`` holds changed copies of them."""

import os
from pathlib import Path

import pytest

from gpustore.device_kernels import source


@pytest.fixture(autouse=True, scope="session")
def _changed_kernels():
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get("KERNEL_FOLDER"):
            patch.setattr(source, "folder", lambda: Path(folder))
        yield
