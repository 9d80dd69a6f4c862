"""Tests of the counters."""

import ast
import threading
from pathlib import Path

from gpustore.statistics import COUNTERS, STATISTICS, Statistics

PACKAGE = Path(__file__).parents[1] / "gpustore"


def test_counts_reach_all_ancestors():
    process = Statistics()
    store = Statistics(process)
    one, two = Statistics(store), Statistics(store)
    one.add(reads=1, copies=2)
    two.add(reads=1, waits=0)
    assert process.snapshot() == store.snapshot() == {"copies": 2, "reads": 2}
    assert two.snapshot() == {"reads": 1}
    assert (one["copies"], two["copies"], two["launches"]) == (2, 0, 0)
    assert repr(one) == "Statistics({'copies': 2, 'reads': 1})"


def test_reset_returns_what_was_counted():
    parent = Statistics()
    child = Statistics(parent)
    child.add(reads=3)
    assert child.reset() == {"reads": 3}
    assert child.snapshot() == {}
    assert parent["reads"] == 3


def test_many_threads_lose_nothing():
    total = Statistics()
    parts = [Statistics(total) for _ in range(4)]

    def count(part):
        for _ in range(2000):
            part.add(reads=1, bytes_fetched=10)

    threads = [threading.Thread(target=count, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.snapshot() == {"bytes_fetched": 80000, "reads": 8000}


def test_process_counter_exists():
    assert isinstance(STATISTICS, Statistics)


def test_package_uses_only_counters_that_are_explained():
    unknown = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "add"
                and node.keywords
            ):
                names = {keyword.arg for keyword in node.keywords}
                unknown += [f"{path.name}: {name}" for name in sorted(names - COUNTERS.keys())]
    assert unknown == []
