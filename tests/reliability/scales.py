"""Two sizes of one test."""

import pytest


def scales(short, long):
    """Parameters: `short` in every run, `long`, a soak test, with ``pytest -m long``."""
    marks = [pytest.mark.long, pytest.mark.soak, pytest.mark.timeout(3600)]
    return [pytest.param(short, id="short"), pytest.param(long, id="long", marks=marks)]
