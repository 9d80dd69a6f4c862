"""Many cases in one test, and the choice of cells."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies

from tests.matrix import SHARE, chosen, chosen_tests, each, is_property, share


@each("letter", "ab")
@each("number, word", [(1, "one"), pytest.param(2, "two", id="second")])
def tried(seen, letter, number, word):
    seen.append((letter, number, word))
    assert "two" not in word, "no more than one"


def test_all_cases_of_a_product_are_tried_and_those_that_fail_named(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "maxfail", 0)
    seen = []
    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases of tried") as caught:
        tried(request=request, seen=seen)
    assert seen == [(a, n, w) for a in "ab" for n, w in ((1, "one"), (2, "two"))]
    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes == [["Case 1 of 4: letter='a', second"], ["Case 3 of 4: letter='b', second"]]


def test_one_failure_is_enough_if_it_ends_the_session(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "maxfail", 1)
    seen = []
    with pytest.raises(AssertionError):
        tried(request=request, seen=seen)
    assert seen == [("a", 1, "one"), ("a", 2, "two")]


def test_one_failure_is_itself(request):
    @each("number", range(3), ids="xyz")
    def fails_once(number):
        assert number != 1

    with pytest.raises(AssertionError) as caught:
        fails_once(request=request)
    assert caught.value.__notes__ == ["Case 1 of 3: y"]


@each("number", range(3))
def test_each_case_has_a_folder_and_patches_of_its_own(tmp_path, monkeypatch, number):
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert not hasattr(pytest, "patched_here")
    monkeypatch.setattr(pytest, "patched_here", number, raising=False)


def test_skipped_cases_are_not_hidden_by_others(request):
    @each("number", range(3))
    def skips(least, number):
        if number >= least:
            pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        skips(request=request, least=0)
    with pytest.raises(pytest.fail.Exception, match="1 of 3 cases would be skipped unseen"):
        skips(request=request, least=2)


@pytest.mark.parametrize(
    "cases",
    [[], [pytest.param(1, marks=pytest.mark.slow)], [(1, 2)]],
    ids=["none", "marked", "of another number of values"],
)
def test_cases_that_would_not_be_tried_as_written_are_refused(cases):
    with pytest.raises((TypeError, ValueError)):
        each("a, b, c", cases)


def test_names_are_those_of_parameters():
    with pytest.raises(TypeError, match="does not take"):
        each("other", [1])(lambda number: None)


def configured(matrix, markexpr=""):
    return SimpleNamespace(option=SimpleNamespace(matrix=matrix, markexpr=markexpr))


def test_a_tenth_of_the_cells_is_chosen_and_again_with_the_same_seed():
    cells = [f"cell {index}" for index in range(100)]
    first = chosen(cells, configured("7"), "name")
    assert len(first) == 10 == -(-100 // SHARE)
    assert first == sorted(set(first), key=cells.index)
    assert first == chosen(cells, configured("7"), "name")
    assert first != chosen(cells, configured("8"), "name")
    assert first != chosen(cells, configured("7"), "other name")
    sessions = [chosen(cells, configured(str(seed)), "name") for seed in range(100)]
    assert {cell for session in sessions for cell in session} == set(cells)


@pytest.mark.parametrize("config", [configured("whole"), configured("7", "long")])
def test_whole_matrices(config):
    assert chosen(range(10), config, "name") == list(range(10))


def test_two_sessions_try_each_cell_once():
    cells = list(range(100))
    for seed in range(20):
        first, others = (chosen(cells, configured(f"{kind}{seed}"), "a") for kind in ("", "not-"))
        assert (len(first), sorted(first + others)) == (10, cells)
    assert chosen(cells, configured("not-19", "long"), "a") == others
    assert chosen([0], configured("not-19"), "a") == []


def test_a_test_is_chosen_by_its_own_name():
    items = [SimpleNamespace(nodeid=f"tests/test_a.py::test_{i}") for i in range(600)]
    some = items[::7]
    for seed in range(20):
        here, there = (chosen_tests(ones, configured(str(seed)), "a") for ones in (items, some))
        assert there == [item for item in here if item in some]
        assert 30 < len(here) < 100
        others = chosen_tests(some, configured(f"not-{seed}", "long"), "a")
        assert sorted(map(id, there + others)) == sorted(map(id, some))
    assert chosen_tests(items, configured("7", "long"), "a") == items
    assert [len(chosen_tests([one], configured("7"), "a")) for one in items] == [1] * 600


def test_a_tenth_of_the_examples_is_tried(request):
    seen = chosen(range(9), request.config, "")
    assert share(200) == (20 if len(seen) == -(-9 // SHARE) else 200)


@given(strategies.none())
def test_properties_are_known(value):
    assert value is None
    assert is_property(test_properties_are_known)
    assert is_property(test_a_tenth_of_the_examples_is_tried)
    assert not is_property(test_two_sessions_try_each_cell_once)


def test_numbers_of_examples_are_asked_for_where_they_are_seen():
    """In tests and their decorators, or by number: a session of the other cells repeats those."""
    seen = 0
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "matrix.py" or not re.search(
            r"\b(share|run_state_machine_as_test)\(", text
        ):
            continue
        known = set()
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                is_test = node.name.startswith("test_")
                for part in [node] if is_test else node.decorator_list:
                    known.update(ast.walk(part))
            elif isinstance(node, ast.Assign) and "Machine.settings = " in ast.unparse(node):
                known.update(ast.walk(node))
        for node in ast.walk(tree):
            name = node.func.id if isinstance(node, ast.Call) and hasattr(node.func, "id") else ""
            if name == "share" or name == "run_state_machine_as_test":
                by_number = "max_examples" in ast.unparse(node)
                assert node in known or by_number, f"{path}:{node.lineno}"
                seen += 1
    assert seen > 10


@pytest.mark.matrix
@pytest.mark.parametrize("cell", range(9))
def test_a_session_has_a_tenth_of_the_tests(cell, request):
    items = request.session.items
    tests = [item for item in items if getattr(item, "function", None) is request.function]
    assert len(tests) <= len(chosen(range(9), request.config, ""))


def check_named(request):
    """All tests of one name in the session are those that their names choose."""
    marks = [(item, item.get_closest_marker("matrix")) for item in request.session.items]
    named = [item for item, mark in marks if mark and mark.args == ("named",)]
    assert request.node in named
    assert named == chosen_tests(named, request.config, "named")


@pytest.mark.matrix("named")
@pytest.mark.parametrize("cell", range(5))
def test_a_session_has_a_tenth_of_the_tests_of_one_name(cell, request):
    check_named(request)


@pytest.mark.matrix("named")
@pytest.mark.parametrize("cell", range(4))
def test_other_tests_of_one_name_are_cells_of_the_same_matrix(cell, request):
    check_named(request)


@pytest.mark.matrix
def test_a_session_has_a_tenth_of_the_cells_of_one_test(request):
    seen = []
    each("cell", range(9))(lambda cell: seen.append(cell))(request=request)
    assert seen == chosen(range(9), request.config, request.node.nodeid)
