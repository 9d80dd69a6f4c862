"""Each process of pytest-xdist begins to collect at another folder of the tests.

In a new clone all of them would otherwise compile the same file at the same time, again and again.
The tests that they have collected are in one order, as pytest-xdist needs it.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
_place = {}
"""What lies in the folder of the tests, in pytest's order."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and collector.path == HERE:
        parts = report.result
        _place.update((part.path, place) for place, part in enumerate(parts))
        number = int(worker["workerid"].removeprefix("gw"))
        first = len(parts) * number // worker["workercount"]
        report.result = [*parts[first:], *parts[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    if _place:
        items.sort(key=_place_of)


def _place_of(item):
    return next(
        (_place[node.path] for node in item.listchain() if node.path in _place), len(_place)
    )
